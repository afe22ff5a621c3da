"""Rows of other projects' data → `schema.Trajectory`: CoSER, HER, and the role-play bench.

Both spellings of a field are read where two exist (`thought` and `motivation`, `summary` and
`experience`, and HER's `…_enriched` before the plain one). What has no place of its own, and
what another spelling stood before, is kept in `extra` under the format's name, of scene,
character and turn alike. `trajectories` tells the formats apart by their fields.

A field that is missing or of another type is a `DataError` here; whether the dialogue itself
can be used is for `schema.problems` to say.
"""

from collections.abc import Callable, Iterable
import re

from her_jax.roleplay import grammar, notations, prompts, rows, schema
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory, Turn

# Of rows that tell the scene in the character's sheet alone.
_SCENARIO = {
  "en": "{name} meets the others of the sheet and talks with them.",
  "zh": "{name}与设定中的人物相遇并交谈。",
}


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
  plot = rows.object_of(row.get("plot") or {}, "plot")
  people = rows.People("coser")
  profiles = rows.object_of(row.get("character_profiles") or {}, "character_profiles")
  for name in profiles:
    people.describe(name, {"profile": rows.text_of(profiles, name, "character_profiles.")}, "")
  people.add(plot.get("key_characters"), "plot.key_characters")
  people.add(row.get("key_characters"), "key_characters")
  turns = []
  for i, entry in enumerate(rows.objects_of(row, "dialogues")):
    turns.append(rows.turn_of(entry, f"dialogues[{i}]", "coser"))
  known = {"book", "plot", "character_profiles", "key_characters", "dialogues", "scenario"}
  return rows.gather(
    "coser",
    people,
    turns,
    {
      **rows.rest_of(row, {*known, "topic"}),
      "plot": rows.rest_of(plot, {"summary", "key_characters"}),
    },
    id=f"{rows.text_of(row, 'book') or 'coser'}/{row.get('i_p', 0)}/{row.get('i_c', 0)}",
    scenario=rows.required_text(row, "scenario", "describe the scene"),
    source=rows.text_of(row, "book"),
    topic=rows.text_of(row, "topic"),
    summary=rows.text_of(plot, "summary", "plot."),
    # The test set is never for training, whichever books it comes from.
    split="heldout",
  )


def from_her_row(row: Row) -> list[Trajectory]:
  """The conversations of one of HER's rows (`full_info` and `clean`).

  A plan belongs to the turn with its origin id, the first one if it was written for several.
  HER's own code went by the place after merging, which moved plans to other turns; so a plan
  that `training_samples` give to one turn is not believed of another. Plans whose turn is not
  there are kept in the first conversation's `extra["her"]["plans_without_turn"]`.

  Raises:
    DataError: names the field and the mend.
  """
  plans = rows.Plans(row)
  used = {"conversation", "key_characters", "character_datasets", "training_samples"}
  used |= {"book_name", "summary"}
  book = rows.text_of(row, "trace_id_book_chapter") or rows.text_of(row, "book_name") or "her"
  plot = row.get("plot_index", row.get("i_p", 0))
  conversations = rows.objects_of(row, "conversation")
  found = []
  for i, conversation in enumerate(conversations):
    where = f"conversation[{i}]."
    people = rows.People("her")
    people.add(row.get("key_characters"), "key_characters")
    people.add(conversation.get("key_characters"), f"{where}key_characters")
    datasets = rows.object_of(row.get("character_datasets") or {}, "character_datasets")
    for name, entry in datasets.items():
      at = f"character_datasets.{name}"
      people.describe(name, rows.object_of(entry, at), f"{at}.")
    turns = []
    for k, entry in enumerate(rows.objects_of(conversation, "dialogues", where)):
      turns.append(rows.turn_of(entry, f"{where}dialogues[{k}]", "her", plans, i))
    known = {"key_characters", "dialogues", "topic"}
    scenario = "scenario_enriched" if conversation.get("scenario_enriched") else "scenario"
    number = row.get("conv_index", i) if len(conversations) == 1 else i
    found.append(
      rows.gather(
        "her",
        people,
        turns,
        {**rows.rest_of(row, used), **rows.rest_of(conversation, {*known, scenario})},
        id=f"{book}/{plot}/{conversation.get('i_c', number)}",
        scenario=rows.required_text(conversation, scenario, "describe the scene", where),
        source=rows.text_of(row, "book_name"),
        topic=rows.text_of(conversation, "topic", where),
        summary=rows.text_of(row, "summary"),
      )
    )
  if left := plans.left():
    found[0].extra["her"]["plans_without_turn"] = left
  return found


