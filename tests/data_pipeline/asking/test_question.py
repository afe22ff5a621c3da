"""One question: what is asked again and how, and what an answer keeps."""

import pytest

from data_pipeline.asking.question import MOST_TOKENS, Question, Rejected, ask, short
from her_jax.llm.client import Failure, Message, Reply, Sampling
from tests.data_pipeline.asking.driven import drive

_PROMPT = (Message("user", "How many?"),)


def _number(reply):
  if not reply.text.isdigit():
    raise Rejected("malformed", f"{reply.text!r} is no number")
  return int(reply.text)


def _told(reply, error):
  return Message("assistant", reply.text), Message("user", f"No: {error.detail}")


def _run(*replies, tries=2, max_tokens=1000, **fields):
  """The answer, and the requests that were made."""
  question = Question("q/1", _PROMPT, Sampling(max_tokens=max_tokens), "q", _number, **fields)
  return drive(ask(question, tries), replies)


def test_a_good_answer_keeps_its_text_and_reasoning():
  answer, (request,) = _run(Reply("7", reasoning="Four and three."))
  assert (answer.value, answer.cause, answer.tries) == (7, "", 1)
  assert (answer.text, answer.reasoning) == ("7", "Four and three.")
  assert (request.id, request.tag, request.messages) == ("q/1", "q", _PROMPT)


def test_without_words_for_it_the_same_is_asked_again_under_another_id():
  answer, asked = _run(Reply("seven"), Reply("7"))
  assert (answer.value, answer.tries) == (7, 2)
  assert [r.id for r in asked] == ["q/1", "q/1/retry1"]
  assert asked[0].messages == asked[1].messages and asked[0].sampling == asked[1].sampling


def test_a_model_is_told_of_its_last_answer_alone():
  answer, asked = _run(Reply("six"), Reply("seven"), Reply("8"), tries=3, again=_told)
  assert answer.value == 8
  assert [m.content for m in asked[2].messages] == [
    "How many?", "seven", "No: 'seven' is no number",
  ]  # fmt: skip


def test_what_was_said_stays_where_the_next_reply_is_cut():
  cut = Reply("7", finish_reason="length")
  _, asked = _run(Reply("six"), cut, Reply("7"), tries=3, again=_told)
  assert asked[1].messages == asked[2].messages and len(asked[2].messages) == 3
  assert [r.sampling.max_tokens for r in asked] == [1000, 1000, 2000]


def test_a_cut_reply_is_never_read_and_no_more_is_asked_than_there_may_be():
  cut = Reply("7", finish_reason="length")
  answer, asked = _run(cut, cut, tries=5, max_tokens=MOST_TOKENS - 1)
  assert (answer.value, answer.cause, answer.text) == (None, "length", "7")
  assert [r.sampling.max_tokens for r in asked] == [MOST_TOKENS - 1, MOST_TOKENS]


@pytest.mark.parametrize("finish", ["refusal", "content_filter"])
def test_what_is_refused_or_filtered_is_final(finish):
  answer, asked = _run(Reply("7", finish_reason=finish), again=_told)
  assert (answer.value, answer.cause, answer.text) == (None, finish, "7")
  assert len(asked) == 1


def test_a_question_says_how_a_cut_reply_is_counted_and_what_may_be_asked_for():
  cut = Reply("7", finish_reason="length")
  answer, asked = _run(cut, cut, max_tokens=MOST_TOKENS, cut="truncated", most_tokens=None)
  assert (answer.cause, answer.message) == ("truncated", f"cut at {2 * MOST_TOKENS} tokens")
  assert [r.sampling.max_tokens for r in asked] == [MOST_TOKENS, 2 * MOST_TOKENS]


def test_a_refusal_is_told_without_what_the_model_thought():
  thought = Reply("<think>Hm.</think> I cannot.", finish_reason="refusal")
  answer, _ = _run(thought)
  assert (answer.message, answer.text) == ("I cannot.", thought.text)


def test_a_question_says_which_causes_are_final():
  _, asked = _run(Reply("No.", finish_reason="refusal"), Reply("7"), final=frozenset())
  assert len(asked) == 2
  _, asked = _run(Reply("seven"), final=frozenset({"malformed"}))
  assert len(asked) == 1


def test_a_call_that_failed_is_not_repeated():
  answer, _ = _run(Reply("seven"), Failure("timeout", "no answer in 60 s"), tries=3)
  assert (answer.cause, answer.tries) == ("timeout", 2)
  assert answer.message == answer.text == "no answer in 60 s"


def test_the_last_try_may_be_read_in_another_way():
  answer, _ = _run(Reply("six"), Reply("seven"), last=lambda reply: reply.text)
  assert (answer.value, answer.cause) == ("seven", "")
  answer, _ = _run(Reply("six"), tries=1, last=lambda reply: reply.text)
  assert answer.value == "six"


def test_messages_are_one_short_line():
  assert short(" a\n b ") == "a b"
  assert len(short("word " * 500)) == 300 and short("word " * 500).endswith("…")
  assert short(short("word " * 500)) == short("word " * 500)
