"""Two judgements of a pair, one for each order of its candidates, as one label."""

from collections.abc import Mapping, Sequence
import dataclasses
import re

from her_jax.roleplay import judging
from her_jax.roleplay.judging import Verdict, swap
from her_jax.roleplay.principles import Principle
from her_jax.roleplay.schema import Finding

_WINNER_AT_END = re.compile(r"[\s,，;；.。]*\b(?:winner|胜者)\s*(?:cand_[12]|tie)\W*$")
_ANALYSIS = re.compile(
  r"^[\W_]*(?:analysis|分析)[\W_]*?[:：][\s*_]*(?P<text>.+)$", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Told:
  """What the teacher said of one order; winners are of the order that it saw."""

  winner: str
  findings: tuple[Finding, ...]
  analysis: str = ""
  problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Label:
  """A pair's label.

  Attributes:
    winner: "cand_1", "cand_2" or "tie".
    principles: (id, winner) of every principle that was named in either order; where the orders
      differ it is a tie.
    verdicts: of both orders, in the pair's own.
    agreement: "same", "opposite" (each order has another winner) or "half" (one is a tie).
    flipped: principles of which the orders named different winners.
  """

  winner: str
  principles: tuple[tuple[str, str], ...]
  verdicts: tuple[str, str]
  agreement: str
  flipped: tuple[str, ...] = ()


class Names:
  """Which principle a judgement means by a name; its id counts as well."""

  def __init__(self, library: Mapping[str, Principle]):
    self._ids = {p.id.casefold(): p.id for p in library.values()}
    for principle in library.values():
      self._ids |= {name.casefold(): principle.id for name in principle.names.values()}

  def find(self, name: str) -> str | None:
    """The id, or None for a principle that is not in the library."""
    return self._ids.get(" ".join(name.split()).strip("*_`\"'“”「」《》[]").casefold())


def told(text: str, names: Names) -> tuple[Told | None, str]:
  """Reads a finished judgement; without a verdict there is None, and why.

  A principle that is named twice with different winners is a tie.
  """
  verdict = judging.parse_verdict(text)
  if verdict.winner is None:
    return None, verdict.status
  evidence = _evidence(text, verdict)
  found: dict[str, Finding] = {}
  for (name, winner), shown in zip(verdict.principles, evidence, strict=True):
    principle = names.find(name) or name
    if principle in found:
      earlier = found[principle]
      winner = winner if winner == earlier.winner else "tie"
      shown = " ".join(filter(None, (earlier.evidence, shown)))
    found[principle] = Finding(principle, winner, shown)
  analysis = [m["text"] for line in text.splitlines() if (m := _ANALYSIS.match(line.strip()))]
  return (
    Told(verdict.winner, tuple(found.values()), "".join(analysis[-1:]), verdict.problems),
    "",
  )


def _evidence(text: str, verdict: Verdict) -> list[str]:
  """What stands between name and winner of each comparison, in order.

  The lines are those that the parser has read: a think block, which holds drafts of them, ends
  before the last `len(verdict.principles)` of those in the text.
  """
  lines = []
  for line in text.splitlines():
    found = judging.parse_verdict(line, finished=False).principles
    if found:
      rest = re.split(r"[:：]", line.strip(), maxsplit=1)[1]
      lines.append((found[0], _WINNER_AT_END.sub("", rest).strip()))
  shown: list[str] = []
  for comparison in reversed(verdict.principles):
    while lines:
      said, rest = lines.pop()
      if said == comparison:
        shown.append(rest)
        break
    else:
      shown.append("")
  return shown[::-1]


def combine(first: Told, second: Told) -> Label:
  """One label of both orders; `second` saw candidate 2 first.

  A judge that always says "first" contradicts itself, and the label is a tie.
  """
  verdicts = (first.winner, swap(second.winner) or second.winner)
  named: dict[str, list[str]] = {}
  for finding in first.findings:
    named.setdefault(finding.principle, []).append(finding.winner)
  for finding in second.findings:
    named.setdefault(finding.principle, []).append(swap(finding.winner) or finding.winner)
  principles = tuple((p, w[0] if len(set(w)) == 1 else "tie") for p, w in named.items())
  flipped = tuple(p for p, w in named.items() if set(w) >= {"cand_1", "cand_2"})
  if verdicts[0] == verdicts[1]:
    agreement = "same"
  else:
    agreement = "half" if "tie" in verdicts else "opposite"
  winner = verdicts[0] if agreement == "same" else "tie"
  return Label(winner, principles, verdicts, agreement, flipped)


def broken(
  principles: Sequence[tuple[str, str]], library: Mapping[str, Principle]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Ids of the principles that candidate 1 and candidate 2 break.

  Who loses by a negative principle has broken it; by a positive one nobody breaks anything.
  """
  negative = [
    (p, w) for p, w in principles if p in library and library[p].polarity == "negative"
  ]
  return (
    tuple(p for p, w in negative if w == "cand_2"),
    tuple(p for p, w in negative if w == "cand_1"),
  )


def class_of(winner: str, principles: Sequence[tuple[str, str]]) -> str:
  """How a pair's principles stand to its label.

  "tie" (the label), "all" (every one for the winner), "flipped" (those that decide are all for
  the loser), "mixed" (not all on one side, see `judging.Verdict.is_mixed`), "undecided" (there
  are none, or all are ties, and yet there is a winner).

  Example:
    class_of("cand_1", [("vivid", "cand_1"), ("own-voice", "tie")]) == "mixed"
  """
  if winner == "tie":
    return "tie"
  sides = {w for _, w in principles}
  if sides <= {"tie"}:
    return "undecided"
  if sides - {"tie"} == {swap(winner)}:
    return "flipped"
  return "mixed" if len(sides) > 1 else "all"
