"""One server a module: the real program in a process of its own."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai
import pytest

from tests.serving import model

ROOT = pathlib.Path(__file__).parents[2]


class Server:
  """The process, and what it answers without a client."""

  def __init__(self, policy: pathlib.Path, workdir: pathlib.Path, *overrides: str, **env: str):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      self.port = free.getsockname()[1]
    self.url = f"http://127.0.0.1:{self.port}"
    self._log = workdir.with_suffix(".log")
    command = [
      sys.executable, "-m", "her_jax.main", "--config=configs/serve.py:tiny",
      f"--workdir={workdir}", f"--config.policy={policy}", f"--config.serve.port={self.port}",
      "--config.engine.rows=4", "--config.engine.chunk=128", "--config.engine.page_size=16",
      "--config.sampling.prompt_length=160", "--config.sampling.max_new_tokens=96",
      "--config.serve.model_name=tiny", *overrides,
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    quick = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    with self._log.open("wb") as log:
      self.process = subprocess.Popen(
        command, cwd=ROOT, env={**environment, **quick, **env}, stdout=log, stderr=log
      )

  def wait(self, seconds: float = 120) -> None:
    """Until it is warm."""
    end = time.monotonic() + seconds
    while self.health()[0] != 200:
      assert self.process.poll() is None and time.monotonic() < end, self.log()
      time.sleep(0.1)

  def log(self) -> str:
    return self._log.read_text()

  def health(self) -> tuple[int, dict]:
    """Status and body, or 0 where nobody listens."""
    with contextlib.suppress(OSError):
      status, body = self.get("/health")
      return status, json.loads(body)
    return 0, {}

  def get(self, path: str) -> tuple[int, str]:
    try:
      with urllib.request.urlopen(self.url + path, timeout=10) as answer:
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
      return error.code, error.read().decode()

  def metric(self, name: str) -> float:
    """The sum over its labels."""
    lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

  def client(self, **settings) -> openai.AsyncOpenAI:
    settings = {"api_key": "none", "max_retries": 0, "timeout": 60, **settings}
    return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **settings)

  def rss(self) -> int:
    """Bytes."""
    status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
    return 1024 * int(next(x for x in status.splitlines() if x.startswith("VmRSS")).split()[1])

  def stop(self) -> int:
    self.process.send_signal(signal.SIGTERM)
    return self.process.wait(timeout=60)


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> pathlib.Path:
  return model.save(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def server(policy, tmp_path_factory) -> Iterator[Server]:
  started = Server(policy, tmp_path_factory.mktemp("serve") / "out")
  started.wait()
  yield started
  if started.process.poll() is None:
    started.process.kill()
