"""Group-relative advantages (GRPO, arXiv:2402.03300)."""

import numpy as np

_EPSILON = 1e-4


def group_relative(rewards: np.ndarray, counted: np.ndarray) -> np.ndarray:
  """`(reward − mean) / (deviation + ε)` within each group.

  Rewards that differ by less than rounding count as equal and give exactly 0: eight rewards
  of 0.35 with a mean off by one bit must not be blown up by a deviation of 1e-8.

  Args:
    rewards: float [prompts, group].
    counted: bool [prompts, group]; False leaves a completion out of mean and deviation, and
      its advantage is 0 (no verdict, or cut off).

  Returns:
    float64 [prompts, group].
  """
  rewards = np.asarray(rewards, np.float64)
  result = np.zeros_like(rewards)
  for row, values, use in zip(result, rewards, np.asarray(counted, bool), strict=True):
    chosen = values[use]
    if chosen.size < 2 or np.ptp(chosen) < 1e-6:
      continue
    row[use] = (chosen - chosen.mean()) / (chosen.std() + _EPSILON)
  return result
