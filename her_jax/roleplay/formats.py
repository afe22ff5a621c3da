"""Rows of other projects' data → `schema.Trajectory`: CoSER, HER, and the role-play bench.

Both spellings of a field are read where two exist (`thought` and `motivation`, `summary` and
`experience`, and HER's `…_enriched` before the plain one). Fields without a place of their own
are kept in `extra`, under the format's name. `trajectories` tells the formats apart by their fields.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import re
from typing import Any

from her_jax.roleplay import grammar, notations, prompts, schema, tags
from her_jax.roleplay.schema import Character, DataError, Trajectory, Turn

Row = Mapping[str, Any]


def trajectories(row: Row) -> list[Trajectory]:
  """The dialogues of one row, whatever its format.

  Raises:
    DataError: names the field and the mend.
  """
  for field, read in _FORMATS.items():
    if field in row:
      return read(row)
  raise DataError(
    f"no known format: found {', '.join(sorted(row)) or 'nothing'}; expected one of the fields"
    f" {', '.join(_FORMATS)}"
  )


def from_coser_case(row: Row) -> Trajectory:
  """A conversation of CoSER's test set.

  Raises:
    DataError: names the field and the mend.
  """
  place = f"{row.get('book', 'coser')}/{row.get('i_p', 0)}/{row.get('i_c', 0)}"
  plot = row.get("plot") or {}
  people = _People(row.get("character_profiles") or {})
  people.add(plot.get("key_characters"), "plot.key_characters")
  people.add(row.get("key_characters"), "key_characters")
  turns = [_turn(entry, f"dialogues[{i}]") for i, entry in enumerate(_list(row, "dialogues"))]
  known = {"book", "plot", "character_profiles", "key_characters", "dialogues", "scenario"}
  return Trajectory(
    id=place,
    scenario=_text(row, "scenario"),
    characters=people.characters(turns),
    turns=tuple(turns),
    source=_text(row, "book"),
    topic=_text(row, "topic"),
    summary=_text(plot, "summary"),
    # The test set is never for training, whichever books it comes from.
    split="heldout",
    extra={
      "coser": _rest(row, {*known, "topic"})
      | {"plot": _rest(plot, {"summary", "key_characters"})}
    },
  )


def from_her_row(row: Row) -> list[Trajectory]:
  """The conversations of one of HER's rows (`full_info` and `clean`).

  A plan belongs to the turn with its origin id. HER's own code went by the place after
  merging, which moved plans to other turns.

  Raises:
    DataError: names the field and the mend.
  """
  plans = _plans(row.get("training_samples") or {})
  used = {"conversation", "key_characters", "character_datasets", "training_samples"}
  used |= {"book_name", "summary"}
  found = []
  for i, conversation in enumerate(_list(row, "conversation")):
    where = f"conversation[{i}]"
    people = _People({})
    people.add(row.get("key_characters"), "key_characters")
    people.add(conversation.get("key_characters"), f"{where}.key_characters")
    for name, entry in (row.get("character_datasets") or {}).items():
      people.add([{"name": name, **entry}], f"character_datasets.{name}")
    entries = _list(conversation, "dialogues")
    turns = [_turn(e, f"{where}.dialogues[{k}]", plans) for k, e in enumerate(entries)]
    known = {"key_characters", "dialogues", "scenario", "scenario_enriched", "topic"}
    origin = row.get("trace_id_book_chapter") or (
      f"{_text(row, 'book_name')}/{row.get('plot_index', row.get('i_p', 0))}"
    )
    found.append(
      Trajectory(
        id=f"{origin}/{conversation.get('i_c', row.get('conv_index', i))}",
        scenario=_either(conversation, "scenario"),
        characters=people.characters(turns),
        turns=tuple(turns),
        source=_text(row, "book_name"),
        topic=_text(conversation, "topic"),
        summary=_text(row, "summary"),
        extra={"her": {**_rest(row, used), **_rest(conversation, known)}},
      )
    )
  return found


def from_messages(row: Row) -> Trajectory:
  """One of HER's SFT rows: `messages` of system, user and assistant, and `character`.

  The system prompt becomes the character's profile as it stands.

  Raises:
    DataError: names the field and the mend.
  """
  name = _text(row, "character")
  if not name:
    raise DataError("character: missing or empty; name whom the assistant plays")
  sheet = ""
  turns: list[Turn] = []
  for i, message in enumerate(_list(row, "messages")):
    where = f"messages[{i}]"
    role, content = message.get("role"), _text(message, "content")
    if role == "system":
      sheet = content
    elif role == "user":
      turns += _heard(content, where)
    elif role == "assistant":
      reply = grammar.parse(grammar.repair(content, name), name)
      spoken = grammar.render(grammar.Reply(reply.seen_by("self").segments))
      turns.append(Turn(name, spoken, tags.defuse((reply.plan or "").strip())))
    else:
      raise DataError(f"{where}.role: {role!r} is not one of system, user, assistant")
  people = _People({name: sheet})
  return Trajectory(
    id="/".join(str(row[f]) for f in ("trace_id", "character", "turn_index") if f in row),
    scenario="",
    characters=people.characters(turns),
    turns=tuple(turns),
    extra={"her": _rest(row, {"messages", "character"})},
  )


def from_minimax_seed(row: Row) -> Trajectory:
  """A seed of the role-play bench: who meets whom, and the first two messages."""
  name, user = _text(row, "ai_name"), _text(row, "user_name") or "User"
  opening = [(name, _text(row, "ai_prologue")), (user, _text(row, "initial_user_input"))]
  known = {"ai_name", "ai_setting", "user_name", "user_setting"}
  return Trajectory(
    id=_text(row, "id"),
    scenario="",
    characters=(
      Character(name, _text(row, "ai_setting")),
      Character(user, _text(row, "user_setting")),
    ),
    turns=tuple(
      Turn(who, grammar.render(notations.from_asterisks(text))) for who, text in opening if text
    ),
    language="zh" if re.search(r"[\u4e00-\u9fff]", _text(row, "ai_setting")) else "en",
    split="heldout",
    extra={"minimax": _rest(row, known | {"id", "ai_prologue", "initial_user_input"})},
  )


class _People:
  """Characters gathered from the several lists of a row."""

  def __init__(self, profiles: Mapping[str, Any]):
    self._found: dict[str, dict[str, Any]] = {}
    for name, profile in profiles.items():
      if not isinstance(profile, str):
        raise DataError(f"character_profiles.{name}: expected a text, got {profile!r}")
      self._entry(name)["profile"] = profile

  def add(self, entries: Any, where: str) -> None:
    for i, entry in enumerate(entries or []):
      if not isinstance(entry, Mapping) or not _text(entry, "name"):
        raise DataError(f"{where}[{i}].name: missing or empty; name the character")
      mine = self._entry(_text(entry, "name"))
      for field, spellings in _SPELLINGS.items():
        value = next(filter(None, (_either(entry, s) for s in spellings)), "")
        if value:
          mine[field] = value
      known = {"name", *(s for all_ in _SPELLINGS.values() for s in all_)}
      rest = _rest(entry, known | {f"{name}_enriched" for name in known})
      mine["extra"] = {**mine.get("extra", {}), **rest}

  def characters(self, turns: Sequence[Turn]) -> tuple[Character, ...]:
    """Those that are described, then those that only speak."""
    for turn in turns:
      if turn.speaker not in schema.ENVIRONMENT.values():
        self._entry(turn.speaker)
    return tuple(Character(name, **fields) for name, fields in self._found.items())

  def _entry(self, name: str) -> dict[str, Any]:
    return self._found.setdefault(name.strip(), {})


_SPELLINGS = {
  "profile": ("profile", "character_profile"),
  "background": ("background",),
  "motivation": ("motivation", "thought"),
  "description": ("description",),
  "experience": ("experience", "summary"),
}


def _turn(entry: Any, where: str, plans: Mapping[tuple[str, Any], str] | None = None) -> Turn:
  """One message in CoSER's or our notation."""
  if not isinstance(entry, Mapping):
    raise DataError(f"{where}: expected an object, got {type(entry).__name__}")
  speaker = (_text(entry, "character") or _text(entry, "speaker")).strip()
  if not speaker:
    raise DataError(f"{where}.character: missing or empty; name the speaker")
  regular = _text(entry, "enhanced_speech") or _text(entry, "standard_format")
  text = regular or _text(entry, "message")
  if regular and grammar.parse(regular).layout().strip("S"):
    parsed = grammar.parse(grammar.repair(regular, speaker), speaker)
  else:
    parsed = notations.from_coser(text)
  reply = grammar.render(grammar.Reply(parsed.seen_by("self").segments))
  if not reply.strip():
    raise DataError(f"{where}.message: missing or empty; remove the turn or give it a text")
  plan = _text(entry, "sys_thinking") or (parsed.plan or "")
  for origin in _origins(entry):
    plan = plan or (plans or {}).get((speaker, origin), "")
  known = {"character", "speaker", "message", "sys_thinking"}
  used = {"enhanced_speech", "standard_format"} if regular else set()
  return Turn(speaker, reply, tags.defuse(plan.strip()), _rest(entry, known | used))


