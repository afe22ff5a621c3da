"""What keeping freed host memory is worth to XLA on a CPU.

    python benchmarks/host_memory.py

Adds 1 to 8.4 M floats, each time into a fresh buffer, in two processes: as the system comes,
and after `her_jax.host_memory.keep_freed_memory`. Prints milliseconds and their ratio.
"""

import subprocess
import sys
import time

_RUNS = 20


def _measure(keep: bool) -> float:
  import jax
  import jax.numpy as jnp

  from her_jax import host_memory

  if keep:
    host_memory.keep_freed_memory()
  x = jnp.zeros((4096, 2048))
  add = jax.jit(lambda x: x + 1)
  add(x).block_until_ready()
  times = []
  for _ in range(_RUNS):
    start = time.perf_counter()
    add(x).block_until_ready()
    times.append(time.perf_counter() - start)
  return sorted(times)[_RUNS // 2] * 1000


def main() -> None:
  if len(sys.argv) > 1:
    print(_measure(sys.argv[1] == "keep"))
    return
  median = {}
  for mode in ("plain", "keep"):
    out = subprocess.run(
      [sys.executable, __file__, mode], check=True, capture_output=True, text=True
    )
    median[mode] = float(out.stdout.split()[-1])
    print(f"{mode:6s} {median[mode]:6.1f} ms")
  print(f"ratio  {median['plain'] / median['keep']:6.2f}")


if __name__ == "__main__":
  main()
