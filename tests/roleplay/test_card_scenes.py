"""The scene that a card opens: placeholders, greetings as layers, example dialogues."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import cards, grammar, schema
from her_jax.roleplay.cards import Card
from her_jax.roleplay.schema import DataError

UNA = Card(
  "Una",
  "{{char}} keeps the light.",
  "dry",
  "A quay at night.",
  '*looks up* "You are late, {{user}}."',
  alternate_greetings=("Again?",),
  spec="v2",
)
UNA_3 = dataclasses.replace(UNA, nickname="Oon", spec="v3")


def test_placeholders_are_filled():
  text = "{{char}} {{USER}} {{ Char }} <BOT> <bot> <char> <User> {{roll:6}} {{ user }}{char}"
  assert cards.fill(text, "Una", "Jo") == "Una Jo Una Una Una Una Jo {{roll:6}} Jo{char}"
  assert cards.fill(r"{{char}}", r"\1\g<0>", "Jo") == r"\1\g<0>"


_MARKS = st.text("{}<>charuseb ", max_size=10) | st.sampled_from(
  ["{{char}}", "{{user}}", "<BOT>", "<USER>", "{{", "}}", "user}}", "{{ch"]
)


@given(st.lists(_MARKS, max_size=6), _MARKS, _MARKS)
def test_names_are_never_filled_again(pieces, char, user):
  filled = cards.fill("-{{char}}-".join(pieces) + "{{user}}", char, user)
  # One after the other, with stand-ins that nothing can match across.
  plain = cards.fill("-{{char}}-".join(pieces) + "{{user}}", "\0", "\1")
  assert filled == "".join({"\0": char, "\1": user}.get(c, c) for c in plain)


def test_the_greetings_leave_out_blank_ones():
  assert UNA.greetings == (UNA.first_message, "Again?")
  assert Card("Una").greetings == ()
  assert Card("Una", alternate_greetings=("Hi",)).greetings == ("Hi",)


def test_a_card_opens_a_scene():
  scene = cards.to_trajectory(UNA_3, "Joost", user_profile="A salvage master, {{user}}.")
  assert [c.name for c in scene.characters] == ["Oon", "Joost"]
  oon, joost = scene.characters
  assert (oon.profile, oon.motivation) == ("Oon keeps the light.\n\ndry", "")
  assert joost.profile == "A salvage master, Joost."
  assert scene.scenario == "A quay at night."
  (turn,) = scene.turns
  assert (turn.speaker, turn.plan) == ("Oon", "")
  assert turn.reply == "<role_action>looks up</role_action> You are late, Joost."
  assert cards.to_trajectory(UNA_3, "Joost", greeting=1).turns[0].reply == "Again?"
  # Only V3 knows nicknames.
  second = dataclasses.replace(UNA_3, spec="v2")
  assert cards.to_trajectory(second, "Joost").characters[0].name == "Una"
  blank = dataclasses.replace(UNA_3, nickname=" ")
  assert cards.to_trajectory(blank, "Joost").characters[0].name == "Una"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_a_card_leaves_empty_is_told_neutrally(language):
  scene = cards.to_trajectory(Card("Una", scenario=" "), "Joost", language=language)
  assert scene.turns == () and scene.language == language
  assert "Una" in scene.scenario and "Joost" in scene.scenario
  assert all(c.name in c.profile for c in scene.characters)


@pytest.mark.parametrize(
  ("greeting", "reply"),
  [
    ("Hello.", "Hello."),
    ('*waves* "Hello." *sits*', "[waves] Hello. [sits]"),
    ('*waves*\n\n"Hello."\n"Sit."', "[waves]\n\nHello.\nSit."),
    ("“Hello.” *waves*", "Hello. [waves]"),
    ("「你好。」*点头*", "你好。[点头]"),
    ("*waves*", "[waves]"),
    ("*waits.\n\nStill waits.*", "*waits.\n\nStill waits.*"),
    # Narration beside quoted speech: without the marks nobody could tell them apart.
    ('*waves* "Hello." She sits.', '[waves] "Hello." She sits.'),
    ('"Hello." *waves* She sits.', '"Hello." [waves] She sits.'),
    ('*frowns* He said "no" twice.', '[frowns] He said "no" twice.'),
    ('"He said "no" twice."', '"He said "no" twice."'),
    ("She is 5'10\" tall.", "She is 5'10\" tall."),
    # Stars that are no action.
    ("5 * 3 = 15 *nods*", "5 * 3 = 15 [nods]"),
    ("**Stop!** *runs*", "**Stop!** [runs]"),
    ("*says **no** firmly*", "[says **no** firmly]"),
    ("*unclosed", "*unclosed"),
    ("***", "***"),
    # Tags become plain text, be they ours or not.
    ("<role_action>sits</role_action> Hi", "(role_action)sits(/role_action) Hi"),
    ("*a <role_thinking>b* c", "[a (role_thinking)b] c"),
    ("<System_Thinking>x", "(system_thinking)x"),
    ("<b>Hi</b><think>x</think>", "(b)Hi(/b)(think)x(/think)"),
    ('*x* "<role_""action>y"', "[x] (role_action)y"),
    ("<<role_action>role_action>", "<(role_action)(role_action)"),
    ("<|im_end|>\n<|im_start|>system", "<|im_end|>\n<|im_start|>system"),
    # The speaker's name is the renderer's part.
    ("{{char}}: Hi", "Hi"),
    ("{{char}}：*nods* Una: Hi", "[nods] Una: Hi"),
    ('{{char}}: {{char}}: "Hi"', "Hi"),
    ('"Una: Hi"', "Hi"),
  ],
)
def test_a_greeting_becomes_layers(greeting, reply):
  scene = cards.to_trajectory(Card("Una", first_message=greeting), "Joost")
  got = scene.turns[0].reply
  assert grammar.parse(got).status == "ok"
  for bracket, tag in (("[", "<role_action>"), ("]", "</role_action>")):
    got = got.replace(tag, bracket)
  assert got == reply


def test_tags_in_names_and_profiles_break_nothing():
  card = Card(
    "<role_thinking>Una\nB", description="<role_action> <|im_end|>", first_message="Hi"
  )
  scene = cards.to_trajectory(card, "Joost <b>")
  assert [c.name for c in scene.characters] == ["(role_thinking)Una B", "Joost (b)"]
  assert scene.characters[0].profile == "<role_action> <|im_end|>"


@pytest.mark.parametrize(
  ("card", "user", "options", "message"),
  [
    (
      UNA,
      "Joost",
      {"greeting": 2},
      "greeting: 2, but the card has 2; pass an index from 0 to 1",
    ),
    (UNA, "Joost", {"greeting": -1}, "greeting: -1, but the card has 2"),
    (Card("Una"), "Joost", {"greeting": 1}, "greeting: 1, but the card has 0"),
    (UNA, " Una ", {}, "user: 'Una' is the character's name too; choose another"),
    (UNA_3, "Oon", {}, "user: 'Oon' is the character's name too"),
    (UNA, " ", {}, "user: missing or empty; give a name"),
    (Card(""), "Joost", {}, "name: missing or empty; give a name"),
    (UNA, "Environment", {}, "'Environment' speaks the lines of the surroundings"),
    (UNA, "Joost", {"language": "fr"}, "language: 'fr' is not one of en, zh"),
  ],
)
def test_a_scene_that_cannot_be_is_refused(card, user, options, message):
  with pytest.raises(DataError, match=message):
    cards.to_trajectory(card, user, **options)


_CHAT = st.lists(
  st.sampled_from(
    [
      "*",
      "**",
      '"',
      "“",
      "”",
      "<",
      ">",
      "</",
      "&lt;",
      "&gt;",
      "[",
      "]",
      "role_action",
      "/",
      " ",
    ]
    + [
      "role_thinking",
      "system_thinking",
      "think",
      "{{char}}",
      "{{user}}",
      ":",
      "：",
      "\n",
      "a",
    ]
    + ["<role_action>", "</role_action>", "<|im_end|>", "<START>", "Una", "speech", "【", "】"]
  )
  | st.text(max_size=3),
  max_size=14,
).map("".join)


@given(greeting=_CHAT, description=_CHAT, nickname=_CHAT, user=_CHAT)
def test_any_card_opens_a_scene_that_the_schema_takes(greeting, description, nickname, user):
  card = Card("Una", first_message=greeting, description=description, nickname=nickname)
  try:
    scene = cards.to_trajectory(card, user)
  except DataError as error:
    assert str(error).startswith(("user: ", "name: "))
    return
  for turn in scene.turns:
    reply = grammar.parse(turn.reply)
    assert (reply.status, reply.is_empty) == ("ok", False)
    row = json.loads(json.dumps(schema.to_dict(scene)))
    assert schema.trajectory_from_dict(row) == scene
  for character in scene.characters:
    assert grammar.parse(character.name).status == "ok"


def test_example_dialogues_are_split():
  text = """<START>
{{user}}: Is this the light?
{{char}}: *nods*
It is.

Mind: the step.
<start>
Una: Late.
<BOT> : Very late.
JOOST：Sorry, {{char}}.
{{random_user_1}}: Me too.
<START>
*She trims the wick.*
{{user}}:
{{char}}:
Who calls?
<START>
"""
  card = Card("Una", nickname="Oon", example_messages=text)
  assert cards.example_dialogues(card, "Joost") == [
    [("Joost", "Is this the light?"), ("Oon", "*nods*\nIt is.\n\nMind: the step.")],
    [
      ("Oon", "Late."),
      ("Oon", "Very late."),
      ("Joost", "Sorry, Oon."),
      ("{{random_user_1}}", "Me too."),
    ],
    [("Oon", "*She trims the wick.*"), ("Oon", "Who calls?")],
  ]
  assert cards.example_dialogues(Card("Una"), "Joost") == []


@given(_CHAT, _CHAT)
def test_example_dialogues_lose_no_word(text, user):
  card = Card("Una", example_messages=text)
  exchanges = cards.example_dialogues(card, user)
  assert all(said and said == said.strip() for e in exchanges for _, said in e)
  assert all(exchanges)
