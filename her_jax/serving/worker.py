"""The thread that owns the engine.

Requests come in through a queue, what the engine draws goes out to the event loop, one call a
step. The engine belongs to this thread alone: it is built, warmed and stepped there.
"""

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import queue
import threading
import time
from typing import Any

from absl import logging
import jax

from her_jax.inference.engine import Engine, Event
from her_jax.inference.sampling import Sampling

LOADING, READY, FAILED, CLOSED = "loading", "ready", "failed", "closed"


class Unavailable(Exception):
  """The engine is loading, has failed or is closing; the message says which."""


class Busy(Exception):
  """More requests wait than may."""


@dataclasses.dataclass(frozen=True)
class Drawn:
  """What is new of one choice; as `engine.Event`."""

  index: int
  ids: list[int]
  logprobs: list[float]
  finish_reason: str | None


class Job:
  """The choices of one call, on the side of the event loop."""

  def __init__(self, choices: Sequence[tuple[Sequence[int], Sampling]]):
    """Prompt and settings of each choice."""
    self.choices = list(choices)
    self.open = set(range(len(choices)))  # Those that have not ended.
    self._news: asyncio.Queue[Drawn | Exception] = asyncio.Queue()

  async def next(self) -> Drawn:
    """Waits for what is drawn next.

    Raises:
      Unavailable: the engine has failed.
      ValueError: it has refused a prompt.
    """
    news = await self._news.get()
    if isinstance(news, Exception):
      raise news
    return news

  def put(self, news: Drawn | Exception) -> None:
    """On the loop's thread."""
    self._news.put_nowait(news)


# What the thread is told: begin a job, end a choice of one (None: close).
Order = Job | tuple[Job, int] | None


class Worker:
  """Runs the engine. All methods are for the event loop's thread."""

  def __init__(
    self,
    build: Callable[[], Engine],
    *,
    most: int,
    mesh: jax.sharding.Mesh | None = None,
    patience_s: float = 600.0,
  ):
    """Starts nothing yet.

    Args:
      build: makes the engine, in the thread.
      most: choices that may be under way, those that wait among them.
      mesh: of the weights.
      patience_s: a step that takes longer counts as a failure.
    """
    self._build, self._mesh = build, mesh
    self._most, self._patience = most, patience_s
    self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    self._state = LOADING
    self._error = ""
    self._open = 0
    self._step_began: float | None = None
    self._engine: Engine | None = None
    # The engine's number of each choice, and back; the thread's own.
    self._numbers: dict[int, tuple[Job, int]] = {}
    self._known: dict[tuple[Job, int], int] = {}
    self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
    self._loop: asyncio.AbstractEventLoop | None = None

  def start(self, loop: asyncio.AbstractEventLoop) -> None:
    """Begins to build the engine; news go to that loop."""
    self._loop = loop
    self._thread.start()

  def close(self) -> None:
    """Ends the thread after the step that it is in; what is under way fails."""
    self._state = CLOSED
    self._orders.put(None)
    if self._thread.is_alive():
      self._thread.join(timeout=30)

  def drain(self) -> None:
    """Takes no more requests; goes on with those it has."""
    if self._state == READY:
      self._state = CLOSED

  @property
  def state(self) -> str:
    """LOADING, READY, FAILED or CLOSED."""
    began = self._step_began
    if self._state == READY and began and time.monotonic() - began > self._patience:
      return FAILED
    return self._state

  @property
  def error(self) -> str:
    """Why it has failed, without the text of any request."""
    return self._error or f"a step has been taking longer than {self._patience:g} s"

  @property
  def under_way(self) -> int:
    """Choices that have not ended."""
    return self._open

  @property
  def running(self) -> int:
    """Choices that have a row of the engine."""
    return self._engine.running if self._engine else 0

  def submit(self, choices: Sequence[tuple[Sequence[int], Sampling]]) -> Job:
    """Begins a job; as `Job` takes them.

    Raises:
      Unavailable, Busy.
    """
    if (state := self.state) != READY:
      raise Unavailable(
        {
          LOADING: "the model is still being loaded; try again in a while",
          FAILED: f"the engine has failed ({self.error}); the server has to be started again",
          CLOSED: "the server is shutting down",
        }[state]
      )
    if self._open + len(choices) > self._most:
      raise Busy(f"{self._open} replies are under way or wait, and {self._most} may; try again")
    job = Job(choices)
    self._open += len(choices)
    self._orders.put(job)
    return job

  def end(self, job: Job, index: int | None = None) -> None:
    """Drops a choice, or all of a job; what has ended already is passed over."""
    for i in sorted(job.open) if index is None else [index]:
      if i in job.open:
        job.open.remove(i)
        self._open -= 1
        self._orders.put((job, i))

  def _run(self) -> None:
    try:
      with jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext():
        self._engine = self._build()
        if self._state == LOADING:
          self._state = READY
        self._work(self._engine)
    except Exception as error:
      logging.exception("The engine has failed")
      self._error = type(error).__name__
      self._state = FAILED
    self._refuse()

  def _work(self, engine: Engine) -> None:
    while True:
      while not engine.busy or not self._orders.empty():
        order = self._orders.get()
        if order is None:
          return
        if isinstance(order, Job):
          self._begin(engine, order)
        elif (number := self._known.pop(order, None)) is not None:
          del self._numbers[number]
          engine.cancel(number)
      self._step_began = time.monotonic()
      events = engine.step()
      self._step_began = None
      self._tell([(self._numbers[event.request], event) for event in events])
      for event in events:
        if event.finish_reason:
          del self._known[self._numbers.pop(event.request)]

  def _begin(self, engine: Engine, job: Job) -> None:
    try:
      for i, (prompt, sampling) in enumerate(job.choices):
        number = engine.submit(prompt, sampling)
        self._numbers[number] = (job, i)
        self._known[job, i] = number
    except ValueError as error:  # Of this request alone.
      for i in range(len(job.choices)):
        if (number := self._known.pop((job, i), 0)) and self._numbers.pop(number):
          engine.cancel(number)
      self._call(self._fail, [job], error)

  def _tell(self, news: Sequence[tuple[tuple[Job, int], Event]]) -> None:
    if news:
      self._call(self._deliver, news)

  def _deliver(self, news: Sequence[tuple[tuple[Job, int], Event]]) -> None:
    for (job, i), event in news:
      if i not in job.open:
        continue
      if event.finish_reason:
        job.open.remove(i)
        self._open -= 1
      job.put(Drawn(i, event.ids, event.logprobs, event.finish_reason))

  def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
    for job in jobs:
      self._open -= len(job.open)
      job.open.clear()
      job.put(error)

  def _refuse(self) -> None:
    """After the end: nobody who still asks is left waiting."""
    why = "shut down" if self._state == CLOSED else f"failed ({self._error})"
    error = Unavailable(f"the engine has {why} before the reply was finished")
    jobs = dict.fromkeys(job for job, _ in self._numbers.values())
    self._call(self._fail, list(jobs), error)
    while self._state != CLOSED or not self._orders.empty():
      order = self._orders.get()
      if isinstance(order, Job):
        self._call(self._fail, [order], error)

  def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
    assert self._loop
    try:
      self._loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # The loop has closed: nobody waits there.
      logging.debug("The event loop has closed before the engine")
