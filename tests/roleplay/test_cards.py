"""Cards of every spec come in whole, broken ones are named, and their scene can be played."""

import base64
import json
import subprocess
import sys

from PIL import Image
import pytest

from her_jax.roleplay import cards
from her_jax.roleplay.cards import Card
from her_jax.roleplay.lorebook import Lorebook, LoreEntry
from her_jax.roleplay.schema import DataError
from tests.roleplay.sample_cards import (
  DATA,
  SPECS,
  UNA,
  UNA_2,
  UNA_3,
  V1,
  V2,
  V3,
  base64_of,
  json_file,
  png_file,
)


def _reading_fails(path, *parts) -> None:
  with pytest.raises(DataError) as error:
    cards.read(path)
  assert str(error.value).startswith(f"{path}: ")
  for part in parts:
    assert part in str(error.value)


@SPECS
def test_json_of_every_spec_is_read(tmp_path, row, card):
  assert cards.read(json_file(tmp_path / "una.json", row)) == card
  # The content counts, not the name of the file.
  assert cards.read(str(json_file(tmp_path / "una.png", row))) == card


@SPECS
@pytest.mark.parametrize("international", [False, True])
def test_a_png_of_every_spec_is_read(tmp_path, row, card, international):
  chunk = "ccv3" if row is V3 else "chara"
  path = png_file(tmp_path / "una.json", {chunk: base64_of(row)}, international)
  assert cards.read(path) == card


def test_the_v3_chunk_is_preferred(tmp_path):
  both = {"chara": base64_of(V2), "ccv3": base64_of(V3), "Comment": "painted"}
  assert cards.read(png_file(tmp_path / "a.png", both)) == UNA_3


def test_a_png_may_hold_the_card_behind_the_picture(tmp_path):
  picture = png_file(tmp_path / "a.png", {}).read_bytes()
  card = png_file(tmp_path / "b.png", {"chara": base64_of(V2)}).read_bytes()
  at = card.index(b"tEXt") - 4
  chunk = card[at : at + 12 + int.from_bytes(card[at : at + 4], "big")]
  end = picture.index(b"IEND") - 4
  path = tmp_path / "c.png"
  path.write_bytes(picture[:end] + chunk + picture[end:] + b"trailing")
  assert cards.read(path) == UNA_2


def test_oddities_of_real_cards_are_borne(tmp_path):
  path = tmp_path / "una.json"

  def read(row):
    return cards.read(json_file(path, row))

  assert read({"data": DATA}) == UNA_2  # Without its spec.
  assert read({"spec": None, "data": DATA}) == UNA_2
  assert read("\ufeff" + json.dumps(V2)) == UNA_2
  assert cards.read(png_file(tmp_path / "a.png", {"chara": base64_of(V3)})) == UNA_3
  assert cards.read(png_file(tmp_path / "b.png", {"Chara": base64_of(V1)})) == UNA
  folded = "\n".join(base64_of(V1)[i : i + 76] for i in range(0, 2000, 76)).rstrip().rstrip("=")
  assert cards.read(png_file(tmp_path / "c.png", {"chara": folded})) == UNA
  marked = base64.b64encode("\ufeff".encode() + json.dumps(V1).encode()).decode()
  assert cards.read(png_file(tmp_path / "d.png", {"chara": marked})) == UNA

  bare = dict.fromkeys(DATA) | {"name": "Una"}
  card = read({"spec": "chara_card_v2", "data": bare})
  assert card == Card("Una", spec="v2", extra={"extensions": None})
  assert read(dict.fromkeys(DATA, "") | {"name": "Una"}).lorebook is None
  numbers = {"name": "Una", "character_version": 1.1, "tags": [1920, "sea"]}
  card = read(numbers)
  assert (card.character_version, card.tags) == ("1.1", ("1920", "sea"))
  assert read({"name": "Una", "tags": "sea, drama,"}).tags == ("sea", "drama")
  world = {"entries": {"0": {"key": ["oil"], "keysecondary": [], "content": "x", "order": 3}}}
  card = read({"name": "Una", "character_book": world})
  assert card.lorebook == Lorebook(entries=(LoreEntry(("oil",), "x", insertion_order=3),))


def test_half_an_emoji_is_replaced(tmp_path):
  path = json_file(tmp_path / "a.json", r'{"name": "Una", "scenario": "a\ud83d b\ud83d\ude00"}')
  card = cards.read(path)
  assert card.scenario == "a\ufffd b\U0001f600"
  cards.write(card, path)
  assert cards.read(path) == card


def test_what_stands_beside_the_data_is_kept(tmp_path):
  row = {**V2, **V1, "spec_version": "2.1", "create_date": "today", "fav": False}
  card = cards.read(json_file(tmp_path / "a.json", row))
  # The copies for readers of V1 would go stale.
  assert card.outer == {"spec_version": "2.1", "create_date": "today", "fav": False}
  cards.write(card, tmp_path / "b.json")
  assert cards.read(tmp_path / "b.json") == card
  written = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
  assert written["spec_version"] == "2.1" and "name" not in written


