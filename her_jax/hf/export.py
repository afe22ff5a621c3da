"""Parameters -> Hugging Face folder, tensor by tensor: no host ever holds the model."""

from collections.abc import Iterable
import json
import math
import os
from pathlib import Path
from typing import Any

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from her_jax.hf import names
from her_jax.models.config import ModelConfig, to_hf
from her_jax.models.qwen3 import abstract_model
from her_jax.sharding import replicated

DTYPES = ("float32", "bfloat16")


def export_model(
  config: ModelConfig,
  params: nnx.State,
  folder: str | os.PathLike[str],
  tokenizer: Any | None = None,
  dtype: str = "float32",
  max_shard_bytes: int = 5 * 2**30,
) -> None:
  """Writes a folder that `transformers.AutoModelForCausalLM` loads.

  Every host must call it, as sharded parameters are gathered tensor by tensor; the first
  host writes. It holds one shard file in memory at a time.

  Args:
    config: The model.
    params: Its parameters, sharded or not.
    folder: On a local or mounted disk; made if missing.
    tokenizer: Of transformers; saved beside the weights, and gives the stop ids.
    dtype: Of the written weights: "float32" or "bfloat16".
    max_shard_bytes: Size above which a new weights file begins.

  Raises:
    FileExistsError: The folder holds weights; mixed with these, they could be loaded instead.
    ValueError: The dtype is another one, or the parameters are not those of the config, as
      with a head of their own though the config ties it to the embedding.
  """
  if "://" in os.fspath(folder):
    raise ValueError(f"{folder} is not a disk: export to a local folder, then copy it.")
  if dtype not in DTYPES:
    raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
  folder = Path(folder)
  _check(config, params)
  if old := sorted(path.name for path in folder.glob("*.safetensors*")):
    raise FileExistsError(f"{folder} already holds {old}: delete them or pass a new folder.")
  _meet("export: folder checked")

  writes = jax.process_index() == 0
  if writes:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", to_hf(config, dtype))
    _write_json(folder / "generation_config.json", _generation_config(tokenizer))
    if tokenizer is not None:
      tokenizer.save_pretrained(folder)

  arrays = names.flatten(params)
  shards = _plan(names.weights(params), jnp.dtype(dtype).itemsize, max_shard_bytes)
  files = _file_names(len(shards))
  for file, shard in zip(files, shards, strict=True):
    tensors = {}
    for weight in shard:
      array = weight.to_hf(_fetch(arrays[weight.path], weight.layer))
      if writes:
        tensors[weight.name] = np.ascontiguousarray(array, jnp.dtype(dtype))
    if writes:
      save_file(tensors, folder / file, metadata={"format": "pt"})
  if writes and len(files) > 1:
    size = jnp.dtype(dtype).itemsize * config.num_params()
    weight_map = {
      w.name: file for file, shard in zip(files, shards, strict=True) for w in shard
    }
    _write_json(
      folder / "model.safetensors.index.json",
      {"metadata": {"total_size": size}, "weight_map": weight_map},
    )
  _meet("export: written")


def _check(config: ModelConfig, params: nnx.State) -> None:
  """Raises unless the parameters have the names and shapes of the config."""

  def shapes(state: nnx.State) -> dict[str, tuple[int, ...]]:
    return {path: tuple(array.shape) for path, array in names.flatten(state).items()}

  expected, found = shapes(abstract_model(config)[1]), shapes(params)
  if wrong := sorted({name for name, _ in expected.items() ^ found.items()}):
    lines = [f"  {n}: {found.get(n, 'absent')}, not {expected.get(n, 'absent')}" for n in wrong]
    raise ValueError("Parameters do not fit the config:\n" + "\n".join(lines))


def _plan(
  weights: Iterable[names.Weight], itemsize: int, max_shard_bytes: int
) -> list[list[names.Weight]]:
  """Fills files in order; a tensor larger than the limit gets one to itself."""
  shards: list[list[names.Weight]] = [[]]
  used = 0
  for weight in weights:
    size = math.prod(weight.shape) * itemsize
    if shards[-1] and used + size > max_shard_bytes:
      shards.append([])
      used = 0
    shards[-1].append(weight)
    used += size
  return shards


def _file_names(count: int) -> list[str]:
  """`model.safetensors`, or `model-00001-of-00003.safetensors` and on."""
  if count == 1:
    return ["model.safetensors"]
  return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def _take(value: jax.Array, layer: int | None) -> jax.Array:
  return value if layer is None else value[layer]


def _fetch(value: jax.Array, layer: int | None) -> np.ndarray:
  """One tensor on this host, gathered from all where it is spread over a mesh."""
  if isinstance(value.sharding, jax.sharding.NamedSharding):
    gather = jax.jit(_take, out_shardings=replicated(value.sharding.mesh))
    return np.asarray(gather(value, layer))
  return np.asarray(_take(value, layer))


def _generation_config(tokenizer: Any | None) -> dict[str, Any]:
  """Sampling as Qwen3 publishes it; the padding token stops a reply too."""
  sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
  if tokenizer is None:
    return sampling
  ids = (tokenizer.eos_token_id, tokenizer.pad_token_id)
  stops = list(dict.fromkeys(i for i in ids if i is not None))
  return {"eos_token_id": stops, "pad_token_id": tokenizer.pad_token_id, **sampling}


def _write_json(path: Path, value: dict[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2) + "\n")


def _meet(name: str) -> None:
  """Waits for all hosts."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
