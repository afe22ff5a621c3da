"""Writes a checkpoint as a Hugging Face folder: weights, config, tokenizer, chat template.

python -m her_jax.main --config=configs/export.py:tiny --workdir=out/export --config.policy=out/rl
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """The folder is `workdir/export`."""
  config = common.base("export", arg)
  config.policy = "out/quickstart/rl" if config.model == common.TINY else ""
  # float32 keeps the trained values; bfloat16 is half as large.
  config.dtype = "float32"
  return config
