"""Stage 2: the plan of each turn, drafted forward and rewritten backward.

Forward, a reasoning model continues the scene without knowing how it went on; its own
reasoning is the draft, its turn is thrown away. Backward, the draft is rewritten with the true
turn known, so that it leads there and gives nothing of it away. Both are attached by the
turn's key, its first origin id, never by its place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

from data_pipeline.asking import question as asking
from data_pipeline.asking.question import Answer, Job, Rejected
from data_pipeline.quality import leaks
from data_pipeline.synthesis import ask, checks, prepare, prompts, recovery
from data_pipeline.synthesis.ask import Fault
from data_pipeline.synthesis.stage import Guide, Outcome
from her_jax.llm.client import Message, Sampling
from her_jax.roleplay import notations
from her_jax.roleplay.schema import Trajectory, Turn

FORWARD, BACKWARD = "forward", "backward"
SPEAKERS = ("described", "all")


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a call is given, and what of a plan is taken.

  Attributes:
    turns: of the history that a call is shown, at most; the oldest are left out.
    speakers: "described" plans for characters with a sheet, "all" for everybody who speaks.
    length_en: characters of a plan, from and to; `length_zh` signs.
    leak_run_en: words in a row of the reply that a plan may not share; `leak_run_zh` signs.
    leak_share: the share of the reply's short runs that a plan may not reach.
  """

  sampling: Sampling = Sampling()
  input_tokens: int = 30_000
  turns: int = 30
  speakers: str = "described"
  length_en: tuple[int, int] = (800, 1500)
  length_zh: tuple[int, int] = (280, 600)
  leak_run_en: int = leaks.RUN["en"]
  leak_run_zh: int = leaks.RUN["zh"]
  leak_share: float = leaks.SHARE
  tries: int = 2


@dataclasses.dataclass(frozen=True)
class _Result:
  key: str
  text: str
  fault: Fault | None
  notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Thinking:
  """What both directions share: which turns, and the prompt up to a turn."""

  settings: Settings
  count: ask.Counter = prompts.estimated_tokens

  def fingerprint(self) -> dict[str, Any]:
    return {
      "prompts": prompts.version(FORWARD, BACKWARD),
      **dataclasses.asdict(self.settings),
    }

  def guide(self, used: Mapping[str, int]) -> dict[str, Any]:
    return {}

  def planned(self, scene: Trajectory) -> list[int]:
    """The turns that get a plan."""
    told = {c.name for c in scene.characters if any(getattr(c, f) for f in prompts.FIELDS)}
    everybody = self.settings.speakers == "all"
    return [
      i
      for i, turn in enumerate(scene.turns)
      if turn.speaker != scene.environment and (everybody or turn.speaker in told)
    ]

  def _messages(
    self, scene: Trajectory, i: int, direction: str, more: Mapping[str, str]
  ) -> tuple[Message, ...] | None:
    """The prompt for turn `i` with as much history as the limits allow; None: not even none."""
    name, texts = scene.turns[i].speaker, prompts.wording(scene.language)[direction]
    sheet = prompts.fence("SHEET", prompts.sheet(scene, scene.character(name)))
    shown = min(i, self.settings.turns)
    while True:
      history = prompts.fill(texts["opening"], name=name)
      if shown:
        lines = prompts.dialogue(scene.turns[i - shown : i], name)
        history = (
          f"{prompts.fill(texts['history'], name=name)}\n{prompts.fence('HISTORY', lines)}"
        )
      values = {"name": name, "sheet": f"{texts['sheet']}\n{sheet}", "history": history}
      values |= more
      messages = ask.conversation(
        prompts.fill(texts["system"], **values), prompts.fill(texts["user"], **values)
      )
      limit = self.settings.input_tokens
      if not ask.too_long(messages, scene.language, limit, self.count):
        return messages
      if not shown:
        return None
      shown //= 2


@dataclasses.dataclass(frozen=True)
class Forward(_Thinking):
  """Drafts, into each planned turn's `extra["her"]["draft"]`; see `stage.Stage`."""

  name: str = FORWARD
  folder: str = "stage_2a"

  def jobs(self, scene: Trajectory, guide: Guide) -> Iterator[Job[Any]]:
    for i in self.planned(scene):
      yield self._draft(scene, i, guide)

  def finish(self, scene: Trajectory, results: Sequence[Any]) -> Outcome:
    by_key = {result.key: result for result in results}
    turns = []
    for turn in scene.turns:
      if result := by_key.get(prepare.key_of(turn)):
        turn = prepare.with_notes(turn, draft=result.text)
      turns.append(turn)
    counts = Counter(units=len(results), drafts=sum(bool(r.text) for r in results))
    counts["empty drafts"] = sum(not r.text and r.fault is None for r in results)
    faults = tuple(r.fault for r in results if r.fault)
    return Outcome(dataclasses.replace(scene, turns=tuple(turns)), faults, counts)

  def _draft(self, scene: Trajectory, i: int, guide: Guide) -> Job[_Result]:
    key = prepare.key_of(scene.turns[i])
    unit = ask.unit_of(FORWARD, scene.id, key)
    messages = self._messages(scene, i, FORWARD, {})
    if messages is None:
      limit = f"more than {self.settings.input_tokens} tokens without any history"
      return _Result(key, "", Fault(unit, scene.id, "too_long", limit))
    question = ask.question(
      unit + ask.again_suffix(guide.again.get(unit, 0)), FORWARD, scene.language, messages,
      self.settings.sampling, lambda _, reasoning: notations.without_tags(reasoning),
    )  # fmt: skip
    answer: Answer[str] = yield from asking.ask(question, self.settings.tries)
    if answer.value is None:
      return _Result(key, "", Fault(unit, scene.id, answer.cause, answer.message))
    return _Result(key, answer.value, None)


