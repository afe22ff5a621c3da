"""AdamW with warm-up, cosine decay and clipping."""

from typing import Any

import jax
import ml_collections
import optax


def build(
  config: ml_collections.ConfigDict, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """The optimiser of `config.optimizer` for a run of `steps` updates.

  `learning_rate` is the peak, reached after `warmup_steps` and decayed by a cosine to
  `final_scale` of itself. Norms are not decayed: `weight_decay` acts on matrices alone.
  Moments are kept in float32.

  Returns:
    The transformation, and the schedule for logging.
  """
  warmup = min(config.warmup_steps, max(steps - 1, 0))
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=config.learning_rate / max(warmup, 1),
    peak_value=config.learning_rate,
    warmup_steps=warmup,
    decay_steps=max(steps, warmup + 1),
    end_value=config.learning_rate * config.final_scale,
  )
  transform = optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=_matrices,
      mu_dtype="float32",
    ),
  )
  return transform, schedule


def _matrices(params: Any) -> Any:
  """True for weights, False for norm scales, by name."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: "norm" not in jax.tree_util.keystr(path), params
  )
