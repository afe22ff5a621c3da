"""Ends a run of many calls where none can succeed any more, instead of failing one by one."""

from collections.abc import Iterable, Iterator
import itertools
from typing import Protocol

from her_jax.errors import ConfigError
from her_jax.llm.messages import Failure, Reply, Request

# After these no other call can succeed; what mends them their message says.
_FATAL = {"budget", "auth"}
TRANSPORT = {"timeout", "rate_limit", "connection", "server"}


class Stopped(ConfigError):
  """The run has ended early, and cleanly: what is done is kept, and the message says the mend."""


class Completes(Protocol):
  """What is needed of `llm.client.Client`."""

  def complete(
    self, requests: Iterable[Request]
  ) -> Iterator[tuple[Request, Reply | Failure]]: ...


class Guarded:
  """A client that counts, over all calls, how often in a row the endpoint gave no reply.

  Args:
    client: whoever answers, with its journal.
    give_up_after: so many failures in a row end the run: the endpoint is down, or refuses what is
      sent or spoils every answer, and each further call would only be listed as failed.
  """

  def __init__(self, client: Completes, give_up_after: int = 20):
    self._client, self._give_up_after = client, give_up_after
    self._failed_in_a_row = 0

  def complete(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply | Failure]]:
    """As `Client.complete`.

    Raises:
      Stopped: no call can succeed any more. Calls on their way are waited for and given first,
        since their replies are paid for and kept.
    """
    why: list[str] = []
    wanted = itertools.takewhile(lambda _: not why, requests)
    for request, result in self._client.complete(wanted):
      if reason := self._reason_to_stop(result):
        why.append(reason)
      yield request, result
    if why:
      raise Stopped(f"{why[0]}; then start the same command again: what was paid for is kept")

  def _reason_to_stop(self, result: Reply | Failure) -> str:
    if isinstance(result, Reply):
      self._failed_in_a_row = 0
      return ""
    if result.cause in _FATAL:
      return f"{result.cause}: {result.message}"
    if result.cause != "missing":  # A recording that lacks some replies may have others.
      self._failed_in_a_row += 1
      if self._failed_in_a_row >= self._give_up_after:
        return (
          f"{self._failed_in_a_row} calls in a row failed, the last with {result.cause}"
          f" ({result.message}): see to the endpoint"
        )
    return ""
