"""Runs of `her_jax.main` with a model so small that a process takes seconds."""

import atexit
from collections.abc import Sequence
import dataclasses
import faulthandler
import itertools
import json
import multiprocessing
import multiprocessing.context
import os
import pathlib
import socket
import sys
import threading
import time
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from data_pipeline import samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models import config as models
from her_jax.training import checkpoint, metrics

# A server that forks the runs: each begins at once, with all its modules.
_RUNS = multiprocessing.get_context("forkserver")
_RUNS.set_forkserver_preload(["her_jax.tasks.sft", "her_jax.main", __name__])
_SCENES = 4
# On two cores with other work on them a hundred steps with fifty saves took 60 to 100 s.
_LIMIT_S = 580


def prepare(folder: pathlib.Path) -> dict[str, Any]:
  """Writes scenes and a tokenizer; returns the fields of the config that name them."""
  scenes = samples.SCENES.read_text(encoding="utf-8").splitlines()[:_SCENES]
  (folder / "scenes.jsonl").write_text("\n".join(scenes) + "\n", encoding="utf-8")
  texts = [text for line in scenes for text in _strings(json.loads(line))]
  hf_tokenizer.train(texts * 3, 700).save_pretrained(folder / "tokenizer")
  return {
    "data.scenes": folder / "scenes.jsonl",
    "tokenizer": folder / "tokenizer",
    "data.length": 512,
    "batch_size": 4,
    "steps": 20,
    "log_every": 1000,
    "eval_samples": 0,
    "checkpoint.every": 0,
  }


@dataclasses.dataclass(frozen=True)
class Stop:
  """The signal that a run gives itself, and when.

  Attributes:
    signal: its number; 0: an error is raised in its place.
    after: so many steps whose metrics it has written.
    delay_s: seconds later, wherever it is then.
    guard: the signal is for the parent, which looks after one of several processes.
    event: of Python's audit events, and how its first argument ends: just before the `after`-th
      of these, in the place of a step.
  """

  signal: int
  after: int
  delay_s: float = 0.0
  guard: bool = False
  event: tuple[str, str] | None = None


def start(
  workdir: pathlib.Path, settings: dict[str, Any], stop: Stop | None = None
) -> multiprocessing.context.ForkServerProcess:
  """Starts a run."""
  process = _RUNS.Process(target=_run, args=(workdir, settings, stop))
  process.start()
  return process


def start_hosts(
  workdir: pathlib.Path,
  settings: dict[str, Any],
  hosts: int,
  stop: Stop | None = None,
  at: int = 0,
  arguments: Sequence[str] = (),
) -> list[multiprocessing.context.ForkServerProcess]:
  """Starts a run over several processes; `stop` is of number `at`."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    address = f"localhost:{s.getsockname()[1]}"
  processes = []
  for i in range(hosts):
    flags = [
      f"--coordinator_address={address}",
      f"--num_processes={hosts}",
      f"--process_id={i}",
      *arguments,
    ]
    own = (workdir, settings, stop if i == at else None, i, flags)
    processes.append(_RUNS.Process(target=_run, args=own))
    processes[-1].start()
  return processes


def join(
  processes: list[multiprocessing.context.ForkServerProcess], limit_s: float = _LIMIT_S
) -> list[int | None]:
  """Their exit codes; None for one that goes on after `limit_s`, which is killed."""
  end = time.monotonic() + limit_s
  for process in processes:
    process.join(max(end - time.monotonic(), 0.01))
  codes = [process.exitcode for process in processes]
  for process in processes:
    process.kill()
  return codes


def finish(workdir: pathlib.Path, settings: dict[str, Any], stop: Stop | None = None) -> int:
  """Runs to the end and returns the exit code."""
  process = start(workdir, settings, stop)
  process.join(_LIMIT_S)
  assert process.exitcode is not None, f"the run does not end: {log(workdir)}"
  return process.exitcode


def log(workdir: pathlib.Path, host: int = 0) -> str:
  """What the runs of a workdir printed, there."""
  return _log(workdir, host).read_text()


def assert_equal(one: pathlib.Path, two: pathlib.Path) -> None:
  """Two workdirs hold the same newest checkpoint and metrics, bit for bit, but for the times."""
  states = []
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  for workdir in (one, two):
    step = checkpoint.steps(str(workdir))[-1]
    path = checkpoint.folder(str(workdir), step).as_posix()
    held = ocp.checkpointables_metadata(path).metadata
    like = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
      {name: held[name] for name in ("params", "train")},
    )
    states.append(ocp.load_checkpointables(path, like))
  assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
  for (path, a), b in zip(
    jax.tree.leaves_with_path(states[0]), jax.tree.leaves(states[1]), strict=True
  ):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b), jax.tree_util.keystr(path))
  rows = [
    [{k: v for k, v in row.items() if "second" not in k} for row in metrics.read(path)]
    for path in (one / "metrics.jsonl", two / "metrics.jsonl")
  ]
  assert [row["step"] for row in rows[0]] == list(range(1, len(rows[0]) + 1))
  assert rows[0] == rows[1]


def _log(workdir: pathlib.Path, host: int) -> pathlib.Path:
  return workdir.with_name(f"{workdir.name}.{host}.log")


def _run(
  workdir: pathlib.Path,
  settings: dict[str, Any],
  stop: Stop | None,
  host: int = 0,
  arguments: Sequence[str] = (),
) -> None:
  # Here alone: every program defines a flag `config`, and the tests import others too.
  from her_jax import main

  os.environ.pop("XLA_FLAGS", None)  # The config says how many devices there are.
  settings = dict(settings)
  task = settings.pop("task", "sft")
  sys.argv = ["her_jax", f"--config=configs/{task}.py:tiny", f"--workdir={workdir}"]
  sys.argv += [f"--config.{name}={value}" for name, value in settings.items()]
  sys.argv += arguments
  workdir.parent.mkdir(parents=True, exist_ok=True)
  with _log(workdir, host).open("a") as printed:
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
  os.chdir(pathlib.Path(__file__).parents[2])
  jax.config.update("jax_disable_most_optimizations", True)
  models.PRESETS["tiny"] = dataclasses.replace(
    models.PRESETS["tiny"], hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8,
  )  # fmt: skip
  faulthandler.dump_traceback_later(_LIMIT_S - 20)  # Where it hangs, if it does.
  if stop:
    _arm(stop)
  try:
    main.run()
  finally:
    atexit._run_exitfuncs()  # Which `multiprocessing` leaves out.


def _arm(stop: Stop) -> None:
  seen = itertools.count(1)

  def end() -> None:
    if not stop.signal:
      raise RuntimeError("made to fail")
    os.kill(os.getppid() if stop.guard else os.getpid(), stop.signal)

  if stop.event:
    event, ending = stop.event

    def hear(name: str, args: tuple[Any, ...]) -> None:
      if (
        name != event
        or not str(args[0]).endswith(ending)
        or "/checkpoints/" not in str(args[0])
      ):
        return
      if (name != "open" or "w" in str(args[1])) and next(seen) == stop.after:
        end()

    sys.addaudithook(hear)
    return
  write = metrics.MetricWriter.write

  def write_and_end(self: metrics.MetricWriter, step: int, values: dict[str, Any]) -> None:
    write(self, step, values)
    if next(seen) == stop.after:
      threading.Timer(stop.delay_s, end).start() if stop.delay_s else end()

  metrics.MetricWriter.write = write_and_end  # type: ignore[method-assign]


def _strings(value: Any) -> list[str]:
  if isinstance(value, str):
    return [value]
  parts = (
    value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
  )
  return [text for part in parts for text in _strings(part)]