@pytest.mark.parametrize(
  ("row", "parts"),
  [
    ("", ("not valid JSON at line 1, column 1", "one whole JSON object")),
    ('{"name": "Una"', ("not valid JSON at line 1",)),
    ('{"name": ' + "9" * 5000 + "}", ("not valid JSON", "shorten that number")),
    ("[" * 100_000, ("nested too deeply", "remove")),
    (
      '{"name":"Una","extensions":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
      ("deeply",),
    ),
    ([V1], ("expected an object, got a list",)),
    ({}, ("name: missing or empty; give the character a name",)),
    ({"name": " "}, (" name: missing or empty",)),
    ({"name": 7}, (" name: expected a text, got a number; put it in quotes",)),
    ({"data": {}}, ("data.name: missing",)),
    ({**V2, "data": {**DATA, "name": None}}, ("data.name: missing",)),
    (
      {**V2, "data": {**DATA, "scenario": ["x"]}},
      ("data.scenario: expected a text, got a list",),
    ),
    ({**V2, "data": {**DATA, "tags": {}}}, ("data.tags: expected a list, got an object",)),
    (
      {**V2, "data": {**DATA, "alternate_greetings": "Hi"}},
      ("data.alternate_greetings: expected a list, got a text; give a list of texts",),
    ),
    (
      {**V2, "data": {**DATA, "alternate_greetings": ["a", 3]}},
      ("data.alternate_greetings[1]: expected a text, got a number",),
    ),
    (
      {**V2, "data": {**DATA, "character_book": "x"}},
      ("data.character_book: expected an object, got a text",),
    ),
    (
      {**V2, "data": {**DATA, "character_book": {"entries": [{"keys": 3}]}}},
      ("data.character_book.entries[0].keys: expected a list, got a number",),
    ),
    ({**V1, "character_book": []}, (": character_book: expected an object, got a list",)),
    (
      {"spec": "chara_card_v9", "data": DATA},
      ("spec: 'chara_card_v9' is unknown", "v2, chara"),
    ),
    ({"spec": 3, "data": DATA}, ("spec: a number is unknown",)),
    ({"spec": "chara_card_v2", **V1}, ("data: missing; put the card's fields into it",)),
    ({"data": "x", **V1}, ("data: expected an object, got a text",)),
  ],
)
def test_broken_json_names_the_field_and_the_mend(tmp_path, row, parts):
  _reading_fails(json_file(tmp_path / "una.json", row), *parts)


def test_broken_files_are_named(tmp_path):
  path = tmp_path / "a"
  _reading_fails(path, "no such file; pass a character card")
  _reading_fails(tmp_path, "no such file")
  path.write_bytes('{"name": "Zoë"}'.encode("latin-1"))
  _reading_fails(path, "not UTF-8; save the card in that encoding")
  path.write_bytes(b"PK\x03\x04rest")
  _reading_fails(path, "zip archive (CHARX); unpack it and read its card.json")
  for form, name in (("JPEG", "a JPEG"), ("GIF", "a GIF"), ("WEBP", "a WebP")):
    Image.new("RGB", (8, 8)).save(path, form)
    _reading_fails(path, name, "use the PNG or the JSON")


def test_broken_pngs_are_named(tmp_path):
  path = tmp_path / "a.png"
  _reading_fails(
    png_file(path, {"Comment": "x"}), "holds no card", "ccv3 or chara", "export it again"
  )
  _reading_fails(
    png_file(path, {"chara": "{name}"}), "chara: not base64; export the card again"
  )
  _reading_fails(png_file(path, {"ccv3": "ö" * 4}), "ccv3: not base64")
  _reading_fails(png_file(path, {"chara": "bm90IGpzb24="}), "chara: not valid JSON at line 1")
  _reading_fails(png_file(path, {"chara": "/w=="}), "chara: not UTF-8")
  _reading_fails(png_file(path, {"chara": "W10="}), "chara: expected an object, got a list")
  _reading_fails(png_file(path, {"ccv3": base64_of({"data": {}})}), "ccv3: data.name: missing")
  # A broken chunk is never passed over in silence.
  _reading_fails(png_file(path, {"ccv3": "!", "chara": base64_of(V2)}), "ccv3: not base64")
  frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
  animated = {"save_all": True, "append_images": frames}
  png_file(path, {"chara": base64_of(V2)}, **animated)
  _reading_fails(path, "animated PNG; save the card as a still PNG")
  whole = png_file(path, {"chara": base64_of(V2)}).read_bytes()
  for size in (8, 20, 60, len(whole) // 2, len(whole) - 1):
    path.write_bytes(whole[:size])
    _reading_fails(path, "the PNG is cut short; fetch it again")
  at = whole.index(b"chara") + 9
  path.write_bytes(whole[:at] + b"~" + whole[at + 1 :])
  _reading_fails(path, "the PNG is damaged", "fetch it again")


def test_importing_the_module_is_light():
  code = (
    "import sys; from her_jax.roleplay import cards;"
    "print([m for m in ('PIL', 'jax', 'numpy', 'regex') if m in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"
