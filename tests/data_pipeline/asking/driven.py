"""A job driven by given replies, without a client."""

from collections.abc import Iterable
from typing import Any

from data_pipeline.asking.question import Job
from her_jax.llm.client import Failure, Reply, Request


def drive(job: Job[Any], replies: Iterable[Reply | Failure]) -> tuple[Any, list[Request]]:
  """What the job returned, and its requests; all of the replies must have been asked for."""
  given, asked = iter(replies), []
  try:
    request = next(job)
    while True:
      asked.append(request)
      request = job.send(next(given))
  except StopIteration as end:
    assert next(given, None) is None, "not all replies were asked for"
    return end.value, asked
