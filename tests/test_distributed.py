"""Two processes train as one, and a host that waits in vain says so."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from her_jax import sharding
from her_jax.training import checkpoint, preemption
from tests.training.short_runs import assert_equal

ROOT = pathlib.Path(__file__).parents[1]


def _start(workdir: pathlib.Path, *arguments: str) -> subprocess.Popen:
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  command = [sys.executable, "-m", "her_jax.main", "--config=configs/sft.py:tiny"]
  command += [f"--workdir={workdir}", "--config.steps=1", "--config.eval_samples=0"]
  command += ["--config.batch_size=2", "--config.data.word_dropout=0.0"]
  command += ["--config.cpu_devices=1", *arguments]
  return subprocess.Popen(
    command,
    cwd=ROOT,
    env={**environment, "JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def _finish(processes: list[subprocess.Popen], timeout: int) -> list[str]:
  try:
    return [process.communicate(timeout=timeout)[0] for process in processes]
  finally:
    for process in processes:
      if process.poll() is None:
        process.kill()


def _free_port() -> int:
  with socket.socket() as s:
    s.bind(("localhost", 0))
    return s.getsockname()[1]


def _metrics(workdir: pathlib.Path) -> dict:
  (row,) = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return row


@pytest.mark.slow
def test_two_processes_take_one_step_together(tmp_path):
  """Both come to an end, and write the loss over both of their rows.

  One process with the same batch_size reads the same seed's trees, but packs them into rows
  in another order (each host packs every second tree), so its loss is that of other rows and
  cannot be equal. What must hold: the targets of both hosts are counted, the loss is finite
  and near that of untrained weights, and the common checkpoint is whole.
  """
  port = _free_port()
  processes = [
    _start(
      tmp_path / "two",
      f"--coordinator_address=localhost:{port}",
      "--num_processes=2",
      f"--process_id={i}",
      "--startup_timeout=120",
    )
    for i in range(2)
  ]
  outputs = _finish(processes, timeout=400)
  assert [process.returncode for process in processes] == [0, 0], outputs[0][-3000:]
  for i, output in enumerate(outputs):
    assert f"process {i} of 2 has joined" in output
    assert "of 2 host(s)" in output

  alone = _start(tmp_path / "one")
  (output,) = _finish([alone], timeout=400)
  assert alone.returncode == 0, output[-3000:]
  two, one = _metrics(tmp_path / "two"), _metrics(tmp_path / "one")
  assert two["tokens"] == one["tokens"]  # The global batch has two rows either way.
  assert abs(two["targets"] - one["targets"]) < 0.25 * one["targets"]
  assert abs(two["loss"] - one["loss"]) < 0.1 * one["loss"]

  # What the two saved together is one whole model, moved from the same first weights.
  mesh = sharding.make_mesh()
  saved = [checkpoint.load(str(tmp_path / n), mesh, "workdir") for n in ("two", "one")]
  assert saved[0].config == saved[1].config and saved[0].step == saved[1].step == 1
  _, first = sharding.init_sharded(saved[0].config, 0, mesh)
  table = [np.asarray(s["embedding"].get_value()) for s in (first, *(c.params for c in saved))]
  moved = np.abs(table[1] - table[0]).max()
  assert 0 < moved < 0.1 and np.isfinite(table[1]).all()


def _both(workdir: pathlib.Path, *arguments: str) -> list[subprocess.Popen]:
  port = _free_port()
  return [
    _start(
      workdir, f"--coordinator_address=localhost:{port}", "--num_processes=2",
      f"--process_id={i}", "--startup_timeout=120", *arguments,
    )
    for i in range(2)
  ]  # fmt: skip


@pytest.mark.slow
def test_two_processes_save_together_when_one_is_told_to_end(tmp_path):
  """Both save the same step and exit alike; two go on bit for bit, one is refused."""
  settings = ("--config.steps=40", "--config.checkpoint.every=0")
  processes = _both(tmp_path / "broken", *settings)
  lines = tmp_path / "broken" / "metrics.jsonl"
  end = time.monotonic() + 300
  while not (lines.exists() and len(lines.read_text().splitlines()) >= 5):
    assert time.monotonic() < end and processes[0].poll() is None
    time.sleep(0.05)
  processes[1].send_signal(signal.SIGTERM)
  outputs = _finish(processes, timeout=300)
  assert [process.returncode for process in processes] == [preemption.EXIT_CODE] * 2, outputs
  (step,) = checkpoint.steps(str(tmp_path / "broken"))
  assert 5 <= step < 40
  for output in outputs:
    assert f"ended by SIGTERM after step {step} of 40" in output
    assert "Traceback" not in output

  alone = _start(tmp_path / "broken", *settings)
  (output,) = _finish([alone], timeout=120)
  assert alone.returncode == 1
  assert "holds a run on 2 hosts, and there are 1 now" in output and "Traceback" not in output

  for workdir in (tmp_path / "broken", tmp_path / "whole"):
    processes = _both(workdir, *settings)
    outputs = _finish(processes, timeout=400)
    assert [process.returncode for process in processes] == [0, 0], outputs[0][-3000:]
  assert_equal(tmp_path / "broken", tmp_path / "whole")


def test_a_host_whose_peers_do_not_come_says_so(tmp_path):
  lone = _start(
    tmp_path / "lone",
    f"--coordinator_address=localhost:{_free_port()}",
    "--num_processes=2",
    "--process_id=0",
    "--startup_timeout=5",
  )
  (output,) = _finish([lone], timeout=120)
  assert lone.returncode != 0
  assert "not all hosts joined within 5 s" in output
  assert "launch_tpu/run.sh" in output and "--startup_timeout" in output


def test_flags_that_go_together_are_asked_for(tmp_path):
  lone = _start(tmp_path / "lone", "--num_processes=2")
  (output,) = _finish([lone], timeout=120)
  assert lone.returncode != 0
  assert "go together; give all three" in output
