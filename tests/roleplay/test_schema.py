"""Scenes and pairs in and out; every kind of bad line is named with its place and its mend."""

import copy
import dataclasses
import json
import math

import pytest

from her_jax.roleplay import schema

SCENE = {
  "id": "quay",
  "scenario": "A quay at night.",
  "characters": [
    {"name": "Una", "profile": "A widow.", "motivation": "To be left alone."},
    {"name": "Joost", "profile": "A salvage master.", "background": "Vlissingen."},
  ],
  "turns": [
    {"speaker": "Environment", "reply": "Rain."},
    {"speaker": "Joost", "reply": "<role_action>bows</role_action> Madam."},
    {"speaker": "Una", "plan": "Una stays cool.", "reply": "Sit."},
  ],
  "language": "en",
  "source": "The Low Light",
  "split": "heldout",
}
PAIR = {
  "id": "quay/2",
  "scene": "quay",
  "turn": 2,
  "candidate_1": "Sit.",
  "candidate_2": "Okay.",
  "winner": "cand_1",
  "kind": "flat",
  "violates_2": ["vivid"],
}


def _write(path, *rows) -> None:
  lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_scenes_survive_writing_and_reading(tmp_path):
  chinese = {
    **SCENE,
    "id": "码头",
    "language": "zh",
    "turns": [{"speaker": "环境", "reply": "下雨。"}, {"speaker": "Una", "reply": "坐。"}],
  }
  scenes = [schema.trajectory_from_dict(row) for row in (SCENE, chinese)]
  path = tmp_path / "scenes.jsonl"
  schema.write_jsonl(path, scenes)
  assert schema.read_trajectories(path) == scenes
  # Texts are written as themselves, and empty optional fields not at all.
  written = path.read_text(encoding="utf-8")
  assert "码头" in written and '"mood"' not in written and '"plan": ""' not in written


def test_pairs_survive_writing_and_reading(tmp_path):
  tie = {**PAIR, "id": "quay/2b", "winner": "tie", "violates_1": ["vivid", "own-voice"]}
  pairs = [schema.pair_from_dict(row) for row in (PAIR, tie)]
  schema.write_jsonl(tmp_path / "pairs.jsonl", pairs)
  assert schema.read_pairs(tmp_path / "pairs.jsonl") == pairs


def test_judgements_survive_writing_and_reading(tmp_path):
  finding = {"principle": "vivid", "winner": "cand_2", "evidence": "names the lamp"}
  row = {"id": "j1", "pair": "quay/2", "winner": "cand_2", "findings": [finding]}
  rows = [row, {**row, "id": "j2", "swapped": True, "judge": "teacher", "cost": 0.2}]
  made = [schema.judgement_from_dict(r) for r in rows]
  schema.write_jsonl(tmp_path / "judgements.jsonl", made)
  assert schema.read_judgements(tmp_path / "judgements.jsonl") == made
  assert [schema.to_dict(j) for j in made] == rows


@pytest.mark.parametrize(
  "change, told",
  [
    ({"winner": "both"}, "winner: 'both' is not one of"),
    ({"findings": "x"}, "findings: expected a list of objects"),
    ({"findings": [{"principle": "vivid"}]}, "findings[0].winner: missing"),
    ({"findings": [{"principle": "vivid", "winner": "me"}]}, "findings[0].winner: 'me'"),
    ({"swapped": "no"}, "swapped: expected true or false"),
    ({"pair": ""}, "pair: missing"),
  ],
)
def test_a_bad_judgement_is_named(change, told):
  with pytest.raises(schema.DataError) as caught:
    schema.judgement_from_dict({"id": "j", "pair": "p", "winner": "tie", **change})
  assert told in str(caught.value)


def test_unknown_fields_are_kept_everywhere(tmp_path):
  row = copy.deepcopy(SCENE) | {"i_chunk": 7, "weight": None}
  row["characters"][0]["age"] = [61]
  row["turns"][1]["origin_id"] = [3, 4]
  scene = schema.trajectory_from_dict(row)
  assert scene.extra == {"i_chunk": 7, "weight": None}
  assert scene.characters[0].extra == {"age": [61]}
  assert scene.turns[1].extra == {"origin_id": [3, 4]}
  schema.write_jsonl(tmp_path / "scenes.jsonl", [scene])
  assert schema.read_trajectories(tmp_path / "scenes.jsonl") == [scene]
  assert schema.to_dict(scene) == row
  pair = schema.pair_from_dict({**PAIR, "teacher": "x"})
  assert schema.to_dict(pair) == {**PAIR, "teacher": "x", "split": "train"}


