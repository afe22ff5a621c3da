"""Stage 3: facts added to sheets and scenario, each with a quote that really stands in the source.

A fact is added where the dialogue shows it, the sheets lack it and the passage supports it.
Both quotes are looked up; names and figures have to stand in what is quoted from. What fails
is dropped and counted, and the rest of the answer is taken.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import re
from typing import Any

from data_pipeline.asking import question as asking
from data_pipeline.asking.question import Answer, Job, Rejected
from data_pipeline.synthesis import ask, checks, prepare, prompts, recovery
from data_pipeline.synthesis.ask import Fault
from data_pipeline.synthesis.stage import Guide, Outcome
from her_jax.llm.client import Sampling
from her_jax.roleplay import grammar
from her_jax.roleplay.schema import Character, Trajectory

NAME = "setting"
SCENARIO = "scenario"
_FIELDS = (*prompts.FIELDS, SCENARIO)
_SENTENCE_START = re.compile(r"(?:^|[.!?…:;]['\"’”)]*\s+|[\"“‘(]\s*)(\w+)")
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
_NAMED = re.compile(rf"\b[A-Z][\w'’-]*\w|{_FIGURE.pattern}")


@dataclasses.dataclass(frozen=True)
class Settings:
  """How sheets are completed.

  Attributes:
    passage_share: of the input that the passage may take; of a longer one the beginning is shown.
    shortest_quote_en: words that a quote must have; `shortest_quote_zh` signs.
    longest: characters of one addition.
    said: the share of its words in a field from which on that field says it already.
  """

  sampling: Sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=8192)
  input_tokens: int = 30_000
  passage_share: float = 0.6
  shortest_quote_en: int = 4
  shortest_quote_zh: int = 6
  longest: int = 400
  said: float = 0.8
  tries: int = 2


@dataclasses.dataclass(frozen=True)
class Addition:
  """A fact for a character's field, or for the scenario, with its two proofs."""

  character: str
  field: str
  text: str
  quote: str
  turn: str
  shown: str

  def note(self) -> dict[str, str]:
    """As `extra["her"]["settings_added"]` keeps it."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class _Result:
  additions: tuple[Addition, ...] = ()
  dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
  fault: Fault | None = None
  asked: bool = True


@dataclasses.dataclass(frozen=True)
class SettingCompletion:
  """Stage 3; see `stage.Stage`."""

  settings: Settings
  count: ask.Counter = prompts.estimated_tokens
  name: str = NAME
  folder: str = "stage_3"

  def fingerprint(self) -> dict[str, Any]:
    return {"prompts": prompts.version(NAME), **dataclasses.asdict(self.settings)}

  def guide(self, used: Mapping[str, int]) -> dict[str, Any]:
    return {}

  def jobs(self, scene: Trajectory, guide: Guide) -> Iterator[Job[Any]]:
    yield self._complete(scene, guide)

  def finish(self, scene: Trajectory, results: Sequence[Any]) -> Outcome:
    (result,) = results
    counts = Counter(units=int(result.asked))
    counts["without a passage"] = int(not result.asked)
    counts["facts added"] = len(result.additions)
    counts.update({f"fact dropped: {cause}": n for cause, n in result.dropped.items()})
    made = applied(scene, result.additions) if result.additions else scene
    return Outcome(made, (result.fault,) if result.fault else (), counts)

  def _complete(self, scene: Trajectory, guide: Guide) -> Job[_Result]:
    passage = str(scene.extra.get("her", {}).get("passage", "") or "").strip()
    if not passage:
      return _Result(asked=False)
    unit, texts = ask.unit_of(NAME, scene.id, "0"), prompts.wording(scene.language)[NAME]
    # What is not shown can't be quoted: the proof is looked up in what the model has read.
    passage = self._cut(passage, scene.language)
    user = prompts.fill(
      texts["user"],
      sheets=f"{texts['sheets']}\n{prompts.fence('SHEETS', prompts.all_sheets(scene))}",
      dialogue=f"{texts['dialogue']}\n"
      + prompts.fence("DIALOGUE", prompts.dialogue(scene.turns)),
      passage=f"{texts['passage']}\n{prompts.fence('PASSAGE', passage)}",
    )
    messages = ask.conversation(texts["system"], user)
    if ask.too_long(messages, scene.language, self.settings.input_tokens, self.count):
      limit = f"more than {self.settings.input_tokens} tokens of input"
      return _Result(fault=Fault(unit, scene.id, "too_long", limit))
    again = ask.again_suffix(guide.again.get(unit, 0))
    question = ask.question(
      unit + again, NAME, scene.language, messages, self.settings.sampling,
      lambda text, _: self.read(text, scene, passage),
    )  # fmt: skip
    answer: Answer[_Result] = yield from asking.ask(question, self.settings.tries)
    if answer.value is None:
      return _Result(fault=Fault(unit, scene.id, answer.cause, answer.message))
    return answer.value

  def _cut(self, passage: str, language: str) -> str:
    most = int(self.settings.input_tokens * self.settings.passage_share)
    while self.count([passage], language) > most:
      passage = passage[: int(len(passage) * 0.8)].rsplit("\n", 1)[0]
    return passage

  def read(self, text: str, scene: Trajectory, passage: str) -> _Result:
    """The additions of an answer that are proven; the others by the cause they are dropped for.

    Raises:
      Rejected: the answer as a whole can't be used.
    """
    rows = recovery.json_object(text, "additions")["additions"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
      raise Rejected("malformed", "additions is no list of objects")
    taken: list[Addition] = []
    dropped: Counter[str] = Counter()
    for row in rows:
      texts = {f.name: row.get(f.name) for f in dataclasses.fields(Addition)}
      fact = Addition(
        **{n: " ".join(str("" if v is None else v).split()) for n, v in texts.items()}
      )
      cause = self._objection(fact, scene, passage, taken)
      if cause:
        dropped[cause] += 1
      else:
        taken.append(fact)
    return _Result(tuple(taken), dropped)

  def _objection(
    self, fact: Addition, scene: Trajectory, passage: str, taken: Sequence[Addition]
  ) -> str | None:
    """Why a fact is not added, or None."""
    settings, english = self.settings, scene.language == "en"
    if fact.field not in _FIELDS:
      return "no such field"
    person = next((c for c in scene.characters if c.name == fact.character), None)
    if fact.field != SCENARIO and person is None:
      return "no such character"
    if not fact.text or len(fact.text) > settings.longest:
      return "empty or too long"
    shortest = settings.shortest_quote_en if english else settings.shortest_quote_zh
    if len(checks.words(fact.quote)) < shortest:
      return "quote too short"
    if not checks.stands_in(fact.quote, passage):
      return "quote not in the passage"
    turn = next((t for t in scene.turns if prepare.key_of(t) == fact.turn), None)
    heard = grammar.parse(turn.reply) if turn else None
    if turn is None or heard is None:
      return "no such turn"
    plain = " ".join(s.text for s in heard.segments)
    if len(checks.words(fact.shown)) < 2 or not (
      checks.stands_in(fact.shown, turn.reply) or checks.stands_in(fact.shown, plain)
    ):
      return "not shown by the dialogue"
    known = scene.scenario if fact.field == SCENARIO else getattr(person, fact.field)
    if said(fact.text, known) >= settings.said:
      return "already there"
    if any(said(fact.text, other.text) >= settings.said for other in taken):
      return "stands twice"
    if odd := _unsupported(fact, scene, passage):
      return f"unsupported {odd}"
    return None


def said(text: str, known: str) -> float:
  """The share of a text's words that another text has."""
  mine, theirs = set(checks.words(text)), set(checks.words(known))
  return len(mine & theirs) / len(mine) if mine else 1.0


