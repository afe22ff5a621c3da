"""Stage 1: thoughts deepened, action split from speech, layouts varied, by minimal edits.

A long conversation is edited in windows, each with the edited turns before it to read. An
answer is taken only whole: every turn that was asked for, its speech word for word, its tags
closed. Layouts that vary too little are asked for once more and then taken, but listed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

from data_pipeline.asking import question as asking
from data_pipeline.asking.question import Answer, Job, Rejected
from data_pipeline.synthesis import ask, checks, layouts, prepare, prompts, recovery
from data_pipeline.synthesis.ask import Fault
from data_pipeline.synthesis.stage import Guide, Outcome
from her_jax.llm.client import Sampling
from her_jax.roleplay import grammar
from her_jax.roleplay.layouts import longest_run
from her_jax.roleplay.schema import Trajectory, Turn

NAME = "role_thinking"


@dataclasses.dataclass(frozen=True)
class Settings:
  """How turns are edited.

  Attributes:
    window: turns edited in one call; `context` of those before it are shown.
    most_changed: the share of spoken words that may be lost or added, rounded down.
    most_moved: the share of spoken words that may become an action.
    most_growth: how many times as long as before a reply may get, beside `growth_free` signs.
    rare: layouts that a request names as to be preferred.
  """

  sampling: Sampling = Sampling()
  input_tokens: int = 30_000
  window: int = 24
  context: int = 6
  most_changed: float = 0.05
  most_moved: float = 0.5
  most_growth: float = 2.0
  growth_free: int = 600
  rare: int = 6
  tries: int = 2


@dataclasses.dataclass(frozen=True)
class Edit:
  """What a model made of one turn."""

  text: str
  layout: str
  reason: str


@dataclasses.dataclass(frozen=True)
class _Result:
  """The turns of a conversation after all its windows."""

  edits: Mapping[str, Edit]
  faults: tuple[Fault, ...]


@dataclasses.dataclass(frozen=True)
class RoleThinking:
  """Stage 1; see `stage.Stage`."""

  settings: Settings
  count: ask.Counter = prompts.estimated_tokens
  name: str = NAME
  folder: str = "stage_1"

  def fingerprint(self) -> dict[str, Any]:
    return {"prompts": prompts.version(NAME), **dataclasses.asdict(self.settings)}

  def guide(self, used: Mapping[str, int]) -> dict[str, Any]:
    """The layouts used so far, which all conversations of a block are steered by."""
    return {"used": dict(used)}

  def jobs(self, scene: Trajectory, guide: Guide) -> Iterator[Job[Any]]:
    yield self._edit(scene, guide)

  def finish(self, scene: Trajectory, results: Sequence[Any]) -> Outcome:
    (result,) = results
    turns, used = [], Counter[str]()
    for turn in scene.turns:
      edit = result.edits.get(prepare.key_of(turn))
      if edit:
        turn = dataclasses.replace(
          prepare.with_notes(turn, original=turn.reply, layout=edit.layout, reason=edit.reason),
          reply=edit.text,
        )
      elif turn.speaker != scene.environment:
        turn = _flagged(turn, "not_edited")
      turns.append(turn)
      if turn.speaker != scene.environment:
        used[grammar.parse(turn.reply).layout()] += 1
    counts = Counter(units=1 + (len(_own(scene)) - 1) // self.settings.window)
    counts["turns edited"] = len(result.edits)
    made = dataclasses.replace(scene, turns=tuple(turns))
    return Outcome(made, result.faults, counts, used)

  def _edit(self, scene: Trajectory, guide: Guide) -> Job[_Result]:
    turns = list(scene.turns)
    edits: dict[str, Edit] = {}
    faults: list[Fault] = []
    places = _windows(turns, scene.environment, self.settings.window)
    for number, (start, end) in enumerate(places):
      unit = ask.unit_of(NAME, scene.id, str(number))
      window = turns[start:end]
      context = turns[max(0, start - self.settings.context) : start]
      answer = yield from self._ask(unit, scene, context, window, guide, number)
      if answer.value is None:
        faults.append(Fault(unit, scene.id, answer.cause, answer.message))
        continue
      made, complaint = answer.value
      if complaint:
        faults.append(Fault(unit, scene.id, complaint.cause, complaint.detail, kept=True))
      edits |= made
      for i in range(start, end):
        if edit := made.get(prepare.key_of(turns[i])):
          turns[i] = dataclasses.replace(turns[i], reply=edit.text)
    return _Result(edits, tuple(faults))

  def _ask(
    self,
    unit: str,
    scene: Trajectory,
    context: Sequence[Turn],
    window: Sequence[Turn],
    guide: Guide,
    number: int,
  ) -> Job[Answer[tuple[dict[str, Edit], Rejected | None]]]:
    language, own = scene.language, _own_turns(window, scene.environment)
    texts = prompts.wording(language)[NAME]
    used = guide.shared["used"]
    rare = layouts.targets(used, self.settings.rare, guide.place + number)
    least = layouts.least_different(len(own))
    before = ""
    if context:
      before = f"{texts['before']}\n{prompts.fence('BEFORE', prompts.dialogue(context))}\n\n"
    user = prompts.fill(
      texts["user"],
      setting=prompts.fence("SETTING", prompts.all_sheets(scene)),
      before=before,
      dialogue=f"{texts['dialogue']}\n{prompts.fence('DIALOGUE', prompts.dialogue(window))}",
      ids=", ".join(map(prepare.key_of, own)),
      rare=", ".join(rare),
      often=", ".join(layouts.too_often(used)) or "–",
    )
    system = prompts.fill(texts["system"], least=least)
    messages = ask.conversation(system, user)
    if ask.too_long(messages, language, self.settings.input_tokens, self.count):
      limit = self.settings.input_tokens
      return Answer(cause="too_long", message=f"more than {limit} tokens of input")
    last = [grammar.parse(t.reply).layout() for t in _own_turns(context, scene.environment)]

    def strict(text: str, _: str) -> tuple[dict[str, Edit], Rejected | None]:
      edits = self.read(text, own)
      if complaint := varied(last, [edits[prepare.key_of(t)].layout for t in own], least):
        raise complaint
      return edits, None

    def lenient(text: str, _: str) -> tuple[dict[str, Edit], Rejected | None]:
      edits = self.read(text, own)
      return edits, varied(last, [edits[prepare.key_of(t)].layout for t in own], least)

    again = ask.again_suffix(guide.again.get(unit, 0))
    question = ask.question(
      unit + again, NAME, language, messages, self.settings.sampling, strict, lenient
    )
    return (yield from asking.ask(question, self.settings.tries))

  def read(self, text: str, turns: Sequence[Turn]) -> dict[str, Edit]:
    """The edits of an answer, one a turn, by the turn's key.

    Raises:
      Rejected: the answer is not one edit for each of `turns`, or one of them goes too far.
      recovery.Unrecoverable: it is no JSON that can be read.
    """
    rows = recovery.json_object(text, "turns")["turns"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
      raise Rejected("malformed", "turns is no list of objects")
    by_key: dict[str, Mapping[str, Any]] = {}
    for row in rows:
      key = str(row.get("turn", "")).strip()
      if key in by_key:
        raise Rejected("turns", f"turn {key} stands twice")
      by_key[key] = row
    wanted = [prepare.key_of(turn) for turn in turns]
    if lacking := [key for key in wanted if key not in by_key]:
      raise Rejected("turns", f"turn {lacking[0]} is missing")
    if foreign := [key for key in by_key if key not in wanted]:
      raise Rejected("turns", f"turn {foreign[0][:40]} was not asked for")
    pairs = zip(wanted, turns, strict=True)
    return {key: self._edit_of(turn, by_key[key]) for key, turn in pairs}

  def _edit_of(self, turn: Turn, row: Mapping[str, Any]) -> Edit:
    key, text, reason = prepare.key_of(turn), row.get("text"), row.get("reason")
    if not isinstance(text, str) or not text.strip():
      raise Rejected("bad_tags", key)
    if not isinstance(reason, str) or not reason.strip():
      raise Rejected("no_reason", key)
    text = text.strip()
    parsed = grammar.parse(text, turn.speaker)
    if parsed.speaker:  # The name in front is the renderer's.
      parsed = dataclasses.replace(parsed, speaker=None)
      text = grammar.render(parsed).strip()
    if parsed.status != "ok" or parsed.plan is not None or parsed.is_empty:
      raise Rejected("bad_tags", key)
    old = grammar.parse(turn.reply)
    if not set(old.layout()) - {"S"} <= set(parsed.layout()):
      raise Rejected("layer_lost", key)
    change = checks.speech_change(old, parsed, turn.speaker)
    allowed = int(self.settings.most_changed * change.total)
    moved = int(self.settings.most_moved * change.total)
    if change.lost > allowed or change.added > allowed or change.moved > moved:
      raise Rejected("speech_changed", key)
    if len(text) > self.settings.most_growth * len(turn.reply) + self.settings.growth_free:
      raise Rejected("too_much", key)
    return Edit(text, parsed.layout(), " ".join(reason.split()))


def varied(before: Sequence[str], made: Sequence[str], least: int) -> Rejected | None:
  """What is wrong with the layouts of a window's turns, or None.

  Args:
    before: layouts of the turns in front of the window: a run goes on from there.
    least: how many different ones there have to be.
  """
  tail = list(before)[-layouts.LONGEST_RUN :]
  layout, run = longest_run([*tail, *made])
  if run > layouts.LONGEST_RUN:
    return Rejected("layout_run", f"{layout} × {run}")
  if len(set(made)) < least:
    return Rejected("few_layouts", f"{len(set(made))} < {least}")
  return None


def _windows(turns: Sequence[Turn], environment: str, size: int) -> list[tuple[int, int]]:
  """Stretches with at most `size` turns of characters, and at least one, in equal parts."""
  own = [i for i, turn in enumerate(turns) if turn.speaker != environment]
  if not own:
    return []
  number = 1 + (len(own) - 1) // size
  cuts = [own[round(k * len(own) / number)] for k in range(number)]
  cuts[0] = 0
  return list(zip(cuts, [*cuts[1:], len(turns)], strict=True))


def _own_turns(turns: Sequence[Turn], environment: str) -> list[Turn]:
  return [turn for turn in turns if turn.speaker != environment]


def _own(scene: Trajectory) -> list[Turn]:
  return _own_turns(scene.turns, scene.environment)


def _flagged(turn: Turn, flag: str) -> Turn:
  flags = turn.extra.get("her", {}).get("flags", [])
  return prepare.with_notes(turn, flags=[*(f for f in flags if f != flag), flag])
