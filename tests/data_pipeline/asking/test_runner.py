"""Many questions over one client: their order, and runs that end early."""

import itertools

import pytest

from data_pipeline.asking.question import Question, Rejected
from data_pipeline.asking.runner import Runner
from her_jax.llm.client import Client, Failure, Message, Reply, Sampling
from her_jax.llm.guarded import Guarded, Stopped
from her_jax.llm.scripted import Scripted


def _read(reply):
  if reply.text == "bad":
    raise Rejected("bad")
  return reply.text


def _questions(count):
  message = (Message("user", "Go."),)
  return [Question(f"q/{i}", message, Sampling(), "q", _read) for i in range(count)]


def _runner(reply, give_up_after=20):
  return Runner(Guarded(Client(Scripted("m", reply)), give_up_after))


def test_one_answer_a_question_in_their_order():
  def reply(request):
    number = int(request.id.split("/")[1])
    late = number % 3 == 0 and "retry" not in request.id
    return Reply("bad") if late else Reply(f"{number}")

  answers = _runner(reply).ask(_questions(100))
  assert [answer.value for answer in answers] == [str(i) for i in range(100)]
  assert [answer.tries for answer in answers] == [2 if i % 3 == 0 else 1 for i in range(100)]
  assert _runner(reply).ask([]) == []


def test_the_number_of_tries_is_the_callers():
  asked = []
  runner = _runner(lambda request: asked.append(request.id) or Reply("bad"))
  (answer,) = runner.ask(_questions(1), tries=3)
  assert (answer.value, answer.cause) == (None, "bad")
  assert asked == ["q/0", "q/0/retry1", "q/0/retry2"]


def test_two_questions_of_one_id_are_refused():
  with pytest.raises(ValueError, match="two requests have the id 'q/0'"):
    _runner(lambda _: Reply("x")).ask([*_questions(2), *_questions(1)])


def test_a_spent_budget_ends_the_run_with_the_mend():
  count = itertools.count()
  spent = lambda _: Reply("x") if next(count) < 5 else Failure("budget", "all is spent")
  with pytest.raises(Stopped, match="budget: all is spent; then start the same command again"):
    _runner(spent).ask(_questions(1000))
  assert next(count) < 100


def test_failures_in_a_row_end_the_run_also_across_calls_of_it():
  asked = []
  runner = _runner(
    lambda request: asked.append(request) or Failure("connection", "refused"), give_up_after=30
  )
  answers = runner.ask(_questions(20))
  assert {answer.cause for answer in answers} == {"connection"}
  with pytest.raises(
    Stopped, match=r"30 calls in a row failed, the last with connection \(ref"
  ):
    runner.ask(_questions(1000))
  assert len(asked) < 80
