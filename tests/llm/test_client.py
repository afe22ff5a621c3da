"""What the client promises whoever asks: order, patience, look-ahead, and what a stop costs."""

import asyncio
import itertools
import threading
import time

import pytest

from her_jax.errors import ConfigError
from her_jax.llm.budget import Budget
from her_jax.llm.client import Client, Failure, Message, Reply, Request, Usage
from her_jax.llm.endpoint import Endpoint
from her_jax.llm.journal import Journal
from her_jax.llm.scripted import Scripted
from tests.llm import bad_server

_USAGE = Usage(3, 2)


def requests(n: int) -> list[Request]:
  return [Request(f"r/{i}", (Message("user", f"say {i}"),)) for i in range(n)]


class Slow:
  """Answers after a while, or never; knows how many calls are under way."""

  model = "slow"

  def __init__(self, seconds: float = 0.02, usage: Usage = _USAGE):
    self.seconds, self.usage = seconds, usage
    self.now = self.most = self.ended = 0

  async def send(self, request: Request) -> Reply:
    self.now += 1
    self.most = max(self.most, self.now)
    try:
      await asyncio.sleep(self.seconds)
    finally:
      self.now -= 1
    self.ended += 1
    return Reply(request.id, usage=self.usage)


def test_a_slow_source_of_requests_makes_no_call_late(tmp_path):
  def slowly():
    yield from requests(3)
    time.sleep(1.2)  # Longer than a call may take.
    yield Request("last", (Message("user", "say it"),))

  with bad_server.BadServer(tmp_path, faults={"delay": 1.0}) as server:
    client = Client(Endpoint("m", server.url, timeout_s=1.0, max_attempts=1))
    answers = [answer for _, answer in client.complete(slowly())]
    assert len(server.attempts()) == 4
  assert all(isinstance(answer, Reply) for answer in answers)


def test_requests_are_read_in_the_callers_thread():
  found = []

  def source():
    for request in requests(20):
      found.append(threading.current_thread())
      yield request

  assert len(list(Client(Slow(0.001)).complete(source()))) == 20
  assert set(found) == {threading.current_thread()}


def test_a_source_may_depend_on_answers_that_were_given():
  """As a stage does that asks again with a larger budget."""
  again, seen = [], []

  def source():
    yield from requests(12)
    while again:
      yield again.pop()

  for request, _ in Client(Slow(), concurrency=2).complete(source()):
    seen.append(request.id)
    if request.id == "r/0":
      again.append(Request("r/0/retry1", request.messages))
  assert "r/0/retry1" in seen and len(seen) == 13


def test_concurrency_is_used_and_kept():
  backend = Slow()
  assert len(list(Client(backend, concurrency=5).complete(requests(40)))) == 40
  assert backend.most == 5


def test_a_slow_reader_keeps_calls_under_way_and_is_not_overrun():
  taken = itertools.count()
  endless = (Request(f"r/{next(taken)}", (Message("user", "?"),)) for _ in itertools.count())
  answers = Client(Slow(0.001), concurrency=4).complete(endless)
  for given in range(1, 30):
    next(answers)
    time.sleep(0.005)
    assert given <= taken.__reduce__()[1][0] <= given + 2 * 4
  answers.close()


def test_what_the_journal_has_is_given_without_waiting_for_what_it_has_not(tmp_path):
  with Journal(tmp_path / "calls.jsonl") as journal:
    list(Client(Slow(0), journal).complete(requests(50)))
    mixed = [Request("new", (Message("user", "?"),)), *requests(50)]
    answers = Client(Slow(0.5), journal, concurrency=2).complete(mixed)
    began = time.monotonic()
    first = [next(answers) for _ in range(50)]
    assert all(answer.cached for _, answer in first) and time.monotonic() - began < 0.4
    assert [request.id for request, _ in answers] == ["new"]


