"""Rows of CoSER, HER and the role-play bench: every field finds its place, none is lost."""

import copy
import json
import pathlib

import pytest

from her_jax.roleplay import formats, grammar, schema
from her_jax.roleplay.schema import Character, Turn

# A row of every format, of our own writing, with each field that one can have. In HER's the
# turns' own `sys_thinking` has been shifted to another turn, as its code did.
ROWS = json.loads(pathlib.Path(__file__).with_name("foreign_rows.json").read_text("utf-8"))
HER, COSER, SFT, SEED = (ROWS[name] for name in ("her", "coser", "messages", "minimax"))


def _one(row) -> schema.Trajectory:
  (made,) = formats.trajectories(row)
  return made


def test_a_her_row_becomes_a_scene():
  made = _one(HER)
  assert made.id == "low-light_ch3/4/2"
  assert made.scenario == "A kitchen at eleven, the range cold."
  assert (made.source, made.topic) == ("The Low Light", "The sounding books")
  assert (made.summary, made.language, made.split) == ("Una receives Joost.", "en", "train")
  una, joost = made.characters
  kept = {
    "character_profile": "Dry.",
    "motivation": "To be left alone.",
    "description": "A widow.",
    "age": 61,
  }
  assert una == Character(
    name="Una",
    profile="Dry and exact.",
    background="Corrected charts.",
    motivation="To be left alone, and to give him nothing.",
    description="A pilot's widow of sixty-one.",
    experience="Buried Davy in March.",
    extra={"her": kept},
  )
  assert joost == Character("Joost")
  assert [(t.speaker, t.reply) for t in made.turns] == [
    ("Environment", "Rain."),
    ("Joost", "<role_action>bows</role_action> Madam."),
    ("Una", "<role_thinking>Not him, not now.</role_thinking> Sit."),
    ("Joost", "Thank you."),
    ("Una", "<role_thinking>Oh.</role_thinking> <role_action>weeps</role_action>"),
  ]


def test_fields_of_a_her_row_without_a_place_are_kept():
  made = _one(HER)
  row, conversation = HER, HER["conversation"][0]
  for field in (
    "text",
    "prominence",
    "chapter",
    "state",
    "i_chunk",
    "plot_index",
    "conv_index",
  ):
    assert made.extra["her"][field] == row[field]
  for field in ("scenario", "speaking_characters_w_env", "major_characters", "i_c"):
    assert made.extra["her"][field] == conversation[field]
  third = made.turns[2].extra["her"]
  for field in (
    "message",
    "standard_format",
    "origin_id",
    "enhanced_reason",
    "enhanced_pattern",
  ):
    assert third[field] == conversation["dialogues"][2][field]
  assert third["sys_thinking_original"] == "I would stay cool."
  assert made.turns[1].extra["her"]["message"] == "[Steady.] (bows) Madam."


def test_a_plan_goes_by_its_origin_id_and_by_no_place():
  """The row's own `sys_thinking` has been shifted; merged turns make places differ from ids."""
  plans = {i: t.plan for i, t in enumerate(_one(HER).turns) if t.plan}
  assert plans == {2: "Una stays cool.", 4: "Una breaks at last."}


@pytest.mark.parametrize("shape", [list, lambda ids: ids[0], lambda ids: str(ids[0])])
def test_origin_ids_are_read_in_any_shape(shape):
  row = copy.deepcopy(HER)
  for entry in row["conversation"][0]["dialogues"]:
    ids = entry["origin_id"]
    entry["origin_id"] = shape(ids if isinstance(ids, list) else [ids])
  assert [bool(t.plan) for t in _one(row).turns] == [False, False, True, False, True]


def test_a_plan_for_merged_turns_goes_to_the_first_alone():
  row = copy.deepcopy(HER)
  row["training_samples"]["Una"][2]["origin_id"] = [3, 5]
  del row["training_samples"]["Una"][3]
  assert [t.plan for t in _one(row).turns if t.plan] == ["Una stays cool."]


def test_a_plan_of_another_character_with_the_same_origin_id_is_not_taken():
  row = copy.deepcopy(HER)
  row["training_samples"]["Joost"] = row["training_samples"].pop("Una")
  made = _one(row)
  assert not [t.plan for t in made.turns if t.plan]
  # Nor is one lost without a word.
  left = made.extra["her"]["plans_without_turn"]
  assert [(p["character"], p["origin_id"]) for p in left] == [("Joost", [3]), ("Joost", 5)]


def test_without_training_samples_the_turns_own_plan_counts():
  row = {**HER, "training_samples": {}}
  assert [t.plan for t in _one(row).turns if t.plan] == ["Una breaks at last."]


