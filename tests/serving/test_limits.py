"""Limits, keys, failures: a server in this process around an engine that does as it is told."""

import asyncio
import contextlib
import dataclasses
import threading
import time

import httpx2
import pytest
import uvicorn

from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.inference.engine import Event
from her_jax.roleplay import chat
from her_jax.roleplay.prompts import Variant
from her_jax.serving import app, server, worker
from her_jax.serving.service import Service, Settings
from her_jax.serving.worker import Worker

_PLAN = "<system_thinking>SECRET plan</system_thinking>"
_TEXT = f"{_PLAN}Una: Sit. <role_thinking>SECRET thought</role_thinking> Well."
_HI = {"messages": [{"role": "user", "content": "Perran: Hello."}]}
_SETTINGS = Settings(name="fake", prompt_length=100, max_new_tokens=60, most_choices=4)


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train([f"{_TEXT} Perran waits."] * 3, 420)


class FakeEngine:
  """Writes `text` to everybody, a token a step, once `gate` is open."""

  def __init__(self, tokenizer, text=_TEXT):
    self.gate = threading.Event()
    self.gate.set()
    self.fails = False
    self.ids = [*chat.encode_text(text, tokenizer), chat.control_id(chat.IM_END, tokenizer)]
    self.asked, self.cancelled = [], []
    self._left = {}

  @property
  def busy(self):
    return bool(self._left)

  @property
  def running(self):
    return min(len(self._left), 2)

  def submit(self, ids, sampling):
    if len(ids) > 90:
      raise ValueError("the prompt has no room")
    self.asked.append(sampling)
    self._left[len(self.asked)] = self.ids[: sampling.max_tokens]
    return len(self.asked)

  def cancel(self, number):
    self.cancelled.append(number)
    return self._left.pop(number, None) is not None

  def step(self):
    if not self.gate.wait(0.01):
      return []
    if self.fails:
      raise RuntimeError("SECRET state of the engine")
    events = []
    for number, left in list(self._left.items()):
      reason = "stop" if len(left) == 1 else None
      events.append(Event(number, [left.pop(0)], [-0.5], reason))
      if not left:
        del self._left[number]
    return events


@contextlib.contextmanager
def _serving(tokenizer, engine=None, most=6, variant=None, build=None, **changes):
  """A client of a running server, and its engine."""
  engine = engine or FakeEngine(tokenizer)
  served = Worker(build or (lambda: engine), most=most, patience_s=changes.get("timeout_s", 60))
  settings = dataclasses.replace(_SETTINGS, **changes)
  service = Service(served, tokenizer, settings, variant or Variant("brief"))
  running = uvicorn.Server(
    uvicorn.Config(app.build(service), log_config=None, timeout_graceful_shutdown=2)
  )
  with server.listen("127.0.0.1", 0) as listening:
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with httpx2.Client(base_url=url, timeout=20) as client:
      end = time.monotonic() + 20
      while build is None and client.get("/health").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.01)
      client.engine, client.service = engine, service
      yield client
    engine.gate.set()
    running.should_exit = True
    thread.join(timeout=20)
    assert not thread.is_alive()


def _post(client, path="/v1/chat/completions", **fields):
  return client.post(path, json={**_HI, **fields})


def _content(answer):
  assert answer.status_code == 200, answer.text
  return answer.json()["choices"][0]["message"]["content"]


