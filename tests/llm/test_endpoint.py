"""The client against a real server that misbehaves in every way it can."""

import json

import pytest

from her_jax.errors import ConfigError
from her_jax.llm.budget import Budget
from her_jax.llm.client import Client, Failure, Message, Reply, Request, Sampling
from her_jax.llm.endpoint import Endpoint
from her_jax.llm.journal import Journal
from tests.llm import bad_server


def requests(n: int, tag: str = "t") -> list[Request]:
  return [Request(f"{tag}/{i}", (Message("user", f"say {i} " * 3),), tag=tag) for i in range(n)]


def endpoint(server: bad_server.BadServer, **settings) -> Endpoint:
  return Endpoint("m", server.url, **{"first_wait_s": 0.05, "timeout_s": 5.0} | settings)


def expected(request: Request) -> str:
  return bad_server.echo([{"content": request.messages[-1].content}])


@pytest.mark.parametrize(
  "fault", ["delay", "rate_limit", "cut", "server", "broken", "empty", "hang"]
)
def test_what_passes_is_asked_again_and_answered(tmp_path, fault):
  with bad_server.BadServer(tmp_path, faults={fault: 0.4}) as server:
    attempts = 4 if fault == "empty" else 12
    backend = endpoint(server, max_attempts=attempts, timeout_s=1 if fault == "hang" else 5)
    client = Client(backend, concurrency=8)
    answers = dict(client.complete(requests(12)))
    met = [row["fault"] for row in server.attempts()]
  assert met.count(fault) > 1
  # With `empty` the server keeps an empty answer for its key, for ever.
  kept = {request for request, answer in answers.items() if isinstance(answer, Reply)}
  assert {answers[r].text for r in kept} == {expected(r) for r in kept}
  if fault == "empty":
    assert {a.cause for r, a in answers.items() if r not in kept} == {"malformed"}
  else:
    assert len(kept) == 12
  if fault != "delay":
    assert client.report.as_dict()["retries"] > 1


@pytest.mark.parametrize(
  ("fault", "finish"),
  [("refusal", "refusal"), ("content_filter", "content_filter"), ("length", "length")],
)
def test_an_answer_of_no_use_is_paid_for_once_and_told(tmp_path, fault, finish):
  with bad_server.BadServer(tmp_path, faults={fault: 1.0}) as server:
    with Journal(tmp_path / "calls.jsonl") as journal:
      client = Client(endpoint(server), journal)
      answers = [answer for _, answer in client.complete(requests(3))]
    with Journal(tmp_path / "calls.jsonl") as journal:
      again = [answer for _, answer in Client(endpoint(server), journal).complete(requests(3))]
    assert len(server.attempts()) == 3
  assert {a.finish_reason for a in answers} == {finish} == {a.finish_reason for a in again}
  assert all(a.cached for a in again)
  assert client.report.as_dict()["ended"] == {finish: 3}
  assert client.report.as_dict()["prompt_tokens"] == 18


def test_a_wrong_key_ends_the_run_and_stands_nowhere(tmp_path):
  with bad_server.BadServer(tmp_path, key="right") as server:
    with Journal(tmp_path / "calls.jsonl") as journal, pytest.raises(ConfigError) as error:
      list(Client(endpoint(server, api_key="sk-wrong"), journal).complete(requests(20)))
    assert "refuses the key (401)" in str(error.value)
    with Journal(tmp_path / "calls.jsonl") as journal:
      answers = list(Client(endpoint(server, api_key="right"), journal).complete(requests(3)))
    assert all(isinstance(answer, Reply) for _, answer in answers)
  assert "sk-wrong" not in str(error.value) + (tmp_path / "calls.jsonl").read_text()
  assert "right" not in (tmp_path / "calls.jsonl").read_text()


def test_a_server_that_dies_fails_its_calls_by_cause_and_a_restart_pays_none_twice(tmp_path):
  with bad_server.BadServer(tmp_path, die_after=9) as server:
    with Journal(tmp_path / "calls.jsonl") as journal:
      client = Client(endpoint(server, max_attempts=2), journal, concurrency=4)
      first = dict(client.complete(requests(20)))
    assert server.died
    causes = {a.cause for a in first.values() if isinstance(a, Failure)}
    assert causes <= {"connection", "timeout"} and causes
    server.start(die_after=0)
    with Journal(tmp_path / "calls.jsonl") as journal:
      second = dict(Client(endpoint(server), journal).complete(requests(20)))
    assert {r.id: a.text for r, a in second.items()} == {r.id: expected(r) for r in second}
    paid = server.paid()
  assert len(paid) == 20 and set(paid.values()) == {1}


