"""Cards of every spec come in whole, broken ones are named, and their scene can be played."""

import base64
import dataclasses
import io
import json
import subprocess
import sys

from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
import pytest

from her_jax.roleplay import cards
from her_jax.roleplay.cards import Card
from her_jax.roleplay.lorebook import Lorebook, LoreEntry
from her_jax.roleplay.schema import DataError

V1 = {
  "name": "Una",
  "description": "{{char}} keeps the light.",
  "personality": "dry",
  "scenario": "A quay at night.",
  "first_mes": '*looks up* "You are late, {{user}}."',
  "mes_example": "<START>\n{{user}}: Hi\n{{char}}: Sit.",
}
DATA = {
  **V1,
  "creator_notes": "For stormy evenings.",
  "system_prompt": "Write as {{char}}.",
  "post_history_instructions": "Stay terse.",
  "alternate_greetings": ["Again?", " "],
  "tags": ["sea", "drama"],
  "creator": "me",
  "character_version": "1.2",
  "extensions": {"studio": {"depth": [1, 2.5, None]}},
  "character_book": {
    "name": "Coast",
    "scan_depth": 4,
    "token_budget": 200,
    "recursive_scanning": False,
    "extensions": {},
    "entries": [
      {
        "keys": ["light"],
        "content": "It burns oil.",
        "extensions": {"depth": 4},
        "enabled": True,
        "insertion_order": 10,
        "id": 1,
      }
    ],
  },
}
V2 = {"spec": "chara_card_v2", "spec_version": "2.0", "data": DATA}
V3 = {
  "spec": "chara_card_v3",
  "spec_version": "3.0",
  "data": {
    **DATA,
    "nickname": "Oon",
    "group_only_greetings": ["All here?"],
    "creation_date": 1700000000,
    "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
  },
}
UNA = Card(
  name="Una",
  description="{{char}} keeps the light.",
  personality="dry",
  scenario="A quay at night.",
  first_message='*looks up* "You are late, {{user}}."',
  example_messages="<START>\n{{user}}: Hi\n{{char}}: Sit.",
  spec="v1",
)
UNA_2 = dataclasses.replace(
  UNA,
  spec="v2",
  creator_notes="For stormy evenings.",
  system_prompt="Write as {{char}}.",
  post_history_instructions="Stay terse.",
  alternate_greetings=("Again?", " "),
  tags=("sea", "drama"),
  creator="me",
  character_version="1.2",
  lorebook=Lorebook(
    name="Coast",
    scan_depth=4,
    token_budget=200,
    entries=(
      LoreEntry(
        ("light",),
        "It burns oil.",
        id=1,
        insertion_order=10,
        extra={"extensions": {"depth": 4}},
      ),
    ),
    extra={"extensions": {}},
  ),
  extra={"extensions": {"studio": {"depth": [1, 2.5, None]}}},
)
UNA_3 = dataclasses.replace(
  UNA_2,
  spec="v3",
  nickname="Oon",
  group_only_greetings=("All here?",),
  extra={**UNA_2.extra, **{k: V3["data"][k] for k in ("creation_date", "assets")}},
)
SPECS = pytest.mark.parametrize(("row", "card"), [(V1, UNA), (V2, UNA_2), (V3, UNA_3)])


def _json(path, row) -> str:
  path.write_text(row if isinstance(row, str) else json.dumps(row), encoding="utf-8")
  return path


def _base64(row) -> str:
  return base64.b64encode(json.dumps(row, ensure_ascii=False).encode()).decode()


def _png(path, chunks, international=False, **options):
  info = PngImagePlugin.PngInfo()
  for key, text in chunks.items():
    if international:
      info.add_itxt(key, text, zip=True)
    else:
      info.add_text(key, text)
  Image.new("RGB", (8, 12), "teal").save(path, "PNG", pnginfo=info, **options)
  return path


def _reading_fails(path, *parts) -> None:
  with pytest.raises(DataError) as error:
    cards.read(path)
  assert str(error.value).startswith(f"{path}: ")
  for part in parts:
    assert part in str(error.value)


@SPECS
def test_json_of_every_spec_is_read(tmp_path, row, card):
  assert cards.read(_json(tmp_path / "una.json", row)) == card
  # The content counts, not the name of the file.
  assert cards.read(str(_json(tmp_path / "una.png", row))) == card


@SPECS
@pytest.mark.parametrize("international", [False, True])
def test_a_png_of_every_spec_is_read(tmp_path, row, card, international):
  chunk = "ccv3" if row is V3 else "chara"
  path = _png(tmp_path / "una.json", {chunk: _base64(row)}, international)
  assert cards.read(path) == card


