"""What to watch in reinforcement learning: rewards, collapse, and signs of hacking."""

from collections import Counter
from collections.abc import Hashable, Sequence
import hashlib

from flax import nnx
import jax
import numpy as np

from her_jax.evaluation import policy as policy_evaluation
from her_jax.rl.rollout import Group
from her_jax.roleplay import grammar, judging
from her_jax.roleplay.layouts import entropy_bits


def rollout_metrics(groups: Sequence[Group], advantages: np.ndarray) -> dict[str, float | None]:
  """Shares and means over one step's rollouts; layouts over the finished ones.

  `planted` is the share whose text could be taken for a verdict or a fence.
  """
  rollouts = [r for group in groups for r in group.rollouts]
  outcomes = [r.outcome for r in rollouts]
  layouts = [
    grammar.parse(r.text, group.scene.turns[group.turn].speaker).layout()
    for group in groups
    for r in group.rollouts
    if r.completion.finished
  ]
  count = len(rollouts)
  return {
    "reward_mean": float(np.mean([r.reward for r in rollouts])),
    "win": outcomes.count("win") / count,
    "tie": outcomes.count("tie") / count,
    "lose": outcomes.count("lose") / count,
    "unparsed": outcomes.count(None) / count,
    "truncated": sum(not r.completion.finished for r in rollouts) / count,
    "empty": sum(r.empty for r in rollouts) / count,
    "grammar_valid": sum(r.valid for r in rollouts) / count,
    "planted": sum(bool(judging.planted(r.text)) for r in rollouts) / count,
    "layout_entropy": entropy_bits(Counter(layouts)),
    "layout_top1": policy_evaluation.top_share(layouts),
    "completion_tokens": float(np.mean([len(r.completion.ids) for r in rollouts])),
    "equal_groups": float(np.mean(~np.any(advantages != 0, axis=1))),
  }


def reward_gain(
  steps: Sequence[Sequence[tuple[Hashable, float]]],
) -> tuple[float, float, float | None]:
  """Mean reward of the first and the last fifth of the steps, and their difference's error.

  The prompts are the independent units: completions of one prompt share a baseline. Where
  both fifths answer the same prompts the error is that of the mean difference within a
  prompt, which leaves out that some prompts are easier than others.

  Args:
    steps: for each step, each of its groups as (prompt, mean reward).

  Returns:
    first, last, standard error of (last − first); None for a single prompt.

  Raises:
    ValueError: fewer than five steps.
  """
  if len(steps) < 5:
    raise ValueError(f"{len(steps)} steps have no first and last fifth")
  fifth = len(steps) // 5
  first, last = (
    [group for step in part for group in step] for part in (steps[:fifth], steps[-fifth:])
  )
  before, after = _by_prompt(first), _by_prompt(last)
  if before.keys() == after.keys():
    gains = np.asarray([after[prompt] - before[prompt] for prompt in before])
    parts = [gains]
  else:
    parts = [np.asarray(list(means.values())) for means in (before, after)]
  error = None
  if min(part.size for part in parts) > 1:
    error = float(np.sqrt(sum(part.var(ddof=1) / part.size for part in parts)))
  means = [float(np.mean([reward for _, reward in part])) for part in (first, last)]
  return means[0], means[1], error


def _by_prompt(groups: Sequence[tuple[Hashable, float]]) -> dict[Hashable, float]:
  """The mean of each prompt's groups."""
  found: dict[Hashable, list[float]] = {}
  for prompt, reward in groups:
    found.setdefault(prompt, []).append(reward)
  return {prompt: float(np.mean(rewards)) for prompt, rewards in found.items()}


def fingerprint(params: nnx.State) -> str:
  """A short hash of the weights, to see which ones a sample came from."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    digest.update(np.asarray(jax.device_get(leaf)).tobytes())
  return digest.hexdigest()[:12]
