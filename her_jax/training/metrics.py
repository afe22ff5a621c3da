"""Metrics for people and programs: a log line, `metrics.jsonl` and TensorBoard."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
import pathlib
import resource
import shutil
import sys
import time
from typing import Any

from absl import logging
import jax
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TextColumn,
  TimeRemainingColumn,
)
from tensorboardX import SummaryWriter

# TensorBoard shows the charts of one prefix together.
_GROUPS = {
  "speed": ("tokens_per_second", "mfu", "step_seconds", "data_wait", "hbm"),
  "optimizer": ("learning_rate", "gradient_norm", "targets", "tokens"),
  "heldout": ("heldout_",),
  "loss": ("loss",),
}


def _tag(name: str) -> str:
  """`loss_plan` -> `loss/loss_plan`; a name of no group stays as it is."""
  groups = (g for g, starts in _GROUPS.items() if name.startswith(starts))
  group = next(groups, None)
  return f"{group}/{name}" if group else name


class MetricWriter:
  """Writes one JSON object a step to `workdir/metrics.jsonl`, and scalars to TensorBoard.

  Only the first process writes. A new writer starts the files afresh, or goes on after a step
  that a run is continued from: what was written of later ones is taken back.
  """

  def __init__(self, workdir: str | pathlib.Path, after: int = 0):
    """Opens the files; `after` is the step to go on after."""
    self._on = jax.process_index() == 0
    if not self._on:
      return
    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "metrics.jsonl"
    if after and path.exists():
      _cut(path, after)
    else:
      path.write_text("")
      shutil.rmtree(workdir / "metrics", ignore_errors=True)
    self._file = path.open("a", encoding="utf-8")
    # TensorBoard hides what other files hold of steps from the first of this one on.
    self._tensorboard = SummaryWriter(
      str(workdir / "metrics"), purge_step=after + 1 if after else None
    )

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes `values` (numbers; None for what could not be measured) of `step`."""
    if not self._on:
      return
    row = {"step": step} | {k: _plain(v) for k, v in values.items()}
    self._file.write(json.dumps(row) + "\n")
    self._file.flush()
    for name, value in row.items():
      if name != "step" and isinstance(value, (int, float)):
        self._tensorboard.add_scalar(_tag(name), value, step)

  def close(self) -> None:
    if self._on:
      self._file.close()
      self._tensorboard.close()

  def __enter__(self) -> "MetricWriter":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


def read(path: str | pathlib.Path) -> list[dict[str, Any]]:
  """Reads a `metrics.jsonl`."""
  with open(path, encoding="utf-8") as f:
    return [json.loads(line) for line in f]


def _cut(path: pathlib.Path, after: int) -> None:
  """Leaves the lines up to a step, each of them once; a torn last line goes too."""
  kept: dict[int, str] = {}
  for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
    try:
      step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
      continue
    if step <= after:
      kept[step] = f"{line}\n"
  part = path.with_name(f"{path.name}.part")
  part.write_text("".join(kept[step] for step in sorted(kept)), encoding="utf-8")
  part.replace(path)


def log_line(step: int, steps: int, values: Mapping[str, Any]) -> None:
  """Logs `step 20/300  loss 3.214  …`, numbers with four significant digits."""
  shown = "  ".join(f"{k} {_short(v)}" for k, v in values.items())
  logging.info("step %d/%d  %s", step, steps, shown)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
  """A progress bar on a terminal, silent elsewhere; yields a function to call per unit."""
  bar = Progress(
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
    transient=True,
    disable=not sys.stderr.isatty() or jax.process_index() != 0,
  )
  with bar:
    task = bar.add_task(description, total=total)
    yield lambda n=1: bar.advance(task, n)


class Stopwatch:
  """Seconds since the last call of `lap`."""

  def __init__(self) -> None:
    self._last = time.perf_counter()

  def lap(self) -> float:
    now = time.perf_counter()
    seconds, self._last = now - self._last, now
    return seconds


def peak_memory_gib() -> float:
  """Largest resident size of this process so far, in GiB."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / (2**30 if sys.platform == "darwin" else 2**20)


def mean(values: Sequence[float]) -> float | None:
  """Arithmetic mean; None where there is nothing to average."""
  return sum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
  return value.item() if hasattr(value, "item") else value


def _short(value: Any) -> str:
  value = _plain(value)
  return f"{value:.4g}" if isinstance(value, float) else str(value)
