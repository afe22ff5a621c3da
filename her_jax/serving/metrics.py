"""What /metrics tells; numbers alone, never text."""

from collections.abc import Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


class Metrics:
  """The measures of one server, in a registry of its own."""

  def __init__(self, running: Callable[[], float], waiting: Callable[[], float]):
    """`running` and `waiting` are asked when somebody looks."""
    self._registry = CollectorRegistry()
    counter = lambda name, text, labels=(): Counter(
      f"her_{name}", text, labels, registry=self._registry
    )
    seconds = lambda name, text: Histogram(
      f"her_{name}_seconds", text, registry=self._registry, buckets=_SECONDS
    )
    self.requests = counter(
      "requests", "Answered requests; 499: the client had gone", ("endpoint", "status")
    )
    self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests")
    self.completion_tokens = counter("completion_tokens", "Drawn tokens, hidden ones too")
    self.first_token = seconds("time_to_first_token", "From the request to its first token")
    self.latency = seconds("request", "From the request to the end of its answer")
    for name, text, count in (
      ("running", "Choices that have a row of the engine", running),
      ("waiting", "Choices that wait for one", waiting),
    ):
      Gauge(f"her_{name}", text, registry=self._registry).set_function(count)

  def text(self) -> bytes:
    """In Prometheus' format."""
    return prometheus_client.generate_latest(self._registry)
