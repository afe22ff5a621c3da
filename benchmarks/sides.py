"""Two libraries side by side: each is a process that waits while the other works.

    sides = {"her_jax": Side("benchmarks.generate", "her_jax", folder), ...}
    seconds, answer = sides["her_jax"].ask("batch")

The module calls `serve` where it is run with the side's name.
"""

from collections.abc import Callable
import json
import os
import subprocess
import sys
import time
from typing import Any

THREADS = 2


class Side:
  """A process that answers one question at a time."""

  def __init__(self, module: str, *arguments: str, python: str = sys.executable):
    """Starts `python -m module work arguments…`, on the CPU with two threads."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
    self._process = subprocess.Popen(
      [python, "-m", module, "work", *arguments],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, **threads, "JAX_PLATFORMS": "cpu"},
    )

  def ask(self, question: Any) -> tuple[float, Any]:
    """Seconds that the answer took, and the answer.

    Raises:
      RuntimeError: the process has ended.
    """
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(f"{json.dumps(question)}\n")
    self._process.stdin.flush()
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f"a side has ended with {self._process.wait()}; see above")
    seconds, answer = json.loads(line)
    return seconds, answer

  def end(self) -> None:
    """Waits until it has."""
    self._process.communicate()


def serve(answer: Callable[[Any], Any]) -> None:
  """Answers each line of input with its seconds and what came of it."""
  # What libraries print must not stand among the answers.
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  for line in sys.stdin:
    start = time.perf_counter()
    found = answer(json.loads(line))
    print(json.dumps([time.perf_counter() - start, found]), file=out, flush=True)
