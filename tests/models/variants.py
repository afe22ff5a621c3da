"""Configs of every kind that is implemented: the presets, and rotary scalings."""

import dataclasses

from her_jax.models.config import PRESETS, RopeScaling

_YARN = RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)
_LLAMA3 = RopeScaling(
  rope_type="llama3",
  factor=8.0,
  original_max_position_embeddings=512,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
)
VARIANTS = {
  **PRESETS,
  "yarn": dataclasses.replace(PRESETS["qwen3-0.6b"], rope_scaling=_YARN),
  "yarn with all options": dataclasses.replace(
    PRESETS["tiny"],
    rope_scaling=dataclasses.replace(
      _YARN, beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=1.0, truncate=False
    ),
  ),
  "linear": dataclasses.replace(
    PRESETS["tiny"], rope_scaling=RopeScaling(rope_type="linear", factor=2.5)
  ),
  "llama": dataclasses.replace(PRESETS["tiny"], qk_norm=False, tie_embeddings=False),
  "llama3": dataclasses.replace(PRESETS["tiny"], qk_norm=False, rope_scaling=_LLAMA3),
}
