"""Parameters -> Hugging Face folder, tensor by tensor: no host ever holds the model."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
import json
import math
import os
from pathlib import Path
from typing import Any

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from her_jax.errors import ConfigError
from her_jax.hf import folder as hf_folder
from her_jax.hf import model_card, names, tensor_file
from her_jax.hf.config import to_hf
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.sharding import replicated

DTYPES = ("float32", "bfloat16")
# A file of this name lies in the folder until all the others are whole.
INCOMPLETE = "INCOMPLETE"
_CARD, _GENERATION = "README.md", "generation_config.json"
# All that an export may write, tokenizers of every kind included, and what a reader of the
# folder would take for a part of it.
_OWN = (
  hf_folder.CONFIG, _CARD, _GENERATION, "*.safetensors*", "tokenizer.*", "tokenizer_config.json",
  "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.*",
  "additional_chat_templates/*.jinja",
)  # fmt: skip
# What a thread makes ready for writing in one turn, and how many such wait for it.
_PIECE_BYTES = 8 * 2**20
_WORKERS = min(8, os.cpu_count() or 1)
_WINDOW = _WORKERS + 1


def export_model(
  config: ModelConfig,
  params: nnx.State,
  folder: str | os.PathLike[str],
  tokenizer: Any | None = None,
  dtype: str = "float32",
  max_shard_bytes: int = 5 * 2**30,
  base_model: str = "",
) -> None:
  """Writes a folder that `transformers.AutoModelForCausalLM` loads.

  Every host must call it, as sharded parameters are gathered tensor by tensor; the first
  host writes. Its memory holds one tensor at a time, and on a CPU not even that.

  The index and `config.json`, without which nothing loads the folder, are written last, and
  until then a file INCOMPLETE lies in it. Such a folder is begun anew by the next export: what
  an export may write is removed. Any other folder that holds some of it is refused.

  Args:
    config: The model.
    params: Its parameters, sharded or not.
    folder: On a local or mounted disk; made if missing.
    tokenizer: Of transformers; saved beside the weights, and gives the stop ids.
    dtype: Of the written weights: "float32" or "bfloat16".
    max_shard_bytes: Size above which a new weights file begins.
    base_model: Its name on the Hugging Face hub, for the model card; "" if unknown.

  Raises:
    FileExistsError: The folder holds files of the names that are written, or others that would
      be loaded with them, as weights or a tokenizer.
    ConfigError: The dtype is another one, or the folder is not on a disk.
    ValueError: The parameters are not those of the config, as with a head of their own though
      the config ties it to the embedding.
  """
  if "://" in os.fspath(folder):
    raise ConfigError(f"{folder} is not a disk: export to a local folder, then copy it.")
  if dtype not in DTYPES:
    raise ConfigError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
  folder = Path(folder)
  _check(config, params)
  if not (folder / INCOMPLETE).exists() and (old := _remains(folder)):
    found = ", ".join(path.relative_to(folder).as_posix() for path in old)
    raise FileExistsError(f"{folder} already holds {found}: delete them or pass a new folder.")
  _meet("export: folder checked")

  writes = jax.process_index() == 0
  if writes:
    _begin(folder)
    card = model_card.text(config, dtype, base_model, tokenizer is not None)
    (folder / _CARD).write_text(card, encoding="utf-8")
    _write_json(folder / _GENERATION, _generation_config(tokenizer))
    if tokenizer is not None:
      tokenizer.save_pretrained(folder)

  arrays = names.flatten(params)
  kind = np.dtype(jnp.dtype(dtype))
  weights = names.weights(params, config.vocab_size)
  shards = _plan(weights, kind.itemsize, max_shard_bytes)
  files = _file_names(len(shards))
  with ThreadPoolExecutor(_WORKERS) as pool:
    for file, shard in zip(files, shards, strict=True):
      tensors = ((weight, _fetch(arrays[weight.path], weight, writes)) for weight in shard)
      if writes:
        _write_shard(folder / file, shard, tensors, kind, pool)
      else:
        for _ in tensors:  # The gathers are every host's.
          pass
  if writes:
    if len(files) > 1:
      size = kind.itemsize * sum(math.prod(weight.shape) for weight in weights)
      weight_map = {
        w.name: file for file, shard in zip(files, shards, strict=True) for w in shard
      }
      _write_json(
        folder / hf_folder.INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map}
      )
    _write_json(folder / hf_folder.CONFIG, to_hf(config, dtype))
    (folder / INCOMPLETE).unlink()
  _meet("export: written")


def _remains(folder: Path) -> list[Path]:
  """What is there of all that an export may write."""
  return sorted({path for pattern in _OWN for path in folder.glob(pattern)})


def _begin(folder: Path) -> None:
  """Marks the folder, then removes what an export that was broken off has left in it."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / INCOMPLETE).write_text(
    "This export has not come to its end. Run it again, or delete the folder.\n"
  )
  for path in _remains(folder):
    path.unlink()


