"""Runs of `her_jax.main` with a model so small that a process takes seconds."""

import dataclasses
import json
import multiprocessing
import multiprocessing.context
import os
import pathlib
import signal
import sys
import time
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from data_pipeline import samples
from her_jax import main
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models import config as models
from her_jax.training import checkpoint, metrics

# A server that forks the runs: each begins at once, with all its modules.
_RUNS = multiprocessing.get_context("forkserver")
_RUNS.set_forkserver_preload(["her_jax.tasks.sft", "her_jax.main", __name__])
_SCENES = 4


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


def start(
  workdir: pathlib.Path, settings: dict[str, Any], *flags: str, at: int = 0, what: int = 0
) -> multiprocessing.context.ForkServerProcess:
  """Starts a run, which sends itself the signal `what` when it writes the metrics of step `at`."""
  process = _RUNS.Process(target=_run, args=(workdir, settings, flags, at, what))
  process.start()
  return process


def finish(workdir: pathlib.Path, settings: dict[str, Any], *flags: str, **kill: int) -> int:
  """Runs to the end and returns the exit code; what was printed is in `workdir/log`."""
  process = start(workdir, settings, *flags, **kill)
  process.join(300)
  assert process.exitcode is not None, "the run does not end"
  return process.exitcode


def log(workdir: pathlib.Path) -> str:
  """What the runs of a workdir printed."""
  return workdir.with_name(f"{workdir.name}.log").read_text()


def assert_equal(one: pathlib.Path, two: pathlib.Path) -> None:
  """Two workdirs hold the same newest checkpoint and metrics, bit for bit, but for the times."""
  states = []
  for workdir in (one, two):
    step = checkpoint.steps(str(workdir))[-1]
    path = checkpoint.folder(str(workdir), step).as_posix()
    states.append(ocp.load_checkpointables(path, {"params": None, "train": None}))
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


def wait_for(path: pathlib.Path, seconds: float = 60) -> None:
  """Waits until there is such a path."""
  end = time.monotonic() + seconds
  while not path.exists():
    assert time.monotonic() < end, f"no {path}"
    time.sleep(0.005)


def _run(
  workdir: pathlib.Path, settings: dict[str, Any], flags: tuple[str, ...], at: int, what: int
) -> None:
  os.environ.pop("XLA_FLAGS", None)  # The config says how many devices there are.
  sys.argv = ["her_jax", "--config=configs/sft.py:tiny", f"--workdir={workdir}", *flags]
  sys.argv += [f"--config.{name}={value}" for name, value in settings.items()]
  workdir.parent.mkdir(parents=True, exist_ok=True)
  with workdir.with_name(f"{workdir.name}.log").open("a") as printed:
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
  os.chdir(pathlib.Path(__file__).parents[2])
  jax.config.update("jax_disable_most_optimizations", True)
  models.PRESETS["tiny"] = dataclasses.replace(
    models.PRESETS["tiny"], hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8,
  )  # fmt: skip
  if what:
    write = metrics.MetricWriter.write

    def deadly(self: metrics.MetricWriter, step: int, values: dict[str, Any]) -> None:
      write(self, step, values)
      if step == at:
        os.kill(os.getpid(), what)

    metrics.MetricWriter.write = deadly  # type: ignore[method-assign]
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  main.run()


def _strings(value: Any) -> list[str]:
  if isinstance(value, str):
    return [value]
  parts = (
    value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
  )
  return [text for part in parts for text in _strings(part)]
