"""The training loop of SFT and the judge."""

from collections.abc import Callable, Iterator
import pathlib
from typing import Any

import jax
import numpy as np
import optax

from her_jax import sharding
from her_jax.training import metrics
from her_jax.training.preemption import Notice, Preempted
from her_jax.training.saver import Saver
from her_jax.training.state import TrainState


class NotFinite(RuntimeError):
  """The loss, or its gradient, is no longer a number."""


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
  saver: Saver | None = None,
  notice: Notice | None = None,
  workdir: str = "",
) -> TrainState:
  """Runs the updates from `state.step` up to `steps`, writing every step's metrics.

  A step's metrics are read while the next one runs, so that the devices never wait for them;
  before a state is saved they are, so that none is saved whose loss is no number.

  Args:
    saver: saves when it is due, at the end, and on notice.
    notice: of preemption.
    workdir: where a batch is left whose loss is no number; empty: nowhere.

  Raises:
    NotFinite: loss or gradient of a step is NaN or infinite; at most one step later.
    Preempted: the notice was given; the state is saved.
  """

  def report(
    step: int, found: dict[str, jax.Array], batch: dict[str, np.ndarray], seconds: float
  ) -> None:
    values = {k: float(v) for k, v in found.items()}
    # A gradient that is no number has spoilt the weights, whatever the loss was.
    for what in ("loss", "gradient_norm"):
      if not np.isfinite(values[what]):
        left = f"; its batch is in {_leave(batch, step, workdir)}" if workdir else ""
        raise NotFinite(
          f"{name}: the {what} of step {step} is {values[what]}{left}. Lower"
          f" --config.optimizer.learning_rate"
        )
    tokens = batch["tokens"].size * sharding.row_shard(mesh)[1]
    values |= {
      "learning_rate": float(schedule(step - 1)),
      "tokens": step * tokens,
      "tokens_per_second": tokens / seconds,
    }
    writer.write(step, values)
    if step % log_every == 0 or step in (1, steps):
      shown = ("loss", "gradient_norm", "tokens_per_second")
      metrics.log_line(step, steps, {k: values[k] for k in shown})

  unread: tuple[int, dict[str, jax.Array], dict[str, np.ndarray], float] | None = None

  def settle() -> None:
    """Reads what is unread, then saves."""
    nonlocal unread
    if unread:
      report(*unread)
    unread = None
    if saver:
      saver.save(state)

  first = int(state.step)
  with metrics.progress(name, steps) as advance:
    advance(first)
    watch = metrics.Stopwatch()
    for step in range(first + 1, steps + 1):
      batch = next(batches)
      state, found = step_fn(state, sharding.to_global(batch, mesh))
      if unread:
        report(*unread)
      unread = step, found, batch, watch.lap()
      advance()
      ending = notice is not None and notice.given(step)
      if ending or (saver and saver.due(step)):
        settle()
      if ending:
        if saver:
          saver.wait()
        raise Preempted(
          f"{name}: ended by SIGTERM after step {step} of {steps}, which is saved; the same"
          f" command continues"
        )
    settle()
  return state


def _leave(batch: dict[str, np.ndarray], step: int, workdir: str) -> pathlib.Path:
  """Writes this host's part of a batch, with its step, for whoever looks for the cause."""
  process = f".{jax.process_index()}" if jax.process_count() > 1 else ""
  path = pathlib.Path(workdir) / f"nan_batch{process}.npz"
  np.savez_compressed(path, allow_pickle=False, step=np.asarray(step), **batch)
  return path