def _plans(samples: Mapping[str, Any]) -> dict[tuple[str, Any], str]:
  """(character, origin id) → the plan that was written for that turn."""
  found = {}
  for name, messages in samples.items():
    for message in messages:
      plan = _text(message, "sys_thinking_revised") or _text(message, "sys_thinking_original")
      for origin in _origins(message) if plan else ():
        found[name, origin] = plan
  return found


def _origins(entry: Row) -> list[Any]:
  origin = entry.get("origin_id")
  return origin if isinstance(origin, list) else [] if origin is None else [origin]


def _heard(content: str, where: str) -> Iterable[Turn]:
  """The lines of a merged user message; a line without a name goes on with the one before."""
  turns: list[Turn] = []
  for line in content.split("\n"):
    if line.strip() == prompts.MARKER or not (line.strip() or turns):
      continue
    named = re.match(r"\s*([^:：\n]{1,60})[:：]\s?(.*)", line)
    if named:
      turns.append(Turn(named[1].strip(), named[2]))
    elif turns:
      turns[-1] = Turn(turns[-1].speaker, f"{turns[-1].reply}\n{line}")
    else:
      raise DataError(f"{where}.content: {line[:40]!r} names no speaker; write 'Name: text'")
  return [Turn(t.speaker, t.reply.rstrip()) for t in turns if t.reply.strip()]


def _either(row: Row, field: str) -> str:
  return _text(row, f"{field}_enriched") or _text(row, field)


def _text(row: Row, field: str) -> str:
  """A field as text; "" where it is absent or null."""
  value = row.get(field)
  if value is None:
    return ""
  if not isinstance(value, str):
    raise DataError(f"{field}: expected a text, got {value!r}")
  return value


def _list(row: Row, field: str) -> list[Any]:
  value = row.get(field)
  if not isinstance(value, list) or not value:
    raise DataError(f"{field}: missing or empty; give a list of objects")
  return value


def _rest(row: Row, known: Iterable[str]) -> dict[str, Any]:
  return {name: value for name, value in row.items() if name not in set(known)}


# The field that only this format has.
_FORMATS: dict[str, Callable[[Row], list[Trajectory]]] = {
  "turns": lambda row: [schema.trajectory_from_dict(row)],
  "conversation": from_her_row,
  "messages": lambda row: [from_messages(row)],
  "dialogues": lambda row: [from_coser_case(row)],
  "ai_setting": lambda row: [from_minimax_seed(row)],
}