def test_who_stops_early_loses_no_answer_that_was_paid_for(tmp_path):
  with Journal(tmp_path / "calls.jsonl") as journal:
    backend = Slow(0.1)
    answers = Client(backend, journal, concurrency=4).complete(requests(100))
    next(answers)
    answers.close()
    assert 4 <= backend.ended == len(journal) <= 9  # And nothing new was sent.
  with Journal(tmp_path / "calls.jsonl") as journal:
    assert journal.in_doubt == 0


def test_calls_that_do_not_end_are_given_up_and_are_in_doubt(tmp_path):
  class Mixed(Slow):
    async def send(self, request: Request) -> Reply:
      self.seconds = 0.01 if request.id == "r/0" else 3600
      return await super().send(request)

  with Journal(tmp_path / "calls.jsonl") as journal:
    answers = Client(Mixed(), journal, concurrency=3, drain_s=0.1).complete(requests(9))
    next(answers)
    began = time.monotonic()
    answers.close()
    assert time.monotonic() - began < 5
  with Journal(tmp_path / "calls.jsonl") as journal:
    assert len(journal) == 1 and journal.in_doubt == len(journal.lost) >= 2


def test_what_a_backend_raises_reaches_the_caller_and_the_rest_is_kept(tmp_path):
  class Refusing(Slow):
    async def send(self, request: Request) -> Reply:
      if request.id == "r/3":
        raise ConfigError("no such model")
      return await super().send(request)

  with Journal(tmp_path / "calls.jsonl") as journal:
    with pytest.raises(ConfigError, match="no such model"):
      list(Client(Refusing(0.05), journal, concurrency=4).complete(requests(40)))
    assert 3 <= len(journal) < 20


def test_two_pipelines_share_a_client(tmp_path):
  """A stage may ask within the answers of another."""
  with Journal(tmp_path / "calls.jsonl") as journal:
    client = Client(Slow(0.002), journal, concurrency=4)
    inner = (Request(f"in/{r.id}", r.messages) for r, _ in client.complete(requests(30)))
    assert len(list(client.complete(inner))) == 30
    assert len(journal) == 60 and client.report.as_dict()["calls"] == 60


def test_a_budget_counts_what_a_journal_holds_once(tmp_path):
  with Journal(tmp_path / "calls.jsonl") as journal:
    budget = Budget(tokens=1000)
    for stage in range(3):  # A client a stage, with one budget and one journal.
      asked = [Request(f"{stage}/{r.id}", r.messages) for r in requests(4)]
      list(Client(Slow(0), journal, budget).complete(asked))
    assert budget.spent == journal.spent == Usage(36, 24)
    late = Budget(tokens=60)  # What this process spent counts in a new one too.
    ((_, answer),) = Client(Slow(0), journal, late).complete(requests(1))
    assert isinstance(answer, Failure) and answer.cause == "budget"
  with Journal(tmp_path / "calls.jsonl") as journal:
    fresh = Budget(tokens=60, earlier_runs=False)
    ((_, answer),) = Client(Slow(0), journal, fresh).complete(requests(1))
    assert isinstance(answer, Reply) and fresh.spent == Usage(3, 2)


def test_tokens_that_are_not_told_count_as_the_others_do():
  budget = Budget(tokens=100)
  for _ in range(10):
    budget.spend(Usage(4, 1))
  assert budget.over() is None
  for _ in range(10):
    budget.spend(Usage(unknown=1))
  assert "100 tokens are spent (10 attempts by estimate) of 100" in str(budget.over())


def test_an_endpoint_that_tells_no_tokens_cannot_be_held_to_a_limit():
  silent = Slow(0, Usage(unknown=1))
  answers = [a for _, a in Client(silent, budget=Budget(tokens=10**9)).complete(requests(200))]
  failed = [a for a in answers if isinstance(a, Failure)]
  assert 32 <= len(answers) - len(failed) < 32 + 8
  assert "told no tokens" in failed[0].message
  assert all(isinstance(a, Reply) for _, a in Client(silent).complete(requests(50)))


def test_nothing_asked_is_nothing_answered():
  def never(request: Request) -> Reply:
    raise AssertionError

  assert list(Client(Scripted("m", never)).complete([])) == []