def test_a_row_with_two_conversations_gives_two_scenes_and_mixes_no_plans():
  row = {**copy.deepcopy(HER), "training_samples": {}}
  row["conversation"].append({**row["conversation"][0], "i_c": 3})
  one, two = formats.trajectories(row)
  assert (one.id, two.id) == ("low-light_ch3/4/2", "low-light_ch3/4/3")
  row["training_samples"] = HER["training_samples"]
  with pytest.raises(schema.DataError, match=r"training_samples\.Una: origin id 3 stands in"):
    formats.trajectories(row)


def test_a_coser_case_becomes_a_scene():
  made = _one(COSER)
  assert (made.id, made.split) == ("Persuasion/7/1", "heldout")
  assert (made.scenario, made.topic) == ("A parlour.", "A letter")
  assert (made.source, made.summary) == ("Persuasion", "Anne hides a letter.")
  anne, mary, groom = made.characters
  assert anne == Character(
    "Anne",
    profile="Twenty-seven.",
    motivation="He must not see.",
    description="The second daughter.",
    experience="Reads the letter.",
  )
  assert mary == Character(
    "Mary",
    motivation="To be pitied.",
    description="The youngest.",
    experience="Lies on a sofa.",
  )
  assert groom == Character("Groom")
  thought = "<role_thinking>My hands shake (a little).</role_thinking>"
  assert made.turns == (
    Turn("Anne", f"{thought}\n<role_action>folds it</role_action> Nothing."),
    Turn("Environment", "A clock strikes."),
    Turn("Groom", "Madam? 1) the horses.", extra={"coser": {"weight": 2}}),
  )
  kept = made.extra["coser"]
  for field in ("i_p", "i_c", "tag", "speaking_characters_w_env", "major_characters", "weight"):
    assert kept[field] == COSER[field]
  for field in ("prominence", "chapter", "state", "i_chunk", "i_p"):
    assert kept["plot"][field] == COSER["plot"][field]


def test_what_is_told_of_the_environment_makes_it_no_character():
  row = copy.deepcopy(COSER)
  row["character_profiles"]["Environment"] = "A parlour in Bath."
  made = _one(row)
  assert [c.name for c in made.characters] == ["Anne", "Mary", "Groom"]
  assert made.extra["coser"]["environment"] == {
    "Environment": {"profile": "A parlour in Bath."}
  }


def test_a_message_in_both_notations_hides_the_thoughts_of_both():
  row = copy.deepcopy(COSER)
  row["dialogues"][0]["message"] = (
    "Anne: [MIND_1] <role_thinking>MIND_2</role_thinking> (folds it) Nothing. [MIND_3"
  )
  turn = _one(row).turns[0]
  assert grammar.parse(turn.reply).status == "ok"
  assert grammar.parse(turn.reply).view_for("other") == (
    "<role_action>folds it</role_action> Nothing."
  )
  assert [turn.reply.count(f"MIND_{i}") for i in (1, 2, 3)] == [1, 1, 1]


def test_messages_become_a_scene():
  made = _one(SFT)
  assert made.id == "low-light/4/2/Una/3"
  assert [c.name for c in made.characters] == ["Una", "Joost"]
  assert made.characters[0].profile == "You are Una.\n\nA kitchen."
  assert made.turns == (
    Turn("Environment", "Rain."),
    Turn("Joost", "<role_action>bows</role_action> Madam.\n\nMay I?"),
    Turn("Una", "<role_thinking>Not him.</role_thinking> Sit.", "Una stays cool."),
    Turn("Joost", "Thank you."),
    Turn("Una", "<role_thinking>Go.</role_thinking><role_action>nods</role_action>"),
  )
  assert made.extra["her"]["source_id"] == 19


def test_a_seed_becomes_a_scene():
  made = _one(SEED)
  assert (made.id, made.language, made.split) == ("en_001", "en", "heldout")
  assert made.characters == (
    Character("Dr. Ashe", "A surgeon, once in 北京."),
    Character("Kit", "A guest."),
  )
  nods = "<role_action>sets the knife down</role_action> You came.\n\n"
  assert made.turns == (
    Turn("Dr. Ashe", f"{nods}<role_action>waits</role_action>"),
    Turn("Kit", "<role_action>look at you</role_action>"),
  )
  assert made.extra == {"minimax": {"lang": "en"}}
  chinese = {**SEED, "ai_setting": "外科医生。", "user_name": None}
  assert (_one(chinese).language, _one(chinese).characters[1].name) == ("zh", "User")


@pytest.mark.parametrize("name", ROWS)
def test_what_was_read_keeps_the_contract_and_survives_as_ours(name):
  (made,) = formats.trajectories(ROWS[name])
  assert not list(schema.problems(made))
  row = json.loads(json.dumps(schema.to_dict(made)))
  assert schema.trajectory_from_dict(row) == made
  assert formats.trajectories(row) == [made]


