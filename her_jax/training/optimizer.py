"""AdamW or Muon with warm-up, cosine decay and clipping."""

from typing import Any, NamedTuple

import jax
import ml_collections
import optax
import optax.contrib

from her_jax.errors import ConfigError


def build(
  config: ml_collections.ConfigDict, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """The optimiser of `config.optimizer` for a run of `steps` updates.

  `learning_rate` is the peak, reached after `warmup_steps` and decayed by a cosine to
  `final_scale` of itself. Norms are not decayed: `weight_decay` acts on matrices alone.
  Moments are kept in float32.

  With `name` "muon" the matrices inside the layers are updated, and decayed, by Muon (Jordan 2024,
  https://kellerjordan.github.io/posts/muon) at `muon_scale` times the rate, all else by Adam with Nesterov momentum; so are adapters.

  With `ema` the state also keeps a running mean of the parameters, see `averaged`.

  Returns:
    The transformation, and the schedule for logging.

  Raises:
    ConfigError: another `name`, or an `ema` that is no decay.
  """
  warmup = min(config.warmup_steps, max(steps - 1, 0))
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=config.learning_rate / max(warmup, 1),
    peak_value=config.learning_rate,
    warmup_steps=warmup,
    decay_steps=max(steps, warmup + 1),
    end_value=config.learning_rate * config.final_scale,
  )
  update: optax.GradientTransformation
  if config.name == "adamw":
    update = optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=_matrices,
      mu_dtype="float32",
    )
  elif config.name == "muon":
    update = optax.contrib.muon(
      lambda step: config.muon_scale * schedule(step),
      weight_decay=config.weight_decay / config.muon_scale,
      adam_learning_rate=schedule,
      adam_b1=config.b1,
      adam_b2=config.b2,
      mu_dtype="float32",
      muon_weight_dimension_numbers=_contractions,
    )
  else:
    raise ConfigError(f"optimizer.name is {config.name!r}; there are 'adamw' and 'muon'")
  steps_of = [optax.clip_by_global_norm(config.clip_norm), update]
  if decay := config.get("ema", 0.0):
    if not 0 < decay < 1:
      raise ConfigError(f"optimizer.ema is {decay}; give a decay below 1, or 0 for none")
    steps_of.append(_average(decay))
  return optax.chain(*steps_of), schedule


class _Average(NamedTuple):
  """The running mean of the parameters, as a part of the optimiser's state: it is saved,
  restored and split over the devices as moments are."""

  params: Any


def _average(decay: float) -> optax.GradientTransformation:
  """Changes no update; keeps `decay` x mean + (1 - decay) x parameters after each."""

  def update(updates: Any, state: _Average, params: Any = None) -> tuple[Any, _Average]:
    new = optax.apply_updates(params, updates)
    return updates, _Average(optax.incremental_update(new, state.params, 1 - decay))

  return optax.GradientTransformation(_Average, update)


def averaged(opt_state: Any) -> Any:
  """The running mean of the parameters; None where none is kept."""
  found = [part for part in opt_state if isinstance(part, _Average)]
  return found[0].params if found else None


def _contractions(params: Any) -> Any:
  """For each weight that Muon updates, the axes it contracts and those it makes; else None.

  The leading axis of layers is in neither: a matrix a layer.
  """

  def axes(path: Any, _: Any) -> optax.contrib.MuonDimensionNumbers | None:
    name = jax.tree_util.keystr(path)
    if "layers" not in name or "norm" in name or "adapter" in name:
      return None
    if "attention" not in name:
      return optax.contrib.MuonDimensionNumbers((1,), (2,))
    if "'o'" in name:
      return optax.contrib.MuonDimensionNumbers((1, 2), (3,))
    return optax.contrib.MuonDimensionNumbers((1,), (2, 3))

  return jax.tree_util.tree_map_with_path(axes, params)


def _matrices(params: Any) -> Any:
  """True for weights, False for norm scales, by name."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: "norm" not in jax.tree_util.keystr(path), params
  )