def test_what_a_scene_knows_of_itself():
  scene = schema.trajectory_from_dict(SCENE)
  assert scene.trained_turns() == scene.trained_turns("Una") == [2]
  assert scene.trained_turns("Joost") == []
  assert scene.trained_characters() == ["Una"]
  assert scene.environment == "Environment"
  assert dataclasses.replace(scene, language="zh").environment == "环境"
  with pytest.raises(KeyError, match="'Nobody' is not a character of scene 'quay'"):
    scene.character("Nobody")


def test_blank_lines_are_passed_over_and_counted_as_lines(tmp_path):
  path = tmp_path / "scenes.jsonl"
  _write(path, SCENE, "", "  ", "{")
  with pytest.raises(schema.DataError, match=r"scenes\.jsonl:4: not valid JSON"):
    schema.read_trajectories(path)


def _changed(*path, to=None, drop=False) -> dict:
  """SCENE with the entry at `path` changed or removed."""
  row = copy.deepcopy(SCENE)
  place = row
  for step in path[:-1]:
    place = place[step]
  if drop:
    del place[path[-1]]
  else:
    place[path[-1]] = to
  return row


@pytest.mark.parametrize(
  "row, field, mend",
  [
    (json.dumps(SCENE)[:80], "not valid JSON at column", "one whole JSON object"),
    ('["a list"]', "got list", "one JSON object a line"),
    (_changed("moods", to="x"), "moods: no such field", "is it 'mood'"),
    (_changed("turns", 1, "plans", to="x"), "turns[1].plans: no such field", "is it 'plan'"),
    (_changed("turns", 1, "paln", to="x"), "turns[1].paln: no such field", "is it 'plan'"),
    (_changed("id", drop=True), "id: missing", "give it a text"),
    (_changed("scenario", to="  "), "scenario: missing or empty", "give it a text"),
    (_changed("characters", to=[]), "characters: missing or empty", "list of objects"),
    (_changed("turns", drop=True), "turns: missing or empty", "list of objects"),
    (_changed("characters", 1, "name", to=" Joost"), "characters[1].name", "remove them"),
    (_changed("characters", 1, "name", to="Jo\nost"), "characters[1].name", "remove them"),
    (_changed("characters", 1, "name", to="Joost:"), "characters[1].name", "to the renderer"),
    (_changed("characters", 1, "name", to="Environment"), "is reserved", "rename it"),
    (_changed("turns", 2, "plan", to=" \n"), "turns[2].plan: nothing but blanks", "remove"),
    (json.dumps(_changed("genre", to="\ud800")), "half of a surrogate pair", "the whole one"),
    ("[" * 100_000, "not usable JSON (RecursionError)", "more simply"),
    ('{"id": ' + "9" * 5000 + "}", "not usable JSON (ValueError)", "more simply"),
    (
      _changed("turns", 2, "reply", to="<smile>Sit.</smile>"),
      "turns[2].reply: unknown tag '<smile>'",
      "write tags as",
    ),
    (_changed("turns", 0, "reply", to=""), "turns[0].reply", "give it a text"),
    (_changed("turns", 1, to="Sit."), "turns[1]: expected an object", "got str"),
    (_changed("genre", to=7), "genre: expected a text", "got 7"),
    (_changed("turns", 2, "plan", to=None), "turns[2].plan: expected a text", "got None"),
    (_changed("language", to="de"), "language: 'de' is not one of", "en"),
    (_changed("split", to="test"), "split: 'test' is not one of", "train, heldout"),
    (_changed("characters", 1, "name", to="Una"), "a name stands twice", "name of its own"),
    (
      _changed("turns", 1, "speaker", to="Jost"),
      "turns[1].speaker: 'Jost'",
      "correct the name",
    ),
    (_changed("turns", 0, "plan", to="Rain."), "turns[0].plan: the environment", "remove it"),
    (
      _changed("turns", 2, "reply", to="<role_thinking>Hm. Sit."),
      "turns[2].reply: <role_thinking> is never closed",
      "each closed",
    ),
    (
      _changed("turns", 2, "reply", to="<Role_Action>nods</Role_Action>"),
      "turns[2].reply: irregular tag",
      "each closed",
    ),
    (
      _changed("turns", 2, "reply", to="<system_thinking>Cool.</system_thinking>Sit."),
      "turns[2].reply: holds <system_thinking>",
      "into the field 'plan'",
    ),
    (
      _changed("turns", 2, "reply", to="<role_thinking>Hm.</role_thinking>"),
      "turns[2].reply: neither speech nor action",
      "write what others perceive",
    ),
  ],
)
def test_a_bad_scene_is_named_with_place_field_and_mend(tmp_path, row, field, mend):
  path = tmp_path / "scenes.jsonl"
  good = {**SCENE, "id": "first"}
  _write(path, good, row)
  with pytest.raises(schema.DataError) as caught:
    schema.read_trajectories(path)
  message = str(caught.value)
  assert message.startswith(f"{path}:2")
  assert field in message and mend in message
  assert "\n" not in message


