"""The judge: a pairwise generative reward model, trained on judgements of reply pairs.

python -m her_jax.main --config=configs/genrm.py:tiny --workdir=out/genrm --config.init_from=out/sft
python -m her_jax.main --config=configs/genrm.py:v5p-128 --workdir=/mnt/bucket/genrm --config.init_from=/models/Qwen3-32B
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Qwen3-32B on a pod; `tiny` continues from the SFT checkpoint on a CPU."""
  config = common.base("genrm", arg)
  common.resumable(config)
  tiny = config.model == common.TINY
  config.steps = 900 if tiny else 2000
  config.batch_size = 1 if tiny else common.rows("genrm", arg)
  if tiny:
    config.init_from = "out/quickstart/sft"
    config.optimizer.learning_rate = 7e-3
    config.data.length = 896
    config.data.word_dropout = 0.1
  # Loss weight of the few tokens that say which candidate is meant.
  config.verdict_weight = 20.0 if tiny else 1.0
  config.judge = common.judge(tiny)
  # Held-out pairs judged at the end, at most, each in both orders; 0 skips it.
  config.eval_pairs = 160 if tiny else 10_000
  return config