@pytest.mark.parametrize("name", ROWS)
def test_an_unknown_field_is_kept_even_if_named_like_ours(name):
  strange = {"plans": 1, "reply": "x", "extra": {"a": None}, "mood": [2]}
  row = {**strange, **copy.deepcopy(ROWS[name])}
  for entry in row.get("dialogues", []) + row.get("key_characters", []):
    entry.update(strange)
  made = _one(row)
  origin = "her" if name == "messages" else name
  assert strange.items() <= made.extra[origin].items()
  if "dialogues" in row:
    assert strange.items() <= made.turns[0].extra[origin].items()
  if "key_characters" in row:
    assert strange.items() <= made.characters[0].extra[origin].items()
  assert schema.trajectory_from_dict(schema.to_dict(made)) == made


def _places(value, path=()):
  """The path of every entry of a row, however deep."""
  entries = value.items() if isinstance(value, dict) else enumerate(value)
  for key, entry in entries:
    yield (*path, key)
    if isinstance(entry, dict | list):
      yield from _places(entry, (*path, key))


def _put(row, path, value):
  row = copy.deepcopy(row)
  place = row
  for key in path[:-1]:
    place = place[key]
  place[path[-1]] = value
  return row


@pytest.mark.parametrize("name", ROWS)
def test_a_value_of_another_type_is_never_more_than_a_named_fault(name):
  refused = 0
  for path in _places(ROWS[name]):
    for value in (7, None, "", "x", [], [7], ["x"], {}, {"a": 7}, True, [[1]]):
      try:
        made = formats.trajectories(_put(ROWS[name], path, value))
      except schema.DataError as error:
        refused += 1
        field = next(key for key in reversed(path) if isinstance(key, str))
        named = str(error).split(": ")[0]
        # The fault stands at the entry, in it (as its name), or with what it lacks now.
        assert named and "\n" not in str(error) and "; " in f"{error}; "
        assert str(path[0]) in named or field in str(error), (path, value, str(error))
      else:
        for scene in made:
          list(schema.problems(scene))
  assert refused > 10


@pytest.mark.parametrize(
  "row, told",
  [
    ({}, "no known format: found nothing; expected one of the fields turns, conversation"),
    ({"foo": 1}, "no known format: found foo"),
    (_put(COSER, ("dialogues",), []), "dialogues: missing or empty"),
    (_put(COSER, ("scenario",), " "), "scenario: missing or empty; describe the scene"),
    (
      _put(COSER, ("dialogues", 1, "message"), 3),
      "dialogues[1].message: expected a text, got 3",
    ),
    (_put(COSER, ("dialogues", 1, "message"), " "), "dialogues[1].message: missing or empty"),
    (
      _put(COSER, ("dialogues", 2, "character"), ""),
      "dialogues[2].character: missing or empty",
    ),
    (_put(COSER, ("dialogues", 2), "x"), "dialogues[2]: expected an object, got 'x'"),
    (_put(COSER, ("plot",), "x"), "plot: expected an object, got 'x'"),
    (_put(COSER, ("key_characters", 0, "name"), None), "key_characters[0].name: missing"),
    (
      _put(COSER, ("character_profiles", "Anne"), 1),
      "character_profiles.Anne: expected a text",
    ),
    (_put(HER, ("conversation", 0, "dialogues"), None), "conversation[0].dialogues: missing"),
    (
      _put(HER, ("character_datasets", "Una"), "x"),
      "character_datasets.Una: expected an object",
    ),
    (
      _put(HER, ("training_samples", "Una", 1), 3),
      "training_samples.Una[1]: expected an object",
    ),
    (_put(HER, ("training_samples", "Una"), "x"), "training_samples.Una: missing or empty"),
    (
      _put(HER, ("conversation", 0, "dialogues", 3, "origin_id"), {"a": 1}),
      "conversation[0].dialogues[3].origin_id: expected an id or a list of ids",
    ),
    (_put(SFT, ("character",), ""), "character: missing or empty; name whom"),
    (_put(SFT, ("trace_id",), None), "id: missing or empty; give the row an id"),
    (_put(SFT, ("messages", 1, "role"), "tool"), "messages[1].role: 'tool' is not one of"),
    (_put(SFT, ("messages", 3, "content"), "Well?"), "messages[3].content: 'Well?' names no"),
    (_put(SEED, ("ai_name",), None), "ai_name: missing or empty; name the character"),
    (_put(SEED, ("user_name",), "Dr. Ashe"), "user_name: 'Dr. Ashe' is the character's name"),
  ],
)
def test_a_bad_row_is_named_with_field_and_mend(row, told):
  with pytest.raises(schema.DataError) as caught:
    formats.trajectories(row)
  assert told in str(caught.value)