def applied(scene: Trajectory, additions: Sequence[Addition]) -> Trajectory:
  """The scene with the facts at the end of their fields, and listed in `settings_added`."""
  gap = " " if scene.language == "en" else ""
  people: dict[str, Character] = {c.name: c for c in scene.characters}
  scenario = scene.scenario
  for fact in additions:
    if fact.field == SCENARIO:
      scenario = f"{scenario}{gap}{fact.text}"
      continue
    person = people[fact.character]
    before = getattr(person, fact.field)
    text = f"{before}{gap}{fact.text}" if before else fact.text
    people[person.name] = dataclasses.replace(person, **{fact.field: text})  # type: ignore[arg-type]
  kept = scene.extra.get("her", {})
  notes = [*kept.get("settings_added", []), *(fact.note() for fact in additions)]
  extra = {**scene.extra, "her": {**kept, "settings_added": notes}}
  return dataclasses.replace(
    scene, scenario=scenario, characters=tuple(people.values()), extra=extra
  )


def _unsupported(fact: Addition, scene: Trajectory, passage: str) -> str | None:
  """What a fact names or counts that neither source nor scene does: "name" or "figure".

  Chinese does not mark names, so that only figures are looked up there.
  """
  known = " ".join([passage, prompts.all_sheets(scene), *(t.reply for t in scene.turns)])
  have, figures = set(checks.words(known)), set(_FIGURE.findall(known))
  have |= {part for word in have for part in word.split("'")}
  # The first word of a sentence has a capital for that reason.
  plain = _SENTENCE_START.sub(lambda m: m[0].lower(), fact.text)
  for name in (_NAMED if scene.language == "en" else _FIGURE).findall(plain):
    if name[0].isdigit():
      if name not in figures:
        return "figure"
    elif not {p for word in checks.words(name) for p in word.split("'")} - {"s"} <= have:
      return "name"
  return None
