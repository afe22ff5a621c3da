"""Tokens a second of our engine beside transformers' `generate`, in turns.

    python -m benchmarks.generate --out=generate.json     # wants the test extra, two cores, 8 GB

A Qwen3 of 107.8M parameters, float32, two threads, greedy. Each side is a process of its own that
waits while the other works; both have the same weights and must write the same replies.

    batch    8 prompts of 64 tokens, 64 new ones each
    mixed    64 requests: prompts of 16 to 512 tokens, replies of 8 to 256; `generate` has them in
             static batches of 16, sorted by the replies' lengths, which it could not know
    groups   4 prompts of 1,024 tokens, 8 replies of 64 tokens to each

Writes a JSON row for each case: case, peer, ours_tokens_per_second, peer_tokens_per_second, ratio.
Only the tokens that were asked for are counted.
"""

from collections.abc import Callable
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np

from benchmarks import train_step

_OUT = flags.DEFINE_string("out", None, "File for the rows, as JSON")
_CASES = flags.DEFINE_list("cases", ["batch", "mixed", "groups"], "Of these")
_PAIRS = flags.DEFINE_integer("pairs", 3, "Runs of each side")

_THREADS = 2
_VOCAB = 32_768
_STATIC = 16

Requests = list[tuple[list[int], int]]


def requests(case: str) -> Requests:
  """Prompts, and how many tokens each is to be answered with."""
  rng = np.random.default_rng(0)
  ids = lambda length: rng.integers(0, _VOCAB, int(length)).tolist()
  if case == "batch":
    return [(ids(64), 64) for _ in range(8)]
  if case == "mixed":
    lengths = zip(rng.integers(16, 513, 64), rng.integers(8, 257, 64), strict=True)
    return [(ids(prompt), int(reply)) for prompt, reply in lengths]
  return [(prompt, 64) for prompt in (ids(1024) for _ in range(4)) for _ in range(8)]


def _transformers(folder: str) -> Callable[[str], list[list[int]]]:
  import torch
  import transformers

  torch.set_num_threads(_THREADS)
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
  model.generation_config.eos_token_id = None

  @torch.no_grad()
  def run(case: str) -> list[list[int]]:
    asked = requests(case)
    size = _STATIC if case == "mixed" else len(asked)
    order = sorted(range(len(asked)), key=lambda i: asked[i][1])
    replies: dict[int, list[int]] = {}
    for at in range(0, len(order), size):
      batch = order[at : at + size]
      longest = max(len(asked[i][0]) for i in batch)
      ids = torch.zeros((len(batch), longest), dtype=torch.long)
      mask = torch.zeros_like(ids)
      for row, i in enumerate(batch):
        ids[row, longest - len(asked[i][0]) :] = torch.tensor(asked[i][0])
        mask[row, longest - len(asked[i][0]) :] = 1
      new = max(asked[i][1] for i in batch)
      drawn = model.generate(
        ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False,
        pad_token_id=0,
      )  # fmt: skip
      for row, i in enumerate(batch):
        replies[i] = drawn[row, longest : longest + asked[i][1]].tolist()
    return [replies[i] for i in range(len(asked))]

  return run


def _engine(folder: str) -> Callable[[str], list[list[int]]]:
  from her_jax import cpu_backend

  cpu_backend.tune()

  from her_jax.hf import load
  from her_jax.inference.batches import Limits
  from her_jax.inference.engine import Engine
  from her_jax.inference.sampling import Sampling

  config, graphdef, params = load.load(folder, dtype="float32", remat="none")
  limits = Limits(rows=64, pages=640, page_size=64, context=1280, chunk=512, steps=8)
  engine = Engine(config, graphdef, params, limits)

  def run(case: str) -> list[list[int]]:
    asked = requests(case)
    engine.load(params)  # Nothing of an earlier run is found in the cache.
    settings = [Sampling(max_tokens=new, temperature=0) for _, new in asked]
    return [done.ids for done in engine.generate([p for p, _ in asked], settings)]

  return run


_SIDES = {"her_jax": _engine, "transformers": _transformers}


def _work(side: str, folder: str) -> None:
  """Runs the case of every line of input; answers with its seconds and what was written."""
  run = _SIDES[side](folder)
  for line in sys.stdin:
    start = time.perf_counter()
    replies = run(line.strip())
    print(json.dumps([time.perf_counter() - start, replies]), flush=True)


def _start(side: str, folder: str) -> subprocess.Popen:
  threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(_THREADS))
  return subprocess.Popen(
    [sys.executable, "-m", "benchmarks.generate", "work", side, folder],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, **threads, "JAX_PLATFORMS": "cpu"},
  )


def _ask(process: subprocess.Popen, case: str) -> tuple[float, list[list[int]]]:
  assert process.stdin and process.stdout
  process.stdin.write(f"{case}\n")
  process.stdin.flush()
  return tuple(json.loads(process.stdout.readline()))


def main(argv: list[str]) -> None:
  if argv[1:2] == ["work"]:
    _work(*argv[2:])
    return
  found = []
  with tempfile.TemporaryDirectory() as folder:
    train_step.save_weights(folder)
    sides = {side: _start(side, folder) for side in _SIDES}
    for case in _CASES.value:
      tokens = sum(new for _, new in requests(case))
      seconds: dict[str, list[float]] = {side: [] for side in sides}
      for pair in range(_PAIRS.value + 1):  # The first compiles.
        replies = {}
        for side in sorted(sides, reverse=bool(pair % 2)):
          took, replies[side] = _ask(sides[side], case)
          if pair:
            seconds[side].append(took)
      same = sum(a == b for a, b in zip(*replies.values(), strict=True))
      ratios = [t / j for j, t in zip(*seconds.values(), strict=True)]
      row = {
        "case": case,
        "peer": "transformers",
        "ours_tokens_per_second": tokens / statistics.median(seconds["her_jax"]),
        "peer_tokens_per_second": tokens / statistics.median(seconds["transformers"]),
        "ratio": statistics.median(ratios),
      }
      found.append(row)
      print(json.dumps(row), f"{same} of {len(requests(case))} replies the same", flush=True)
    for process in sides.values():
      process.communicate()
  if _OUT.value:
    with open(_OUT.value, "w") as out:
      json.dump(found, out, indent=2)


if __name__ == "__main__":
  app.run(main)
