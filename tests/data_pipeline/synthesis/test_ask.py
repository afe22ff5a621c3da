"""One question: cut replies, refusals, filters, answers that fail their check."""

import pytest

from data_pipeline.asking import question as asking
from data_pipeline.asking.question import Rejected
from data_pipeline.synthesis import ask, recovery
from her_jax.llm.client import Failure, Message, Reply, Sampling
from tests.data_pipeline.asking.driven import drive

_MESSAGES = ask.conversation("Be brief.", "How are you?")


def _number(text, reasoning):
  value = recovery.json_object(text, "n")["n"]
  if value < 0:
    raise Rejected("too_short", str(value))
  return value


def _run(*replies, tries=2, max_tokens=1000, check=_number, last=None):
  """The answer, and the requests that were made."""
  question = ask.question(
    "unit/s/1", "unit", "en", _MESSAGES, Sampling(max_tokens=max_tokens), check, last
  )
  return drive(asking.ask(question, tries), replies)


def test_a_good_answer_is_taken_at_once():
  answer, asked = _run(Reply('{"n": 1}'))
  assert answer.value == 1 and [r.id for r in asked] == ["unit/s/1"]


def test_a_cut_reply_is_asked_for_again_with_a_larger_budget_also_if_it_is_valid():
  answer, asked = _run(Reply('{"n": 1}', finish_reason="length"), Reply('{"n": 2}'))
  assert answer.value == 2
  assert [(r.id, r.sampling.max_tokens) for r in asked] == [
    ("unit/s/1", 1000), ("unit/s/1/retry1", 2000),
  ]  # fmt: skip
  assert asked[0].messages == asked[1].messages


def test_a_reply_that_is_always_cut_ends_as_that():
  cut = Reply('{"n": 1}', finish_reason="length")
  answer, asked = _run(cut, cut, cut, tries=3)
  assert (answer.value, answer.cause) == (None, "truncated")
  assert len({r.sampling.max_tokens for r in asked}) == 3
  answer, asked = _run(cut, tries=3, max_tokens=32_768)  # No larger one is to be had.
  assert answer.cause == "truncated" and len(asked) == 1


def test_a_wrong_answer_is_told_what_is_wrong():
  answer, asked = _run(Reply('{"n": -7}'), Reply('{"n": 3}'))
  assert answer.value == 3
  assert asked[1].messages[:2] == _MESSAGES
  assert asked[1].messages[2] == Message("assistant", '{"n": -7}')
  assert "-7" in asked[1].messages[3].content
  answer, _ = _run(Reply('{"n": -7}'), Reply('{"n": -8}'))
  assert (answer.value, answer.cause) == (None, "too_short")


@pytest.mark.parametrize(
  "reply",
  [
    Reply("I'm sorry, but I can't help with that."),
    Reply("I cannot write this scene."),
    Reply("抱歉，我无法完成这个请求。"),
    Reply("我不能这样写。"),
    Reply("No.", finish_reason="refusal"),
    Reply('{"n": 1}', finish_reason="refusal"),
  ],
)
def test_a_refusal_is_counted_as_one(reply):
  answer, asked = _run(reply, reply)
  assert (answer.value, answer.cause) == (None, "refusal")
  assert len(asked) == 2


@pytest.mark.parametrize(
  "text",
  ["The numbers are as follows.", "Sorrow is a number too.", "", "I'm sorry " + "so " * 400],
)
def test_what_is_only_broken_is_no_refusal(text):
  answer, _ = _run(Reply(text), Reply(text))
  assert answer.cause == "malformed"


def test_a_line_in_character_that_declines_is_no_refusal_within_an_answer():
  answer, _ = _run(Reply('I\'m sorry it took so long. {"n": 5}'))
  assert answer.value == 5


def test_a_filtered_reply_is_not_asked_for_again():
  answer, asked = _run(Reply("", finish_reason="content_filter"))
  assert answer.cause == "content_filter" and len(asked) == 1


def test_a_call_that_failed_keeps_its_cause():
  answer, _ = _run(Failure("timeout", "no answer in 60 s"))
  assert (answer.cause, answer.message) == ("timeout", "no answer in 60 s")


def test_a_think_block_is_reasoning_and_no_answer():
  seen = []
  check = lambda text, reasoning: seen.append((text, reasoning)) or 1
  _run(Reply('<think>{"n": 1}?</think> {"n": 2}'), check=check)
  _run(Reply('{"n": 2}', reasoning="Hm."), check=check)
  assert seen == [('{"n": 2}', '{"n": 1}?'), ('{"n": 2}', "Hm.")]


def test_the_last_try_may_be_read_more_gently():
  answer, _ = _run(Reply('{"n": -7}'), Reply('{"n": -8}'), last=lambda text, _: "taken")
  assert answer.value == "taken"
  answer, _ = _run(Reply('{"n": 7}'), last=lambda text, _: "taken")
  assert answer.value == 7


def test_no_unit_is_another_ones():
  pairs = [("x", "1/2"), ("x/1", "2"), ("x", "1%2F2"), ("x/1/2", ""), ("", "x/1/2")]
  units = {ask.unit_of("forward", scene, key) for scene, key in pairs}
  assert len(units) == len(pairs)
