"""Bodies of chat completions as servers write them, and as none should."""

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.llm import answers
from her_jax.llm.messages import Reply, Usage


def body(message, finish="stop", usage=None) -> bytes:
  choices = [{"index": 0, "message": message, "finish_reason": finish}]
  return json.dumps({"choices": choices, "usage": usage}).encode()


TOKENS = {"prompt_tokens": 3, "completion_tokens": 2}


@pytest.mark.parametrize(
  ("message", "finish", "expected"),
  [
    ({"content": "yes"}, "stop", ("yes", "", "stop")),
    ({"content": " yes\n"}, None, (" yes\n", "", "stop")),
    ({"content": [{"type": "text", "text": "ye"}, {"text": "s"}]}, "stop", ("yes", "", "stop")),
    ({"content": "yes", "reasoning_content": "hm"}, "stop", ("yes", "hm", "stop")),
    ({"content": "yes", "reasoning": "hm"}, "stop", ("yes", "hm", "stop")),
    ({"content": "yes", "reasoning": [1]}, "stop", ("yes", "", "stop")),
    ({"content": "\n<think>\nhm\n</think>\n\nyes"}, "stop", ("yes", "hm", "stop")),
    # The template had opened the block in the prompt.
    ({"content": "hm\n</think>\n\nyes"}, "stop", ("yes", "hm", "stop")),
    # Cut within the block: none of it is an answer.
    ({"content": "<think>hm, so"}, "length", ("", "hm, so", "length")),
    ({"content": "<think></think>yes"}, "stop", ("yes", "", "stop")),
    # What a character says about such tags is its own.
    (
      {"content": "I <think> so </think> too"},
      "stop",
      ("I <think> so </think> too", "", "stop"),
    ),
    ({"content": None}, "length", ("", "", "length")),
    ({"content": "ye"}, "max_tokens", ("ye", "", "length")),
    ({"content": None}, "content_filter", ("", "", "content_filter")),
    ({"content": None}, "SAFETY", ("", "", "content_filter")),
    ({"content": None, "refusal": "No."}, "stop", ("No.", "", "refusal")),
    ({"content": "yes", "refusal": None}, "stop", ("yes", "", "stop")),
    ({"content": "yes", "refusal": 5}, ["odd"], ("yes", "", "stop")),
  ],
)
def test_an_answer_is_read(message, finish, expected):
  assert answers.parse(body(message, finish, TOKENS)) == Reply(*expected, Usage(3, 2))


@pytest.mark.parametrize(
  "usage",
  [
    None, {}, "none", [], {"prompt_tokens": 3}, {"prompt_tokens": "3", "completion_tokens": 2},
    {"prompt_tokens": -3, "completion_tokens": 2}, {"prompt_tokens": 3, "completion_tokens": 1.5},
    {"prompt_tokens": True, "completion_tokens": 2},
    {"prompt_tokens": 10**400, "completion_tokens": 2},
    {"prompt_tokens": 3, "completion_tokens": 10**13},
  ],
)  # fmt: skip
def test_tokens_that_are_not_told_are_unknown_not_none(usage):
  assert answers.parse(body({"content": "a"}, usage=usage)).usage == Usage(unknown=1)


@pytest.mark.parametrize(
  "raw",
  [
    b"", b"null", b"[]", b'"hi"', b"3", b"<html>hi</html>", b"{", b'{"id":"x"}', b"[" * 100_000,
    b'{"choices":null}', b'{"choices":{}}', b'{"choices":{"a":1}}', b'{"choices":[]}',
    b'{"choices":["x"]}', b'{"choices":"abc"}', b'{"choices":[{"message":"x"}]}',
    b'{"choices":[{"message":{"content":"a\xff"}}]}',
  ],
)  # fmt: skip
def test_what_is_no_answer_is_told_and_its_cost_unknown(raw):
  with pytest.raises(answers.NoAnswer) as error:
    answers.parse(raw)
  assert error.value.usage == Usage(unknown=1) and not error.value.empty


@pytest.mark.parametrize(
  "content", ["", " \n", None, 5, "<think>hm</think>", "<think>hm", [], {"text": "a"}]
)
def test_an_empty_answer_is_none_and_its_tokens_are_counted(content):
  with pytest.raises(answers.NoAnswer, match="an empty answer") as error:
    answers.parse(body({"content": content}, usage=TOKENS))
  assert error.value.empty and error.value.usage == Usage(3, 2)


def test_an_error_in_place_of_an_answer_is_told():
  with pytest.raises(answers.NoAnswer, match="overloaded") as error:
    answers.parse(b'{"error": {"message": "overloaded", "code": 502}}')
  assert error.value.status == 502


@pytest.mark.parametrize("unwritable", ["\\ud800", "\\u0000"])
def test_what_cannot_be_written_on_becomes_a_replacement_character(unwritable):
  content = f"a{unwritable}b \\ud83d\\ude00"
  raw = f'{{"choices":[{{"message":{{"content":"{content}"}}}}]}}'
  assert answers.parse(raw.encode()).text == "a\ufffdb \U0001f600"


_JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(
      st.sampled_from(
        ["choices", "message", "content", "usage", "refusal", "finish_reason", "error", "text",
         "prompt_tokens", "completion_tokens", "reasoning", "code"]
      ),
      inner, max_size=4,
    )
  ),
  max_leaves=12,
)  # fmt: skip


@given(_JSON, _JSON, _JSON, _JSON)
def test_no_body_brings_another_error(whole, choice, message, usage):
  for row in (
    whole,
    {"choices": [choice], "usage": usage},
    {"choices": [{"message": message, "finish_reason": choice}], "usage": usage},
    {"choices": [{"message": {"content": message, "refusal": choice, "reasoning": usage}}]},
  ):
    try:
      reply = answers.parse(json.dumps(row).encode())
    except answers.NoAnswer as error:
      told = error.usage
    else:
      told = reply.usage
      (reply.text + reply.reasoning).encode()
      assert reply.finish_reason in ("stop", "length", "content_filter", "refusal")
    assert told.unknown in (0, 1) and min(told.prompt_tokens, told.completion_tokens) >= 0
