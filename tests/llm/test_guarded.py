"""A run ends where no call can succeed, whatever the cause, and not before."""

import pytest

from her_jax.llm.guarded import Guarded, Stopped
from her_jax.llm.messages import Failure, Message, Reply, Request

_ASKED = [Request(str(i), (Message("user", "?"),)) for i in range(30)]


class _Client:
  def __init__(self, results):
    self._results, self.asked = iter(results), 0

  def complete(self, requests):
    for request in requests:
      self.asked += 1
      yield request, next(self._results)


@pytest.mark.parametrize(
  "cause", ["connection", "timeout", "bad_request", "malformed", "server"]
)
def test_failures_in_a_row_end_it(cause):
  client = _Client([Reply("yes")] * 3 + [Failure(cause, "no")] * 27)
  given = []
  with pytest.raises(Stopped, match=f"5 calls in a row failed, the last with {cause}"):
    given.extend(Guarded(client, 5).complete(_ASKED))
  assert len(given) == client.asked == 8


def test_an_answer_between_them_and_replies_that_are_not_recorded_do_not():
  results = [Failure("bad_request", "no"), Reply("yes")] * 15
  assert len(list(Guarded(_Client(results), 2).complete(_ASKED))) == 30
  missing = [Failure("missing", "none")] * 30
  assert len(list(Guarded(_Client(missing), 2).complete(_ASKED))) == 30


@pytest.mark.parametrize("cause", ["budget", "auth"])
def test_a_spent_budget_ends_it_at_once(cause):
  with pytest.raises(Stopped, match=cause):
    list(Guarded(_Client([Failure(cause, "no")] * 30), 20).complete(_ASKED))
