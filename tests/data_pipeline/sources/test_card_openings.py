"""Cards with their greetings and with seed scenarios."""

import base64
import json

from PIL import Image
from PIL.PngImagePlugin import PngInfo
import pytest

from data_pipeline.sources import reader
from data_pipeline.sources.report import Report
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError

CARD = {
  "spec": "chara_card_v2",
  "data": {
    "name": "Una",
    "description": "{{char}} surveys rivers and trusts {{user}}.",
    "personality": "Dry.",
    "scenario": "A ferry in fog.",
    "first_mes": "*looks up* You are late, {{user}}.",
    "alternate_greetings": ["The bell has stopped."],
    "mes_example": "",
    "tags": ["river"],
    "creator": "nobody",
  },
}


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "una.json").write_text(json.dumps(CARD))
  other = {**CARD, "data": {**CARD["data"], "name": "Joost", "alternate_greetings": []}}
  info = PngInfo()
  info.add_text("chara", base64.b64encode(json.dumps(other).encode()).decode())
  Image.new("RGB", (2, 2)).save(tmp_path / "joost.png", pnginfo=info)
  return tmp_path


@pytest.mark.parametrize("format", ["auto", "cards"])
def test_each_greeting_opens_a_scene(folder, format):
  found = list(reader.read(folder, format, options=reader.Options(user="Marthe")))
  assert [t.id for t in found] == ["card:Joost/0", "card:Una/0", "card:Una/1"]
  assert [t.source for t in found] == ["card:Joost", "card:Una", "card:Una"]
  una = found[1]
  assert una.turns[0].reply == "<role_action>looks up</role_action> You are late, Marthe."
  assert una.characters[0].profile.startswith("Una surveys rivers and trusts Marthe.")
  assert una.extra["card"] == {"tags": ["river"], "creator": "nobody"}
  schema.write_jsonl(folder / "out.jsonl", found)
  assert schema.read_trajectories(folder / "out.jsonl") == found


def test_seeds_put_a_card_into_situations_of_their_own(folder):
  seeds = [
    {
      "id": "storm",
      "character": "UNA",
      "scenario": "{{char}} and {{user}} are at the ford.",
      "user_name": "Marthe",
      "opening": [
        {"speaker": "{{user}}", "text": "(points) The water rises."},
        {"text": "Then go."},
      ],
      "difficulty": 3,
    },
    {"scenario": "Both wait for the bell."},
  ]
  found = {t.id: t for t in reader.read(folder, "cards", options=reader.Options(seeds=seeds))}
  assert list(found) == ["card:Joost/1", "card:Una/storm", "card:Una/1"]
  storm = found["card:Una/storm"]
  assert storm.scenario == "Una and Marthe are at the ford."
  assert [(t.speaker, t.reply) for t in storm.turns] == [
    ("Marthe", "<role_action>points</role_action> The water rises."), ("Una", "Then go.")
  ]  # fmt: skip
  assert storm.extra["seed"] == {"difficulty": 3}
  assert found["card:Una/1"].turns[0].reply.startswith("<role_action>looks up")


@pytest.mark.parametrize(
  ("seed", "told"),
  [
    ({"scenario": " "}, "scenario: missing"),
    ({"scenario": "x", "opening": [{"speaker": "Una"}]}, r"opening\[0\]\.text: missing"),
    ({"scenario": "x", "opening": []}, "opening: missing or empty"),
    ({"scenario": "x", "language": "fr"}, "'fr' is not one of en, zh"),
    ({"scenario": "x", "user_name": "Una"}, "character's name too"),
    (
      {"scenario": "x", "opening": [{"speaker": "Nobody", "text": "Hm."}]},
      "not among the characters",
    ),
  ],
)
def test_a_broken_seed_names_its_card_and_number(folder, seed, told):
  with pytest.raises(DataError, match=rf"una\.json: seeds\[0\]: .*{told}"):
    list(reader.read(folder / "una.json", options=reader.Options(seeds=[seed])))


def test_a_broken_card_is_put_aside(folder):
  (folder / "broken.json").write_text('{"spec": "chara_card_v2", "first_mes": "x", "data": {}}')
  (folder / "cut.png").write_bytes((folder / "joost.png").read_bytes()[:60])
  report = Report()
  found = list(reader.read(folder, "cards", strict=False, report=report))
  assert len(found) == 3 and sum(report.rejected.values()) == 2
  with pytest.raises(DataError, match=r"broken\.json"):
    list(reader.read(folder, "cards"))


def test_real_seeds_of_the_bench_are_openings(real_data):
  found = list(reader.read(real_data("minimax_seeds_en.json")))
  assert [len(t.turns) for t in found] == [2, 2] and {t.split for t in found} == {"heldout"}
