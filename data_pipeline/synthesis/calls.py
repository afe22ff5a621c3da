"""Runs many jobs of `ask` over one client: requests as they are wanted, follow-ups at once."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from data_pipeline.synthesis.ask import Job
from her_jax.errors import ConfigError
from her_jax.llm.client import Failure, Reply, Request

_K = TypeVar("_K")
# After these no other call can succeed; what mends them their message says.
_FATAL = {"budget", "auth"}
_TRANSPORT = {"timeout", "rate_limit", "connection", "server"}


class Stopped(ConfigError):
  """The run has ended early, and cleanly: what is done is kept, and the message says the mend."""


class Completes(Protocol):
  """What is needed of `llm.client.Client`."""

  def complete(
    self, requests: Iterable[Request]
  ) -> Iterator[tuple[Request, Reply | Failure]]: ...


class Runner:
  """Runs jobs; counts, over all of them, how often in a row the endpoint failed.

  Attributes:
    give_up_after: so many failures of the endpoint in a row end the run: it is down, and every
      further conversation would only come onto the retry list.
  """

  def __init__(self, client: Completes, give_up_after: int):
    self._client, self.give_up_after = client, give_up_after
    self._failed_in_a_row = 0

  def run(self, jobs: Iterator[tuple[_K, Job[Any]]]) -> Iterator[tuple[_K, Any]]:
    """What each job returned, in the order in which they end.

    Raises:
      Stopped: no call can succeed any more. Calls on their way are waited for, since their
        replies are paid for and kept.
    """
    waiting: dict[str, tuple[_K, Job[Any]]] = {}
    follow_ups: deque[Request] = deque()
    ended: deque[tuple[_K, Any]] = deque()
    why: list[str] = []

    def requests() -> Iterator[Request]:
      while not why:
        if follow_ups:
          yield follow_ups.popleft()
          continue
        key_and_job = next(jobs, None)
        if key_and_job is None:
          return
        key, job = key_and_job
        advance(key, job, None)

    def advance(key: _K, job: Job[Any], result: Reply | Failure | None) -> None:
      try:
        request = next(job) if result is None else job.send(result)
      except StopIteration as end:
        ended.append((key, end.value))
        return
      if request.id in waiting:
        raise ValueError(f"two requests have the id {request.id!r}")
      waiting[request.id] = (key, job)
      follow_ups.append(request)

    more = True
    while more:
      for request, result in self._client.complete(requests()):
        if why or (reason := self._reason_to_stop(result)):
          why.append(why[0] if why else reason)
          continue
        key, job = waiting.pop(request.id)
        advance(key, job, result)
        while ended:
          yield ended.popleft()
      if why:
        raise Stopped(f"{why[0]}; then start the same command again: what is done is kept")
      while ended:
        yield ended.popleft()
      more = bool(follow_ups)

  def _reason_to_stop(self, result: Reply | Failure) -> str:
    if isinstance(result, Reply):
      self._failed_in_a_row = 0
      return ""
    if result.cause in _FATAL:
      return f"{result.cause}: {result.message}"
    if result.cause in _TRANSPORT:
      self._failed_in_a_row += 1
      if self._failed_in_a_row >= self.give_up_after:
        return (
          f"{result.cause}: {result.message}; {self._failed_in_a_row} calls in a row failed:"
          f" see to the endpoint"
        )
    return ""
