"""Converts weights: a stage's checkpoint to a Hugging Face folder, or one such folder to another.

    python -m her_jax.main --config=configs/export.py --workdir=out/export --config.source=out/rl
    python -m her_jax.main --config=configs/export.py --workdir=out/half --config.source=/models/Qwen3-8B --config.dtype=bfloat16
    python -m her_jax.main --config=configs/export.py --workdir=out/qwen --config.source=/models/Qwen3-8B --config.format=orbax

The last writes a workdir that a stage starts from, as it would from one of an earlier stage.
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """The size is that of the source; `tiny` names the quickstart's policy as the source."""
  config = common.base("export", arg)
  # The workdir of a stage, or a Hugging Face folder.
  config.source = "out/quickstart/rl" if config.model == common.TINY else ""
  # Empty: workdir/export.
  config.output = ""
  # huggingface, or orbax: the checkpoint of a workdir, of a Hugging Face folder alone.
  config.format = "huggingface"
  # float32 keeps the trained values; bfloat16 is half as large. Train from float32.
  config.dtype = "float32"
  # For the model card: the model that training began from, such as Qwen/Qwen3-32B.
  config.base_model = ""
  return config
