"""What the readers of `formats` share: characters, plans and turns out of a row's fields."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any

from her_jax.roleplay import grammar, notations
from her_jax.roleplay.schema import ENVIRONMENT, Character, DataError, Trajectory, Turn

Row = Mapping[str, Any]

# What a field is called elsewhere; of several in one row the first counts.
_SPELLINGS = {
  field: tuple(f"{name}{end}" for name in names for end in ("_enriched", ""))
  for field, names in {
    "profile": ("profile", "character_profile"),
    "background": ("background",),
    "motivation": ("motivation", "thought"),
    "description": ("description",),
    "experience": ("experience", "summary"),
  }.items()
}
_ALL_SPELLINGS = {spelling for all_ in _SPELLINGS.values() for spelling in all_}


class People:
  """Characters gathered from the several lists of a row."""

  def __init__(self, origin: str):
    self._origin = origin
    self._found: dict[str, dict[str, Any]] = {}

  def add(self, entries: Any, where: str) -> None:
    """Takes a list of descriptions; null is an empty one."""
    if not isinstance(entries, list | None):
      raise DataError(f"{where}: expected a list of objects, got {_short(entries)}")
    for i, entry in enumerate(entries or []):
      at = f"{where}[{i}]"
      name = required_text(object_of(entry, at), "name", "name the character", f"{at}.")
      self.describe(name, entry, f"{at}.")

  def describe(self, name: str, entry: Row, where: str) -> None:
    """Takes one description; what it says counts before what was said so far."""
    mine = self.entry(name)
    kept = mine["extra"][self._origin]
    kept.update(rest_of(entry, {"name", *_ALL_SPELLINGS}))
    for field, spellings in _SPELLINGS.items():
      given = {s: text for s in spellings if (text := text_of(entry, s, where)).strip()}
      if given:
        first, *others = given
        if mine.get(field, given[first]) != given[first]:
          kept[field] = mine[field]
        mine[field] = given[first]
        kept.update({s: given[s] for s in others if given[s] != given[first]})

  def entry(self, name: str) -> dict[str, Any]:
    return self._found.setdefault(name.strip(), {"extra": {self._origin: {}}})

  def characters(self) -> tuple[tuple[Character, ...], dict[str, Any]]:
    """The characters, and what is said of the environment, which is none."""
    made, environment = [], {}
    for name, fields in self._found.items():
      fields = {**fields, "extra": {k: v for k, v in fields["extra"].items() if v}}
      if name in ENVIRONMENT.values():
        told = rest_of(fields, {"extra"}) | fields["extra"].get(self._origin, {})
        environment.update({name: told} if told else {})
      else:
        made.append(Character(name, **fields))
    return tuple(made), environment


@dataclasses.dataclass
class _Plan:
  """A plan as `training_samples` hold it, with the turns that it was written for."""

  character: str
  origins: list[str]
  text: str
  row: Row
  conversation: int | None = None  # where its turn was found
  taken: bool = False


class Plans:
  """The plans of a HER row, by character and origin id."""

  def __init__(self, row: Row):
    self._all: list[_Plan] = []
    samples = object_of(row.get("training_samples") or {}, "training_samples")
    for name in filter(samples.get, samples):
      for i, message in enumerate(objects_of(samples, name, "training_samples.")):
        at = f"training_samples.{name}[{i}]"
        fields = ("sys_thinking_revised", "sys_thinking_original")
        found = [t for f in fields if (t := text_of(message, f, f"{at}.").strip())]
        if found:
          origins = _origins(message, at)
          self._all.append(_Plan(name.strip(), origins, plain_plan(found[0]), message))
    self._texts = {plan.text for plan in self._all}

  def take(self, speaker: str, origins: Sequence[str], conversation: int) -> list[_Plan]:
    """The plans that begin with this turn.

    Raises:
      DataError: the origin id stands in two conversations, so that the plan's is not known.
    """
    found = []
    for plan in self._all:
      if plan.character != speaker or not set(origins) & set(plan.origins):
        continue
      if plan.conversation not in (None, conversation):
        raise DataError(
          f"training_samples.{speaker}: origin id {plan.origins[0]} stands in conversation"
          f"[{plan.conversation}] and [{conversation}]; give each conversation its own row"
        )
      if not plan.taken:
        found.append(plan)
      plan.taken, plan.conversation = True, conversation
    return found

  def elsewhere(self, text: str) -> bool:
    """Whether a plan is one of these, so that its origin id alone says where it belongs."""
    return text in self._texts

  def left(self) -> list[dict[str, Any]]:
    """Those whose turn was not found."""
    return [{**plan.row, "character": plan.character} for plan in self._all if not plan.taken]


def turn_of(
  entry: Row, where: str, origin: str, plans: Plans | None = None, conversation: int = 0
) -> Turn:
  """One message in CoSER's or our notation."""
  names = ("character", "speaker")
  speaker = next((n for f in names if (n := text_of(entry, f, f"{where}.").strip())), "")
  if not speaker:
    raise DataError(f"{where}.character: missing or empty; name the speaker")
  fields = ("enhanced_speech", "standard_format", "message")
  texts = {f: text for f in fields if (text := text_of(entry, f, f"{where}.")).strip()}
  if not texts:
    raise DataError(f"{where}.message: missing or empty; remove the turn or give it a text")
  field = next(iter(texts))
  parsed = _parsed(texts[field], speaker)
  reply = spoken(parsed, f"{where}.{field}")
  extra = rest_of(entry, {*names, field})
  own = plain_plan(text_of(entry, "sys_thinking", f"{where}."))
  plan = own or plain_plan(parsed.plan or "")
  if plans is not None:
    taken = plans.take(speaker, _origins(entry, where), conversation)
    if taken:
      plan = "\n\n".join(dict.fromkeys(p.text for p in taken))
      drafts = [text_of(p.row, "sys_thinking_original").strip() for p in taken]
      if any(draft and plain_plan(draft) != plan for draft in drafts):
        extra["sys_thinking_original"] = "\n\n".join(filter(None, drafts))
    elif plans.elsewhere(plan):
      plan = ""
  if own == plan:
    extra.pop("sys_thinking", None)
  return Turn(speaker, reply, plan, {origin: extra} if extra else {})