def test_hidden_layers_leave_only_on_demand(tokenizer):
  with _serving(tokenizer) as client:
    assert _content(_post(client)) == "Una: Sit. Well."
    assert _content(_post(client, character="Una")) == "Sit. Well."
    thoughts = _content(_post(client, hidden="thoughts"))
    assert "SECRET thought" in thoughts and "plan" not in thoughts
    assert _content(_post(client, hidden="shown")) == _TEXT
    count = len(client.engine.ids)
    assert _post(client).json()["usage"]["completion_tokens"] == count


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_hidden_leaves_by_another_way(tokenizer, path, stream):
  with _serving(tokenizer) as client:
    fields = {"stream": stream, "logprobs": True, "stop": ["plan", "thought"]}
    body = {**_HI, **fields}
    if path == "/v1/completions":
      body = {"prompt": "x", **fields, "logprobs": 0}
    answers = [client.post(path, json=body).text, client.get("/metrics").text]
    for cut in range(1, len(client.engine.ids)):
      answers.append(client.post(path, json={**body, "max_tokens": cut}).text)
    for answer in answers:
      for secret in ("SECRET", "plan", "thought", "thinking"):
        assert secret not in answer
    # A stop text within a hidden layer ends nothing, which would tell that it is there.
    assert "Well" in answers[0] and '"stop"' in answers[0]
    told = client.post(path, json={**body, "stream": False}).json()["choices"][0]["logprobs"]
    tokens = (
      told["tokens"] if path == "/v1/completions" else [t["token"] for t in told["content"]]
    )
    assert "".join(tokens).replace(" ", "") == "Una:Sit.Well."


def test_stop_texts_are_looked_for_in_what_is_shown(tokenizer):
  with _serving(tokenizer) as client:
    answer = _post(client, stop=" Well")
    assert _content(answer) == "Una: Sit."
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert _content(_post(client, stop="SECRET", hidden="shown")) == "<system_thinking>"


def test_coser_s_brackets_are_hidden_too(tokenizer):
  engine = FakeEngine(tokenizer, f"{_PLAN}Una: [SECRET] (bows) Sit.")
  with _serving(tokenizer, engine, variant=Variant("brief", "coser")) as client:
    assert _content(_post(client)) == "Una: (bows) Sit."
    assert _post(client, logprobs=True).status_code == 400
    assert _post(client, logprobs=True, hidden="shown").status_code == 200


def test_the_server_says_how_much_may_be_shown(tokenizer):
  with _serving(tokenizer, show="thoughts") as client:
    assert _post(client, hidden="thoughts").status_code == 200
    refused = _post(client, hidden="shown")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "hidden_not_allowed"


def test_more_than_may_wait_are_told_to_come_again(tokenizer):
  with _serving(tokenizer) as client:
    client.engine.gate.clear()
    found = []
    threads = [
      threading.Thread(target=lambda: found.append(_post(client, n=2))) for _ in range(3)
    ]
    for thread in threads:
      thread.start()
    end = time.monotonic() + 10
    while client.service.worker.under_way < 6:
      assert time.monotonic() < end
      time.sleep(0.01)
    busy = _post(client)
    assert busy.status_code == 429 and busy.headers["retry-after"]
    assert busy.json()["error"]["code"] == "queue_full"
    assert "her_waiting 4.0" in client.get("/metrics").text
    client.engine.gate.set()
    for thread in threads:
      thread.join()
    assert [answer.status_code for answer in found] == [200] * 3
    assert _post(client).status_code == 200


def test_a_reply_that_takes_too_long_is_ended(tokenizer):
  with _serving(tokenizer, timeout_s=0.3) as client:
    client.engine.gate.clear()
    late = _post(client)
    assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
    streamed = _post(client, stream=True)
    assert '"code":"timeout"' in streamed.text and "[DONE]" not in streamed.text
    client.engine.gate.set()
    assert _content(_post(client)) == "Una: Sit. Well."
    assert client.engine.cancelled == [1, 2]


def test_a_failing_engine_fails_everybody_in_words(tokenizer):
  with _serving(tokenizer) as client:
    client.engine.gate.clear()
    found = []
    threads = [
      threading.Thread(target=lambda s=s: found.append(_post(client, stream=s)))
      for s in (False, True)
    ]
    for thread in threads:
      thread.start()
    while client.service.worker.under_way < 2:
      time.sleep(0.01)
    client.engine.fails = True
    client.engine.gate.set()
    for thread in threads:
      thread.join(timeout=10)
    assert sorted(answer.status_code for answer in found) == [200, 503]  # One had begun.
    assert all("the engine has failed (RuntimeError)" in answer.text for answer in found)
    assert _post(client).status_code == 503
    health = client.get("/health")
    assert health.status_code == 503 and health.json() == {
      "status": "failed", "error": "RuntimeError",
    }  # fmt: skip
    assert "SECRET" not in "".join(answer.text for answer in [*found, health])
    assert client.service.worker.under_way == 0


