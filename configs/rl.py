"""Reinforcement learning: the policy samples, the judge compares, the policy learns.

    python -m her_jax.main --config=configs/rl.py:tiny --workdir=out/rl --config.policy=out/sft --config.judge.checkpoint=out/genrm
    python -m her_jax.main --config=configs/rl.py --workdir=/mnt/bucket/rl --config.policy=/mnt/bucket/sft --config.judge.checkpoint=/mnt/bucket/genrm

It samples on one host for now: a single TPU VM, not a slice of several.

A frozen copy of the policy's first weights writes the baseline reply; win +1, tie 0, lose −1.
Group size, rates, clip and lengths are open in the paper and chosen here.
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Qwen3-32B on a pod; `tiny` moves the quickstart's policy on a CPU in minutes."""
  config = common.base("rl", arg)
  tiny = config.model == common.TINY
  # The workdir of the SFT stage: start of the policy, and its frozen opponent.
  config.policy = "out/quickstart/sft" if tiny else ""
  config.judge = common.judge(tiny)
  config.judge.checkpoint = "out/quickstart/genrm" if tiny else ""
  config.sampling = common.sampling(tiny)
  if tiny:
    # Its replies at 1 are noise enough to cost the tiny model grammar.
    config.sampling.temperature = 0.7
  config.rl = ml_collections.ConfigDict()
  config.rl.steps = 25 if tiny else 400
  # Turns that the policy answers, spread over the training scenes; 0: all. The tiny set is gone
  # through five times, so that the last fifth of the steps answers the turns of the first.
  config.rl.prompts = 80 if tiny else 0
  config.rl.prompts_per_step = 16 if tiny else 2 * common.rows("rl", arg)
  config.rl.group_size = 4 if tiny else 8
  # HER lets the judge decide alone. With False a reply that is no valid turn loses unjudged:
  # broken grammar is not among what the tiny judge was shown.
  config.rl.judge_invalid = not tiny
  # Updates from one batch of rollouts; each takes its share of the prompts.
  config.rl.updates_per_step = 2
  config.rl.clip_low = 0.2
  config.rl.clip_high = 0.28
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 7e-4 if tiny else 1e-6
  config.optimizer.warmup_steps = 10
  config.optimizer.weight_decay = 0.0
  config.log_every = 1
  # A prompt and its group: prompt_length + group_size · (max_new_tokens + 1), at most.
  config.data.length = 976 if tiny else 32768
  config.eval_samples = 48
  return config
