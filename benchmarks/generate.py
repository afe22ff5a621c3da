"""Tokens a second of our engine beside transformers' `generate`, in turns.

    python -m benchmarks.generate --out=generate.json     # wants the test extra, two cores, 8 GB

A Qwen3 of 107.8M parameters, float32, two threads, greedy. Each side is a process of its own that
waits while the other works; both have the same weights and must write the same replies.

    batch    8 prompts of 64 tokens, 64 new ones each
    mixed    64 requests: prompts of 16 to 512 tokens, replies of 8 to 256; `generate` has them in
             static batches of 16, sorted by the replies' lengths, which it could not know
    groups   4 prompts of 1,024 tokens, 8 replies of 64 tokens to each

Writes a JSON row for each: case, peer, ours_tokens_per_second, peer_tokens_per_second, ratio, and
how many replies are the same. Only the tokens that were asked for are counted. With
--tunix_python=PYTHON, of an environment that has google-tunix (0.1.7 wants another jax than ours),
tunix's sampler does `batch` too; TRL samples by transformers' `generate`.
"""

from collections.abc import Callable
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

from absl import app, flags
import numpy as np

from benchmarks import train_step
from benchmarks.sides import THREADS, Side, serve

_OUT = flags.DEFINE_string("out", None, "File for the rows, as JSON")
_CASES = flags.DEFINE_list("cases", ["batch", "mixed", "groups"], "Of these")
_TUNIX = flags.DEFINE_string("tunix_python", "", "Of an environment with google-tunix, absl")
_PAIRS = flags.DEFINE_integer("pairs", 3, "Runs of each side")

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

  torch.set_num_threads(THREADS)
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


class _Numbers:
  """Ids written as text, which tunix's sampler takes in their place."""

  bos_id = staticmethod(lambda: None)
  eos_id = pad_id = staticmethod(lambda: _VOCAB - 1)

  def encode(self, text: str, **_: Any) -> list[int]:
    return list(map(int, text.split()))

  def decode(self, ids: list[int], **_: Any) -> str:
    return " ".join(map(str, ids))

  def dedup_bos_ids(self, ids: list[int]) -> list[int]:
    return [i for i in ids if i is not None]


def _tunix(folder: str) -> Callable[[str], list[list[int]]]:
  from tunix.generate import sampler
  from tunix.models.qwen3 import model, params

  config = model.ModelConfig(
    num_layers=12, vocab_size=_VOCAB, embed_dim=768, hidden_dim=2304, num_heads=12,
    head_dim=64, num_kv_heads=4, rope_theta=1_000_000, norm_eps=1e-6, use_tied_embedding=True,
  )  # fmt: skip
  weights = params.create_model_from_safe_tensors(folder, config)
  cache = sampler.CacheConfig(cache_size=128, num_layers=12, num_kv_heads=4, head_dim=64)
  sample = sampler.Sampler(weights, _Numbers(), cache)

  def run(case: str) -> list[list[int]]:
    asked = requests(case)
    prompts = [" ".join(map(str, ids)) for ids, _ in asked]
    done = sample(prompts, max_generation_steps=asked[0][1], eos_tokens=[-1])
    return [list(map(int, ids)) for ids in done.tokens]

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


_SIDES = {"her_jax": _engine, "transformers": _transformers, "tunix": _tunix}


def compare(case: str, ours: Side, theirs: Side, pairs: int) -> dict[str, Any]:
  """One row, and how many of the replies are the same."""
  tokens = sum(new for _, new in requests(case))
  seconds: list[tuple[float, float]] = []
  for pair in range(pairs + 1):  # The first compiles.
    if pair % 2:
      second, their_replies = theirs.ask(case)
      first, our_replies = ours.ask(case)
    else:
      first, our_replies = ours.ask(case)
      second, their_replies = theirs.ask(case)
    seconds.append((first, second))
  first, second = (statistics.median(column) for column in zip(*seconds[1:], strict=True))
  return {
    "case": case,
    "ours_tokens_per_second": tokens / first,
    "peer_tokens_per_second": tokens / second,
    "ratio": statistics.median(b / a for a, b in seconds[1:]),
    "replies": len(our_replies),
    "same_replies": sum(a == b for a, b in zip(our_replies, their_replies, strict=True)),
  }


def main(argv: list[str]) -> None:
  if argv[1:2] == ["work"]:
    serve(_SIDES[argv[2]](argv[3]))
    return
  pythons = {"transformers": sys.executable, "tunix": _TUNIX.value}
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    train_step.save_weights(folder)
    ours = Side("benchmarks.generate", "her_jax", folder)
    for peer, python in pythons.items():
      if not python:
        continue
      theirs = Side("benchmarks.generate", peer, folder, python=python)
      for case in _CASES.value:
        if peer == "tunix" and case != "batch":
          continue
        rows.append({"peer": peer, **compare(case, ours, theirs, _PAIRS.value)})
        print(json.dumps(rows[-1]), flush=True)
      theirs.end()
    ours.end()
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
  app.run(main)
