"""Runs many jobs of `question.ask` over one client: requests as wanted, follow-ups at once."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from data_pipeline.asking.question import Answer, Job, Question, ask
from her_jax.llm.client import Failure, Reply, Request
from her_jax.llm.guarded import Completes

_K = TypeVar("_K")
_T = TypeVar("_T")


class Runner:
  """Runs jobs; with a `Guarded` client it ends where no call can succeed any more."""

  def __init__(self, client: Completes):
    self._client = client

  def ask(self, questions: Sequence[Question[_T]], tries: int = 2) -> list[Answer[_T]]:
    """One answer a question, in their order.

    Raises:
      Stopped: no call can succeed any more.
    """
    found = dict(self.run((i, ask(question, tries)) for i, question in enumerate(questions)))
    return [found[i] for i in range(len(questions))]

  def run(self, jobs: Iterator[tuple[_K, Job[Any]]]) -> Iterator[tuple[_K, Any]]:
    """What each job returned, in the order in which they end.

    Raises:
      Stopped: no call can succeed any more.
    """
    waiting: dict[str, tuple[_K, Job[Any]]] = {}
    follow_ups: deque[Request] = deque()
    ended: deque[tuple[_K, Any]] = deque()

    def requests() -> Iterator[Request]:
      while True:
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
        key, job = waiting.pop(request.id)
        advance(key, job, result)
        while ended:
          yield ended.popleft()
      while ended:
        yield ended.popleft()
      more = bool(follow_ups)