@pytest.mark.parametrize(
  "change, field",
  [
    ({"winner": "cand_3"}, "winner: 'cand_3' is not one of cand_1, cand_2, tie"),
    ({"split": "test"}, "split: 'test' is not one of train, heldout"),
    ({"turn": -1}, "turn: expected the index of a turn, got -1"),
    ({"turn": "2"}, "turn: expected the index of a turn, got '2'"),
    ({"turn": None}, "turn: expected the index of a turn, got None"),
    ({"violates_1": "vivid"}, "violates_1: expected a list of principle ids"),
    ({"violates_2": [3]}, "violates_2: expected a list of principle ids"),
    ({"candidate_2": ""}, "candidate_2: missing or empty; give it a text"),
    ({"scene": None}, "scene: missing or empty; give it a text"),
    ({"violates": []}, "violates: no such field; is it 'violates_1'"),
  ],
)
def test_a_bad_pair_is_named_with_place_field_and_mend(tmp_path, change, field):
  path = tmp_path / "pairs.jsonl"
  _write(path, {**PAIR, "id": "first"}, {**PAIR, **change})
  with pytest.raises(schema.DataError) as caught:
    schema.read_pairs(path)
  message = str(caught.value)
  assert message.startswith(f"{path}:2 (id 'quay/2'): ")
  assert field in message


@pytest.mark.parametrize(
  "change, told",
  [
    ({"scene": "nowhere"}, "scene: 'nowhere' is not among the scenes"),
    ({"turn": 9}, "turn: 9, but scene 'quay' has"),
    ({"turn": 0}, "turn: 0 is the environment's"),
    ({"violates_2": ["vivd"]}, "violates_2: 'vivd' is no principle of the library"),
    ({"split": "train"}, "split: 'train', but that of scene 'quay' is 'heldout'"),
  ],
)
def test_a_pair_that_does_not_fit_its_scene_is_named(tmp_path, change, told):
  path = tmp_path / "pairs.jsonl"
  right = {**PAIR, "split": SCENE["split"]}
  _write(path, {**right, "id": "first"}, {**right, **change})
  scenes = [schema.trajectory_from_dict(SCENE)]
  assert len(schema.read_pairs(path)) == 2
  with pytest.raises(schema.DataError) as caught:
    schema.read_pairs(path, scenes, {"vivid"})
  assert str(caught.value).startswith(f"{path}:2 (id 'quay/2'): ")
  assert told in str(caught.value)


@pytest.mark.parametrize(
  "read, row", [(schema.read_trajectories, SCENE), (schema.read_pairs, PAIR)]
)
def test_an_id_that_stands_twice_is_named(tmp_path, read, row):
  path = tmp_path / "rows.jsonl"
  _write(path, row, {**row, "id": "between"}, row)
  with pytest.raises(schema.DataError) as caught:
    read(path)
  message = str(caught.value)
  assert message.startswith(str(path)) and repr(row["id"]) in message
  assert "ids must be unique" in message


