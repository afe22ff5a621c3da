"""One epoch of SFT with conversations as trees beside one with a row a reply, in turns.

    python -m benchmarks.trees --scenes=trajectories.jsonl --tokenizer=FOLDER

Scenes need plans; by default they are the package's samples, whose tokenizer is trained on them.
Both forms have the same targets and are packed by the same loader, into rows of `--length` (by
default the longest tree's) or, for the single replies, `--row_length`: without trees shorter rows
would do. A Qwen3 takes steps on both in turns; an epoch is the median step's time by the
steps that it takes at the fill that the loader reached.

The model has two heads whatever its width. In Qwen3-32B 7 % of the arithmetic at 4096 tokens are
attention's, and its kernel passes over blocks that nothing sees; here, where the plain one
computes every pair, it would otherwise be most of a small model.
"""

from collections.abc import Sequence
import statistics
import time

from absl import app, flags
from flax import nnx
import jax
import ml_collections
import numpy as np

from data_pipeline import loaders, rendering, samples
from her_jax import cpu_backend
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.roleplay import schema
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState

_MULTIPLE = 128  # Row lengths are rounded up to it.


def compact(made: Sequence[loaders.Row], more: Sequence[loaders.Row]) -> int:
  """Numbers the ids that occur from 1, in place, and gives the size of such a vocabulary.

  A table of 151,936 rows of which a few thousand occur would be most of a small model.
  """
  ids = np.unique(np.concatenate([r[n] for r in (*made, *more) for n in ("tokens", "targets")]))
  for row in (*made, *more):
    for name in ("tokens", "targets"):
      row[name] = (np.searchsorted(ids, row[name]) + 1).astype(np.int32)
  return len(ids) + 1


class Side:
  """A form of the data with its own model in training."""

  def __init__(self, made: Sequence[loaders.Row], length: int, model: ModelConfig):
    self.tokens = sum(len(row["tokens"]) for row in made)
    self.targets = sum(int((row["loss_weights"] > 0).sum()) for row in made)
    self.length, self.seconds = length, []
    self._used: list[int] = []
    self._batches = iter(loaders.batches(made, length=length, batch_size=1, seed=0, pad_id=0))
    graphdef, params = nnx.split(Qwen3(model, rngs=nnx.Rngs(0)))
    settings = {"name": "adamw", "learning_rate": 1e-4, "warmup_steps": 0, "final_scale": 1.0,
                "b1": 0.9, "b2": 0.95, "weight_decay": 0.1, "clip_norm": 1.0}  # fmt: skip
    optimizer, _ = optimizers.build(ml_collections.ConfigDict(settings), 1000)
    self._step = steps.make_train_step(
      graphdef, optimizer, steps.next_token_loss(model.vocab_size)
    )
    self._state = TrainState.create(params, optimizer)

  def step(self) -> None:
    batch = next(self._batches)
    self._used.append(int((batch["tokens"] != 0).sum()))
    start = time.perf_counter()
    self._state, found = self._step(self._state, batch)
    jax.block_until_ready(found)
    self.seconds.append(time.perf_counter() - start)

  def fill(self) -> float:
    """Share of the slots that hold a token."""
    return statistics.mean(self._used) / self.length

  def epoch(self) -> float:
    """Seconds for all tokens once; the first step, which compiles, does not count."""
    return self.tokens / (self.fill() * self.length) * statistics.median(self.seconds[1:])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}?")
  cpu_backend.tune()
  scenes = schema.read_trajectories(_SCENES.value or samples.SCENES)
  texts = (f"{turn.plan} {turn.reply}" for scene in scenes for turn in scene.turns)
  folder = _TOKENIZER.value
  tokenizer = hf_tokenizer.load(folder) if folder else hf_tokenizer.train(texts, 2560)
  as_trees, _ = rendering.sft_trees(scenes, tokenizer, 1 << 20)
  single, _ = rendering.sft_rows(scenes, tokenizer, 1 << 20)
  vocab = compact(as_trees, single)
  longest = max(len(row["tokens"]) for row in (*as_trees, *single))
  length = _LENGTH.value or -(-longest // _MULTIPLE) * _MULTIPLE
  model = ModelConfig(
    vocab_size=vocab, hidden_size=_WIDTH.value, intermediate_size=3 * _WIDTH.value,
    num_layers=_LAYERS.value, num_heads=2, num_kv_heads=1,
    head_dim=64, tie_embeddings=True, max_position_embeddings=length, dtype="float32",
  )  # fmt: skip
  sides = {
    "trees": Side(as_trees, length, model),
    "single": Side(single, _ROW_LENGTH.value or length, model),
  }
  assert sides["trees"].targets == sides["single"].targets
  for pair in range(_PAIRS.value + 1):
    for side in sorted(sides, reverse=bool(pair % 2)):
      sides[side].step()
  print(
    f"{len(scenes)} scenes, {sides['trees'].targets} targets, {model.num_params():,} weights"
  )
  for name, side in sides.items():
    print(
      f"{name:<7}{side.tokens:>9} tokens in rows of {side.length}, {side.fill():.0%} full:"
      f" {statistics.median(side.seconds[1:]):.2f} s a row, {side.epoch():.1f} s an epoch"
    )
  tokens = sides["single"].tokens / sides["trees"].tokens
  print(
    f"trees: {tokens:.2f} x fewer tokens,"
    f" {sides['single'].epoch() / sides['trees'].epoch():.2f} x faster"
  )


if __name__ == "__main__":
  _SCENES = flags.DEFINE_string("scenes", "", "Trajectories with plans; empty: the samples")
  _TOKENIZER = flags.DEFINE_string("tokenizer", "", "Folder; empty: one trained on the scenes")
  _LENGTH = flags.DEFINE_integer("length", 0, "Of packed rows; 0: the longest tree's")
  _ROW_LENGTH = flags.DEFINE_integer("row_length", 0, "Of the single replies; 0: as the trees'")
  _LAYERS = flags.DEFINE_integer("layers", 6, "Of the model", 1)
  _WIDTH = flags.DEFINE_integer("width", 512, "Of the model", 8)
  _PAIRS = flags.DEFINE_integer("pairs", 6, "Steps on each", 2)
  app.run(main)
