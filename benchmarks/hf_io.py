"""Import and export of a 4 GB checkpoint, beside a plain copy of the same files.

    python -m benchmarks.hf_io --folder=/tmp/hf_io

On two cores, beside a copy at 1: float32 weights load at 0.84 (0.78 to 1.12) and are exported at
0.85 (0.67 to 1.10). bfloat16 falls short of the 0.7 that is aimed at: 0.51 and 0.47 where the
parameters are bfloat16, as twice as many numbers are transposed; 0.40 and 0.26 where they are
float32, which is twice the memory of the files (0.34 and 0.22 on a day of faster copies). Memory: 0.01 GB to load and 0.06 GB to export, of
2.37 and 1.43 GB allowed.

`ratio` is the copy's time over ours, medians of interleaved runs, each in a process of its own.
Before each the source is read once, so that the page cache holds it for all alike; nobody waits
for the disk afterwards; and as much memory as is needed is touched and given back, because a
virtual machine's first touch of a page can cost ten times the second. `memory` is what anonymous
memory (RssAnon) reached beyond its value at the start and the parameters, which on a CPU are
host memory as well; pages of files do not count in it, and none are mapped: `rss` is the same
for the whole resident set, by its high-water mark. The limit is 1.5 times the largest tensor of
the files and 500 MB.
"""

import argparse
import dataclasses
import json
import math
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

# (stored as, held as); layers of Qwen3-1.7B that make 4 GB.
_CASES = {
  "float32 in float32": ("float32", "float32", 14),
  "bfloat16 in float32": ("bfloat16", "float32", 34),
  "bfloat16 in bfloat16": ("bfloat16", "bfloat16", 34),
}
_SHARD_BYTES = 10**9
_GB = 1e9


def make(folder: pathlib.Path, dtype: str, layers: int) -> int:
  """Writes random weights in several files, where there are none; bytes of the largest."""
  import jax.numpy as jnp

  from her_jax.hf import export, names, tensor_file
  from her_jax.hf.config import to_hf
  from her_jax.models.config import PRESETS
  from her_jax.models.qwen3 import abstract_model

  config = dataclasses.replace(PRESETS["qwen3-1.7b"], num_layers=layers)
  kind = np.dtype(jnp.dtype(dtype))
  weights = names.weights(abstract_model(config)[1])
  largest = max(math.prod(weight.shape) for weight in weights) * kind.itemsize
  if (folder / "config.json").exists():
    return largest
  folder.mkdir(parents=True, exist_ok=True)
  noise = 0.02 * np.random.default_rng(0).standard_normal(2**24, np.float32)
  noise = noise.astype(kind)
  shards = export._plan(weights, kind.itemsize, _SHARD_BYTES)
  files = export._file_names(len(shards))
  for file, shard in zip(files, shards, strict=True):
    with open(folder / file, "wb") as out:
      out.write(tensor_file.header([(w.name, w.hf_shape) for w in shard], kind).data)
      for weight in shard:
        for start in range(0, math.prod(weight.shape), len(noise)):
          count = min(len(noise), math.prod(weight.shape) - start)
          out.write(noise[:count].view(np.uint8).data)
  places = {w.name: f for f, shard in zip(files, shards, strict=True) for w in shard}
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
  (folder / "config.json").write_text(json.dumps(to_hf(config, dtype)))
  return largest


def _status(field: str) -> int:
  """Bytes of a field of /proc/self/status."""
  with open("/proc/self/status") as status:
    return 1024 * int(next(line for line in status if line.startswith(field)).split()[1])


class _Measured:
  """Seconds and memory of what runs inside: `seconds`, `cpu`, `anonymous`, `resident`."""

  def __enter__(self):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Sets VmHWM back.
    self._start = self._peak = _status("RssAnon")
    self._start_rss = _status("VmRSS")
    self._done = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    self._clock, self._cpu = time.perf_counter(), time.process_time()
    return self

  def _watch(self):
    while not self._done.wait(0.005):
      self._peak = max(self._peak, _status("RssAnon"))

  def __exit__(self, *_):
    self.seconds = time.perf_counter() - self._clock
    self.cpu = time.process_time() - self._cpu
    self._done.set()
    self._thread.join()
    self.anonymous = max(self._peak, _status("RssAnon")) - self._start
    self.resident = _status("VmHWM") - self._start_rss


