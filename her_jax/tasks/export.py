"""Writes a checkpoint in Hugging Face format."""

from typing import Any

from absl import logging
from etils import epath
import jax
import ml_collections

from her_jax.errors import ConfigError
from her_jax.hf import export as hf_export
from her_jax.training import checkpoint


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Exports `config.policy` to `workdir/export`; returns the folder."""
  if config.dtype not in hf_export.DTYPES:
    raise ConfigError(
      f"config.dtype is {config.dtype!r}; it must be one of {', '.join(hf_export.DTYPES)}"
    )
  model = checkpoint.load(config.policy, mesh, "config.policy")
  folder = (epath.Path(workdir) / "export").as_posix()
  hf_export.export_model(
    model.config, model.params, folder, tokenizer=model.tokenizer, dtype=config.dtype
  )
  logging.info("exported to %s", folder)
  return {"folder": folder}
