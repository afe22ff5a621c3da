"""A tiny policy with random weights and a tokenizer of a few scenes, saved as a workdir."""

import dataclasses
import pathlib

from flax import nnx

from data_pipeline import samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import PRESETS
from her_jax.models.qwen3 import Qwen3
from her_jax.roleplay import schema
from her_jax.roleplay.prompts import Variant
from her_jax.training import checkpoint

SCENES = schema.read_trajectories(samples.SCENES)[:4]


def save(folder: pathlib.Path, variant: Variant | None = None) -> pathlib.Path:
  """Writes it and gives the folder."""
  texts = (f"{t.plan} {t.speaker}: {t.reply}" for s in SCENES for t in s.turns)
  tokenizer = hf_tokenizer.train(texts, 500)
  config = dataclasses.replace(
    PRESETS["tiny"], vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64,
    num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, remat="none",
  )  # fmt: skip
  params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))[1]
  checkpoint.save(str(folder), 1, config, params, tokenizer, variant or Variant("brief"))
  return folder