def test_a_budget_ends_a_run_cleanly_and_a_larger_one_goes_on(tmp_path):
  with bad_server.BadServer(tmp_path) as server:
    with Journal(tmp_path / "calls.jsonl") as journal:
      client = Client(endpoint(server), journal, Budget(tokens=70), concurrency=2)
      answers = dict(client.complete(requests(30)))
    got = [a for a in answers.values() if isinstance(a, Reply)]
    assert 10 <= len(got) <= 13  # 7 tokens a call, and those under way are finished.
    assert {a.cause for a in answers.values() if isinstance(a, Failure)} == {"budget"}
    assert client.report.as_dict()["calls"] == len(got) == len(server.attempts())
    with Journal(tmp_path / "calls.jsonl") as journal:
      same = Client(endpoint(server), journal, Budget(tokens=70))
      assert sum(isinstance(a, Reply) for _, a in same.complete(requests(30))) == len(got)
    with Journal(tmp_path / "calls.jsonl") as journal:
      more = Client(endpoint(server), journal, Budget(tokens=10_000))
      assert all(isinstance(a, Reply) for _, a in more.complete(requests(30)))
    assert set(server.paid().values()) == {1}


def test_money_is_counted_by_price(tmp_path):
  with bad_server.BadServer(tmp_path) as server:
    budget = Budget(money=30.0, price_in=1e6, price_out=2e6)
    client = Client(endpoint(server), budget=budget, concurrency=1)
    answers = [a for _, a in client.complete(requests(30))]
  # 6 tokens in at 1 and 1 out at 2: the fourth call reaches 32.
  assert sum(isinstance(a, Reply) for a in answers) == 4
  assert client.report.as_dict()["money"] == 32.0


@pytest.mark.parametrize("change", ["model", "prompt", "temperature", "id"])
def test_another_call_is_another_key(tmp_path, change):
  first = Request("a", (Message("user", "say it"),), Sampling(temperature=0.5))
  model, other = "m", first
  if change == "model":
    model = "n"
  elif change == "prompt":
    other = Request("a", (Message("user", "say that"),), first.sampling)
  elif change == "temperature":
    other = Request("a", first.messages, Sampling(temperature=0.6))
  else:
    other = Request("b", first.messages, first.sampling)
  with bad_server.BadServer(tmp_path) as server, Journal(tmp_path / "calls.jsonl") as journal:
    list(Client(endpoint(server), journal).complete([first]))
    (answer,) = (a for _, a in Client(Endpoint(model, server.url), journal).complete([other]))
    assert not answer.cached and len(server.attempts()) == 2
    (answer,) = (a for _, a in Client(endpoint(server), journal).complete([first]))
    assert answer.cached and len(server.attempts()) == 2


def test_reasoning_is_taken_apart(tmp_path):
  for reply in ("thinks_in_a_field", "thinks_in_tags"):
    with bad_server.BadServer(tmp_path / reply, reply=f"{__name__}:{reply}") as server:
      ((_, answer),) = Client(endpoint(server)).complete(requests(1))
    assert (answer.reasoning, answer.text) == ("hm", "yes")


def thinks_in_a_field(messages):
  return {"content": "yes", "reasoning_content": "hm"}


def thinks_in_tags(messages):
  return "<think>\nhm\n</think>\n\nyes"


def test_the_report_counts_what_the_server_saw(tmp_path):
  with bad_server.BadServer(tmp_path, faults={"rate_limit": 0.2, "server": 0.2}) as server:
    client = Client(endpoint(server, max_attempts=12))
    list(client.complete(requests(10, "one") + requests(15, "two")))
    attempts = len(server.attempts())
  report = client.report.as_dict()
  assert report["calls"] == 25 and report["tags"]["two"]["calls"] == 15
  assert report["calls"] + report["retries"] == attempts
  assert json.loads(json.dumps(report)) == report
  assert "two" in client.report.table()
