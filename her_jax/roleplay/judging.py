"""The pairwise judge: its prompt, the judgement it is taught, and reading its verdict.

A judgement names the principles that decide this case, says for each who breaks it and who
wins by it, and ends in one line:

    - Stays in character: cand_2 breaks it, winner cand_1
    - Answers the scene: both hold, winner tie
    Verdict: cand_1
"""

from collections.abc import Sequence
import dataclasses
import re

from transformers import PreTrainedTokenizerBase

from her_jax.roleplay import chat, grammar, principles
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import Trajectory

_SYSTEM = {
  "en": (
    "Compare two replies of one character. Name the principles that decide, say who breaks"
    " each, then give the verdict: cand_1, cand_2 or tie."
  ),
  "zh": (
    "比较同一角色的两个回应。列出起决定作用的原则，说明谁违反，最后给出裁决："
    "cand_1、cand_2 或 tie。"
  ),
}
_WORDS = {
  "en": {
    "character": "Character",
    "scenario": "Scene",
    "dialogue": "Dialogue",
    "breaks": "{who} breaks it",
    "both_break": "both break it",
    "both_hold": "both hold",
    "winner": "winner",
  },
  "zh": {
    "character": "角色",
    "scenario": "场景",
    "dialogue": "对话",
    "breaks": "{who} 违反",
    "both_break": "双方违反",
    "both_hold": "双方遵守",
    "winner": "胜者",
  },
}
_FENCE = re.compile(r"<\s*(/?)\s*candidate_(\d)\s*>", re.IGNORECASE)
_VERDICT = re.compile(r"^\W*verdict\s*[:：]\s*(cand_1|cand_2|tie)\W*$", re.IGNORECASE)
_COMPARISON = re.compile(
  r"^-\s*(?P<name>[^:：]+)[:：].*\b(?:winner|胜者)\s*(?P<winner>cand_1|cand_2|tie)\W*$"
)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What a judgement says.

  Attributes:
    winner: "cand_1", "cand_2", "tie", or None where no verdict could be read (missing, never
      a lost comparison).
    status: "ok", "unparsed", "truncated" (cut off) or "too long" (the prompt did not fit).
    principles: (name, winner) for each comparison line, in order.
    text: the whole judgement as it was written.
  """

  winner: str | None
  status: str
  principles: tuple[tuple[str, str], ...] = ()
  text: str = ""


def swap(winner: str | None) -> str | None:
  """The same verdict with the candidates in the other order."""
  return {"cand_1": "cand_2", "cand_2": "cand_1"}.get(winner or "", winner)


def candidate_text(completion: str, name: str) -> str:
  """What the judge sees of a completion: no plan, no name prefix, thoughts kept."""
  return grammar.parse(completion, name).view_for("judge")


def context_text(
  trajectory: Trajectory, turn: int, history: int | None = None, variant: Variant = chat.DEFAULT
) -> str:
  """Character, scene and the last `history` turns (all if None) before `turn`.

  In the style "brief" the character is only named, and the dialogue is all of the scene.
  """
  words = _WORDS[trajectory.language]
  character = trajectory.character(trajectory.turns[turn].speaker)
  first = 0 if history is None else max(0, turn - history)
  lines = []
  for past in trajectory.turns[first:turn]:
    # The judge reads what the character itself could: its own thoughts, not the others'.
    viewer = "judge" if past.speaker == character.name else "other"
    lines.append(f"{past.speaker}: {grammar.parse(past.reply).view_for(viewer)}")
  if variant.style not in ("brief", "name"):
    parts = [
      f"# {words['character']}\n{character.name}: {character.profile}",
      f"# {words['scenario']}\n{trajectory.scenario}",
    ]
  else:
    parts = [f"# {words['character']}\n{character.name}"]
  if lines:
    parts.append(f"# {words['dialogue']}\n" + "\n".join(lines))
  return "\n".join(parts) + "\n"


def candidates_text(candidate_1: str, candidate_2: str) -> str:
  """Both candidates, fenced; fences inside a candidate are defused."""
  fenced = []
  for number, text in enumerate((candidate_1, candidate_2), 1):
    defused = _FENCE.sub(r"(\1candidate \2)", text)
    fenced.append(f"<candidate_{number}>\n{defused}\n</candidate_{number}>")
  return "\n".join(fenced)


def context_ids(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  history: int | None = None,
  variant: Variant = chat.DEFAULT,
) -> list[int]:
  """The part of the judge's prompt that both orders of a pair share."""
  return [
    *chat.message("system", _SYSTEM[trajectory.language], tokenizer),
    *chat.open_message("user", tokenizer),
    *chat.encode_text(context_text(trajectory, turn, history, variant), tokenizer),
  ]


def candidates_ids(
  candidate_1: str, candidate_2: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
  """The rest of the prompt, up to where the judgement begins."""
  return [
    *chat.encode_text(candidates_text(candidate_1, candidate_2), tokenizer),
    chat.control_id(chat.IM_END, tokenizer),
    *chat.encode_text("\n", tokenizer),
    *chat.open_message("assistant", tokenizer),
  ]


def judgement_text(
  violates_1: Sequence[str], violates_2: Sequence[str], also: Sequence[str], language: str
) -> str:
  """The judgement that follows from known violations.

  Args:
    violates_1: ids of the principles that candidate 1 breaks; likewise `violates_2`.
    also: ids of principles that both keep, to be named beside the deciding ones.
  """
  words, library = _WORDS[language], principles.library()
  lines = []
  for principle in dict.fromkeys([*violates_1, *violates_2, *also]):
    one, two = principle in violates_1, principle in violates_2
    if one == two:
      finding, winner = words["both_break"] if one else words["both_hold"], "tie"
    else:
      finding = words["breaks"].format(who="cand_1" if one else "cand_2")
      winner = "cand_2" if one else "cand_1"
    name = library[principle].names[language]
    lines.append(f"- {name}: {finding}, {words['winner']} {winner}")
  verdict = decide(violates_1, violates_2)
  return "\n".join([*lines, f"Verdict: {verdict}"])


def decide(violates_1: Sequence[str], violates_2: Sequence[str]) -> str:
  """The winner by violations: who breaks fewer principles; equal counts are a tie."""
  one, two = len(set(violates_1)), len(set(violates_2))
  return "tie" if one == two else "cand_1" if one < two else "cand_2"


def parse_verdict(text: str) -> Verdict:
  """Reads the last valid verdict line; thinking blocks do not count.

  Example:
    parse_verdict("- Is vivid: cand_1 breaks it, winner cand_2\\nVerdict: cand_2").winner
    == "cand_2"
  """
  said = re.sub(r"<think>.*?(</think>|\Z)", "", text, flags=re.DOTALL | re.IGNORECASE)
  winner, found = None, []
  for line in said.splitlines():
    if verdict := _VERDICT.match(line.strip()):
      winner = verdict[1].lower()
    elif comparison := _COMPARISON.match(line.strip()):
      found.append((comparison["name"].strip(), comparison["winner"]))
  return Verdict(winner, "ok" if winner else "unparsed", tuple(found), text)
