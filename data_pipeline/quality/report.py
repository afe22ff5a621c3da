"""What a file's flags come to: counts, shares and examples, as a dict and as tables."""

from collections import Counter
import dataclasses
import random
from typing import Any

from data_pipeline.quality.flags import MEANINGS, NAMES, Flag
from data_pipeline.quality.scan import Scanned
from her_jax.roleplay.schema import Trajectory

# Flags of the plan alone are shares of the turns that have one.
_OF_PLANS = ("reply_in_plan", "plan_first_person")
_AROUND = 60  # characters shown on each side of the evidence
_LONGEST = 120  # of the evidence itself


@dataclasses.dataclass(frozen=True)
class Example:
  """A flag as a report shows it: where it is, and the evidence with what stands around it."""

  scene: str
  line: int
  turn: int
  speaker: str
  field: str
  before: str
  evidence: str
  after: str
  why: str


class Report:
  """Gathers scanned scenes; its size does not depend on how many.

  Attributes:
    turns: the flagged turns by name; `scenes` are the scenes with at least one.
    examples: of each flag so many, drawn evenly from all (Vitter's algorithm R), the same in
      every run.
  """

  def __init__(self, examples: int = 3):
    self.scene_count = 0
    self.turn_count = 0
    self.plan_count = 0
    self.clean_scenes = 0
    self.turns: Counter[str] = Counter()
    self.scenes: Counter[str] = Counter()
    self.languages: Counter[str] = Counter()
    self.unreadable: list[str] = []
    self.unreadable_count = 0
    self.examples: dict[str, list[Example]] = {name: [] for name in NAMES}
    self._most = examples
    self._rng = random.Random(0)

  def add(self, scanned: Scanned) -> None:
    scene = scanned.scene
    self.scene_count += 1
    self.turn_count += len(scene.turns)
    self.plan_count += sum(bool(turn.plan) for turn in scene.turns)
    self.languages[scene.language] += 1
    self.clean_scenes += not scanned.flags
    self.turns.update(flag.name for flag in scanned.flags)
    self.scenes.update({flag.name for flag in scanned.flags})
    seen = Counter(self.turns)
    seen.subtract(flag.name for flag in scanned.flags)
    for flag in scanned.flags:
      seen[flag.name] += 1
      self._keep(flag, scanned, seen[flag.name])

  def reject(self, problem: str) -> None:
    """Counts a line that is no scene, and keeps the first ten of them."""
    self.unreadable_count += 1
    if len(self.unreadable) < 10:
      self.unreadable.append(problem)

  def _keep(self, flag: Flag, scanned: Scanned, number: int) -> None:
    kept = self.examples[flag.name]
    if len(kept) < self._most:
      kept.append(example(flag, scanned.scene, scanned.line))
    elif (place := self._rng.randrange(number)) < self._most:
      kept[place] = example(flag, scanned.scene, scanned.line)

  def share(self, name: str) -> float | None:
    """Flagged turns of those that can have the flag; None where there are none."""
    of = self.plan_count if name in _OF_PLANS else self.turn_count
    return self.turns[name] / of if of else None

  def as_dict(self) -> dict[str, Any]:
    return {
      "scenes": self.scene_count,
      "turns": self.turn_count,
      "plans": self.plan_count,
      "languages": dict(self.languages),
      "clean_scenes": self.clean_scenes,
      "unreadable": {"lines": self.unreadable_count, "first": self.unreadable},
      "flags": {
        name: {
          "meaning": MEANINGS[name],
          "turns": self.turns[name],
          "scenes": self.scenes[name],
          "share": self.share(name),
          "of": "plans" if name in _OF_PLANS else "turns",
          "examples": [dataclasses.asdict(e) for e in self.examples[name]],
        }
        for name in NAMES
      },
    }


def example(flag: Flag, scene: Trajectory, line: int) -> Example:
  turn = scene.turns[flag.turn]
  text = turn.plan if flag.field == "plan" else turn.reply
  evidence = flag.evidence
  if len(evidence) > _LONGEST:
    evidence = f"{evidence[: _LONGEST // 2]} … {evidence[-_LONGEST // 2 :]}"
  before, after = text[max(0, flag.start - _AROUND) : flag.start], text[flag.end :][:_AROUND]
  return Example(
    scene.id, line, flag.turn, turn.speaker, flag.field, before, evidence, after, flag.why
  )


def text_of(report: Report, name: str) -> str:
  """The report as a table with examples, for a terminal or a log."""
  told = (
    f"{name}: {report.scene_count} scenes, {report.turn_count} turns,"
    f" {report.plan_count} plans; {report.clean_scenes} scenes without a flag"
  )
  lines = [told]
  if report.unreadable_count:
    lines.append(f"{report.unreadable_count} lines are no scenes, among them:")
    lines += [f"  {problem}" for problem in report.unreadable[:3]]
  lines += ["", f"{'flag':26}{'turns':>8}{'scenes':>8}{'share':>9}  of     meaning"]
  for flag in NAMES:
    share, of = report.share(flag), "plans" if flag in _OF_PLANS else "turns"
    shown = "–" if share is None else f"{share:.2%}"
    lines.append(
      f"{flag:26}{report.turns[flag]:8}{report.scenes[flag]:8}{shown:>9}"
      f"  {of:6} {MEANINGS[flag]}"
    )
  for flag in NAMES:
    for e in report.examples[flag]:
      where = f"line {e.line}, {e.scene}, turn {e.turn} ({e.speaker}), {e.field}: {e.why}"
      quoted = f"…{e.before}»{e.evidence}«{e.after}…"
      lines += ["", f"{flag}: {where}", "  " + " ".join(quoted.split())]
  return "\n".join(lines)