def test_a_model_that_cannot_be_loaded_is_told(tokenizer):
  def build():
    raise MemoryError

  with _serving(tokenizer, build=build) as client:
    end = time.monotonic() + 10
    while client.service.worker.state != worker.FAILED:
      assert time.monotonic() < end
      time.sleep(0.01)
    assert client.get("/health").status_code == 503
    assert _post(client).status_code == 503


def test_while_it_loads_nobody_waits(tokenizer):
  loaded = threading.Event()
  engine = FakeEngine(tokenizer)

  def build():
    loaded.wait(10)
    return engine

  with _serving(tokenizer, build=build) as client:
    assert client.get("/health").json() == {"status": "loading"}
    early = _post(client)
    assert early.status_code == 503 and early.headers["retry-after"]
    loaded.set()
    while client.get("/health").status_code != 200:
      time.sleep(0.01)


def test_a_step_that_hangs_turns_the_health(tokenizer):
  engine = FakeEngine(tokenizer)
  hang = threading.Event()
  engine.step = lambda: hang.wait(10) and []
  with _serving(tokenizer, engine, timeout_s=0.2) as client:
    assert _post(client).status_code == 504
    assert client.get("/health").status_code == 503
    assert _post(client).status_code == 503
    del engine.step
    hang.set()


def test_a_prompt_that_the_engine_refuses_harms_nobody_else(tokenizer):
  with _serving(tokenizer) as client:
    assert client.post("/v1/completions", json={"prompt": [5] * 95}).status_code == 400
    assert client.service.worker.under_way == 0
    assert _post(client).status_code == 200


def test_the_key(tokenizer):
  with _serving(tokenizer, api_key="sesame") as client:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic sesame"}):
      answer = client.get("/v1/models", headers=headers)
      assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
      assert "sesame" not in answer.text
    right = {"Authorization": "Bearer sesame"}
    assert client.get("/v1/models", headers=right).status_code == 200
    assert client.post("/v1/chat/completions", json=_HI, headers=right).status_code == 200
    assert client.get("/health").status_code == 200


def test_who_goes_away_is_noticed_while_nothing_is_sent(tokenizer):
  with _serving(tokenizer) as client:
    client.engine.gate.clear()

    async def go(stream):
      async with httpx2.AsyncClient(base_url=client.base_url) as other:
        call = other.post("/v1/chat/completions", json={**_HI, "stream": stream, "n": 2})
        with contextlib.suppress(asyncio.TimeoutError):
          await asyncio.wait_for(call, 0.3)

    for stream in (False, True):
      asyncio.run(go(stream))
      end = time.monotonic() + 5
      while client.service.worker.under_way:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert 'status="499"' in client.get("/metrics").text


def test_settings_reach_the_engine(tokenizer):
  with _serving(tokenizer) as client:
    _post(client, seed=-1, n=2, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, max_tokens=9,
          repetition_penalty=1.1, stop="x")  # fmt: skip
    first, second = client.engine.asked[-2:]
    assert (first.seed, second.seed) == (2**64 - 1, 0)
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.5, 0.9, 0, 0.1)
    assert (first.max_tokens, first.repetition_penalty, first.stop) == (9, 1.1, ())
    _post(client)
    assert client.engine.asked[-1].max_tokens == 60
    assert client.engine.asked[-1].stop_ids


@pytest.mark.parametrize(
  ("host", "own"),
  [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_an_open_address_wants_a_key(host, own):
  assert server.is_loopback(host) == own
  server.require_key(host, "key")
  refusal = contextlib.nullcontext() if own else pytest.raises(ConfigError, match="api_key_env")
  with refusal:
    server.require_key(host, "")


def test_a_port_in_use_is_told():
  with server.listen("127.0.0.1", 0) as taken:
    with pytest.raises(ConfigError, match=r"another --config\.serve\.port"):
      server.listen("127.0.0.1", taken.getsockname()[1])