def _parsed(text: str, speaker: str) -> grammar.Reply:
  """A message in our notation, in CoSER's, or in both at once."""
  ours = grammar.parse(grammar.repair(text, speaker), speaker)
  if ours.plan is None and not ours.layout().strip("S"):
    for colon in ":：":
      text = text.strip().removeprefix(f"{speaker}{colon}")
    return notations.from_coser(text)
  return notations.from_either(grammar.repair(text, speaker), speaker)


def spoken(reply: grammar.Reply, where: str) -> str:
  """A reply as a turn holds it: in our notation, without plan and name."""
  text = grammar.render(grammar.Reply(reply.seen_by("self").segments))
  if not text.strip():
    raise DataError(f"{where}: missing or empty; remove the turn or give it a text")
  return text


def plain_plan(text: str) -> str:
  """A plan as plain text, taken out of its tags where it stands in some."""
  parsed = grammar.parse(text.strip())
  if parsed.plan is not None and not "".join(s.text for s in parsed.segments[1:]).strip():
    text = parsed.plan
  return notations.without_tags(text.strip())


def _origins(entry: Row, where: str) -> list[str]:
  """The ids that a turn had before merging, as text: some files hold numbers, some not."""
  origin = entry.get("origin_id")
  if origin is None:
    return []
  origins = origin if isinstance(origin, list) else [origin]
  if not all(isinstance(o, int | str) for o in origins):
    raise DataError(f"{where}.origin_id: expected an id or a list of ids, got {_short(origin)}")
  return [str(o) for o in origins]


def gather(
  origin: str, people: People, turns: Sequence[Turn], extra: Row, **fields: Any
) -> Trajectory:
  """Puts a scene together: who is described, then who only speaks; the environment by its name."""
  language = language_of(fields["scenario"])
  named = []
  for turn in turns:
    if turn.speaker in ENVIRONMENT.values():
      turn = dataclasses.replace(turn, speaker=ENVIRONMENT[language])
    else:
      people.entry(turn.speaker)
    named.append(turn)
  characters, environment = people.characters()
  extra = {**extra, **({"environment": environment} if environment else {})}
  return Trajectory(
    characters=characters,
    turns=tuple(named),
    language=language,
    extra={origin: extra},
    **fields,
  )


def language_of(text: str) -> str:
  """Chinese where its signs are more than a name or two in an English text."""
  signs = len(re.findall(r"[\u4e00-\u9fff]", text))
  return "zh" if 2 * signs > len(re.findall(r"[A-Za-z]", text)) else "en"


def text_of(row: Row, field: str, where: str = "") -> str:
  """A field as text; "" where it is absent or null."""
  value = row.get(field)
  if value is None:
    return ""
  if not isinstance(value, str):
    raise DataError(f"{where}{field}: expected a text, got {_short(value)}")
  return value


def required_text(row: Row, field: str, mend: str, where: str = "") -> str:
  text = text_of(row, field, where)
  if not text.strip():
    raise DataError(f"{where}{field}: missing or empty; {mend}")
  return text


def object_of(value: Any, where: str) -> Row:
  if not isinstance(value, Mapping):
    raise DataError(f"{where}: expected an object, got {_short(value)}")
  return value


def objects_of(row: Row, field: str, where: str = "") -> list[Row]:
  """A list of objects that must not be empty."""
  value = row.get(field)
  if not isinstance(value, list) or not value:
    raise DataError(f"{where}{field}: missing or empty; give a list of objects")
  return [object_of(entry, f"{where}{field}[{i}]") for i, entry in enumerate(value)]


def rest_of(row: Row, known: Iterable[str]) -> dict[str, Any]:
  return {name: value for name, value in row.items() if name not in set(known)}


def _short(value: Any) -> str:
  shown = repr(value)
  return shown if len(shown) <= 60 else f"{shown[:57]}…"
