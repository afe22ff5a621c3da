"""Converts weights between a stage's checkpoint and the Hugging Face format."""

import os
import pathlib
from typing import Any

from absl import logging
from etils import epath
import jax
import jax.numpy as jnp
import ml_collections
from transformers import PreTrainedTokenizerBase

from her_jax.errors import ConfigError
from her_jax.hf import export as hf_export
from her_jax.hf import gguf
from her_jax.hf import load as hf_load
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.tasks import start
from her_jax.training import budget, checkpoint, workdirs

_FORMATS = ("huggingface", "orbax")


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Converts `config.source`; returns the folder that it went to."""
  output = config.output or (epath.Path(workdir) / "export").as_posix()
  from_folder = start.is_hugging_face(pathlib.Path(config.source)) if config.source else False
  _check(config, output, from_folder)
  tokenizer = _tokenizer(config, from_folder)
  if from_folder:
    _convert_folder(config, output, tokenizer, mesh)
  else:
    model = checkpoint.model_config(config.source, "config.source")
    _check_size(config, model, jnp.dtype(model.param_dtype).itemsize, tokenizer)
    model, _, params, *_ = checkpoint.load_params(config.source, mesh, "config.source")
    _write_folder(config, model, params, output, tokenizer)
  logging.info("exported to %s", output)
  return {"folder": output}


def _check(config: ml_collections.ConfigDict, output: str, from_folder: bool) -> None:
  """Raises, before anything is read, what the config alone gives away."""
  for field, allowed in (("dtype", hf_export.DTYPES), ("format", _FORMATS)):
    if config[field] not in allowed:
      raise ConfigError(
        f"config.{field} is {config[field]!r}; it must be one of {', '.join(allowed)}"
      )
  if not config.source:
    raise ConfigError(
      "config.source is empty; pass the workdir of a stage or a Hugging Face folder"
    )
  if "://" in output:
    raise ConfigError(
      f"config.output={output} is not a disk; mount the bucket and pass its path"
    )
  if os.path.realpath(config.source) == os.path.realpath(output):
    raise ConfigError(f"config.output={output} is the source itself; choose another folder")
  # An export that was broken off is begun anew, but not as a workdir: its weights would be read.
  begun = (
    config.format == "huggingface" and (pathlib.Path(output) / hf_export.INCOMPLETE).exists()
  )
  if (old := workdirs.weights_in(pathlib.Path(output))) and not begun:
    raise FileExistsError(f"{output} already holds {old}: delete them or pass a new folder")
  if not from_folder:
    if "://" not in config.source:
      start.require_folder(pathlib.Path(config.source), "config.source")
    checkpoint.require({"config.source": config.source})
  if config.format == "orbax":
    if not from_folder:
      raise ConfigError(
        f"config.format=orbax converts a Hugging Face folder, and {config.source} is the workdir"
        f" of a stage: use it as it is"
      )
    _refuse_checkpoints(output)


def _refuse_checkpoints(output: str) -> None:
  if checkpoint.is_finished(output):
    raise FileExistsError(f"{output} already holds checkpoints: pass a new folder")


def _tokenizer(
  config: ml_collections.ConfigDict, from_folder: bool
) -> PreTrainedTokenizerBase | None:
  """That of `config.tokenizer` or of the source; None where the source has none."""
  own = config.source if from_folder else (epath.Path(config.source) / "tokenizer").as_posix()
  described = gguf.find(own) if from_folder else None
  if not (config.tokenizer or described or (epath.Path(own) / "tokenizer.json").exists()):
    logging.warning(
      "%s holds no tokenizer.json, so the export has no tokenizer; --config.tokenizer adds one",
      own,
    )
    return None
  return checkpoint.read_tokenizer(config.tokenizer or own)


def _check_size(
  config: ml_collections.ConfigDict,
  model: ModelConfig,
  itemsize: int,
  tokenizer: PreTrainedTokenizerBase | None,
) -> None:
  """Raises where the model has too few rows for its tokenizer, or too much for the devices."""
  if tokenizer is not None:
    checkpoint.require_rows(model, tokenizer, f"--config.source={config.source}")
  budget.check_source(config.source, model, itemsize, jax.devices())


def _convert_folder(
  config: ml_collections.ConfigDict,
  output: str,
  tokenizer: PreTrainedTokenizerBase | None,
  mesh: jax.sharding.Mesh,
) -> None:
  """Loads a Hugging Face folder in the dtype that is asked for, and writes it."""
  preset = PRESETS[config.model]
  with start.damage_named("config.source", config.source):
    found = hf_load.read_config(config.source)
  _check_size(config, found, jnp.dtype(config.dtype).itemsize, tokenizer)
  with start.damage_named("config.source", config.source):
    model, _, params = hf_load.load(
      config.source, mesh=mesh, dtype=preset.dtype, param_dtype=config.dtype,
      remat=preset.remat, vocab_multiple=mesh.shape["tensor"],
    )  # fmt: skip
  if config.format == "orbax":
    with workdirs.alone_in(output):
      _refuse_checkpoints(output)  # Another run may have come to its end by now.
      checkpoint.clear_unfinished(output)
      checkpoint.save(output, 0, model, params, tokenizer, start.variant(config))
  else:
    _write_folder(config, model, params, output, tokenizer)


def _write_folder(
  config: ml_collections.ConfigDict,
  model: Any,
  params: Any,
  output: str,
  tokenizer: PreTrainedTokenizerBase | None,
) -> None:
  with workdirs.alone_in(output):
    hf_export.export_model(
      model, params, output, tokenizer, config.dtype, base_model=config.base_model
    )
