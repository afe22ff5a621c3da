"""The training loop of SFT and the judge."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax

from her_jax import sharding
from her_jax.training import metrics
from her_jax.training.state import TrainState


class NotFinite(RuntimeError):
  """The loss is no longer a number."""


def fit(
  state: TrainState,
  step_fn: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
  batches: Iterator[dict[str, np.ndarray]],
  *,
  steps: int,
  schedule: optax.Schedule,
  writer: metrics.MetricWriter,
  mesh: jax.sharding.Mesh,
  log_every: int,
  name: str,
) -> TrainState:
  """Runs `steps` updates, writing every step's metrics.

  A step's metrics are read while the next one runs, so that the devices never wait for them.

  Raises:
    NotFinite: the loss of a step is NaN or infinite; at most one step later.
  """

  def report(step: int, found: dict[str, jax.Array], tokens: int, seconds: float) -> None:
    values = {k: float(v) for k, v in found.items()}
    if not np.isfinite(values["loss"]):
      raise NotFinite(
        f"{name}: the loss of step {step} is {values['loss']}; lower"
        f" --config.optimizer.learning_rate"
      )
    values |= {
      "learning_rate": float(schedule(step - 1)),
      "tokens": step * tokens,
      "tokens_per_second": tokens / seconds,
    }
    writer.write(step, values)
    if step % log_every == 0 or step in (1, steps):
      shown = ("loss", "gradient_norm", "tokens_per_second")
      metrics.log_line(step, steps, {k: values[k] for k in shown})

  with metrics.progress(name, steps) as advance:
    unread = None
    watch = metrics.Stopwatch()
    for step in range(1, steps + 1):
      batch = sharding.to_global(next(batches), mesh)
      state, found = step_fn(state, batch)
      if unread:
        report(*unread)
      unread = step, found, batch["tokens"].size, watch.lap()
      advance()
    if unread:
      report(*unread)
  return state