def from_messages(row: Row) -> Trajectory:
  """One of HER's SFT rows: `messages` of system, user and assistant, and `character`.

  The system prompt becomes the character's profile as it stands; it tells the scene too.

  Raises:
    DataError: names the field and the mend.
  """
  name = rows.required_text(row, "character", "name whom the assistant plays").strip()
  sheet: list[str] = []
  turns: list[Turn] = []
  for i, message in enumerate(rows.objects_of(row, "messages")):
    where = f"messages[{i}]."
    role, content = message.get("role"), rows.text_of(message, "content", where)
    if role == "system":
      sheet.append(content)
    elif role == "user":
      turns += _heard(content, where)
    elif role == "assistant":
      reply = grammar.parse(grammar.repair(content, name), name)
      turns.append(
        Turn(name, rows.spoken(reply, f"{where}content"), rows.plain_plan(reply.plan or ""))
      )
    else:
      raise DataError(f"{where}role: {role!r} is not one of system, user, assistant")
  people = rows.People("her")
  people.describe(name, {"profile": "\n\n".join(sheet)}, "")
  own = [
    row[f] for f in ("trace_id", "character", "turn_index") if row.get(f) not in (None, "")
  ]
  if row.get("trace_id") in (None, ""):
    own = [rows.required_text(row, "id", "give the row an id, or a trace_id")]
  return rows.gather(
    "her",
    people,
    turns,
    rows.rest_of(row, {"messages", "character"}),
    id="/".join(map(str, own)),
    scenario=_SCENARIO[rows.language_of("".join(sheet))].format(name=name),
  )


def from_minimax_seed(row: Row) -> Trajectory:
  """A seed of the role-play bench: who meets whom, and the first two messages.

  Raises:
    DataError: names the field and the mend.
  """
  name = rows.required_text(row, "ai_name", "name the character").strip()
  user = rows.text_of(row, "user_name").strip() or "User"
  setting = rows.text_of(row, "ai_setting")
  if user == name:
    raise DataError(f"user_name: {user!r} is the character's name too; choose another")
  people = rows.People("minimax")
  people.describe(name, {"profile": setting}, "")
  people.describe(user, {"profile": rows.text_of(row, "user_setting")}, "")
  turns = []
  for who, field in ((name, "ai_prologue"), (user, "initial_user_input")):
    if text := rows.text_of(row, field).strip():
      turns.append(Turn(who, grammar.render(notations.from_asterisks(text))))
  if not turns:
    raise DataError("ai_prologue: missing or empty; give it or initial_user_input a text")
  known = {"ai_name", "ai_setting", "user_name", "user_setting"}
  return rows.gather(
    "minimax",
    people,
    turns,
    rows.rest_of(row, known | {"id", "ai_prologue", "initial_user_input"}),
    id=rows.required_text(row, "id", "give it a text"),
    scenario=_SCENARIO[rows.language_of(setting)].format(name=name),
    split="heldout",
  )


def _heard(content: str, where: str) -> Iterable[Turn]:
  """The lines of a merged user message; a line without a name goes on with the one before."""
  turns: list[Turn] = []
  for line in content.split("\n"):
    if line.strip() == prompts.MARKER or not (line.strip() or turns):
      continue
    named = re.match(r"\s*([^:：\n<>]{1,60})[:：]\s?(.*)", line)
    if named and named[1].strip():
      turns.append(Turn(named[1].strip(), named[2]))
    elif turns:
      turns[-1] = Turn(turns[-1].speaker, f"{turns[-1].reply}\n{line}")
    else:
      raise DataError(f"{where}content: {line[:40]!r} names no speaker; write 'Name: text'")
  return [
    Turn(
      t.speaker, rows.spoken(grammar.parse(grammar.repair(t.reply.rstrip())), f"{where}content")
    )
    for t in turns
    if t.reply.strip()
  ]


# The field that only this format has.
_FORMATS: dict[str, Callable[[Row], list[Trajectory]]] = {
  "turns": lambda row: [schema.trajectory_from_dict(row)],
  "conversation": from_her_row,
  "messages": lambda row: [from_messages(row)],
  "dialogues": lambda row: [from_coser_case(row)],
  "ai_setting": lambda row: [from_minimax_seed(row)],
}
