"""Which texts of a lorebook apply, and what a card may call them."""

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import lorebook
from her_jax.roleplay.lorebook import Lorebook, LoreEntry
from her_jax.roleplay.schema import DataError


def _active(texts, *entries, **book) -> list[str]:
  return [e.content for e in Lorebook(entries=entries, **book).active(texts)]


def test_any_key_makes_an_entry_apply():
  quay = LoreEntry(("pier", "quay"), "slippery")
  assert _active(["We met on the QUAY."], quay) == ["slippery"]
  assert _active(["We met."], quay) == []
  assert _active([], quay) == []
  # Upper and lower case are folded for every script.
  assert _active(["in der STRASSE"], LoreEntry(("Straße",), "narrow")) == ["narrow"]


def test_case_counts_where_the_entry_says_so():
  entry = LoreEntry(("Rose",), "the ship", case_sensitive=True)
  assert _active(["The Rose sails."], entry) == ["the ship"]
  assert _active(["A rose."], entry) == []


def test_a_blank_key_is_no_key():
  assert _active(["Anything."], LoreEntry(("", " "), "x"), LoreEntry((), "y")) == []


def test_a_constant_entry_applies_without_a_word():
  assert _active([], LoreEntry((), "always", constant=True)) == ["always"]


def test_an_entry_that_is_off_never_applies():
  off = LoreEntry(("quay",), "x", enabled=False, constant=True)
  assert _active(["quay"], off) == []


def test_a_selective_entry_needs_a_secondary_key_too():
  both = LoreEntry(("quay",), "x", selective=True, secondary_keys=("night", "fog"))
  assert _active(["The quay."], both) == []
  assert _active(["The quay.", "Fog rises."], both) == ["x"]
  assert _active(["Fog."], both) == []
  # Editors set `selective` by default; without secondary keys there is nothing to need.
  assert _active(["The quay."], LoreEntry(("quay",), "x", selective=True)) == ["x"]
  # And secondary keys without it do not count.
  loose = LoreEntry(("quay",), "x", secondary_keys=("fog",))
  assert _active(["The quay."], loose) == ["x"]


@pytest.mark.parametrize(
  ("depth", "seen"),
  [(None, True), (3, True), (2, False), (0, False), (-1, False), (2.9, False)],
)
def test_only_the_last_messages_are_searched(depth, seen):
  texts = ["The quay.", "Rain.", "More rain."]
  assert _active(texts, LoreEntry(("quay",), "x"), scan_depth=depth) == ["x"] * seen


def test_entries_come_by_insertion_order_and_then_as_they_stand():
  entries = [
    LoreEntry((), text, constant=True, insertion_order=order)
    for text, order in (("c", 7), ("a", -1), ("d", 7), ("b", 0.5))
  ]
  assert _active([], *entries) == ["a", "b", "c", "d"]


def test_recursive_scanning_goes_from_content_to_content_and_ends():
  chain = (
    LoreEntry(("well",), "the deep", insertion_order=3),
    LoreEntry(("mill",), "a well and the mill", insertion_order=2),
    LoreEntry(("village",), "a mill", insertion_order=1),
    LoreEntry(("deep",), "the village", enabled=False),
  )
  assert _active(["The village."], *chain) == ["a mill"]
  found = _active(["The village."], *chain, recursive_scanning=True)
  assert found == ["a mill", "a well and the mill", "the deep"]
  # The messages' depth does not limit what the entries themselves say.
  assert _active(["The village."], *chain, recursive_scanning=True, scan_depth=1) == found


def test_keys_may_be_patterns():
  assert _active(["two boats"], LoreEntry((r"\bboats?\b",), "x", use_regex=True)) == ["x"]
  assert _active(["steamboat"], LoreEntry((r"\bboats?\b",), "x", use_regex=True)) == []
  assert _active(["BOAT"], LoreEntry(("boat",), "x", use_regex=True)) == ["x"]
  strict = {"use_regex": True, "case_sensitive": True}
  assert _active(["BOAT"], LoreEntry(("boat",), "x", **strict)) == []
  # As JavaScript writes them, flags and all.
  assert _active(["BOAT"], LoreEntry(("/b.at/gi",), "x", **strict)) == ["x"]
  assert _active(["a\nb"], LoreEntry(("/a.b/",), "x", **strict)) == []
  assert _active(["a\nb"], LoreEntry(("/a.b/s",), "x", **strict)) == ["x"]
  assert _active(["a\nb"], LoreEntry(("/^b/m",), "x", **strict)) == ["x"]
  second = LoreEntry(("a",), "x", use_regex=True, selective=True, secondary_keys=("^b",))
  assert _active(["a", "b"], second) == ["x"]
  assert _active(["a b"], second) == []
  # Without the mark a pattern is a word like any other.
  assert _active(["boats"], LoreEntry(("boats?",), "x")) == []


def test_a_bad_pattern_names_its_entry():
  entries = (LoreEntry(("a",), "x"), LoreEntry(("b", "C++("), "y", "guild", use_regex=True))
  with pytest.raises(
    DataError, match=r"entries\[1\] \('guild'\)\.keys\[1\]: not a regular exp"
  ):
    Lorebook(entries=entries).active(["a"])


