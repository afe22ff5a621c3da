"""Talks of two: who is who, what is plan, thought, action and speech."""

import json

import pytest

from data_pipeline.sources import reader, sharegpt
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.sources import rows_of_others as rows


def _talk(system="", human="Where to?", gpt="Across.", **more):
  messages = [{"from": "human", "value": human}, {"from": "gpt", "value": gpt}]
  if system:
    messages.insert(0, {"from": "system", "value": system})
  return {"id": "t", "conversations": messages, **more}


def _read(row, **more):
  (made,) = sharegpt.from_row(row, **more)
  schema.check_trajectory(made)
  return made


def test_a_talk_becomes_a_scene_of_two():
  made = _read(rows.sharegpt_row())
  assert [c.name for c in made.characters] == ["Una Brook", "User"]
  assert made.characters[0].profile == "You are Una Brook, a surveyor. User is the ferryman."
  assert [t.speaker for t in made.turns] == ["User", "Una Brook"]
  assert (
    made.turns[1].reply
    == "<role_action>looks up</role_action> Across. [He knows.] And quickly."
  )


@pytest.mark.parametrize(
  ("told", "name"),
  [
    ("You are Una Brook, a surveyor.", "Una Brook"),
    (
      "From now on you are playing Captain Marthe van der Velde.",
      "Captain Marthe van der Velde",
    ),
    ("Roleplay as Joost. Stay in character.", "Joost"),
    ("Play the role of the character Una in this story.", "Una"),
    ("Name: Dr. Edmund Ashworth\nAge: 60", "Dr. Edmund Ashworth"),
    ("Character's name: Una-Marie O’Hara", "Una-Marie O’Hara"),
    ("You are a helpful guide. You will be Una today.", "Una"),
    ("你是林黛玉，寄居在荣国府。", "林黛玉"),
    ("请你扮演“苏轼”，与用户交谈。", "苏轼"),
    ("姓名：阿不思·邓布利多\n年龄：一百一十五", "阿不思·邓布利多"),
    ("你扮演孙悟空。", "孙悟空"),
  ],
)
def test_the_system_prompt_says_whom_the_model_plays(told, name):
  assert _read(_talk(told)).turns[1].speaker == name


@pytest.mark.parametrize(
  "told",
  [
    "",
    "You are a helpful assistant.",
    "You are an AI model. Act as the narrator.",
    "You are ChatGPT, a large language model.",
    "你是一个助手。",
    "Be kind, and answer in English.",
  ],
)
def test_a_name_is_never_made_up(told):
  with pytest.raises(DataError, match="character: nothing says whom.*--character"):
    sharegpt.from_row(_talk(told))
  assert _read(_talk(told), character="Una").turns[1].speaker == "Una"


def test_a_field_counts_before_the_names_in_the_lines_and_those_before_the_prompt():
  named = _talk("You are Marthe.", human="Joost: Where?", gpt="Una: Across.")
  made = _read(named)
  assert [(t.speaker, t.reply) for t in made.turns] == [("Joost", "Where?"), ("Una", "Across.")]
  made = _read({**named, "character": "Una", "user_name": "Joost"})
  assert [t.reply for t in made.turns] == ["Where?", "Across."]
  made = _read({**_talk("You are Marthe."), "char_name": "Una"})
  assert made.turns[1].speaker == "Una"


@pytest.mark.parametrize("human", ["I say: go.", "Note: go.", "Warning! 12:30", "a: b"])
def test_a_colon_within_a_line_is_no_name(human):
  made = _read(_talk("You are Una.", human=human, gpt="See https://a.example"))
  assert [(t.speaker, t.reply) for t in made.turns] == [
    ("User", human), ("Una", "See https://a.example")
  ]  # fmt: skip


@pytest.mark.parametrize(
  ("text", "plan", "layout"),
  [
    ("<think>She must hurry.</think>\nUna: *rows* Go.", "She must hurry.", "AS"),
    ("<system_thinking>She must hurry.</system_thinking>Una: Go.", "She must hurry.", "S"),
    ("<role_thinking>Hm.</role_thinking>Go.", "", "TS"),
    ("[Hm.] (rows) Go.", "", "TAS"),
    ("【他在骗我。】走吧。（划船）", "", "TSA"),
    ("（划船）走吧［他在骗我］", "", "AST"),
    ("**Una**: Go *now*, all.", "", "SAS"),
    ("5 * 3 * 2 makes thirty.", "", "S"),
  ],
)
def test_layers_are_read_in_every_notation(text, plan, layout):
  from her_jax.roleplay import grammar

  turn = _read(_talk("You are Una.", gpt=text)).turns[1]
  assert turn.plan == plan
  assert grammar.parse(turn.reply).layout() == layout and not turn.reply.startswith("Una")


@pytest.mark.parametrize(
  ("row", "told"),
  [
    (_talk("You are Una.", gpt=" "), r"conversations\[2\]\.value: missing or empty"),
    ({"conversations": [{"from": "tool", "value": "x"}]}, "'tool' is no role"),
    ({"conversations": [{"from": "human", "value": "x"}]}, "nothing that the model says"),
    (_talk("You are Una.", character="User"), "the character's name too"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "other parts than text"),
    ({"conversations": "{"}, "no JSON"),
  ],
)
def test_what_cannot_be_a_talk_is_told_with_its_field(row, told):
  with pytest.raises(DataError, match=told):
    sharegpt.from_row(row)


def test_lists_of_lists_and_messages_are_talks_and_ids_come_of_the_place(tmp_path):
  lists = tmp_path / "lists.json"
  talks = [_talk(f"You are Una {n}.")["conversations"] for n in ("Brook", "Field")]
  lists.write_text(json.dumps(talks, indent=1))
  found = list(reader.read(lists))
  assert [t.turns[1].speaker for t in found] == ["Una Brook", "Una Field"]
  assert len({t.id for t in found}) == 2 and found[0].id == "lists/2"
  messages = tmp_path / "messages.jsonl"
  row = {"messages": [
    {"role": "system", "content": "You are Una."},
    {"role": "user", "content": [{"type": "text", "text": "Where to?"}]},
    {"role": "assistant", "content": "Across."},
  ]}  # fmt: skip
  messages.write_text(json.dumps(row) + "\n")
  (made,) = reader.read(messages)
  assert (made.id, made.turns[1].speaker) == ("messages/1", "Una")
