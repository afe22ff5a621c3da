"""What `her_jax.cpu_backend` is worth, each part in a process of its own.

    python -m benchmarks.cpu_backend

`add` adds 1 to 8.4 M floats, each time into a fresh buffer; `step` is a training step of
`configs/sft.py:tiny`, by its own metrics. Prints medians in milliseconds, and the ratio to
`plain`, JAX as it comes.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

_ADDS, _STEPS, _WARM_UP = 30, 200, 50
_MODES = ("plain", "keep_freed_memory", "set_xla_flags", "tune")


def _add_ms() -> float:
  import jax
  import jax.numpy as jnp

  x = jnp.zeros((4096, 2048))
  add = jax.jit(lambda x: x + 1)
  add(x).block_until_ready()
  times = []
  for _ in range(_ADDS):
    start = time.perf_counter()
    add(x).block_until_ready()
    times.append(time.perf_counter() - start)
  return 1000 * float(np.median(times))


def _step_ms() -> float:
  from her_jax import command_line, cpu_backend, main

  cpu_backend.tune = lambda: None  # The mode has said what to tune.
  with tempfile.TemporaryDirectory() as workdir:
    argv = f"main --config=configs/sft.py:tiny --workdir={workdir} --config.eval_samples=0"
    sys.argv = [*argv.split(), f"--config.steps={_STEPS}"]  # ml_collections reads it there.
    main.main(command_line.parse_flags(sys.argv))
    lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    speeds = [json.loads(line)["tokens_per_second"] for line in lines[_WARM_UP:]]
    return 1000 * first["tokens"] / float(np.median(speeds))


def main() -> None:
  if len(sys.argv) > 1:
    from her_jax import cpu_backend

    mode, task = sys.argv[1:]
    if mode != "plain":
      getattr(cpu_backend, mode)()
    print({"add": _add_ms, "step": _step_ms}[task]())
    return
  for task in ("add", "step"):
    found = {}
    for mode in _MODES:
      command = [sys.executable, "-m", "benchmarks.cpu_backend", mode, task]
      out = subprocess.run(command, check=True, capture_output=True, text=True)
      found[mode] = float(out.stdout.split()[-1])
      print(f"{task:5s}{mode:18s}{found[mode]:7.1f} ms{found[mode] / found['plain']:6.2f}")


if __name__ == "__main__":
  main()
