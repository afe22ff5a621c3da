"""A host that waits in vain says so; how several train: `training/test_hosts`."""

import os
import pathlib
import socket
import subprocess
import sys

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
