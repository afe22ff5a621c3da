"""The clipped group-relative objective, over trees."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from data_pipeline import trees
from her_jax.inference.engine import Completion
from her_jax.models.qwen3 import Qwen3
from her_jax.training import losses


def group_tree(
  prompt: Sequence[int],
  completions: Sequence[Completion],
  advantages: Sequence[float],
  counted: Sequence[bool],
) -> dict[str, np.ndarray]:
  """One prompt with its group as one row: the prompt once, a branch a completion.

  The branches hold the sampled ids themselves. A completion that does not count (cut off, no
  verdict) weighs nothing and is left out of the row.
  """
  branches = [
    trees.Branch(
      at=len(prompt),
      ids=completion.ids,
      columns={
        "advantages": [advantage] * len(completion.ids),
        "sampler_log_probs": completion.logprobs,
      },
    )
    for completion, advantage, counts in zip(completions, advantages, counted, strict=True)
    if counts
  ]
  if not branches:  # Nothing to learn from; the row keeps its columns and weighs nothing.
    columns = {"advantages": [0.0], "sampler_log_probs": [0.0]}
    branches = [trees.Branch(len(prompt), [prompt[-1]], weights=[0.0], columns=columns)]
  return trees.lay_out(prompt, branches)


def clipped_policy_loss(
  *, valid_vocab: int, temperature: float, clip_low: float, clip_high: float
) -> Callable[
  [Qwen3, Mapping[str, jax.Array]], tuple[jax.Array, jax.Array, dict[str, jax.Array]]
]:
  """The loss function for `training.step.make_train_step`.

  Per sampled token, with ratio r = π(token) / π_sampler(token) and advantage A, it is
  −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A) (PPO, arXiv:1707.06347; the unequal clip
  and the sum over all tokens by one count are DAPO's, arXiv:2503.14476).
  """

  def loss_fn(
    model: Qwen3, batch: Mapping[str, jax.Array]
  ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    hidden, _ = model(batch["tokens"], batch["positions"], batch["visible_until"])
    weights, advantages = batch["loss_weights"], batch["advantages"]
    log_probs, entropy = losses.token_log_probs(
      hidden,
      model.head(),
      batch["targets"],
      weights,
      valid_vocab=valid_vocab,
      temperature=temperature,
    )
    # Where nothing is trained the sampler's log-probability is a filler: keep it out of exp.
    difference = jnp.where(weights != 0, log_probs - batch["sampler_log_probs"], 0.0)
    ratio = jnp.exp(difference)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped * advantages)
    sums = {
      "entropy": jnp.sum(weights * entropy),
      "clipped_share": jnp.sum(weights * (ratio * advantages > clipped * advantages)),
      "sampler_gap": jnp.sum(weights * jnp.abs(difference)),
    }
    return -jnp.sum(weights * gain), jnp.sum(weights), sums

  return loss_fn
