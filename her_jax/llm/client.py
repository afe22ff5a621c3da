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
import json
import queue
import threading
import time
from typing import Protocol, runtime_checkable

from her_jax.llm.budget import Budget
from her_jax.llm.journal import Journal
from her_jax.llm.messages import Failure, Message, Reply, Request, Sampling, Usage
from her_jax.llm.report import Report

__all__ = [
  "Backend", "Client", "Failure", "Message", "Reply", "Request", "Sampling", "Usage", "key",
]  # fmt: skip


@runtime_checkable
class Backend(Protocol):
  """Whoever answers. `model` is its identity, a part of each call's key."""

  model: str

  async def send(self, request: Request) -> Reply | Failure:
    """One answer; never raises for what the other side did."""
    ...


def key(model: str, request: Request) -> str:
  """What a call is known by: another model, prompt, sampling or id is another call."""
  what = [model, dataclasses.asdict(request.sampling), request.id]
  what += [[message.role, message.content] for message in request.messages]
  return hashlib.sha256(json.dumps(what, ensure_ascii=True).encode()).hexdigest()


class Client:
  """Sends requests side by side, within a budget, and keeps every answer."""

  def __init__(
    self,
    backend: Backend,
    journal: Journal | None = None,
    budget: Budget | None = None,
    concurrency: int = 8,
  ):
    """Args as the class says; `concurrency` is the number of calls under way at most."""
    self.backend = backend
    self.concurrency = concurrency
    self.report = Report(in_doubt=journal.in_doubt if journal else 0)
    self._journal, self._budget = journal, budget or Budget()
    if journal is not None:
      self._budget.spend(journal.spent)

  def complete(
    self, requests: Iterable[Request]
  ) -> Iterator[tuple[Request, Reply | Failure]]:
    """Answers, in the order in which they come.

    At most `2 · concurrency` requests are taken from `requests` ahead of what was given back.
    A reply is given once its record is on disk. Over budget nothing more is sent: what is
    under way is finished, and the rest comes back as `Failure("budget")`.

    Raises:
      ConfigError: The endpoint refuses every call: a wrong key, model or address.
      ValueError: Two requests have one id.
    """
    done: queue.Queue = queue.Queue()
    room = threading.Semaphore(2 * self.concurrency)
    stop = threading.Event()
    worker = threading.Thread(
      target=lambda: asyncio.run(self._work(iter(requests), done, room, stop)), daemon=True
    )
    worker.start()
    try:
      while (item := done.get()) is not None:
        if isinstance(item, BaseException):
          raise item
        yield item
        room.release()
    finally:
      stop.set()
      room.release()
      worker.join()

  async def _work(self, requests, done, room, stop) -> None:
    """Keeps `concurrency` calls under way; puts answers, or what went wrong, and None."""
    running: set[asyncio.Task] = set()
    seen: set[bytes] = set()
    try:
      while not stop.is_set():
        request = None
        if len(running) < self.concurrency and await _acquired(room, bool(running)):
          request = next(requests, None)
          if request is None:
            break
          name = hashlib.blake2b(request.id.encode(), digest_size=16).digest()
          if name in seen:
            raise ValueError(f"two requests have the id {request.id!r}")
          seen.add(name)
          known = self._known(request)
          if known is not None:
            done.put((request, known))
            await asyncio.sleep(0)
            continue
          running.add(asyncio.create_task(self._send(request)))
          await asyncio.sleep(0)
        await self._collect(running, done, wait=request is None)
      while running and not stop.is_set():
        await self._collect(running, done, wait=True)
    except BaseException as error:  # Given to the one who iterates.
      done.put(error)
    finally:
      if running:  # What is under way was paid for: its answer is kept, whoever waits for it.
        await asyncio.gather(*running, return_exceptions=True)
      done.put(None)

  async def _collect(self, running: set[asyncio.Task], done: queue.Queue, wait: bool) -> None:
    if not running:
      return
    finished, _ = await asyncio.wait(
      running, timeout=0.05 if wait else 0, return_when=asyncio.FIRST_COMPLETED
    )
    running -= finished
    for task in finished:
      done.put(task.result())

  def _known(self, request: Request) -> Reply | Failure | None:
    """What costs nothing: an answer that is journalled, or the refusal to spend more."""
    name = key(self.backend.model, request)
    reply = self._journal.get(name) if self._journal else None
    if reply is not None:
      self.report.cached(request)
      return dataclasses.replace(reply, cached=True)
    if over := self._budget.over():
      failure = Failure("budget", over)
      self.report.add(request, failure, 0.0)
      return failure
    return None

  async def _send(self, request: Request) -> tuple[Request, Reply | Failure]:
    name = key(self.backend.model, request)
    loop = asyncio.get_running_loop()
    if self._journal:
      await loop.run_in_executor(None, self._journal.begin, name, request)
    start = time.perf_counter()
    answer = await self.backend.send(request)
    self._budget.spend(answer.usage)
    self.report.add(request, answer, time.perf_counter() - start, self._budget.price(answer.usage))
    if self._journal:
      await loop.run_in_executor(None, self._journal.end, name, request, answer)
    return request, answer


async def _acquired(room: threading.Semaphore, busy: bool) -> bool:
  """Takes a place; without other work it waits a little for one."""
  if room.acquire(blocking=False):
    return True
  await asyncio.sleep(0 if busy else 0.005)
  return False
