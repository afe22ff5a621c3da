"""JSON out of what models write: mended within bounds, never completed, never chosen."""

import json
import time

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import pytest

from data_pipeline.synthesis import recovery
from data_pipeline.synthesis.recovery import Unrecoverable, json_object, tagged

# Neither half a surrogate pair nor NUL can be written on.
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_VALUES = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
  | _TEXTS,
  lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
    _TEXTS, inner, max_size=4
  ),
  max_leaves=12,
)  # fmt: skip
_OBJECTS = st.dictionaries(_TEXTS, _VALUES, max_size=4).map(
  lambda rest: {**rest, "turns": [rest]}
)
# Text around an answer: anything without braces.
_PROSE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}"), max_size=60)


def _cause(text, key="turns"):
  with pytest.raises(Unrecoverable) as caught:
    json_object(text, key)
  return caught.value.cause


@given(_OBJECTS, _PROSE, _PROSE, st.sampled_from([None, 1, 2]))
def test_an_object_with_text_around_it_is_read(value, before, after, indent):
  text = json.dumps(value, ensure_ascii=False, indent=indent)
  assert json_object(f"{before}\n```json\n{text}\n```\n{after}", "turns") == value


@given(_OBJECTS, st.data())
def test_a_reply_that_was_cut_is_never_completed(value, data):
  text = json.dumps(value, ensure_ascii=False)
  at = data.draw(st.integers(1, len(text) - 1))
  assert _cause(text[:at]) in ("truncated", "malformed")


@given(_OBJECTS, _OBJECTS)
def test_between_two_answers_none_is_chosen(one, two):
  assert _cause(f"{json.dumps(one)} or rather {json.dumps(two)}") == "ambiguous"


@given(st.text())
def test_any_text_gives_an_object_or_a_cause(text):
  try:
    assert "turns" in json_object(text, "turns")
  except Unrecoverable as error:
    assert error.cause in ("truncated", "malformed", "ambiguous", "too_long")


def _with_trailing_commas(value) -> str:
  if isinstance(value, dict):
    inside = "".join(f"{json.dumps(k)}: {_with_trailing_commas(v)}, " for k, v in value.items())
    return f"{{{inside}}}"
  if isinstance(value, list):
    return "[" + "".join(f"{_with_trailing_commas(v)} , " for v in value) + "]"
  return json.dumps(value)


@given(_OBJECTS)
def test_trailing_commas_are_taken_out_and_those_in_texts_stay(value):
  assert json_object(_with_trailing_commas(value), "turns") == value


@pytest.mark.parametrize(
  ("text", "cause"),
  [
    ("", "malformed"),
    ("Of course! Here are the edits.", "malformed"),
    ('{"edits": []}', "malformed"),
    ('[{"turn": 1}]', "malformed"),
    ('{"turns": [1 2]}', "malformed"),
    ('{"turns": [NaN]}', "malformed"),
    ('{"turns": ["\\u0000"]}', "malformed"),
    ('{"turns": [1e999]}', "malformed"),
    ('{"turns": [], "turns": [1]}', "malformed"),
    ('{"turns": [,]}', "malformed"),
    ('{"turns": [], , }', "malformed"),
    ('{"turns": __import__("os").getcwd()}', "malformed"),
    ("{'turns': []}", "malformed"),
    ('{"turns": ["\\ud800"]}', "malformed"),
    ('{"turns": [' + "9" * 5000 + "]}", "malformed"),
    ('{"turns": ' + "[" * 100_000 + "]" * 100_000 + "}", "malformed"),
    ('{"turns": []', "truncated"),
    ('{"turns": [], "a": {"turns": []}', "truncated"),
    ('{"turns": [1]} and then {"turns": [2', "truncated"),
    ('{"turns": [{"turn": "1", "text": "He said', "truncated"),
    ("{", "truncated"),
    ('{"turns": ["' + "x" * recovery.MOST_CHARACTERS + '"]}', "too_long"),
  ],
)
def test_what_is_no_answer_says_why(text, cause):
  assert _cause(text) == cause


@pytest.mark.parametrize(
  "text",
  [
    'Use {name} as told: {"turns": [1]}',
    '{"turns": [1]} – with {braces} in what follows.',
    '{"note": "an other object"} {"turns": [1]}',
    '```\n{"turns": [1]}\n```',
    '\ufeff{"turns":\n\n[1\n,\n]\n}',
  ],
)
def test_prose_with_braces_is_passed_over(text):
  assert json_object(text, "turns")["turns"] == [1]


def test_raw_line_breaks_and_fences_within_texts_stay():
  assert json_object('{"turns": ["a\nb\t```json\n{,}"]}', "turns") == {
    "turns": ["a\nb\t```json\n{,}"]
  }


@pytest.mark.parametrize(
  "unit", ["{", '{"', '"', '\\"', ",", ", ", '{"a": [', "}{", "``` {", "[,", "<plan>", "\\"]
)
def test_time_is_linear_in_the_length(unit):
  """Hostile texts of 50 kB and of 400 kB: eight times the length, not 64 times the time."""
  durations = []
  for size in (50_000, 400_000):
    text = '{"turns": ["' + unit * (size // len(unit))
    start = time.process_time()
    for read in (lambda t: json_object(t, "turns"), lambda t: tagged(t, "plan")):
      with pytest.raises(Unrecoverable):
        read(text)
    durations.append(time.process_time() - start)
  assert durations[1] < 30 * durations[0] + 0.2


@given(st.text(st.characters(exclude_characters="<>")), _PROSE, _PROSE)
@settings(max_examples=50)
def test_a_tagged_text_is_read_with_text_around_it(inside, before, after):
  assume("<plan>" not in before + after and "</plan>" not in before + after)
  assert tagged(f"{before}<plan>{inside}</plan>{after}", "plan") == inside.strip()


@pytest.mark.parametrize(
  ("text", "cause"),
  [
    ("He waits.", "malformed"),
    ("<plan>He waits.", "truncated"),
    ("He waits.</plan>", "malformed"),
    ("</plan>He waits.<plan>", "malformed"),
    ("<plan>a</plan><plan>b</plan>", "ambiguous"),
    ("<plan><plan>a</plan>", "ambiguous"),
  ],
)
def test_a_tagged_text_is_one_and_whole(text, cause):
  with pytest.raises(Unrecoverable) as caught:
    tagged(text, "plan")
  assert caught.value.cause == cause