def test_an_endless_pattern_is_stopped(monkeypatch):
  monkeypatch.setattr(lorebook, "REGEX_SECONDS", 0.05)
  book = Lorebook(entries=(LoreEntry(("(a|aa)+$",), "x", use_regex=True),))
  with pytest.raises(
    DataError, match=r"entries\[0\]\.keys\[0\]: searching takes more than 0.05"
  ):
    book.active(["a" * 60 + "b"])


_ENTRIES = st.builds(
  LoreEntry,
  keys=st.lists(st.text("ab*(", max_size=3), max_size=3).map(tuple),
  content=st.text("ab ", max_size=6),
  secondary_keys=st.lists(st.text("ab", max_size=2), max_size=2).map(tuple),
  selective=st.booleans(),
  constant=st.booleans(),
  enabled=st.booleans(),
  case_sensitive=st.sampled_from([None, True, False]),
  use_regex=st.booleans(),
  insertion_order=st.integers(-2, 2),
)


@settings(deadline=None)
@given(
  st.lists(_ENTRIES, max_size=8),
  st.lists(st.text("abAB ", max_size=8), max_size=4),
  st.none() | st.integers(-1, 5),
  st.booleans(),
)
def test_what_applies_is_a_part_of_what_is_enabled(entries, texts, depth, recursive):
  book = Lorebook(scan_depth=depth, recursive_scanning=recursive, entries=tuple(entries))
  try:
    active = book.active(texts)
  except DataError as error:
    assert "not a regular expression" in str(error)
    return
  enabled = [e for e in entries if e.enabled]
  assert all(e in enabled for e in active)
  assert len(active) <= len(enabled)
  assert all(e in active for e in enabled if e.constant)
  orders = [e.insertion_order for e in active]
  assert orders == sorted(orders)


@settings(deadline=None)
@given(st.text(max_size=12), st.text(max_size=20))
def test_any_key_is_a_pattern_or_an_error(key, text):
  book = Lorebook(entries=(LoreEntry((key,), "x", use_regex=True),))
  try:
    book.active([text])
  except DataError as error:
    assert str(error).startswith("entries[0].keys[0]: ")


def test_a_world_info_export_is_read():
  row = {
    "entries": {
      "0": {
        "uid": 4,
        "key": ["quay"],
        "keysecondary": ["fog"],
        "content": "slippery",
        "comment": "The quay",
        "disable": False,
        "order": 20,
        "position": 1,
        "caseSensitive": None,
        "selectiveLogic": 0,
      },
      "1": {"key": "gull, tern", "content": "loud", "disable": True},
    }
  }
  first, second = lorebook.lorebook_from_dict(row, "book").entries
  assert first == LoreEntry(
    keys=("quay",),
    content="slippery",
    comment="The quay",
    id=4,
    secondary_keys=("fog",),
    insertion_order=20,
    position=1,
    extra={"selectiveLogic": 0},
  )
  assert second == LoreEntry(("gull", "tern"), "loud", enabled=False)


def test_null_empty_text_and_numbers_are_borne():
  row = {
    "name": 7,
    "description": None,
    "scan_depth": "",
    "token_budget": None,
    "recursive_scanning": None,
    "extensions": {},
    "entries": [
      {"keys": [1984, "year"], "content": None, "id": "a", "name": 3, "enabled": None},
      {"keys": "a{1,2}", "use_regex": True, "content": "x", "priority": 1.5, "mood": "grim"},
    ],
  }
  book = lorebook.lorebook_from_dict(row, "book")
  assert book == Lorebook(
    name="7",
    entries=(
      LoreEntry(("1984", "year"), "", name="3", id="a"),
      LoreEntry(("a{1,2}",), "x", use_regex=True, priority=1.5, extra={"mood": "grim"}),
    ),
    extra={"extensions": {}},
  )
  assert lorebook.lorebook_from_dict({}, "book") == Lorebook()
  assert lorebook.lorebook_from_dict({"entries": None}, "book") == Lorebook()


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ([], "book: expected an object, got a list"),
    ({"entries": 3}, "book.entries: expected a list, got a number"),
    ({"entries": ["x"]}, r"book.entries\[0\]: expected an object, got a text"),
    ({"entries": [{"keys": {}}]}, r"book.entries\[0\].keys: expected a list, got an object"),
    (
      {"entries": [{"keys": [None]}]},
      r"keys\[0\]: expected a text, got null; give it in quotes",
    ),
    ({"entries": [{"content": []}]}, "content: expected a text, got a list; put it in quotes"),
    ({"entries": [{"enabled": "yes"}]}, "enabled: expected true or false, got a text; write"),
    ({"entries": [{"insertion_order": "1"}]}, "insertion_order: expected a number, got a text"),
    ({"entries": [{"id": {}}]}, "id: expected a text or a number, got an object; give either"),
    ({"scan_depth": True}, "book.scan_depth: expected a number, got true or false"),
    ({"scan_depth": float("inf")}, "expected a number, got an infinite number or NaN"),
  ],
)
def test_a_broken_book_names_the_field_and_the_mend(row, message):
  with pytest.raises(DataError, match=message):
    lorebook.lorebook_from_dict(row, "book")
