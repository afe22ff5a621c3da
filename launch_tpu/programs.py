"""The programs that tasks run on a pod, lowered on shapes alone."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import ml_collections

from her_jax import sharding
from her_jax.inference import replicas
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.models.qwen3 import KVCache, abstract_model, init_cache
from her_jax.tasks import rl
from her_jax.training import lora, speed
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState
from launch_tpu import arithmetic

_VALID_VOCAB = 151_669  # Qwen3's tokenizer.


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
  params = jax.tree.map(_placed, abstract, places)
  frozen = [
    jax.tree.map(_placed, state, sharding.shardings(state, mesh)) for state in tuning.frozen
  ]
  updates = (
    config.rl.steps * config.rl.updates_per_step if config.task == "rl" else config.steps
  )
  optimizer, _ = optimizers.build(config.optimizer, updates)
  everywhere = sharding.replicated(mesh)
  like: Any = jax.tree.structure(params)
  moments = jax.tree.map(
    lambda part: jax.tree.map(
      _placed, part, places if like == jax.tree.structure(part) else _same(part, everywhere)
    ),
    jax.eval_shape(optimizer.init, abstract),
    is_leaf=lambda part: like == jax.tree.structure(part),
  )
  count: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
  columns: dict[str, Any] = dict.fromkeys(
    ("tokens", "targets", "positions", "visible_until"), jnp.int32
  ) | {"loss_weights": jnp.float32}
  loss_fn = steps.next_token_loss(_VALID_VOCAB)
  if config.task == "rl":
    columns |= dict.fromkeys(("advantages", "sampler_log_probs"), jnp.float32)
    loss_fn = rl.loss(config, _VALID_VOCAB)
  batch = {
    name: _rows(mesh, (rows(config), config.data.length), dtype)
    for name, dtype in columns.items()
  }
  step: Any = steps.make_train_step(tuning.graphdef, optimizer, loss_fn, config.micro_batches)
  return step.lower(TrainState(count, params, moments), batch, *frozen)


def gather(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """The policy's weights, from how they are trained to a replica on every host."""
  _, abstract = abstract_model(model_config(config))
  params = jax.tree.map(_placed, abstract, sharding.shardings(abstract, mesh))
  return replicas.gather(abstract, mesh, model_config(config).dtype).lower(params)


def prefill(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """The prompts of one call read into an empty cache, on one host."""
  graphdef, params, cache = _sampling(config, mesh)
  prompts, length = config.sampling.prompts_per_call, config.sampling.prompt_length

  @jax.jit(donate_argnums=1)
  def run(params, cache, tokens, positions, visible_until):
    model = nnx.merge(graphdef, params)
    hidden, cache = model(tokens, positions, visible_until, cache)
    return model.logits(hidden[:, -1]), cache

  whole = _rows(mesh, (prompts, length), jnp.int32)
  return run.lower(params, cache, whole, whole, whole)


def decode(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """One token more of every completion, side by side in the prompts' rows, on one host."""
  graphdef, params, cache = _sampling(config, mesh)

  @jax.jit(donate_argnums=1)
  def run(params, cache, tokens, positions, visible_until, slots):
    model = nnx.merge(graphdef, params)
    hidden, cache = model(tokens, positions, visible_until, cache, slots=slots)
    return model.logits(hidden), cache

  group = _group(config)
  new = _rows(mesh, (config.sampling.prompts_per_call, group), jnp.int32)
  slots: Any = jax.ShapeDtypeStruct((group,), jnp.int32, sharding=sharding.replicated(mesh))
  return run.lower(params, cache, new, new, new, slots)


# Programs of the whole pod, and those of one host of it.
ON_POD: Mapping[str, Callable[[ml_collections.ConfigDict, Mesh], Any]] = {
  "train": train,
  "gather": gather,
}
ON_HOST: Mapping[str, Callable[[ml_collections.ConfigDict, Mesh], Any]] = {
  "prefill": prefill,
  "decode": decode,
}


def batch_shape(config: ml_collections.ConfigDict, name: str) -> tuple[int, int]:
  """Rows and tokens a row that a program works on: of `decode`, one token a completion."""
  if name == "prefill":
    return config.sampling.prompts_per_call, config.sampling.prompt_length
  if name == "decode":
    return config.sampling.prompts_per_call * _group(config), 1
  return rows(config), config.data.length


def needed_flops(config: ml_collections.ConfigDict, name: str) -> tuple[float, float]:
  """FLOPs of a program without anything computed twice: with weights, and in all."""
  model = model_config(config)
  count, length = batch_shape(config, name)
  if name == "gather":
    return 0.0, 0.0
  if name == "train":
    weights = float(speed.flops_per_token(model, adapted(config)) * count * length)
    attention = arithmetic.model_flops(model, count, length) - (
      6 * arithmetic.multiplied_weights(model) * count * length
    )
    return weights, weights + attention
  head = model.vocab_size * model.hidden_size
  # Only the last position of a prompt is multiplied with the head.
  weights = 2 * count * ((arithmetic.multiplied_weights(model) - head) * length + head)
  seen = length * (length + 1) / 2
  if name == "decode":
    seen = config.sampling.prompt_length + config.sampling.max_new_tokens
  attention = 2 * 2 * model.num_layers * model.num_heads * model.head_dim * seen * count
  return weights, weights + attention


def rows(config: ml_collections.ConfigDict) -> int:
  """Rows of one update's batch: of RL, the prompts that share it."""
  if config.task == "rl":
    return config.rl.prompts_per_step // config.rl.updates_per_step
  return config.batch_size


def _group(config: ml_collections.ConfigDict) -> int:
  return config.rl.group_size if config.task == "rl" else 1


def _sampling(
  config: ml_collections.ConfigDict, mesh: Mesh
) -> tuple[nnx.GraphDef, nnx.State, KVCache]:
  """Weights in the dtype of the computation, and the cache of one call, on a host's chips."""
  model = model_config(config)
  graphdef, abstract = abstract_model(dataclasses.replace(model, param_dtype=model.dtype))
  params = jax.tree.map(_placed, abstract, sharding.shardings(abstract, mesh))
  settings = config.sampling
  slots = settings.prompt_length + _group(config) * settings.max_new_tokens
  shapes = jax.eval_shape(lambda: init_cache(model, settings.prompts_per_call, slots))
  kv = ("layers", "batch", "kv_heads", "slots", "head_dim")
  at = lambda x, *names: _placed(
    x, NamedSharding(mesh, sharding.RULES.spec(names, x.shape, mesh))
  )
  cache = KVCache(
    keys=at(shapes.keys, *kv),
    values=at(shapes.values, *kv),
    visible_until=at(shapes.visible_until, "batch", "slots"),
    index=at(shapes.index),
  )
  return graphdef, params, cache


def _rows(mesh: Mesh, shape: tuple[int, int], dtype: Any) -> Any:
  spec = sharding.RULES.spec(("batch",), shape[:1], mesh)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def _placed(value: Any, place: NamedSharding) -> Any:
  return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)


def _same(tree: Any, place: NamedSharding) -> Any:
  return jax.tree.map(lambda _: place, tree)
