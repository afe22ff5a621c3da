"""What XLA's CPU backend has to be told to be fast; an accelerator heeds none of it."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD_BYTES = 256 * 2**20
_YNN = "--xla_cpu_experimental_ynn_fusion_type"


def tune() -> None:
  """Both of the below; before JAX looks for devices."""
  keep_freed_memory()
  set_xla_flags()


def keep_freed_memory() -> None:
  """Tells glibc to hold on to large blocks instead of returning them to the system.

  XLA on a CPU allocates its buffers anew at every step, and each page of a fresh block costs
  a page fault: adding 1 to 8.4 M floats takes 15 ms that way and 2.5 ms on memory that was kept
  (`python -m benchmarks.cpu_backend`). Does nothing where there is no glibc.
  """
  if not sys.platform.startswith("linux"):
    return
  try:
    mallopt = ctypes.CDLL("libc.so.6").mallopt
  except (OSError, AttributeError):
    return
  mallopt(_M_MMAP_MAX, 0)
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
  mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def set_xla_flags() -> None:
  """Turns the fusions of YNNPACK off, unless XLA_FLAGS already says something of them.

  XLA hands small matrix products to that library one by one. On memory that is kept, a training
  step of the tiny model takes 1.07 to 1.15 times as long with them, on another machine 1.33
  (`python -m benchmarks.cpu_backend`).
  """
  flags = os.environ.get("XLA_FLAGS", "")
  if _YNN not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {_YNN}=".strip()