@pytest.mark.parametrize("read", [schema.read_trajectories, schema.read_pairs])
def test_a_missing_file_is_named(tmp_path, read):
  with pytest.raises(schema.DataError, match=r"nowhere\.jsonl: no such file; pass an existing"):
    read(tmp_path / "nowhere.jsonl")


_NOTES = {
  "no object": (5, r"her: expected an object, got int"),
  "a list": ([1, 2], r"her: expected an object, got list"),
  "null": (None, r"her: expected an object, got NoneType"),
  "settings_added": ({"settings_added": 5}, r"her\.settings_added: expected a list of objects"),
  "settings_added of texts": (
    {"settings_added": ["x"]},
    r"her\.settings_added: expected a list",
  ),
  "draft": ({"draft": ["x"]}, r"her\.draft: expected a text"),
  "flags": ({"flags": "leak"}, r"her\.flags: expected a list of texts"),
  "candidates": ({"candidates": ["a"]}, r"her\.candidates: expected a list of two"),
  "breaks": ({"breaks": [1, "cand_1"]}, r"her\.breaks: expected \[principle, winner\]"),
  "verdicts": ({"verdicts": [3]}, r"her\.verdicts: expected a list of winners"),
}


@pytest.mark.parametrize("place", ["scene", "turn", "character", "pair"])
@pytest.mark.parametrize("kind", _NOTES)
def test_notes_of_another_form_are_told_with_their_place(tmp_path, place, kind):
  """Files come back that others have changed; no stage may stumble over them later."""
  notes, message = _NOTES[kind]
  row = copy.deepcopy(PAIR if place == "pair" else SCENE)
  where = {"turn": row.get("turns", [{}])[-1], "character": row.get("characters", [{}])[0]}
  where.get(place, row)["her"] = notes
  path = tmp_path / "rows.jsonl"
  _write(path, row)
  read = schema.read_pairs if place == "pair" else schema.read_trajectories
  at = {"turn": r"turns\[2\]\.", "character": r"characters\[0\]\."}.get(place, "")
  with pytest.raises(schema.DataError, match=rf"rows\.jsonl:1 .*: {at}{message}"):
    read(path)


def test_a_nul_is_told_with_its_field(tmp_path):
  row = copy.deepcopy(SCENE)
  row["turns"][1]["reply"] = "Sit.\0"
  path = tmp_path / "rows.jsonl"
  _write(path, SCENE, {**row, "id": "other"})
  with pytest.raises(schema.DataError, match=r"rows\.jsonl:2.*turns\[1\]\.reply: holds a NUL"):
    schema.read_trajectories(path)
  row["turns"][1]["reply"] = "She wrote \\u0000 on the slate."  # Six signs.
  _write(path, row)
  assert schema.read_trajectories(path)[0].turns[1].reply == row["turns"][1]["reply"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_has_no_sign_for_are_refused_with_line_and_field(tmp_path, number):
  path = tmp_path / "scenes.jsonl"
  row = json.dumps({**SCENE, "mine": {"scores": [1.5, "X"]}}).replace('"X"', number)
  path.write_text(json.dumps({**SCENE, "id": "first", "n": 1e300}) + "\n" + row + "\n")
  with pytest.raises(
    schema.DataError, match=r"scenes.jsonl:2: mine\.scores\[1\]: NaN or Inf.*null"
  ):
    schema.read_trajectories(path)


@pytest.mark.parametrize(
  "raw", ['{"a": NaN, "b": ' + "9" * 5000 + "}", '{"a": NaN,', '{"a": NaN, "a": 1}', "NaN"]
)
def test_other_faults_beside_such_a_number_are_told_too(tmp_path, raw):
  path = tmp_path / "scenes.jsonl"
  path.write_text(raw)
  with pytest.raises(schema.DataError, match="scenes.jsonl:1: "):
    schema.read_trajectories(path)


def test_no_invalid_json_is_written(tmp_path):
  scene = schema.trajectory_from_dict(SCENE)
  turn = dataclasses.replace(scene.turns[1], extra={"her": {"overlap": math.nan}})
  odd = dataclasses.replace(scene, turns=(scene.turns[0], turn))
  with pytest.raises(schema.DataError, match=r"'quay': turns\[1\]\.her\.overlap: NaN or Inf"):
    schema.write_jsonl(tmp_path / "out.jsonl", [scene, odd])
