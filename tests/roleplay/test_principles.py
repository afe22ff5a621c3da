"""The library of principles: what ships is whole, and what a team brings is named where wrong."""

from collections import Counter
import json

import pytest

from her_jax.roleplay import judging, principles
from her_jax.roleplay.jsonl import DataError

LIBRARY = principles.library()
ROW = {
  "id": "own",
  "dimension": "overall quality",
  "level": "sentence",
  "polarity": "negative",
  "en": {"name": "Is ours", "definition": "The reply is ours."},
  "zh": {"name": "属于我们", "definition": "回应属于我们。"},
}
SECOND = {
  **ROW,
  "id": "second",
  "en": {"name": "Is second", "definition": "d"},
  "zh": {"name": "第二", "definition": "d"},
}


def _write(path, *rows):
  path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
  return path


def test_the_library_covers_every_dimension():
  assert len(LIBRARY) >= 51
  counts = Counter(p.dimension for p in LIBRARY.values())
  assert set(counts) == set(principles.DIMENSIONS) and len(counts) == 12
  assert min(counts.values()) >= 4
  # Both polarities and levels are there to be chosen from.
  assert {p.polarity for p in LIBRARY.values()} == set(principles.POLARITIES)
  assert {p.level for p in LIBRARY.values()} == set(principles.LEVELS)


@pytest.mark.parametrize("language", principles.LANGUAGES)
def test_no_name_and_no_definition_stands_twice(language):
  for texts in ("names", "definitions"):
    found = [getattr(p, texts)[language].casefold().strip() for p in LIBRARY.values()]
    assert len(set(found)) == len(LIBRARY)
  assert all(key == p.id for key, p in LIBRARY.items())


def test_chinese_is_chinese_and_english_is_ascii():
  for principle in LIBRARY.values():
    assert all("\u4e00" <= sign <= "\u9fff" for sign in principle.names["zh"])
    assert principle.names["en"].isascii() and principle.definitions["en"].isascii()


def test_without_safety_exactly_that_dimension_is_left_out():
  rest = principles.library(safety=False)
  assert rest == {i: p for i, p in LIBRARY.items() if p.dimension != principles.SAFETY}
  assert 0 < len(rest) < len(LIBRARY)
  assert list(rest) == [i for i in LIBRARY if i in rest]


@pytest.mark.parametrize("language", principles.LANGUAGES)
@pytest.mark.parametrize("principle", LIBRARY)
def test_every_name_is_read_back_from_a_judgement(principle, language):
  name = LIBRARY[principle].names[language]
  for one, two, winner in (
    ([principle], [], "cand_2"),
    ([], [principle], "cand_1"),
    ([principle], [principle], "tie"),
  ):
    verdict = judging.parse_verdict(judging.judgement_text(one, two, [], language))
    assert (verdict.winner, verdict.principles) == (winner, ((name, winner),))
  for spelt in (name, f" {name.upper()} "):
    assert principles.find(spelt, language) is LIBRARY[principle]


def test_an_unknown_name_is_no_principle():
  assert principles.find("Is nothing at all", "en") is None
  some = next(iter(LIBRARY.values()))
  assert principles.find(some.names["en"], "zh") is None


def test_an_own_library_is_read_in_the_order_of_its_file(tmp_path):
  path = _write(tmp_path / "own.jsonl", SECOND, ROW)
  found = principles.load(path)
  assert list(found) == ["second", "own"]
  assert found["own"].names == {"en": "Is ours", "zh": "属于我们"}
  assert found["own"].definitions["en"] == "The reply is ours."


@pytest.mark.parametrize(
  "change, told",
  [
    ({"id": None}, "id: missing or empty; give it a text"),
    ({"id": "  "}, "id: missing or empty; give it a text"),
    ({"id": 7}, "id: missing or empty; give it a text"),
    ({"dimension": None}, "dimension: None is not one of character development, "),
    ({"dimension": "plot"}, "dimension: 'plot' is not one of character development, "),
    ({"dimension": ["overall quality"]}, "dimension: ['overall quality'] is not one of"),
    ({"level": "word"}, "level: 'word' is not one of sentence, session"),
    ({"polarity": "neutral"}, "polarity: 'neutral' is not one of negative, positive"),
    ({"en": None}, "en.name: missing or empty; give it a text"),
    ({"en": "Is ours"}, "en.name: missing or empty; give it a text"),
    ({"zh": {"name": "名"}}, "zh.definition: missing or empty; give it a text"),
    ({"zh": {"name": " ", "definition": "d"}}, "zh.name: missing or empty; give it a text"),
    ({"zh": {"name": 3, "definition": "d"}}, "zh.name: missing or empty; give it a text"),
    ({"en": {"name": "A: b", "definition": "d"}}, "en.name: holds a colon or a line break; "),
    ({"zh": {"name": "甲：乙", "definition": "d"}}, "zh.name: holds a colon or a line break; "),
    ({"en": {"name": "A\nb", "definition": "d"}}, "en.name: holds a colon or a line break; "),
    ({"id": "second"}, "id: stands twice, in line 1 too; ids must be unique"),
  ],
)
def test_a_bad_principle_is_named_with_place_field_and_mend(tmp_path, change, told):
  path = _write(tmp_path / "own.jsonl", SECOND, {**ROW, **change})
  with pytest.raises(DataError) as caught:
    principles.load(path)
  message = str(caught.value)
  assert message.startswith(f"{path}:2") and f": {told}" in message
  assert "\n" not in message


@pytest.mark.parametrize("language", principles.LANGUAGES)
def test_a_name_that_stands_twice_is_refused(tmp_path, language):
  # The names differ in case alone, which judgements do not tell apart.
  same = {**SECOND[language], "name": ROW[language]["name"].upper()}
  path = _write(tmp_path / "own.jsonl", ROW, {**SECOND, language: same})
  with pytest.raises(
    DataError, match=f"second and own have the same {language}.name"
  ) as caught:
    principles.load(path)
  assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("name", ["*Is ours", "- Is ours", "Verdict", "Is “ours”", "winner"])
def test_a_name_that_is_taken_is_read_back_from_a_judgement(tmp_path, name):
  """Whatever name a library gets through with, judgements that use it are read."""
  row = {**ROW, "en": {"name": name, "definition": "d"}}
  try:
    (principle,) = principles.load(_write(tmp_path / "own.jsonl", row)).values()
  except DataError:
    return
  line = f"- {principle.names['en']}: cand_1 breaks it, winner cand_2"
  verdict = judging.parse_verdict(f"{line}\nVerdict: cand_2")
  assert verdict.principles == ((principle.names["en"], "cand_2"),)


def test_a_broken_line_and_a_missing_file_are_named(tmp_path):
  path = tmp_path / "own.jsonl"
  path.write_text(json.dumps(ROW)[:50] + "\n", encoding="utf-8")
  with pytest.raises(DataError, match=r"own\.jsonl:1: not valid JSON at column"):
    principles.load(path)
  with pytest.raises(DataError, match=r"none\.jsonl: no such file; pass an existing"):
    principles.load(tmp_path / "none.jsonl")