def test_the_v3_chunk_is_preferred(tmp_path):
  both = {"chara": _base64(V2), "ccv3": _base64(V3), "Comment": "painted"}
  assert cards.read(_png(tmp_path / "a.png", both)) == UNA_3


def test_a_png_may_hold_the_card_behind_the_picture(tmp_path):
  picture = _png(tmp_path / "a.png", {}).read_bytes()
  card = _png(tmp_path / "b.png", {"chara": _base64(V2)}).read_bytes()
  at = card.index(b"tEXt") - 4
  chunk = card[at : at + 12 + int.from_bytes(card[at : at + 4], "big")]
  end = picture.index(b"IEND") - 4
  path = tmp_path / "c.png"
  path.write_bytes(picture[:end] + chunk + picture[end:] + b"trailing")
  assert cards.read(path) == UNA_2


def test_oddities_of_real_cards_are_borne(tmp_path):
  path = tmp_path / "una.json"

  def read(row):
    return cards.read(_json(path, row))

  assert read({"data": DATA}) == UNA_2  # Without its spec.
  assert read({"spec": None, "data": DATA}) == UNA_2
  assert read("\ufeff" + json.dumps(V2)) == UNA_2
  assert cards.read(_png(tmp_path / "a.png", {"chara": _base64(V3)})) == UNA_3
  assert cards.read(_png(tmp_path / "b.png", {"Chara": _base64(V1)})) == UNA
  folded = "\n".join(_base64(V1)[i : i + 76] for i in range(0, 2000, 76)).rstrip().rstrip("=")
  assert cards.read(_png(tmp_path / "c.png", {"chara": folded})) == UNA
  marked = base64.b64encode("\ufeff".encode() + json.dumps(V1).encode()).decode()
  assert cards.read(_png(tmp_path / "d.png", {"chara": marked})) == UNA

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
  path = _json(tmp_path / "a.json", r'{"name": "Una", "scenario": "a\ud83d b\ud83d\ude00"}')
  card = cards.read(path)
  assert card.scenario == "a\ufffd b\U0001f600"
  cards.write(card, path)
  assert cards.read(path) == card


def test_what_stands_beside_the_data_is_kept(tmp_path):
  row = {**V2, **V1, "spec_version": "2.1", "create_date": "today", "fav": False}
  card = cards.read(_json(tmp_path / "a.json", row))
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
  _reading_fails(_json(tmp_path / "una.json", row), *parts)


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
    _png(path, {"Comment": "x"}), "holds no card", "ccv3 or chara", "export it again"
  )
  _reading_fails(_png(path, {"chara": "{name}"}), "chara: not base64; export the card again")
  _reading_fails(_png(path, {"ccv3": "ö" * 4}), "ccv3: not base64")
  _reading_fails(_png(path, {"chara": "bm90IGpzb24="}), "chara: not valid JSON at line 1")
  _reading_fails(_png(path, {"chara": "/w=="}), "chara: not UTF-8")
  _reading_fails(_png(path, {"chara": "W10="}), "chara: expected an object, got a list")
  _reading_fails(_png(path, {"ccv3": _base64({"data": {}})}), "ccv3: data.name: missing")
  # A broken chunk is never passed over in silence.
  _reading_fails(_png(path, {"ccv3": "!", "chara": _base64(V2)}), "ccv3: not base64")
  frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
  animated = {"save_all": True, "append_images": frames}
  _png(path, {"chara": _base64(V2)}, **animated)
  _reading_fails(path, "animated PNG; save the card as a still PNG")
  whole = _png(path, {"chara": _base64(V2)}).read_bytes()
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


_NAMES = st.text(min_size=1, max_size=8).filter(str.strip)
_TEXTS = st.text(max_size=12)
_LISTS = st.lists(_TEXTS, max_size=3).map(tuple)
_NUMBERS = st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_LABELS = st.none() | st.integers() | st.text(min_size=1, max_size=5)
_JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
  max_leaves=6,
)
_TAKEN = {"spec", "spec_version", "data", "character_book", "first_mes", "mes_example"}
for _known in (Card, Lorebook, LoreEntry):
  _TAKEN |= {field.name for field in dataclasses.fields(_known)}
