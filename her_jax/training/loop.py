"""The training loop of SFT and the judge."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import pathlib
import re
import time
from typing import Any, Protocol

import jax
import numpy as np
import optax

from her_jax import sharding
from her_jax.models.config import ModelConfig
from her_jax.training import lora, metrics
from her_jax.training.preemption import Notice, Preempted
from her_jax.training.saver import Saver
from her_jax.training.speed import Speed
from her_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class _Done:
  """A step that has been started, whose metrics are still on the devices.

  Attributes:
    batch: this host's part.
    seconds: from the step before to this one, of which `waited` for the batch.
  """

  step: int
  found: dict[str, jax.Array]
  batch: dict[str, np.ndarray]
  seconds: float
  waited: float


class Evaluate(Protocol):
  """Measures the state now and then."""

  def due(self, step: int) -> bool: ...

  def __call__(self, state: TrainState, step: int) -> Mapping[str, float | None]: ...


class WorkerLost(RuntimeError):
  """A process that prepares batches has ended before its time."""


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
  model: ModelConfig | None = None,
  adapted: lora.Settings | None = None,
  saver: Saver | None = None,
  notice: Notice | None = None,
  workdir: str = "",
  evaluate: Evaluate | None = None,
  profile: tuple[int, int] = (0, 0),
) -> TrainState:
  """Runs the updates from `state.step` up to `steps`, writing every step's metrics.

  A step's metrics are read while the next one runs, so that the devices never wait for them;
  before a state is saved they are, so that none is saved whose loss is no number.

  Args:
    model, adapted: what is trained, for its arithmetic.
    saver: saves when it is due, at the end, and on notice.
    notice: of preemption.
    workdir: where a batch is left whose loss is no number, and a profile; empty: nowhere.
    evaluate: measures the parameters every so many steps; the numbers stand in the step's row.
    profile: a step, and how many from it on the profiler watches; see `workdir/profile`.

  Raises:
    WorkerLost: a process that prepares batches was killed or failed.
    NotFinite: loss or gradient of a step is NaN or infinite; at most one step later.
    Preempted: the notice was given; the state is saved.
  """

  speed = Speed(model, adapted=adapted)

  def report(done: _Done, measured: Mapping[str, float | None] | None = None) -> None:
    step, batch = done.step, done.batch
    values: dict[str, float | None] = {k: float(v) for k, v in done.found.items()}
    # A gradient that is no number has spoilt the weights, whatever the loss was.
    for what in ("loss", "gradient_norm"):
      if not np.isfinite(float(done.found[what])):
        left = f"; its batch is in {_leave(batch, step, workdir)}" if workdir else ""
        raise NotFinite(
          f"{name}: the {what} of step {step} is {values[what]}{left}. Lower"
          f" --config.optimizer.learning_rate"
        )
    # A layer of which the batch holds nothing has no loss.
    values = {k: None if v is None or np.isnan(v) else v for k, v in values.items()}
    tokens = batch["tokens"].size * sharding.row_shard(mesh)[1]
    values |= {"learning_rate": float(schedule(step - 1)), "tokens": step * tokens}
    values |= {**speed(tokens, done.seconds, done.waited), **(measured or {})}
    writer.write(step, values)
    if step % log_every == 0 or step in (1, steps):
      shown = ("loss", "gradient_norm", "tokens_per_second")
      metrics.log_line(step, steps, {k: values[k] for k in shown})

  unread: _Done | None = None

  def settle(measured: Mapping[str, float | None] | None = None) -> None:
    """Reads what is unread."""
    nonlocal unread
    if unread:
      report(unread, measured)
    unread = None

  first, profiled = int(state.step), 0
  with metrics.progress(name, steps) as advance:
    advance(first)
    watch = metrics.Stopwatch()
    for step in range(first + 1, steps + 1):
      if step == profile[0] and profile[1] and workdir:
        jax.profiler.start_trace(f"{workdir}/profile")
        profiled = step + profile[1] - 1
      began = time.perf_counter()
      batch = _next(batches, name, step)
      waited = time.perf_counter() - began
      state, found = step_fn(state, sharding.to_global(batch, mesh))
      settle()
      unread = _Done(step, found, batch, watch.lap(), waited)
      advance()
      if profiled and step in (profiled, steps):
        jax.block_until_ready(found)
        jax.profiler.stop_trace()
        profiled = 0
      if evaluate and evaluate.due(step):
        settle(evaluate(state, step))
        watch.lap()
      ending = notice is not None and notice.given(step)
      if ending or (saver and saver.due(step)):
        settle()
        if saver:
          saver.save(state)
      if ending:
        if saver:
          saver.wait()
        raise Preempted(
          f"{name}: ended by SIGTERM after step {step} of {steps}, which is saved; the same"
          f" command continues"
        )
    settle()
    if saver:
      saver.save(state)
  return state


def _next(batches: Iterator[dict[str, np.ndarray]], name: str, step: int) -> Any:
  try:
    return next(batches)
  except RuntimeError as error:  # Grain has no type of its own for it.
    if not (found := re.search(r"Worker process .* exit code (-?\d+)", str(error))):
      raise
    raise WorkerLost(
      f"{name}: before step {step} a process that prepares batches ended with exit code"
      f" {found[1]}{' (killed, as where memory runs out)' if found[1] == '-9' else ''}. The same"
      f" command continues from the newest checkpoint; --config.data.workers says how many of them"
      f" there are"
    ) from error


def _leave(batch: dict[str, np.ndarray], step: int, workdir: str) -> pathlib.Path:
  """Writes this host's part of a batch, with its step, for whoever looks for the cause."""
  process = f".{jax.process_index()}" if jax.process_count() > 1 else ""
  path = pathlib.Path(workdir) / f"nan_batch{process}.npz"
  np.savez_compressed(path, allow_pickle=False, step=np.asarray(step), **batch)
  return path
