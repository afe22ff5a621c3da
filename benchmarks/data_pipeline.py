"""Turns a second and memory of preparing, splitting and building, for N and 4 N conversations.

    python -m benchmarks.data_pipeline --conversations=30000 --out=out/data_pipeline

Generates `--conversations` conversations (4 N) and a quarter of them (N), runs the stages of
`--stages` (default prepare,splits,build,export) as processes of their own, and writes
`data_pipeline.json` and a table. Peak memory is the sum of the resident sizes of all processes of
a stage, sampled every 50 ms; it must not grow with the input. A stage whose module is not
installed is told of and left out.
"""

from collections import Counter
from collections.abc import Sequence
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from absl import app, flags
import psutil

STAGES = ("prepare", "splits", "build", "export")
_WANTED = 2000  # turns a second
_GROWTH = 1.5  # of the peak, from N to 4 N, that is no growth with the input

if __name__ == "__main__":
  _OUT = flags.DEFINE_string("out", "out/data_pipeline", "Folder for data and results")
  _CONVERSATIONS = flags.DEFINE_integer("conversations", 30_000, "4 N", 400)
  _BOOKS = flags.DEFINE_integer("books", 700, "Books of 4 N; a quarter for N", 40)
  _STAGES = flags.DEFINE_list("stages", list(STAGES), "What to measure, in this order")
  _KEEP = flags.DEFINE_bool("keep", False, "Keep the data")
  _ONLY = flags.DEFINE_list("only_prepare", None, "Used by this program: from, to")


def prepare(source: str, target: str) -> None:
  """Stage 0 from file to file."""
  from data_pipeline.synthesis import prepare as stage
  from her_jax.roleplay import jsonl, schema

  counts: Counter[str] = Counter()

  def prepared():
    for number, scene in jsonl.each_line(source, schema.trajectory_from_dict, unique=False):
      if isinstance(scene, schema.DataError):
        raise schema.DataError(f"{source}:{number}{scene}")
      made = stage.prepare(scene, stage.Settings(), counts)
      if made is not None:
        yield made

  schema.write_jsonl(target, prepared())
  print(dict(counts))


def measure(command: Sequence[str]) -> dict[str, Any]:
  """Runs a command: wall-clock and processor seconds, and peak memory of it and its children."""
  start, peak, spent = time.perf_counter(), 0, {}
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  root = psutil.Process(process.pid)
  while process.poll() is None:
    held = 0
    try:
      for member in [root, *root.children(recursive=True)]:
        with_cpu = member.cpu_times()
        held += member.memory_info().rss
        spent[member.pid] = with_cpu.user + with_cpu.system
    except psutil.Error:
      pass  # One has just ended.
    peak = max(peak, held)
    time.sleep(0.05)
  seconds = time.perf_counter() - start
  told = process.stdout.read().decode() if process.stdout else ""
  if process.returncode:
    sys.exit(f"{' '.join(command)} failed:\n{told}")
  return {"seconds": seconds, "cpu_seconds": sum(spent.values()), "peak_mb": peak / 1e6}


def commands(folder: pathlib.Path) -> dict[str, list[str]]:
  """How each stage is started on the data of a folder."""
  python, data = [sys.executable, "-m"], f"--trajectories={folder / 'all.jsonl'}"
  proof = f"--splits={folder / 'splits' / 'splits_proof.json'}"
  ends = f"{folder / 'all.jsonl'},{folder / 'prepared.jsonl'}"
  return {
    "prepare": [*python, "benchmarks.data_pipeline", f"--only_prepare={ends}"],
    "splits": [*python, "data_pipeline.splits", data, f"--out={folder / 'splits'}"],
    "build": [
      *python,
      "data_pipeline.builders.build",
      data,
      proof,
      f"--out={folder / 'built'}",
    ],
    "export": [*python, "data_pipeline.export", data, proof, f"--out={folder / 'export'}"],
  }


def main(argv: Sequence[str]) -> None:
  del argv
  if _ONLY.value:
    prepare(*_ONLY.value)
    return
  out = pathlib.Path(_OUT.value)
  found: dict[str, list[dict[str, Any]]] = {}
  for part in (4, 1):
    folder = out / f"of_{part}"
    folder.mkdir(parents=True, exist_ok=True)
    count, books = _CONVERSATIONS.value // part, _BOOKS.value // part
    generator = [sys.executable, "-m", "benchmarks.generate_conversations"]
    generator += [f"--out={folder / 'all.jsonl'}", f"--conversations={count}"]
    told = subprocess.run([*generator, f"--books={books}"], check=True, capture_output=True)
    turns = int(told.stdout.split()[2])
    size = (folder / "all.jsonl").stat().st_size
    for stage in _STAGES.value:
      if stage == "prepare" and not importlib.util.find_spec("data_pipeline.synthesis"):
        print("prepare: data_pipeline.synthesis is not there; left out")
        continue
      made = measure(commands(folder)[stage])
      made |= {"conversations": count, "books": books, "turns": turns, "input_mb": size / 1e6}
      made["turns_per_second"] = turns / made["seconds"]
      made["turns_per_cpu_second"] = turns / made["cpu_seconds"]
      found.setdefault(stage, []).append(made)
      print(_line(stage, made), flush=True)
    if not _KEEP.value:
      shutil.rmtree(folder)
  report = {
    "cores": os.cpu_count(),
    "load": os.getloadavg()[0],
    "stages": found,
    "growth": {s: runs[1]["peak_mb"] / runs[0]["peak_mb"] for s, runs in found.items()},
  }
  (out / "data_pipeline.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
  for stage, runs in found.items():
    growth = report["growth"][stage]
    slow = min(run["turns_per_second"] for run in runs) < _WANTED
    verdict = f"{'below' if slow else 'above'} {_WANTED} turns/s"
    kept = "does not grow" if growth < _GROWTH else "grows"
    print(f"{stage}: {verdict}; memory {kept} with the input ({growth:.2f} x for 4 x)")
  print(out / "data_pipeline.json")


def _line(stage: str, made: dict[str, Any]) -> str:
  return (
    f"{stage:<8} {made['conversations']:>7} conversations {made['turns']:>8} turns"
    f" {made['input_mb']:>6.0f} MB: {made['seconds']:>6.1f} s,"
    f" {made['turns_per_second']:>6.0f} turns/s ({made['turns_per_cpu_second']:.0f} a processor"
    f" second), {made['peak_mb']:.0f} MB"
  )


if __name__ == "__main__":
  app.run(main)
