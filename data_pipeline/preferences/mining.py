r"""Mines principles: asks why winners won, clusters the reasons, and drafts what a person edits.

    python -m data_pipeline.preferences.mining --pairs=out/labelled.jsonl --scenes=scenes.jsonl \
        --out=out/principles --backend=endpoint --model=teacher …

    python -m data_pipeline.preferences.mining --reasons=out/principles/reasons.jsonl \
        --out=out/again --clusters=15                                          (no model is asked)

For each pair with a winner the teacher gives three to five reasons. Reasons that say the same
letter by letter, whatever their case, marks and names, are one; those of a language are clustered,
each cluster once more, and each part becomes a candidate. In the folder are then

    reasons.jsonl       every reason
    candidates.jsonl    drafts in the form of roleplay/principles.jsonl, the largest first
    report.json         counts, silhouettes, clusters with exemplars, what is near the library
    calls.jsonl         the journal, by which a run that was killed goes on

A draft's names and definitions are empty, and `her` holds what to write them from: exemplars,
terms, size, and the principles of the library that say much the same. A person fills in those
worth keeping, deletes the rest and adds the lines to the library, which refuses empty ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import os
import sys
from typing import Any

from absl import app, flags

from data_pipeline.asking.runner import Runner
from data_pipeline.files import whole_file
from data_pipeline.preferences import clusters, inputs, llm_flags, reasons
from data_pipeline.preferences.inputs import Refused, Scenes
from data_pipeline.preferences.reasons import Reason, Unique
from her_jax.errors import ConfigError
from her_jax.llm.client import Sampling
from her_jax.llm.guarded import Guarded
from her_jax.roleplay import principles, schema
from her_jax.roleplay.principles import Principle
from her_jax.roleplay.schema import DataError, PreferencePair, Trajectory

_BLOCK = 512  # Pairs that are worked on at a time.
_EXEMPLARS = 5


@dataclasses.dataclass(frozen=True)
class Settings:
  """How reasons become candidates.

  Attributes:
    clusters: their number; 0 for that of the largest silhouette, up to `most`.
    per_cluster: candidates of one cluster at most.
    least: so often must a candidate's reasons have been given; rarer ones are counted alone.
    near: similarity from which a candidate is called a near-duplicate of a library principle.
  """

  library: Mapping[str, Principle]
  clusters: int = 0
  most: int = 20
  per_cluster: int = 8
  least: int = 3
  near: float = 0.35
  seed: int = 0

  def __post_init__(self) -> None:
    if min(self.most, self.per_cluster, self.least) < 1 or self.clusters < 0:
      raise ConfigError(
        "most_clusters, per_cluster and least must be above 0 and clusters not below; they are"
        f" {self.most}, {self.per_cluster}, {self.least}, {self.clusters}"
      )


def ask(
  paths: Sequence[str],
  scenes: Scenes,
  runner: Runner,
  sampling: Sampling,
  out: str,
  refused: Refused,
  limit: int = 0,
) -> Counter[str]:
  """Writes the reasons for each pair with a winner to `out`; returns the counts.

  Args:
    limit: pairs that are asked about; 0: all.

  Raises:
    DataError: a pair is broken or does not fit its scene.
    Stopped: no further call can succeed; the file is not written.
  """

  def fitting(row: Mapping[str, Any]) -> tuple[PreferencePair, Trajectory]:
    pair = schema.pair_from_dict(row)
    known = {pair.scene: scenes[pair.scene]} if pair.scene in scenes else {}
    schema.check_pair(pair, known)
    return pair, known[pair.scene]

  counts: Counter[str] = Counter()
  rows = (row for _, row in inputs.placed_rows(paths, fitting, refused))
  decided: Iterator[tuple[PreferencePair, Trajectory]] = (
    row for row in rows if _has_winner(row[0], counts)
  )
  if limit:
    decided = itertools.islice(decided, limit)
  with whole_file(out) as f:
    for block in iter(lambda: list(itertools.islice(decided, _BLOCK)), []):
      answers = runner.ask([reasons.question(pair, scene, sampling) for pair, scene in block])
      for (pair, scene), answer in zip(block, answers, strict=True):
        counts["pairs asked"] += 1
        texts: Iterable[str] = answer.value or ()
        if answer.value is None:
          counts[f"pairs without reasons: {answer.cause}"] += 1
        for reason in reasons.rows(pair, scene.language, texts):
          counts["reasons"] += 1
          inputs.write_row(f, reason)
  return counts


def _has_winner(pair: PreferencePair, counts: Counter) -> bool:
  counts["pairs that are ties, not asked"] += pair.winner == "tie"
  return pair.winner != "tie"


def mine(
  found: Iterable[Reason], settings: Settings
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  """The drafts, largest first, and the report."""
  drafts: list[dict[str, Any]] = []
  languages: dict[str, Any] = {}
  for language, uniques in reasons.unique(found).items():
    made, languages[language] = _mine_language(uniques, language, settings)
    drafts += made
  drafts.sort(key=lambda row: (-row["her"]["count"], row["id"]))
  near = sum(bool(row["her"]["near"]) for row in drafts)
  return drafts, {"candidates": len(drafts), "near_the_library": near, "languages": languages}


def _mine_language(
  uniques: Sequence[Unique], language: str, settings: Settings
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  texts = [reasons.normal(entry.text) for entry in uniques]
  found = clusters.cluster(
    texts, language, settings.seed, settings.most, settings.clusters,
    [float(entry.count) for entry in uniques],
  )  # fmt: skip
  groups: list[tuple[int, list[int]]] = []
  for number in range(found.count):
    groups += [
      (number, part) for part in _parts(texts, found.members(number), language, settings)
    ]
  total = sum(entry.count for entry in uniques)
  rare = 0
  drafts: list[dict[str, Any]] = []
  said = (
    clusters.terms(texts, [part for _, part in groups], language)
    if _speaks(texts, language)
    else []
  )
  for at, (number, part) in enumerate(groups):
    count = sum(uniques[i].count for i in part)
    if count < settings.least:
      rare += count
      continue
    drafts.append(
      _draft(
        f"mined-{language}-{number}-{len(drafts)}",
        {
          "language": language, "cluster": number, "count": count,
          "share": round(count / total, 4), "different": len(part),
          "terms": said[at] if said else [],
          "exemplars": [uniques[i].text for i in part[:_EXEMPLARS]],
          "pairs": list(dict.fromkeys(p for i in part for p in uniques[i].pairs))[:_EXEMPLARS],
        },
      )
    )  # fmt: skip
  _compare(drafts, language, settings)
  report = {
    "reasons": total,
    "different": len(uniques),
    "clusters": [
      {
        "cluster": number,
        "different": len(members),
        "count": sum(uniques[i].count for i in members),
        "exemplars": [uniques[i].text for i in members[:_EXEMPLARS]],
      }
      for number in range(found.count)
      if (members := found.members(number))
    ],
    "silhouettes": found.silhouettes,
    "candidates": len(drafts),
    "reasons_in_candidates_too_rare": rare,
  }
  return drafts, report


def _parts(
  texts: Sequence[str], members: Sequence[int], language: str, settings: Settings
) -> list[list[int]]:
  """A cluster's candidates: parts of it where those are apart, next to their middle first."""
  if settings.per_cluster == 1 or len(members) < 2 * settings.least:
    return [list(members)]
  most = min(settings.per_cluster, len(members) // settings.least)
  found = clusters.cluster([texts[i] for i in members], language, settings.seed, most)
  return [[members[i] for i in found.members(part)] for part in range(found.count)]


def _speaks(texts: Sequence[str], language: str) -> bool:
  try:
    clusters.vectorizer(language).fit(texts)
  except ValueError:  # Nothing but stop words.
    return False
  return True


def _draft(name: str, her: dict[str, Any]) -> dict[str, Any]:
  """A line in the form of the library that the library refuses until a person has filled it in."""
  empty = {"name": "", "definition": ""}
  return {
    "id": name, "dimension": "", "level": "", "polarity": "",
    "en": dict(empty), "zh": dict(empty), "her": her,
  }  # fmt: skip


def _compare(drafts: Sequence[dict[str, Any]], language: str, settings: Settings) -> None:
  """Notes which principles of the library a draft is near to, and proposes their dimension."""
  library = list(settings.library.values())
  if not drafts or not library:
    return
  mine = [" ".join(map(reasons.normal, row["her"]["exemplars"])) for row in drafts]
  theirs = [reasons.normal(f"{p.names[language]} {p.definitions[language]}") for p in library]
  for row, cosines in zip(drafts, clusters.similarity(mine, theirs, language), strict=True):
    order = sorted(range(len(library)), key=lambda i: (-cosines[i], library[i].id))[:3]
    her = row["her"]
    her["nearest"] = [[library[i].id, round(float(cosines[i]), 3)] for i in order]
    her["near"] = [library[i].id for i in order if cosines[i] >= settings.near]
    if cosines[order[0]] > 0:
      her["dimension_of_nearest"] = library[order[0]].dimension


def run(
  found: str, out: str, settings: Settings, counts: Mapping[str, int], refused: Refused
) -> dict[str, Any]:
  """Mines a file of reasons into the folder `out`; returns the report.

  Raises:
    DataError: the reasons are faulty, or there are none.
  """
  rows = (
    reason for _, reason in inputs.placed_rows([found], reasons.reason_from_dict, refused)
  )
  drafts, mined = mine(rows, settings)
  with whole_file(os.path.join(out, "candidates.jsonl")) as f:
    for draft in drafts:
      inputs.write_row(f, draft)
  report = {"counts": dict(sorted(counts.items())), **mined, "refused": refused.as_dict()}
  inputs.write_report(os.path.join(out, "report.json"), report)
  return report


def text_of(drafts_report: Mapping[str, Any]) -> str:
  """The report for people."""
  lines = [f"{count:8} {name}" for name, count in drafts_report["counts"].items()]
  for language, told in drafts_report["languages"].items():
    lines.append(
      f"{language}: {told['reasons']} reasons, {told['different']} different,"
      f" {len(told['clusters'])} clusters, {told['candidates']} candidates"
    )
    lines += [f"{row['count']:8} {row['exemplars'][0]}" for row in told["clusters"]]
  lines.append(f"{drafts_report['near_the_library']} of the candidates are near a principle")
  return "\n".join(lines)


if __name__ == "__main__":
  _PAIRS = flags.DEFINE_list("pairs", [], "Files of labelled pairs")
  _SCENES = flags.DEFINE_list("scenes", [], "Files of scenes, for --pairs")
  _REASONS = flags.DEFINE_string("reasons", "", "File of reasons, instead of --pairs")
  _OUT = flags.DEFINE_string("out", None, "Folder to write into", required=True)
  _LIBRARY = flags.DEFINE_string("library", "", "File of principles; empty: the shipped one")
  _CLUSTERS = flags.DEFINE_integer("clusters", 0, "0: by the silhouette", 0)
  _MOST = flags.DEFINE_integer("most_clusters", 20, "At most, by the silhouette", 1)
  _PER_CLUSTER = flags.DEFINE_integer("per_cluster", 8, "Candidates of a cluster at most", 1)
  _LEAST = flags.DEFINE_integer("least", 3, "Times a candidate's reasons were given", 1)
  _NEAR = flags.DEFINE_float("near", 0.35, "Similarity of near-duplicates", 0.0, 1.0)
  _LIMIT = flags.DEFINE_integer("limit", 0, "Pairs to ask about; 0: all", 0)
  _TEMPERATURE = flags.DEFINE_float("temperature", 0.7, "Of sampling", 0.0)
  _MAX_TOKENS = flags.DEFINE_integer("max_tokens", 2048, "Of a reply", 1)
  _SEED = flags.DEFINE_integer("seed", 0, "Of the clusters")
  _LENIENT = flags.DEFINE_bool("lenient", False, "Count faulty lines and leave them out")
  _CLIENT = llm_flags.define()

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"what is {argv[1]!r}? Pass --pairs or --reasons, and --out=FOLDER.")
    refused, client = Refused(_LENIENT.value), None
    try:
      if bool(_PAIRS.value) == bool(_REASONS.value) or (_PAIRS.value and not _SCENES.value):
        raise ConfigError("pass --pairs with --scenes, or --reasons alone")
      library = principles.load(_LIBRARY.value) if _LIBRARY.value else principles.library()
      settings = Settings(
        library, _CLUSTERS.value, _MOST.value, _PER_CLUSTER.value, _LEAST.value, _NEAR.value,
        _SEED.value,
      )  # fmt: skip
      found, counts = _REASONS.value, Counter[str]()
      if _PAIRS.value:
        found = os.path.join(_OUT.value, "reasons.jsonl")
        client = _CLIENT(os.path.join(_OUT.value, "calls.jsonl"))
        counts = ask(
          _PAIRS.value, Scenes(_SCENES.value, refused), Runner(Guarded(client)),
          Sampling(_TEMPERATURE.value, 0.9, _MAX_TOKENS.value), found, refused, _LIMIT.value,
        )  # fmt: skip
      report = run(found, _OUT.value, settings, counts, refused)
    except (DataError, ConfigError, OSError) as error:
      sys.exit(f"mining: {error}")
    for line in refused.lines:
      print(f"left out: {line}", file=sys.stderr)
    print(text_of(report))
    if client is not None:
      print(client.report.table())

  app.run(main)