_EXTRA = st.dictionaries(
  (_TEXTS | st.sampled_from(["extensions", "key", "order", "disable"])).filter(
    lambda key: key not in _TAKEN
  ),
  _JSON,
  max_size=3,
)
_ENTRIES = st.builds(
  LoreEntry,
  keys=_LISTS,
  content=_TEXTS,
  name=_TEXTS,
  comment=_TEXTS,
  id=_LABELS,
  secondary_keys=_LISTS,
  selective=st.booleans(),
  constant=st.booleans(),
  enabled=st.booleans(),
  case_sensitive=st.none() | st.booleans(),
  use_regex=st.booleans(),
  insertion_order=_NUMBERS.filter(lambda n: n is not None),
  priority=_NUMBERS,
  position=_LABELS,
  extra=_EXTRA,
)
_BOOKS = st.builds(
  Lorebook,
  name=_TEXTS,
  description=_TEXTS,
  scan_depth=_NUMBERS,
  token_budget=_NUMBERS,
  recursive_scanning=st.booleans(),
  entries=st.lists(_ENTRIES, max_size=2).map(tuple),
  extra=_EXTRA,
)
_CARDS = st.fixed_dictionaries(
  {
    "name": _NAMES,
    "spec": st.sampled_from(["v1", "v2", "v3"]),
    "lorebook": st.none() | _BOOKS,
    "extra": _EXTRA,
    "outer": _EXTRA,
    **dict.fromkeys(("alternate_greetings", "group_only_greetings", "tags"), _LISTS),
  },
  optional={
    f.name: _TEXTS
    for f in dataclasses.fields(Card)
    if f.type is str and f.name not in ("name", "spec")
  },
).map(lambda row: Card(**{**row, "outer": {} if row["spec"] == "v1" else row["outer"]}))


@settings(deadline=None, max_examples=60)
@given(card=_CARDS)
@example(card=UNA_3)
def test_a_card_survives_writing_and_reading(tmp_path_factory, card):
  path = tmp_path_factory.getbasetemp() / "written.json"
  cards.write(card, path)
  assert cards.read(path) == card


def test_what_is_written_is_the_spec(tmp_path):
  path = tmp_path / "a.json"
  for row, card in ((V1, UNA), (V2, UNA_2), (V3, UNA_3)):
    cards.write(card, path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written) == set(row)
    assert set(written.get("data", {})) == set(row.get("data", {}))
  cards.write(Card("船长"), path)
  assert "船长" in path.read_text(encoding="utf-8")
  # A known field wins over one of its name in `extra`.
  cards.write(Card("Una", extra={"name": "Joost"}), path)
  assert cards.read(path).name == "Una"


def test_what_cannot_be_written_is_named(tmp_path):
  path = tmp_path / "a.json"
  with pytest.raises(DataError, match=r"a\.json: spec: 'v9' is not one of v1, v2, v3"):
    cards.write(Card("Una", spec="v9"), path)
  for value in ({1, 2}, "\ud83d"):
    with pytest.raises(DataError, match=r"a\.json: the card does not fit into JSON"):
      cards.write(Card("Una", extra={"x": value}), path)
  assert not path.exists()


_PIECES = st.sampled_from(
  [b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"1e999", b"NaN", b'"name"', b'"data"']
  + [b'"spec"', b'"chara_card_v3"', b'"entries"', b'"character_book"', b'"keys"', b'"Una"']
  + [b"\xef\xbb\xbf", b"\xff", b'"\\ud800"', b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82", b"true"]
)


@given(data=st.binary(max_size=60) | st.lists(_PIECES, max_size=14).map(b"".join))
def test_any_bytes_are_a_card_or_an_error(tmp_path_factory, data):
  _card_or_error(tmp_path_factory, data)


@settings(deadline=None, max_examples=80)
@given(row=_JSON | _EXTRA, key=st.sampled_from(sorted(_TAKEN | {"extensions"})), value=_JSON)
def test_any_json_is_a_card_or_an_error(tmp_path_factory, row, key, value):
  _card_or_error(tmp_path_factory, json.dumps(row).encode())
  flat = {"name": "Una", key: value}
  book = {"name": "Una", "character_book": {key: value, "entries": [{key: value}]}}
  for data in (flat, {"data": flat}, {"data": book}):
    _card_or_error(tmp_path_factory, json.dumps(data).encode())


_WHOLE = io.BytesIO()
_png(_WHOLE, {"chara": _base64({"name": "Una"})})


@given(
  at=st.integers(8, len(_WHOLE.getvalue()) - 1),
  new=st.binary(max_size=6),
  gone=st.integers(0, 6),
)
def test_a_damaged_png_is_a_card_or_an_error(tmp_path_factory, at, new, gone):
  whole = _WHOLE.getvalue()
  _card_or_error(tmp_path_factory, whole[:at] + new + whole[at + gone :])


def _card_or_error(tmp_path_factory, data: bytes) -> None:
  path = tmp_path_factory.getbasetemp() / "any"
  path.write_bytes(data)
  try:
    card = cards.read(path)
  except DataError as error:
    assert str(error).startswith(f"{path}: ")
  else:
    assert card.name.strip()