def _touch(size: int) -> None:
  """Has the machine back `size` bytes of memory, and frees them."""
  pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  pages.madvise(mmap.MADV_HUGEPAGE)
  np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE] = 1


def _copy(source: pathlib.Path, out: pathlib.Path) -> dict[str, float]:
  """Reads and writes every file, 16 MB at a time."""
  buffer = bytearray(2**24)
  with _Measured() as found:
    out.mkdir()
    for path in source.iterdir():
      with open(path, "rb", buffering=0) as read, open(out / path.name, "wb", 0) as write:
        while count := read.readinto(buffer):
          write.write(memoryview(buffer)[:count])
  return {"seconds": found.seconds, "cpu": found.cpu}


def _transfer(
  what: str, source: pathlib.Path, out: pathlib.Path, dtype: str, held: str, touched: int
) -> dict[str, float]:
  """One import, and for `what` "export" one export after it, which is what is measured."""
  from her_jax import cpu_backend

  cpu_backend.tune()
  import jax

  from her_jax.hf.export import export_model
  from her_jax.hf.load import load

  jax.numpy.zeros(1).block_until_ready()
  _touch(touched)
  with _Measured() as found:
    config, _, params = load(source, param_dtype=held)
    jax.block_until_ready(params)
  parameters = sum(x.nbytes for x in jax.tree.leaves(params))
  if what == "export":
    parameters = 0
    os.sync()
    _touch(5 * 2**30)
    with _Measured() as found:
      export_model(config, params, out, dtype=dtype, max_shard_bytes=_SHARD_BYTES)
  return {
    "seconds": found.seconds,
    "cpu": found.cpu,
    "anonymous": found.anonymous - parameters,
    "rss": found.resident - parameters,
  }


def _child(args: argparse.Namespace) -> None:
  """One run, its results as the last line."""
  dtype, held, _ = _CASES[args.case]
  source, out = args.folder / dtype, args.folder / "out"
  if args.child == "copy":
    _touch(5 * 2**30)
    result = _copy(source, out)
  else:
    size = (5 if dtype == held else 9) * 2**30
    result = _transfer(args.child, source, out, dtype, held, size)
  print(json.dumps(result))


def _run(what: str, case: str, folder: pathlib.Path) -> dict[str, float]:
  """One run in a process of its own, with the source in the page cache and nothing to write."""
  dtype = _CASES[case][0]
  shutil.rmtree(folder / "out", ignore_errors=True)
  os.sync()
  for path in (folder / dtype).iterdir():
    with open(path, "rb", buffering=0) as file:
      while file.read(2**24):
        pass
  command = [sys.executable, "-m", "benchmarks.hf_io", f"--folder={folder}"]
  command += [f"--child={what}", f"--case={case}"]
  out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
  shutil.rmtree(folder / "out", ignore_errors=True)
  return json.loads(out.splitlines()[-1])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--folder", type=pathlib.Path, default="/tmp/hf_io")
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--case", choices=_CASES, help="Only this one")
  parser.add_argument("--child", choices=("copy", "load", "export"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.child:
    _child(args)
    return
  for case in [args.case] if args.case else _CASES:
    dtype, _, layers = _CASES[case]
    largest = make(args.folder / dtype, dtype, layers)
    runs = {"copy": [], "load": [], "export": []}
    for _ in range(args.repeats):
      for what, results in runs.items():
        results.append(_run(what, case, args.folder))
        print(f"  {what} {results[-1]}", file=sys.stderr, flush=True)
    copied = statistics.median(run["seconds"] for run in runs["copy"])
    limit = 1.5 * largest / _GB + 0.5
    print(f"{case}: copy {copied:.2f} s", flush=True)
    for what in ("load", "export"):
      seconds = statistics.median(run["seconds"] for run in runs[what])
      ratios = [
        c["seconds"] / r["seconds"] for c, r in zip(runs["copy"], runs[what], strict=True)
      ]
      memory, rss = (max(run[key] for run in runs[what]) / _GB for key in ("anonymous", "rss"))
      print(
        f"  {what:7s}{seconds:6.2f} s, ratio {copied / seconds:.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f}),"
        f" memory {memory:.2f} GB, rss {rss:.2f} GB, limit {limit:.2f} GB",
        flush=True,
      )


if __name__ == "__main__":
  main()
