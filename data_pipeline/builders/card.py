"""The data card: what is in a data set, generated from its counts."""

from collections.abc import Mapping, Sequence
import dataclasses

from data_pipeline.builders.source import Source

_FOR = {
  "sft": "supervised fine-tuning",
  "rl": "reinforcement learning of the policy",
  "judge_sft": "supervised fine-tuning of the judge",
  "judge_rl": "reinforcement learning of the judge",
  "test": "held out for evaluation",
}
_KINDS = {
  "trajectories": "whole conversations with their plans",
  "sft_turns": "single replies with their plans",
  "rl_prompts": "places where a character is to reply, without the reply",
  "preference_pairs": "two candidate replies and which is better",
}


@dataclasses.dataclass(frozen=True)
class About:
  """What no count tells: name, licence and origin of the data."""

  name: str = "HER role-play data"
  license: str = ""
  origin: str = ""


def counts(source: Source) -> dict[str, dict[str, int]]:
  """Records by kind and split."""
  return {
    "trajectories": {p: source.conversations(p) for p in source.splits("trajectories")},
    "sft_turns": {p: source.trained[p] for p in source.splits("sft_turns")},
    "rl_prompts": {p: source.trained[p] for p in source.splits("rl_prompts")},
    "preference_pairs": {p: source.pairs(p) for p in source.splits("preference_pairs")},
  }


def markdown(source: Source, kinds: Sequence[str], about: About, how: str) -> str:
  """The card as Markdown; `how` tells how to read the data."""
  proof, found = source.proof, counts(source)
  total = sum(source.conversations(p) for p in source.purposes)
  lines = [f"# {about.name}", ""]
  if about.origin:
    lines += [about.origin, ""]
  lines += [
    f"Licence: {about.license or 'not stated; it is that of the books and texts used'}."
  ]
  lines += ["", "## Counts", ""]
  head = ("purpose", "meant for", "books", "conversations", "turns", "with a plan")
  lines += _table(head, _purposes(source))
  lines += ["", "Records:", ""]
  lines += _table(
    ("kind", "what", "split", "records"),
    [
      (kind, _KINDS[kind], split, number)
      for kind in kinds
      for split, number in found[kind].items()
    ],
  )
  languages = sorted({language for _, language in source.languages})
  shares = {
    x: sum(n for (_, language), n in source.languages.items() if language == x)
    for x in languages
  }
  told = ", ".join(f"{x} {number} ({number / total:.1%})" for x, number in shares.items())
  lines += ["", f"Languages, in conversations: {told}."]
  for reason, number in sorted(source.pair_faults.items()):
    lines += ["", f"Pairs left out: {number}, because {reason}."]
  rejected = proof.row.get("rejected") or {}
  for reason, number in rejected.items():
    lines += ["", f"Conversations left out: {number}, because of: {reason}."]
  lines += ["", "## Splits", "", *_splits(source), "", "## Reading", "", how, ""]
  return "\n".join(lines)


def _purposes(source: Source) -> list[tuple[object, ...]]:
  return [
    (
      purpose,
      _FOR[purpose],
      len(source.books[purpose]),
      source.conversations(purpose),
      source.turns[purpose],
      source.trained[purpose],
    )
    for purpose in source.purposes
  ]


def _splits(source: Source) -> list[str]:
  row = source.proof.row
  method, near = row["method"]["near_duplicates"], row["nearest"]
  joined = len(row["links"])
  lines = [
    "Split by book: no book and no conversation stands in two of them. Books that share"
    f" near-duplicate text or a title stay together ({joined} such links were found, by MinHash"
    f" with {method['bands']} bands of {method['rows']} and similarity from"
    f" {method['threshold']}).",
    "",
    f"Nearest conversations of two splits: similarity {near['similarity']:.2f}."
    if near
    else "No two conversations of two splits meet in any band.",
  ]
  if row["too_short"]:
    lines += ["", f"Too short to be compared: {row['too_short']} conversations."]
  return [*lines, "", f"Seed {row['seed']}, proof `{source.proof.seal}`."]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
  lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
  return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def header(about: About, source: Source, configs: Mapping[str, Mapping[str, str]]) -> str:
  """The YAML header by which `datasets` finds splits: config → split → file pattern."""
  languages = sorted({language for _, language in source.languages})
  lines = ["---", f"pretty_name: {_quoted(about.name)}"]
  if about.license:
    lines += [f"license: {_quoted(about.license)}"]
  lines += ["language:", *(f"- {language}" for language in languages), "configs:"]
  for i, (config, files) in enumerate(configs.items()):
    lines += [f"- config_name: {config}", *(["  default: true"] if i == 0 else [])]
    lines += ["  data_files:"]
    for split, pattern in files.items():
      lines += [f"  - split: {split}", f"    path: {_quoted(pattern)}"]
  return "\n".join([*lines, "---", ""])


def _quoted(text: str) -> str:
  escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
  return f'"{escaped}"'
