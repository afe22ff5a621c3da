"""An OpenAI-compatible server that misbehaves as told: a process of its own, on loopback.

    with BadServer(folder, reply="tests.llm.bad_server:echo", faults={"cut": 0.1}) as server:
      server.url, server.paid(), server.kill(), server.start()

Faults, each with its share of attempts, drawn from the prompt and the attempt's number, so that
a run meets the same ones whatever its order: delay, rate_limit (429), cut (the connection ends
in mid-body), server (500), refusal, content_filter, length (half of the text), broken (a body
that is no JSON), hang, empty. A call is paid for when its answer was computed, before it is sent.

`reply` names a function of the messages. It gives the text, or fields of the message
({"content", "reasoning_content", …}); {"raw": …} is the whole body as it stands, and {"status": …,
"body": …, "headers": …} an error, which is not paid for; `_KEY_` in it becomes the key that was
sent.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
import hashlib
import http.server
import importlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]
# What an answer itself says is the same each time; the rest may go better.
_LASTING = ("refusal", "content_filter", "length")


def echo(messages: list[dict[str, str]]) -> str:
  """A reply that depends on the prompt alone."""
  text = messages[-1]["content"]
  return f"{len(text)}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class BadServer:
  """Starts and stops the process; what was paid for outlives it."""

  def __init__(
    self,
    folder: pathlib.Path,
    reply: str = "tests.llm.bad_server:echo",
    faults: Mapping[str, float] | None = None,
    idempotent: bool = True,
    seed: int = 0,
    die_after: int = 0,
    key: str = "",
    delay: float = 0.01,
  ):
    folder.mkdir(parents=True, exist_ok=True)
    self._log = folder / "paid.jsonl"
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      self._port = free.getsockname()[1]
    self.url = f"http://127.0.0.1:{self._port}/v1"
    self._options = {
      "reply": reply, "faults": dict(faults or {}), "idempotent": idempotent, "seed": seed,
      "die_after": die_after, "key": key, "delay": delay, "log": str(self._log), "port": self._port,
    }  # fmt: skip

  def __enter__(self) -> "BadServer":
    self.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self.kill()

  def start(self, **changes: Any) -> None:
    self._options |= changes
    self._process = subprocess.Popen(
      [sys.executable, __file__, json.dumps(self._options)],
      env={**os.environ, "PYTHONPATH": str(_ROOT)},
      cwd=_ROOT,
    )
    for _ in range(400):
      with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", self._port)) == 0:
          return
      time.sleep(0.05)
    raise RuntimeError("the server did not start")

  def kill(self) -> None:
    self._process.send_signal(signal.SIGKILL)
    self._process.wait()

  @property
  def arrived(self) -> int:
    """Number of attempts so far."""
    return self._log.read_bytes().count(b"\n") if self._log.exists() else 0

  @property
  def died(self) -> bool:
    return self._process.poll() is not None

  def paid(self) -> Counter:
    """How often each call was paid for, by its idempotency key."""
    return Counter(row["key"] for row in self.attempts() if row["paid"])

  def attempts(self) -> list[dict[str, Any]]:
    """All that arrived: key, fault, paid, answer, time, and the body without its messages."""
    if not self._log.exists():
      return []
    return [json.loads(line) for line in self._log.read_text().splitlines()]


def _one(shares: Mapping[str, float], seed: str) -> str:
  """One of the faults, by their shares, or none."""
  point = random.Random(seed).random()
  for fault, share in shares.items():
    if point < share:
      return fault
    point -= share
  return ""


class _Handler(http.server.BaseHTTPRequestHandler):
  """One request; `server.options` says what goes wrong."""

  protocol_version = "HTTP/1.1"
  server: "_Server"

  def log_message(self, *args: object) -> None:
    pass

  def do_POST(self) -> None:
    options = self.server.options
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    if options["key"] and self.headers.get("Authorization") != f"Bearer {options['key']}":
      return self._answer(401, {"error": {"message": "wrong key", "type": "auth"}})
    name = (
      self.headers.get("Idempotency-Key")
      or hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    )
    self._act(*self.server.draw(name), name, body)

  def _act(self, fault: str, lasting: str, name: str, body: dict[str, Any]) -> None:
    time.sleep(self.server.options["delay"] * random.random())
    if fault == "rate_limit":
      self.server.note(name, fault, body, paid=False)
      error = {"error": {"message": "slow down", "type": "rate_limit"}}
      return self._answer(429, error, {"Retry-After": "0.05"})
    if fault == "server":
      self.server.note(name, fault, body, paid=False)
      return self._answer(503, {"error": {"message": "overloaded", "type": "server"}})
    if fault == "hang":
      self.server.note(name, fault, body, paid=False)
      time.sleep(30)
      return None
    if fault == "delay":
      time.sleep(0.2)
    answer = self.server.answer(name, fault, lasting, body)
    if "status" in answer:
      key = self.headers.get("Authorization", "").removeprefix("Bearer ")
      told = json.loads(json.dumps(answer.get("body", {})).replace("_KEY_", key))
      return self._answer(answer["status"], told, answer.get("headers"))
    raw = (answer["raw"] if "raw" in answer else json.dumps(answer)).encode()
    if fault == "broken":
      raw = raw[: len(raw) // 2]
    self.send_response(200)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(raw)))
    self.end_headers()
    if fault == "cut":
      self.wfile.write(raw[: len(raw) // 2])
      self.wfile.flush()
      self.close_connection = True
      self.connection.shutdown(socket.SHUT_RDWR)
      return None
    self.wfile.write(raw)
    return None

  def _answer(
    self, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
  ) -> None:
    raw = json.dumps(body).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(raw)))
    for name, value in (headers or {}).items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(raw)


class _Server(http.server.ThreadingHTTPServer):
  daemon_threads = True
  request_queue_size = 256

  def __init__(self, options: dict[str, Any]):
    super().__init__(("127.0.0.1", options["port"]), _Handler)
    self.options = options
    module, _, function = options["reply"].partition(":")
    self._reply: Callable[[list[dict[str, str]]], Any] = getattr(
      importlib.import_module(module), function
    )
    self._lock = threading.Lock()
    # Two attempts of one call at the same time: the second waits for the first one's answer.
    self._answering: dict[str, threading.Lock] = defaultdict(threading.Lock)
    self._seen: Counter = Counter()
    self._stored: dict[str, dict[str, Any]] = {}
    self._log = open(options["log"], "a+", buffering=1)
    self._log.seek(0)
    for line in self._log:  # A server that died knows what it was paid for.
      row = json.loads(line)
      self._seen[row["key"]] += 1
      if row["paid"]:
        self._stored[row["key"]] = row["answer"]
    self._answered = 0

  def handle_error(self, request: Any, client_address: Any) -> None:
    """A client that was killed closes its connections: nothing to tell."""

  def draw(self, name: str) -> tuple[str, str]:
    """What goes wrong with this attempt, and with every answer to this call."""
    with self._lock:
      seen = self._seen[name]
      self._seen[name] += 1
    seed, shares = self.options["seed"], self.options["faults"]
    passing = {fault: share for fault, share in shares.items() if fault not in _LASTING}
    lasting = {fault: share for fault, share in shares.items() if fault in _LASTING}
    return _one(passing, f"{seed}/{name}/{seen}"), _one(lasting, f"{seed}/{name}")

  def note(
    self, name: str, fault: str, body: dict[str, Any], paid: bool, answer: Any = None
  ) -> None:
    asked = {field: value for field, value in body.items() if field != "messages"}
    row = {"key": name, "fault": fault, "paid": paid, "answer": answer}
    row |= {"time": time.time(), "asked": asked}
    with self._lock:
      self._log.write(json.dumps(row) + "\n")

  def answer(self, name: str, fault: str, lasting: str, body: dict[str, Any]) -> dict[str, Any]:
    """Computes an answer, which is paid for, or finds that it was."""
    with self._lock:
      answering = self._answering[name]
    with answering:
      stored = self._stored.get(name) if self.options["idempotent"] else None
      made = (
        self._make("empty" if fault == "empty" else lasting, body) if stored is None else stored
      )
      paid = stored is None and "status" not in made
      if paid:
        self._stored[name] = made
      self.note(name, fault or lasting, body, paid, made)
    if not paid:
      return made
    self._answered += 1
    if self.options["die_after"] and self._answered >= self.options["die_after"]:
      os.kill(os.getpid(), signal.SIGKILL)
    return made

  def _make(self, fault: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = self._reply(body["messages"])
    if isinstance(reply, dict) and reply.keys() & {"status", "raw"}:
      return reply
    message: dict[str, Any] = {"role": "assistant"}
    message |= reply if isinstance(reply, dict) else {"content": reply}
    finish = "stop"
    if fault == "refusal":
      message |= {"content": None, "refusal": "I cannot write this."}
    elif fault in ("content_filter", "length"):
      finish = fault
      message["content"] = message["content"][: len(message["content"]) // 2]
    elif fault == "empty":
      message["content"] = ""
    words = sum(len(m["content"].split()) for m in body["messages"])
    out = len((message["content"] or "").split())
    return {
      "id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
      "choices": [{"index": 0, "message": message, "finish_reason": finish}],
      "usage": {"prompt_tokens": words, "completion_tokens": out, "total_tokens": words + out},
    }  # fmt: skip


if __name__ == "__main__":
  _Server(json.loads(sys.argv[1])).serve_forever()