def _write_shard(
  path: Path,
  shard: list[names.Weight],
  tensors: Iterable[tuple[names.Weight, np.ndarray]],
  dtype: np.dtype,
  pool: ThreadPoolExecutor,
) -> None:
  """One weights file: the header first, then the tensors as they come, from front to back."""
  with open(path, "wb", buffering=0) as file:
    tensor_file.write(file, tensor_file.header([(w.name, w.hf_shape) for w in shard], dtype))
    for weight, ours in tensors:
      theirs = weight.to_hf(ours)
      for piece in _pieces(theirs if theirs.ndim > 1 else theirs[None], dtype, pool):
        tensor_file.write(file, piece)


def _pieces(
  matrix: np.ndarray, dtype: np.dtype, pool: ThreadPoolExecutor
) -> Iterator[np.ndarray]:
  """Some rows of a matrix of any strides after the other, each piece contiguous and of `dtype`.

  While one is written the next are made, so many that no thread waits. The writing itself is
  left to one thread: two take turns at the lock of a file and are slower than one.
  """
  if matrix.flags.c_contiguous and matrix.dtype == dtype:
    yield matrix
    return
  count = max(1, _PIECE_BYTES // (matrix.shape[1] * dtype.itemsize))
  waiting: collections.deque[Future[np.ndarray]] = collections.deque()
  for at in range(0, len(matrix), count):
    waiting.append(pool.submit(_contiguous, matrix[at : at + count], dtype))
    if len(waiting) > _WINDOW:
      yield waiting.popleft().result()
  while waiting:
    yield waiting.popleft().result()


def _contiguous(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """A copy, made strip by strip."""
  out = np.empty(rows.shape, dtype)
  strip = np.empty((min(2 * tensor_file.STRIP, len(rows)), rows.shape[1]), rows.dtype)
  for at in range(0, len(rows), len(strip)):
    piece = rows[at : at + len(strip)]
    here = out[at : at + len(piece)]
    if rows.dtype == dtype:
      tensor_file.copy_strip(piece, here)
    else:
      tensor_file.copy_strip(piece, strip[: len(piece)])
      tensor_file.cast(strip[: len(piece)], here)
  return out


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


def _fetch(value: jax.Array, weight: names.Weight, wanted: bool) -> np.ndarray:
  """One tensor of `weight.shape` on this host, or nothing of sense where it is not wanted."""
  layer, place = weight.layer, value.sharding
  found: np.ndarray
  if value.is_fully_replicated and next(iter(value.devices())).platform == "cpu":
    # A view of the device's own memory.
    whole = np.asarray(value.addressable_data(0))
    found = whole if layer is None else whole[layer]
  elif jax.process_count() > 1 and isinstance(place, NamedSharding):
    gathered = jax.jit(_take, out_shardings=replicated(place.mesh))(value, layer)
    found = np.asarray(gathered.addressable_data(0)) if wanted else np.empty(weight.shape)
  elif layer is not None and isinstance(place, NamedSharding):
    one = NamedSharding(place.mesh, PartitionSpec(*place.spec[1:]))
    found = np.asarray(jax.jit(_take, out_shardings=one)(value, layer))
  else:
    found = np.asarray(_take(value, layer))
  return found[tuple(slice(size) for size in weight.shape)]


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
