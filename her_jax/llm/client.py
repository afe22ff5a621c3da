"""One interface to a language model, whoever answers: requests in, replies out, each paid once.

    client = Client(backend, journal=Journal("out/calls.jsonl"), budget=Budget(tokens=10**7))
    for request, answer in client.complete(requests):
      if isinstance(answer, Reply): ...

What was answered before, in this run or one that was killed, comes from the journal.
"""

import asyncio
from collections.abc import Iterable, Iterator
import dataclasses
import hashlib
import queue
import threading
import time
from typing import Protocol, runtime_checkable

from her_jax.llm.budget import Budget
from her_jax.llm.journal import Journal
from her_jax.llm.messages import Failure, Message, Reply, Request, Sampling, Usage
from her_jax.llm.report import Report

__all__ = [
  "Backend", "Client", "Failure", "Message", "Reply", "Request", "Sampling", "Usage",
]  # fmt: skip


@runtime_checkable
class Backend(Protocol):
  """Whoever answers. `model` is its identity, a part of each call's key."""

  model: str

  async def send(self, request: Request) -> Reply | Failure:
    """One answer; never raises for what the other side did."""
    ...


class Client:
  """Sends requests side by side, within a budget, and keeps every answer."""

  def __init__(
    self,
    backend: Backend,
    journal: Journal | None = None,
    budget: Budget | None = None,
    concurrency: int = 8,
    drain_s: float = 60.0,
  ):
    """Args as the class says.

    concurrency: Calls under way at most.
    drain_s: How long calls under way may take to end, when whoever iterates over the answers
      stops or the run fails: they are paid for. After it they are given up, and are in doubt.
    """
    self.backend = backend
    self.concurrency = concurrency
    self.report = Report(in_doubt=0 if journal is None else journal.in_doubt)
    self._journal, self._budget, self._drain = journal, budget or Budget(), drain_s
    if journal is not None:
      self._budget.begin(journal)

  def complete(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply | Failure]]:
    """Answers, in the order in which they come.

    `requests` is read in the caller's thread, as answers are asked for: at most
    `2 · concurrency` ahead of those that were given. A reply is given once its record is on
    disk. Over budget nothing more is sent: what is under way is finished, and the rest comes
    back as `Failure("budget")`.

    Raises:
      ConfigError: The endpoint refuses every call: a wrong key, model or address.
      ValueError: Two requests have one id.
    """
    calls = _Calls(self._send, self.concurrency, self._drain, self.backend)
    source, seen, under_way, more = iter(requests), set[bytes](), 0, True
    try:
      while more or under_way:
        # One is taken for each that was given; more only while there is nothing to give.
        taken = 0
        while more and under_way < 2 * self.concurrency and (not taken or calls.done.empty()):
          taken += 1
          request = next(source, None)
          if request is None:
            more = False
            break
          name = hashlib.blake2b(request.id.encode(), digest_size=16).digest()
          if name in seen:
            raise ValueError(f"two requests have the id {request.id!r}")
          seen.add(name)
          if (reply := self._kept(request)) is not None:
            yield request, reply
          else:
            calls.begin(request)
            under_way += 1
        if under_way:
          answer = calls.done.get()
          under_way -= 1
          if isinstance(answer, BaseException):
            raise answer
          yield answer
    finally:
      calls.stop()

  def _kept(self, request: Request) -> Reply | None:
    """A reply that costs nothing, for the journal has it."""
    if self._journal is None:
      return None
    reply = self._journal.get(request.key(self.backend.model))
    if reply is not None:
      self.report.cached(request)
      reply = dataclasses.replace(reply, cached=True)
    return reply

  async def _send(self, request: Request) -> tuple[Request, Reply | Failure]:
    if over := self._budget.over():
      refused = Failure("budget", over, attempts=0)
      self.report.add(request, refused, 0.0)
      return request, refused
    key = request.key(self.backend.model)
    loop = asyncio.get_running_loop()
    if self._journal is not None:
      await loop.run_in_executor(None, self._journal.begin, key, request)
    start = time.perf_counter()
    answer = await self.backend.send(request)
    seconds = time.perf_counter() - start
    self._budget.spend(answer.usage)
    self.report.add(request, answer, seconds, self._budget.price(answer.usage))
    if self._journal is not None:
      await loop.run_in_executor(None, self._journal.end, key, request, answer)
    return request, answer


class _Calls:
  """Calls under way, in an event loop in a thread of its own: no caller can hold them up.

  Attributes:
    done: What came of each that began: a request with its answer, or an error.
  """

  def __init__(self, send, concurrency: int, drain_s: float, backend: Backend):
    self.done: queue.Queue = queue.Queue()
    self._send, self._backend = send, backend
    self._concurrency, self._drain = concurrency, drain_s
    self._asked: queue.SimpleQueue[Request] = queue.SimpleQueue()
    self._thread: threading.Thread | None = None

  def begin(self, request: Request) -> None:
    """Sends a request as soon as there is room."""
    if self._thread is None:  # Not before it is needed: all answers may be in the journal.
      self._loop = asyncio.new_event_loop()
      self._news = asyncio.Event()
      self._stopped = False
      self._thread = threading.Thread(target=self._run, daemon=True)
      self._thread.start()
    self._asked.put(request)
    self._loop.call_soon_threadsafe(self._news.set)

  def stop(self) -> None:
    """Sends nothing more, and waits for what is under way."""
    if self._thread is None:
      return
    self._stopped = True
    self._loop.call_soon_threadsafe(self._news.set)
    self._thread.join()

  def _run(self) -> None:
    try:
      with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
        runner.run(self._work())
    except BaseException as error:  # Or the caller would wait for ever.
      self.done.put(error)

  async def _work(self) -> None:
    running: set[asyncio.Task] = set()
    try:
      while not self._stopped:
        self._news.clear()
        while len(running) < self._concurrency and not self._asked.empty():
          task = asyncio.create_task(self._send(self._asked.get()))
          running.add(task)
          task.add_done_callback(running.discard)
          task.add_done_callback(self._ended)
        await self._news.wait()
      if running:
        _, late = await asyncio.wait(running, timeout=self._drain)
        for task in late:
          task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    finally:
      if (close := getattr(self._backend, "aclose", None)) is not None:
        await close()

  def _ended(self, task: asyncio.Task) -> None:
    self._news.set()
    if not task.cancelled():
      self.done.put(task.exception() or task.result())
