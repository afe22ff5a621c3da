"""A card survives writing and reading, and any file is a card or an error."""

import dataclasses
import io
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import cards
from her_jax.roleplay.cards import Card
from her_jax.roleplay.lorebook import Lorebook, LoreEntry
from her_jax.roleplay.schema import DataError
from tests.roleplay.sample_cards import UNA, UNA_2, UNA_3, V1, V2, V3, base64_of, png_file

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

png_file(_WHOLE, {"chara": base64_of({"name": "Una"})})


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
