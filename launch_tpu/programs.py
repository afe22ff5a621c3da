"""The programs that tasks run on all of a pod, lowered on shapes alone."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import ml_collections

from her_jax import sharding
from her_jax.inference import replicas
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.tasks import rl
from her_jax.training import lora, speed
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState
from launch_tpu import arithmetic

VALID_VOCAB = 151_669  # Qwen3's tokenizer.


def model_config(config: ml_collections.ConfigDict) -> ModelConfig:
  """The model that a task of `config` trains on TPU."""
  changes = {"remat": config.remat} if config.remat else {}
  return dataclasses.replace(PRESETS[config.model], attention="tree", **changes)


def adapted(config: ml_collections.ConfigDict) -> lora.Settings:
  """What is adapted in the place of training all weights."""
  return lora.settings(config.lora) if "lora" in config else lora.Settings()


def train(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """One update of SFT, of the judge or of RL, by `config.task`."""
  tuning, abstract = lora.abstract(model_config(config), adapted(config))
  places = sharding.shardings(abstract, mesh)
  params = jax.tree.map(placed, abstract, places)
  frozen = [
    jax.tree.map(placed, state, sharding.shardings(state, mesh)) for state in tuning.frozen
  ]
  updates = (
    config.rl.steps * config.rl.updates_per_step if config.task == "rl" else config.steps
  )
  optimizer, _ = optimizers.build(config.optimizer, updates)
  everywhere = sharding.replicated(mesh)
  like: Any = jax.tree.structure(params)
  moments = jax.tree.map(
    lambda part: jax.tree.map(
      placed, part, places if like == jax.tree.structure(part) else _same(part, everywhere)
    ),
    jax.eval_shape(optimizer.init, abstract),
    is_leaf=lambda part: like == jax.tree.structure(part),
  )
  count: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
  columns: dict[str, Any] = dict.fromkeys(
    ("tokens", "targets", "positions", "visible_until"), jnp.int32
  ) | {"loss_weights": jnp.float32}
  loss_fn = steps.next_token_loss(VALID_VOCAB)
  if config.task == "rl":
    columns |= dict.fromkeys(("advantages", "sampler_log_probs"), jnp.float32)
    loss_fn = rl.loss(config, VALID_VOCAB)
  batch = {
    name: _rows(mesh, (rows(config), config.data.length), dtype)
    for name, dtype in columns.items()
  }
  step: Any = steps.make_train_step(tuning.graphdef, optimizer, loss_fn, config.micro_batches)
  return step.lower(TrainState(count, params, moments), batch, *frozen)


def gather(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """The policy's weights, from how they are trained to a replica on every host."""
  _, abstract = abstract_model(model_config(config))
  params = jax.tree.map(placed, abstract, sharding.shardings(abstract, mesh))
  return replicas.gather(abstract, mesh, model_config(config).dtype).lower(params)


# Name of a program of the whole pod -> lowers it; those of one host are in `host_programs`.
ON_POD: Mapping[str, Callable[[ml_collections.ConfigDict, Mesh], Any]] = {
  "train": train,
  "gather": gather,
}


def needed_flops(config: ml_collections.ConfigDict, name: str) -> tuple[float, float]:
  """FLOPs of a program without anything computed twice: with weights, and in all."""
  if name == "gather":
    return 0.0, 0.0
  model, count, length = model_config(config), rows(config), config.data.length
  weights = float(speed.flops_per_token(model, adapted(config)) * count * length)
  attention = arithmetic.model_flops(model, count, length) - (
    6 * arithmetic.multiplied_weights(model) * count * length
  )
  return weights, weights + attention


def rows(config: ml_collections.ConfigDict) -> int:
  """Rows of one update's batch: of RL, the prompts that share it."""
  if config.task == "rl":
    return config.rl.prompts_per_step // config.rl.updates_per_step
  return config.batch_size


def _rows(mesh: Mesh, shape: tuple[int, int], dtype: Any) -> Any:
  spec = sharding.RULES.spec(("batch",), shape[:1], mesh)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def placed(value: Any, place: NamedSharding) -> Any:
  """The shape of an array, where it lies."""
  return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)


def _same(tree: Any, place: NamedSharding) -> Any:
  return jax.tree.map(lambda _: place, tree)
