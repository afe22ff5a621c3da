"""Checkpoint -> sharded parameters. Every host reads only the blocks it will hold."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from her_jax.errors import ConfigError
from her_jax.hf import gguf, names
from her_jax.hf.source import Source, Tensor
from her_jax.models.config import ModelConfig, from_hf
from her_jax.models.qwen3 import abstract_model
from her_jax.sharding import shardings

_Tensors = Mapping[str, Tensor]


def load(
  folder: str | os.PathLike[str], *, mesh: jax.sharding.Mesh | None = None, **overrides: Any
) -> tuple[ModelConfig, nnx.GraphDef, nnx.State]:
  """Reads `config.json` and the safetensors beside it, or a GGUF file.

  Args:
    folder: On a local or mounted disk; the GGUF file itself, or a folder with one alone.
    mesh: Where the parameters go; one device when None.
    **overrides: Fields of `ModelConfig` the file does not decide: `dtype`, `param_dtype`,
      `remat`. Weights of any float type are cast to `param_dtype`.

  Returns:
    config, graphdef, params: `nnx.merge(graphdef, params)` is the model.

  Raises:
    FileNotFoundError: A file is not there.
    ConfigError: The model is unsupported, or names or shapes of the weights differ from what
      `config.json` or the metadata ask for; every one is listed.
  """
  folder = Path(folder)
  with _open(folder) as source:
    try:
      config = from_hf(source.hf, **overrides)
    except ValueError as error:
      raise ConfigError(f"{folder}: {error}") from None
    graphdef, abstract = abstract_model(config)
    weights = [
      dataclasses.replace(weight, name=source.rename(weight.name))
      for weight in names.weights(abstract)
    ]
    _check(folder, config, weights, source.tensors)
    return config, graphdef, _read(abstract, weights, source.tensors, mesh)


@contextlib.contextmanager
def _open(folder: Path) -> Iterator[Source]:
  """Opens every weights file; memory-mapped, so nothing is read yet."""
  if file := gguf.find(folder):
    yield gguf.read(file)
    return
  path = folder / "config.json"
  if not path.is_file():
    raise FileNotFoundError(
      f"{path} is missing: pass a local folder in Hugging Face format, or a .gguf file."
    )
  index = folder / "model.safetensors.index.json"
  if index.is_file():
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
  else:
    files = ["model.safetensors"]
  if missing := [name for name in files if not (folder / name).is_file()]:
    raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}.")
  with contextlib.ExitStack() as stack:
    opened = [stack.enter_context(safe_open(folder / name, "np")) for name in files]
    slices = {name: file.get_slice(name) for file in opened for name in file.keys()}
    yield Source(json.loads(path.read_text()), slices)


def _check(
  folder: Path, config: ModelConfig, weights: list[names.Weight], tensors: _Tensors
) -> None:
  """Raises unless names and shapes are exactly those expected, and a tied head is tied."""
  expected = {weight.name: weight.hf_shape for weight in weights}
  found = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
  unexpected = found.keys() - expected.keys()
  problems = []
  if config.tie_embeddings and names.LM_HEAD in unexpected and names.EMBEDDING in found:
    # The published small Qwen3 models store the tied head a second time.
    unexpected -= {names.LM_HEAD}
    if not np.array_equal(tensors[names.LM_HEAD][:], tensors[names.EMBEDDING][:]):
      problems.append(f"  differs from the embedding it is tied to: {names.LM_HEAD}")
  problems += [f"  missing: {name}" for name in expected if name not in found]
  problems += [f"  unexpected: {name}" for name in sorted(unexpected)]
  problems += [
    f"  shape {found[name]} instead of {shape}: {name}"
    for name, shape in expected.items()
    if name in found and found[name] != shape
  ]
  if problems:
    raise ConfigError(f"Weights in {folder} do not fit its config:\n" + "\n".join(problems))


def _read(
  abstract: nnx.State,
  weights: list[names.Weight],
  tensors: _Tensors,
  mesh: jax.sharding.Mesh | None,
) -> nnx.State:
  """Builds every parameter from the blocks that each local device holds."""
  parts: dict[str, list[names.Weight]] = defaultdict(list)
  for weight in weights:
    parts[weight.path].append(weight)
  if mesh is None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    places = dict.fromkeys(parts, one)
  else:
    places = names.flatten(shardings(abstract, mesh))

  def build(path: str, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    def block(index: Any) -> np.ndarray:
      bounds = [slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True)]
      out = np.empty([part.stop - part.start for part in bounds], dtype)
      if parts[path][0].layer is None:
        out[...] = _block(tensors, parts[path][0], bounds)
      else:
        for row, weight in zip(out, parts[path][bounds[0]], strict=True):
          row[...] = _block(tensors, weight, bounds[1:])
      return out

    return jax.make_array_from_callback(shape, places[path], block)

  arrays = [build(path, x.shape, x.dtype) for path, x in names.flatten(abstract).items()]
  return jax.tree.unflatten(jax.tree.structure(abstract), arrays)


def _block(tensors: _Tensors, weight: names.Weight, bounds: list[slice]) -> np.ndarray:
  """Our block of one tensor, in the file's dtype."""
  theirs = tensors[weight.name][weight.hf_block(bounds)]
  if not jnp.issubdtype(theirs.dtype, jnp.floating):
    raise ValueError(f"{weight.name} is {theirs.dtype}: quantised weights are unsupported.")
  return weight.from_hf(theirs, [part.stop - part.start for part in bounds])
