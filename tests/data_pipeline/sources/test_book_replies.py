"""Answers about a book: what is in form is read, and what is not is told."""

import json

import pytest

from data_pipeline.sources import book_replies
from her_jax.roleplay.schema import DataError


@pytest.mark.parametrize(
  ("scenes", "told"),
  [
    ([{"first": 0, "last": 99}], "not within"),
    ([{"first": 3, "last": 1}], "not within"),
    ([{"first": "one", "last": 2}], "numbers of paragraphs"),
    ([{"first": True, "last": 2}], "numbers of paragraphs"),
    ([{"first": 0, "last": 1.0}], "numbers of paragraphs"),
    ([{"first": 0, "last": 1, "cut": "maybe"}], "'maybe' is not one of"),
    ("none", "expected a list"),
  ],
)
def test_scenes_out_of_form_are_told(scenes, told):
  with pytest.raises(DataError, match=told):
    book_replies.scenes(json.dumps({"scenes": scenes, "characters": []}), 0, 5)


@pytest.mark.parametrize(
  "wrapped", ["{}", "```json\n{}\n```", "Here it is:\n{}", "```\n{}\n```\nDone."]
)
def test_an_object_within_a_fence_or_after_a_sentence_is_read(wrapped):
  inner = '{"profile": "Una."}'
  assert book_replies.profile(wrapped.replace("{}", inner)) == "Una."


@pytest.mark.parametrize(
  ("text", "told"),
  [
    ("```json\n{}\n```\nOr:\n```json\n{}\n```", "more than one"),
    ("{}\n```json\n{}\n```", "more than one"),
    ("```json\n{}\n```\n{}", "more than one"),
    ("{}{}", "more than one"),
    ('{"profile": "Una.", "profile": "Ben."}', "stands twice"),
    ('{"profile": "Una.", "more": {"a": 1, "a": 1}}', "stands twice"),
    ('{"profile": "Una.", "age": NaN}', "NaN is no number"),
    ('{"profile": "Una.", "age": [-Infinity]}', "-Infinity is no number"),
    ('{"profile": "Una.", "age": 1e999}', "1e999 is no number"),
    ('{"profile": "Una.", "age": ' + "9" * 5000 + "}", "not usable JSON"),
    ('{"profile": "\\ud800"}', "surrogate"),
  ],
)
def test_an_answer_that_is_double_or_no_json_is_out_of_form(text, told):
  with pytest.raises(DataError, match=told):
    book_replies.profile(text.replace("{}", '{"profile": "Una."}'))


def test_what_stands_around_a_fence_may_have_braces():
  text = 'Of {names} I take:\n```json\n{"profile": "Una."}\n```\n```\nno object\n```'
  assert book_replies.profile(text) == "Una."
