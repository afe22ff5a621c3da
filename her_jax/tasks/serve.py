"""Serves a policy over HTTP."""

import dataclasses
import os
import pathlib

from absl import logging
from flax import nnx
import jax
import ml_collections

from her_jax.errors import ConfigError
from her_jax.inference.engine import Engine
from her_jax.inference.replicas import RolloutWeights
from her_jax.roleplay import chat
from her_jax.tasks import start
from her_jax.training import checkpoint

try:
  from her_jax.serving import layers, server
  from her_jax.serving.service import Service, Settings
  from her_jax.serving.worker import Worker
except ModuleNotFoundError as error:
  if error.name is None or error.name.split(".")[0] == "her_jax":
    raise
  raise ConfigError(
    f"the server needs the package {error.name}: pip install -c requirements-pinned.txt -e"
    f" '.[serve]'"
  ) from None


def run(config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh) -> None:
  """Serves `config.policy` until SIGTERM; every host of a pod serves on its own.

  Raises:
    ConfigError: the settings contradict each other, or the address cannot be taken.
    checkpoint.MissingCheckpoint: there is no policy.
  """
  settings = read_settings(config)
  server.require_key(config.serve.host, settings.api_key)
  server.listen(config.serve.host, config.serve.port).close()
  limits = start.engine_limits(config.engine, config.sampling)
  model = load_policy(config, mesh)
  weights = RolloutWeights(model.params, mesh, model.config.dtype)
  loaded = [model.params]  # Given away, so that memory holds the copy alone.
  model = dataclasses.replace(model, params=nnx.State({}))

  def build() -> Engine:
    params = weights(loaded.pop())
    engine = Engine(
      model.config, model.graphdef, params, limits, valid_vocab=len(model.tokenizer)
    )
    chat.encode_text("", model.tokenizer)  # Large vocabularies take seconds once.
    engine.warm_up()
    return engine

  worker = Worker(
    build,
    most=limits.rows + config.serve.max_queue,
    mesh=weights.mesh,
    patience_s=config.serve.timeout_s,
  )
  service = Service(worker, model.tokenizer, settings, model.variant)
  logging.info("Serving %s as %r", config.policy, settings.name)
  server.run(service, config.serve.host, config.serve.port, config.serve.grace_s)


def read_settings(config: ml_collections.ConfigDict) -> Settings:
  """What the config allows.

  Raises:
    ConfigError: a value is none of those that there are, or the key's variable is empty.
  """
  serve, sampling = config.serve, config.sampling
  if serve.show not in layers.LEVELS:
    raise ConfigError(
      f"config.serve.show is {serve.show!r}; it must be one of {', '.join(layers.LEVELS)}"
    )
  key = os.environ.get(serve.api_key_env, "") if serve.api_key_env else ""
  if serve.api_key_env and not key:
    raise ConfigError(
      f"config.serve.api_key_env names {serve.api_key_env}, which the environment does not have:"
      f" set it to the key, or leave the field empty"
    )
  return Settings(
    name=serve.model_name or pathlib.Path(config.policy).name,
    prompt_length=sampling.prompt_length,
    max_new_tokens=sampling.max_new_tokens,
    temperature=sampling.temperature,
    most_choices=config.engine.rows,
    show=serve.show,
    timeout_s=serve.timeout_s,
    max_body_bytes=serve.max_body_bytes,
    api_key=key,
  )


def load_policy(
  config: ml_collections.ConfigDict, mesh: jax.sharding.Mesh
) -> checkpoint.Checkpoint:
  """The model of `config.policy`, whatever kind of folder that is.

  Raises:
    ConfigError, checkpoint.MissingCheckpoint: naming the field.
  """
  policy = config.policy
  if not policy:
    raise ConfigError(
      "config.policy is empty; pass the workdir of a stage, a Hugging Face folder or a GGUF file"
    )
  if start.is_hugging_face(pathlib.Path(policy)):
    return start.load_folder(policy, config, mesh, "config.policy", trained=False)
  start.require_folder(pathlib.Path(policy), "config.policy")
  return checkpoint.load(policy, mesh, "config.policy", config.tokenizer)
