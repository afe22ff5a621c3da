"""Measures a policy, and a judge if one is named, on held-out scenes.

python -m her_jax.main --config=configs/evaluate.py:tiny --workdir=out/evaluate --config.policy=out/rl --config.judge.checkpoint=out/genrm
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """The size is that of the checkpoints; `tiny` sets lengths for the sample corpus."""
  config = common.base("evaluate", arg)
  tiny = config.model == common.TINY
  config.policy = "out/quickstart/rl" if tiny else ""
  # The opponent in the win rate, often the SFT workdir; empty leaves the win rate out.
  config.baseline = "out/quickstart/sft" if tiny else ""
  config.judge = common.judge(tiny)
  config.judge.checkpoint = "out/quickstart/genrm" if tiny else ""
  config.sampling = common.sampling(tiny)
  config.eval_samples = 48
  config.eval_pairs = 160 if tiny else 10_000
  return config
