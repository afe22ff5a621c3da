"""What an endpoint's refusals come to: asked again, a failure by cause, or the end of the run."""

import datetime
import email.utils
import json
import logging
import time

import pytest

from her_jax.errors import ConfigError
from her_jax.llm.client import Client, Failure, Message, Reply, Request, Sampling
from her_jax.llm.endpoint import Endpoint
from her_jax.llm.journal import Journal
from tests.llm import bad_server


def refuses(messages):
  """What the prompt asks for, as JSON; `Retry-After: in 2` becomes the date of that second."""
  reply = json.loads(messages[-1]["content"])
  wait = reply.get("headers", {}).get("Retry-After", "")
  if wait.startswith("in "):
    date = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=int(wait[3:]))
    reply["headers"]["Retry-After"] = email.utils.format_datetime(date, usegmt=True)
  return reply


class Since:
  """A server as one test sees it: without the attempts of those before."""

  def __init__(self, server: bad_server.BadServer):
    self.url, self._server, self._before = server.url, server, server.arrived

  def attempts(self) -> list[dict]:
    return self._server.attempts()[self._before :]


def ask(server: Since, reply: object, **settings) -> Reply | Failure:
  settings = {"first_wait_s": 0.02, "max_attempts": 2, "timeout_s": 5.0} | settings
  request = Request("a", (Message("user", json.dumps(reply)),))
  ((_, answer),) = Client(Endpoint("m", server.url, **settings)).complete([request])
  return answer


@pytest.fixture(scope="module")
def one_server(tmp_path_factory):
  folder = tmp_path_factory.mktemp("server")
  with bad_server.BadServer(folder, reply=f"{__name__}:refuses", delay=0) as server:
    yield server


@pytest.fixture
def server(one_server):
  return Since(one_server)


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> dict:
  body = {"error": {"message": message, "code": code}}
  return {"status": status, "body": body, "headers": headers}


@pytest.mark.parametrize(
  ("status", "message", "cause", "attempts"),
  [
    (400, "too many tokens", "bad_request", 1),
    (400, "content management policy", "bad_request", 1),
    (403, "flagged by moderation", "bad_request", 1),
    (413, "too large", "bad_request", 1),
    (422, "unknown field", "bad_request", 1),
    (408, "slow", "server", 2),
    (409, "busy", "server", 2),
    (429, "too many requests", "rate_limit", 2),
    (500, "bug", "server", 2),
    (503, "overloaded", "server", 2),
    (529, "overloaded", "server", 2),
  ],
)
def test_a_status_is_a_cause(server, status, message, cause, attempts):
  answer = ask(server, refusal(status, message))
  assert (answer.cause, answer.attempts) == (cause, attempts)
  assert message in answer.message and len(server.attempts()) == attempts
  assert answer.usage.unknown == 0  # What was refused was not paid for.


@pytest.mark.parametrize(
  ("status", "message", "code", "told"),
  [
    (401, "wrong", None, "refuses the key .401.*llm.api_key_env"),
    (403, "not your model", None, "refuses the key .403"),
    (404, "no such model", None, "llm.base_url and llm.model"),
    (402, "pay first", None, "no credit left"),
    (429, "You exceeded your current quota", "insufficient_quota", "no credit left"),
    (403, "Insufficient Balance", None, "no credit left"),
  ],
)
def test_what_no_request_can_mend_ends_the_run(server, status, message, code, told):
  with pytest.raises(ConfigError, match=told):
    ask(server, refusal(status, message, code))
  assert len(server.attempts()) == 1


@pytest.mark.parametrize("form", ["seconds", "date", "milliseconds"])
def test_retry_after_is_waited_for(server, form):
  header = {
    "seconds": {"Retry-After": "1"},
    "date": {"Retry-After": "in 2"},
    "milliseconds": {"retry-after-ms": "700"},
  }[form]
  ask(server, refusal(429, "slow down", **header))
  first, second = (row["time"] for row in server.attempts())
  assert second - first >= (0.6 if form == "milliseconds" else 0.95)
  assert second - first < 3


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "", "Thu, 32 Foo 2020", "0"])
def test_a_retry_after_without_sense_holds_nothing_up(server, value):
  began = time.monotonic()
  assert ask(server, refusal(429, "slow down", **{"Retry-After": value})).cause == "rate_limit"
  assert time.monotonic() - began < 3 and len(server.attempts()) == 2


