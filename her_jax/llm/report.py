"""What calls came to: how many, tokens, money, retries, and failures by cause."""

import collections
import dataclasses
import random
import statistics
import threading
from typing import Any

from her_jax.llm.messages import Failure, Reply, Request, Usage

_KEPT = 4096  # Latencies: a uniform sample of all.


@dataclasses.dataclass
class _Tag:
  calls: int = 0
  cached: int = 0
  retries: int = 0
  usage: Usage = Usage()
  money: float = 0.0
  ended: collections.Counter = dataclasses.field(default_factory=collections.Counter)


class Report:
  """Counts by tag. `in_doubt`: calls of earlier runs that were sent and never answered."""

  def __init__(self, in_doubt: int = 0):
    self.in_doubt = in_doubt
    self._tags: dict[str, _Tag] = collections.defaultdict(_Tag)
    self._seconds: list[float] = []
    self._timed = 0
    self._random = random.Random(0)
    self._lock = threading.Lock()  # Calls end in another thread than the one that asks.

  def cached(self, request: Request) -> None:
    """Counts a reply that the journal had."""
    with self._lock:
      self._tags[request.tag].cached += 1

  def add(
    self, request: Request, answer: Reply | Failure, seconds: float, money: float = 0.0
  ) -> None:
    """Counts an answer that took so many seconds, retries and waits for them included."""
    with self._lock:
      self._add(self._tags[request.tag], answer, seconds, money)

  def _add(self, tag: _Tag, answer: Reply | Failure, seconds: float, money: float) -> None:
    ended = answer.cause if isinstance(answer, Failure) else answer.finish_reason
    tag.ended[ended] += 1
    if ended in ("budget", "missing"):
      return  # Nothing was sent.
    tag.calls += 1
    tag.retries += answer.attempts - 1
    tag.usage = tag.usage + answer.usage
    tag.money += money
    self._timed += 1
    if len(self._seconds) < _KEPT:
      self._seconds.append(seconds)
    elif (place := self._random.randrange(self._timed)) < _KEPT:
      self._seconds[place] = seconds

  def as_dict(self) -> dict[str, Any]:
    """Totals, and the same by tag; `ended` counts replies by finish reason and failures by cause."""
    with self._lock:
      return self._as_dict()

  def _as_dict(self) -> dict[str, Any]:
    tags = {name: _row(tag) for name, tag in sorted(self._tags.items())}
    total = _Tag()
    for tag in self._tags.values():
      for name in ("calls", "cached", "retries", "usage", "money", "ended"):
        setattr(total, name, getattr(total, name) + getattr(tag, name))
    waits = sorted(self._seconds)
    quantile = lambda q: (
      round(waits[min(int(q * len(waits)), len(waits) - 1)], 3) if waits else None
    )
    return {
      **_row(total), "in_doubt": self.in_doubt,
      "seconds": {
        "mean": round(statistics.fmean(waits), 3) if waits else None,
        "p50": quantile(0.5), "p95": quantile(0.95),
      },
      "tags": tags,
    }  # fmt: skip

  def table(self) -> str:
    """The same as text, a line a tag."""
    whole = self.as_dict()
    head = (
      f"{'':16}{'calls':>8}{'cached':>8}{'retries':>8}{'in':>12}{'out':>12}{'money':>10}  ended"
    )
    lines = [head]
    for name, row in [*whole["tags"].items(), ("all", whole)]:
      ended = ", ".join(f"{cause} {n}" for cause, n in sorted(row["ended"].items()))
      lines.append(
        f"{name:16}{row['calls']:8}{row['cached']:8}{row['retries']:8}{row['prompt_tokens']:12}"
        f"{row['completion_tokens']:12}{row['money']:10.2f}  {ended}"
      )
    if self.in_doubt:
      lines.append(
        f"{self.in_doubt} calls of earlier runs were sent and their answers lost: an endpoint that"
        " does not heed Idempotency-Key may have been paid for them twice"
      )
    return "\n".join(lines)


def _row(tag: _Tag) -> dict[str, Any]:
  return {
    "calls": tag.calls, "cached": tag.cached, "retries": tag.retries,
    "prompt_tokens": tag.usage.prompt_tokens,
    "completion_tokens": tag.usage.completion_tokens,
    "attempts_without_usage": tag.usage.unknown,
    "money": round(tag.money, 6), "ended": dict(sorted(tag.ended.items())),
  }  # fmt: skip
