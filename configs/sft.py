"""Supervised fine-tuning on role-play scenes: plan, thoughts, deeds and speech.

    python -m her_jax.main --config=configs/sft.py:tiny --workdir=out/sft
    python -m her_jax.main --config=configs/sft.py:v5p-128 --workdir=/mnt/bucket/sft --config.init_from=/models/Qwen3-32B

Learning rate 2e-5 and global batch 32 are the paper's; warm-up, schedule and decay are open
there and chosen here.
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Qwen3-32B on a pod; `tiny` trains from random weights on a CPU in about a minute."""
  config = common.base("sft", arg)
  common.resumable(config)
  tiny = config.model == common.TINY
  # Of tiny: until most of the held-out loss is gained; the grammar of replies takes the
  # quickstart's 1800.
  config.steps = 450 if tiny else 2000
  config.batch_size = 2 if tiny else common.rows("sft", arg)
  if tiny:
    config.optimizer.learning_rate = 7e-3
    config.optimizer.weight_decay = 0.3
    config.optimizer.clip_norm = 10.0
  # Loss weight of the sheet and the history. HER trains on replies alone; the tiny model was
  # never pretrained and learns its language here.
  config.context_weight = 0.3 if tiny else 0.0
  # "trees": a conversation and character once, a branch for every reply. "replies": a row for
  # every reply, with the same loss and some 2.6 times the tokens, to compare with.
  config.data.rows = "trees"
  # Whether own replies also weigh 1 where they stand in the history, without their plans: the
  # loss on all turns, where HER's is on the last turn of each sample.
  config.all_turns = False
  # Loss weight of the name's first token. Who answers is decided in one token of the reply: at
  # weight 1 a model from random weights learns it last.
  config.name_weight = 20.0 if tiny else 1.0
  # Whether each reply is also read behind its speaker's name alone, see rendering.reply_trees.
  config.short_copies = tiny
  config.sampling = common.sampling(tiny)
  # Held-out replies sampled before and after; 0 skips it.
  config.eval_samples = 32 if tiny else 96
  return config