@dataclasses.dataclass(frozen=True)
class Backward(_Thinking):
  """Plans, into each planned turn's `plan`; see `stage.Stage`."""

  name: str = BACKWARD
  folder: str = "stage_2b"

  def jobs(self, scene: Trajectory, guide: Guide) -> Iterator[Job[Any]]:
    for i in self.planned(scene):
      yield self._plan(scene, i, guide)

  def finish(self, scene: Trajectory, results: Sequence[Any]) -> Outcome:
    by_key = {result.key: result for result in results}
    turns = []
    for turn in scene.turns:
      if result := by_key.get(prepare.key_of(turn)):
        turn = dataclasses.replace(turn, plan=result.text)
        if result.notes:
          turn = prepare.with_notes(turn, **result.notes)
      turns.append(turn)
    counts = Counter(units=len(results), plans=sum(bool(r.text) for r in results))
    drafts = {prepare.key_of(t): _draft_of(t) for t in scene.turns}
    counts["written from nothing"] = sum(bool(r.text) and not drafts[r.key] for r in results)
    faults = tuple(r.fault for r in results if r.fault)
    return Outcome(dataclasses.replace(scene, turns=tuple(turns)), faults, counts)

  def _plan(self, scene: Trajectory, i: int, guide: Guide) -> Job[_Result]:
    turn, texts = scene.turns[i], prompts.wording(scene.language)[BACKWARD]
    key, language = prepare.key_of(turn), scene.language
    unit = ask.unit_of(BACKWARD, scene.id, key)
    draft = _draft_of(turn)
    shortest, longest = self._length(language)
    reply = prompts.fill(texts["reply"], name=turn.speaker)
    more = {
      "draft": f"{texts['draft']}\n{prompts.fence('DRAFT', draft)}"
      if draft
      else texts["no_draft"],
      "reply": f"{reply}\n{prompts.fence('TURN', turn.reply)}",
      "shortest": str(shortest),
      "longest": str(longest),
    }
    messages = self._messages(scene, i, BACKWARD, more)
    if messages is None:
      limit = f"more than {self.settings.input_tokens} tokens without any history"
      return _Result(key, "", Fault(unit, scene.id, "too_long", limit))
    known = self._known(scene, i)
    question = ask.question(
      unit + ask.again_suffix(guide.again.get(unit, 0)), BACKWARD, language, messages,
      self.settings.sampling, lambda text, _: self.read(text, turn, known, language),
    )  # fmt: skip
    answer = yield from asking.ask(question, self.settings.tries)
    if answer.value is None:
      return _Result(key, "", Fault(unit, scene.id, answer.cause, answer.message))
    plan, overlap = answer.value
    return _Result(key, plan, None, {"overlap": round(overlap.share, 4)})

  def read(
    self, text: str, turn: Turn, known: str, language: str
  ) -> tuple[str, checks.Overlap]:
    """The plan of an answer, and what it shares with the turn.

    Raises:
      Rejected: it is empty, too short or long, gives the turn away, or is in the first person.
      recovery.Unrecoverable: it holds no plan, or two.
    """
    plan = recovery.tagged(text, "plan")
    if not plan:
      raise Rejected("empty")
    if notations.without_tags(plan) != plan:
      raise Rejected("malformed", "a tag within the plan")
    shortest, longest = self._length(language)
    if len(plan) < shortest:
      raise Rejected("too_short", str(len(plan)))
    if len(plan) > longest:
      raise Rejected("too_long", str(len(plan)))
    overlap = checks.overlap(plan, turn.reply, known, language)
    most = self.settings.leak_run_en if language == "en" else self.settings.leak_run_zh
    if overlap.run >= most or overlap.share >= self.settings.leak_share:
      raise Rejected("leak", overlap.words)
    # After the leak: a line that is given away may itself speak of "us".
    if word := checks.first_person(plan, language):
      raise Rejected("first_person", word)
    return plan, overlap

  def _length(self, language: str) -> tuple[int, int]:
    return self.settings.length_en if language == "en" else self.settings.length_zh

  def _known(self, scene: Trajectory, i: int) -> str:
    """What stands in the scene before the turn: its words are no secret of the reply."""
    name = scene.turns[i].speaker
    history = [t.reply for t in scene.turns[max(0, i - self.settings.turns) : i]]
    return "\n".join([prompts.sheet(scene, scene.character(name)), *history])


def _draft_of(turn: Turn) -> str:
  return turn.extra.get("her", {}).get("draft", "")