def test_a_wait_has_a_bound(server, monkeypatch):
  monkeypatch.setattr("her_jax.llm.endpoint._LONGEST_WAIT", 0.3)
  began = time.monotonic()
  ask(server, refusal(429, "come tomorrow", **{"Retry-After": "86400"}))
  assert 0.3 <= time.monotonic() - began < 3


@pytest.mark.parametrize(
  ("reply", "cause"),
  [
    ({"raw": "<html>bad gateway</html>"}, "malformed"),
    ({"raw": '{"choices": {"a": 1}}'}, "malformed"),
    ({"raw": '{"choices": [{"message": "x"}], "usage": "none"}'}, "malformed"),
    ({"raw": '{"error": {"message": "overloaded", "code": 502}}'}, "server"),
    ({"raw": '{"error": {"message": "slow down", "code": 429}}'}, "rate_limit"),
  ],
)
def test_a_body_that_is_no_answer_is_asked_for_again_and_stops_no_run(server, reply, cause):
  answer = ask(server, reply)
  assert (answer.cause, answer.attempts, answer.usage.unknown) == (cause, 2, 2)


def test_an_empty_answer_is_asked_for_as_another_call(tmp_path):
  """Or an endpoint that heeds the key would give the same nothing for ever."""
  with bad_server.BadServer(tmp_path, faults={"empty": 0.5}, delay=0) as server:
    client = Client(Endpoint("m", server.url, first_wait_s=0.02, max_attempts=12))
    asked = [Request(f"r/{i}", (Message("user", "say"),)) for i in range(12)]
    answers = [answer for _, answer in client.complete(asked)]
    met = [row["fault"] for row in server.attempts()]
    assert set(server.paid().values()) == {1}
  assert all(isinstance(answer, Reply) for answer in answers) and met.count("empty") > 2
  assert client.report.as_dict()["prompt_tokens"] == len(met)  # Empty ones were paid for too.


def test_a_port_without_a_server_costs_nothing():
  endpoint = Endpoint("m", "http://127.0.0.1:9/v1", first_wait_s=0.01, max_attempts=3)
  ((_, answer),) = Client(endpoint).complete([Request("a", (Message("user", "?"),))])
  assert (answer.cause, answer.attempts, answer.usage.unknown) == ("connection", 3, 0)


def test_the_request_holds_what_was_asked_for(server):
  sampling = Sampling(temperature=0.3, top_p=0.8, max_tokens=77, seed=5, stop=("END",))
  request = Request("a", (Message("user", '{"content": "yes"}'),), sampling)
  ((_, answer),) = Client(Endpoint("m", server.url)).complete([request])
  (row,) = server.attempts()
  assert row["asked"] == {
    "model": "m", "temperature": 0.3, "top_p": 0.8, "max_tokens": 77, "seed": 5, "stop": ["END"],
  }  # fmt: skip
  assert row["key"] == request.key("m") and answer.text == "yes"


def test_the_key_stands_nowhere(server, tmp_path, caplog):
  """Not even where the other side repeats it."""
  secret = "sk-very-secret"
  caplog.set_level(logging.DEBUG)
  replies = [{"content": "yes"}, refusal(400, "you sent _KEY_"), refusal(429, "_KEY_")]
  asked = [
    Request(f"key/{i}", (Message("user", json.dumps(r)),)) for i, r in enumerate(replies)
  ]
  with Journal(tmp_path / "calls.jsonl") as journal:
    endpoint = Endpoint("m", server.url, secret, first_wait_s=0.02, max_attempts=2)
    client = Client(endpoint, journal)
    answers = [answer for _, answer in client.complete(asked)]
  with pytest.raises(ConfigError) as error:
    ask(server, refusal(401, "wrong key: _KEY_"), api_key=secret)
  told = repr(answers) + str(error.value) + json.dumps(client.report.as_dict())
  told += client.report.table() + caplog.text + (tmp_path / "calls.jsonl").read_text()
  assert secret not in told
  assert "(key)" in str(error.value) and repr(answers).count("(key)") == 2
