"""How fast the loader packs tokenised conversations on one core, and whether its memory grows.

    python -m benchmarks.loader [--batches=100000] [--scenes=trajectories.jsonl --tokenizer=FOLDER]

The rows are tokenised once, as before a run; what is measured is shuffling, packing and batching
as the training loop waits for them, on one core alone. Prints packed tokens/s (padding does not
count), the share of padding, and the resident memory after a tenth of the batches and at the end.
"""

from collections.abc import Sequence
import os
import time

from absl import app, flags
import psutil

from data_pipeline import loaders, rendering, samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import schema


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}?")
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  scenes = schema.read_trajectories(_SCENES.value or samples.SCENES)
  texts = (f"{turn.plan} {turn.reply}" for scene in scenes for turn in scene.turns)
  folder = _TOKENIZER.value
  tokenizer = hf_tokenizer.load(folder) if folder else hf_tokenizer.train(texts, 2560)
  start = time.process_time()
  rows, counts = rendering.sft_trees(scenes, tokenizer, _LENGTH.value)
  print(f"{counts.line()}; {counts.tokens / (time.process_time() - start):,.0f} tokens/s once")
  batches = iter(
    loaders.batches(rows, length=_LENGTH.value, batch_size=_BATCH.value, seed=0, pad_id=-1)
  )
  for _ in range(10):
    next(batches)
  resident = psutil.Process().memory_info
  tokens = slots = 0
  wall, core = time.perf_counter(), time.process_time()
  early = 0
  for number in range(_BATCHES.value):
    batch = next(batches)
    tokens += int((batch["tokens"] >= 0).sum())
    slots += batch["tokens"].size
    if number == _BATCHES.value // 10:
      early = resident().rss
  wall, core = time.perf_counter() - wall, time.process_time() - core
  print(
    f"{_BATCHES.value} batches of {_BATCH.value} x {_LENGTH.value}: {tokens / wall:,.0f} packed"
    f" tokens/s by the clock, {tokens / core:,.0f} a processor second,"
    f" {1 - tokens / slots:.1%} padding"
  )
  late = resident().rss
  print(f"memory: {early / 2**20:.0f} MiB after a tenth, {late / 2**20:.0f} MiB at the end")


if __name__ == "__main__":
  _SCENES = flags.DEFINE_string("scenes", "", "Trajectories with plans; empty: the samples")
  _TOKENIZER = flags.DEFINE_string("tokenizer", "", "Folder; empty: one trained on the scenes")
  _LENGTH = flags.DEFINE_integer("length", 8192, "Of packed rows", 1)
  _BATCH = flags.DEFINE_integer("batch_size", 4, "Rows of a batch", 1)
  _BATCHES = flags.DEFINE_integer("batches", 2000, "To measure", 10)
  app.run(main)
