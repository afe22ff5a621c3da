"""Supervised fine-tuning on role-play scenes: plan, thoughts, deeds and speech.

    python -m her_jax.main --config=configs/sft.py:tiny --workdir=out/sft
    python -m her_jax.main --config=configs/sft.py --workdir=/mnt/bucket/sft --config.init_from=/models/Qwen3-32B

Learning rate 2e-5 and global batch 32 are the paper's; warm-up, schedule and decay are open
there and chosen here.
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Qwen3-32B on a pod; `tiny` trains from random weights on a CPU in minutes."""
  config = common.base("sft", arg)
  tiny = config.model == common.TINY
  config.steps = 1500 if tiny else 2000
  config.batch_size = 1 if tiny else 32
  if tiny:
    config.optimizer.learning_rate = 4e-3
  # Loss weight of the sheet and the history. HER trains on replies alone; the tiny model was
  # never pretrained and learns its language here.
  config.context_weight = 0.3 if tiny else 0.0
  config.sampling = common.sampling(tiny)
  # Held-out replies sampled before and after; 0 skips it.
  config.eval_samples = 48
  return config
