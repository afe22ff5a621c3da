"""Checkpoint -> sharded parameters, by ranges of bytes: no host ever holds the model.

Every device of a mesh first takes an equal share of the rows of a matrix, which lie together in
the file; then the devices exchange what they are to hold. All hosts together so read a
checkpoint once. Read directly, a host's share of Qwen3-32B, whose columns are cut by fsdp, would
be millions of pieces of a few hundred bytes, and replicas would be read several times.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import dataclasses
import functools
import math
import mmap
import os
from pathlib import Path
from typing import Any

from absl import logging
from flax import nnx
import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from her_jax.errors import ConfigError
from her_jax.hf import folder as hf_folder
from her_jax.hf import gguf, names, tensor_file
from her_jax.hf.config import from_hf
from her_jax.hf.source import Source, Tensor
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.sharding import shardings

_Tensors = Mapping[str, Tensor]
# What is read on the way to an accelerator before the device takes it: layers of one parameter.
_STAGED_BYTES = 256 * 2**20
# Of one thread's turn.
_TURN_BYTES = 16 * 2**20


def load(
  folder: str | os.PathLike[str], *, mesh: jax.sharding.Mesh | None = None, **overrides: Any
) -> tuple[ModelConfig, nnx.GraphDef, nnx.State]:
  """Reads `config.json` and the safetensors beside it, or a GGUF file.

  Args:
    folder: On a local or mounted disk; the GGUF file itself, or a folder with one alone.
    mesh: Where the parameters go; one device when None.
    **overrides: Fields of `ModelConfig` the file does not decide: `dtype`, `param_dtype`,
      `remat`, `vocab_multiple`. Weights of any float type are cast to `param_dtype`.

  Returns:
    config, graphdef, params: `nnx.merge(graphdef, params)` is the model. Tensors with numbers
    that are NaN or infinite are loaded, and named in one warning.

  Raises:
    FileNotFoundError: A file is not there.
    ConfigError: A file is damaged, the model is unsupported, or names, shapes or types of the
      weights differ from what `config.json` or the metadata ask for; every one is listed.
  """
  folder = Path(folder)
  with _open(folder) as source:
    config = _config(source, overrides)
    if config.num_layers > len(source.tensors):  # Millions would take a while to list.
      raise ConfigError(
        f"{source.file}: {config.num_layers:,} layers are more than the {len(source.tensors):,} "
        "tensors of the weights."
      )
    graphdef, abstract = abstract_model(config)
    weights = [
      dataclasses.replace(weight, name=source.rename(weight.name))
      for weight in names.weights(abstract, config.vocab_size)
    ]
    _check(folder, config, weights, source.tensors)
    params, suspect = _read(abstract, weights, source.tensors, mesh)
  if suspect:
    logging.warning(
      "%s: NaN or infinite as %s: %s", folder, config.param_dtype, ", ".join(sorted(suspect))
    )
  return config, graphdef, params


def read_config(folder: str | os.PathLike[str], **overrides: Any) -> ModelConfig:
  """What `load` would load; takes the same, and raises what it does."""
  with _open(Path(folder)) as source:
    return _config(source, overrides)


def _config(source: Source, overrides: Mapping[str, Any]) -> ModelConfig:
  try:
    return from_hf(source.hf, **overrides)
  except ConfigError as error:
    raise ConfigError(f"{source.file}: {error}") from None


def _open(folder: Path) -> contextlib.AbstractContextManager[Source]:
  """Opens every weights file; only their headers are read."""
  if file := gguf.find(folder):
    return contextlib.nullcontext(gguf.read(file))
  return hf_folder.opened(folder)


def _check(
  folder: Path, config: ModelConfig, weights: list[names.Weight], tensors: _Tensors
) -> None:
  """Raises unless names and shapes are exactly those expected, and a tied head is tied."""
  expected = {weight.name: weight.hf_shape for weight in weights}
  found = {name: tensor.shape for name, tensor in tensors.items()}
  unexpected = found.keys() - expected.keys()
  problems = []
  if config.tie_embeddings and names.LM_HEAD in unexpected and names.EMBEDDING in found:
    # The published small Qwen3 models store the tied head a second time.
    unexpected -= {names.LM_HEAD}
    head, embedding = tensors[names.LM_HEAD], tensors[names.EMBEDDING]
    # Of another shape or type, the embedding is listed below.
    comparable = found[names.EMBEDDING] == expected[names.EMBEDDING]
    if comparable and embedding.dtype in tensor_file.DTYPES and not _same(head, embedding):
      problems.append(f"  differs from the embedding it is tied to: {names.LM_HEAD}")
  problems += [f"  missing: {name}" for name in expected if name not in found]
  problems += [f"  unexpected: {name}" for name in sorted(unexpected)]
  problems += [
    f"  shape {found[name]} instead of {shape}: {name}"
    for name, shape in expected.items()
    if name in found and found[name] != shape
  ]
  problems += [
    f"  {tensors[name].dtype} instead of {' or '.join(tensor_file.DTYPES)}: {name}"
    for name in expected
    if name in found and tensors[name].dtype not in tensor_file.DTYPES
  ]
  if problems:
    raise ConfigError(f"Weights in {folder} do not fit its config:\n" + "\n".join(problems))


def _same(one: Tensor, two: Tensor) -> bool:
  """Whether two matrices of a float type hold the same bytes."""
  if (one.dtype, one.shape) != (two.dtype, two.shape):
    return False
  rows, width = one.shape
  step = max(1, _TURN_BYTES // (width * tensor_file.DTYPES[one.dtype].itemsize))
  a, b = np.empty((2, step, width), tensor_file.DTYPES[one.dtype])
  for start in range(0, rows, step):
    count = min(step, rows - start)
    for tensor, out in ((one, a), (two, b)):
      tensor.read_rows(start, out[:count])
    if not np.array_equal(a[:count].view(np.uint8), b[:count].view(np.uint8)):
      return False
  return True


def _read(
  abstract: nnx.State,
  weights: list[names.Weight],
  tensors: _Tensors,
  mesh: jax.sharding.Mesh | None,
) -> tuple[nnx.State, set[str]]:
  """Builds one parameter after the other; with the names of tensors that are not finite."""
  suspect: set[str] = set()
  parts: dict[str, list[names.Weight]] = defaultdict(list)
  for weight in weights:
    parts[weight.path].append(weight)
  if mesh is None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    places = dict.fromkeys(parts, one)
  else:
    places = names.flatten(shardings(abstract, mesh))
  with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
    arrays = [
      _build(parts[path], tensors, x.shape, x.dtype, places[path], pool, suspect)
      for path, x in names.flatten(abstract).items()
    ]
  return jax.tree.unflatten(jax.tree.structure(abstract), arrays), suspect


def _build(
  weights: list[names.Weight],
  tensors: _Tensors,
  shape: tuple[int, ...],
  dtype: np.dtype,
  place: jax.sharding.Sharding,
  pool: ThreadPoolExecutor,
  suspect: set[str],
) -> jax.Array:
  """One parameter, on the devices where it belongs.

  Args:
    weights: Its tensors, those of a stacked one in the order of the layers.
    tensors: All that are stored.
    shape: Of the parameter, with the `layers` axis and rows that fill up the vocabulary.
    dtype: Of the parameter.
    place: Its sharding.
    pool: Reads.
    suspect: Gets the names of tensors of which a part that was read is not finite.
  """

  def array(weights: list[names.Weight], shape: Sequence[int], place: Any) -> jax.Array:
    def block(index: Any) -> np.ndarray:
      bounds = [slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True)]
      out = _zeros([part.stop - part.start for part in bounds], dtype)
      stacked = weights[0].layer is not None
      rows, held = (out, weights[bounds[0]]) if stacked else ([out], weights)
      waiting = [
        (weight.name, pool.submit(turn))
        for row, weight in zip(rows, held, strict=True)
        for turn in _turns(tensors[weight.name], weight, bounds[stacked:], row)
      ]
      suspect.update([name for name, done in waiting if not done.result()])
      return out

    return jax.make_array_from_callback(tuple(shape), place, block)

  # A CPU device takes over the memory that was read into. Others copy it, after which it is
  # free for the next layers.
  held = math.prod(place.shard_shape(shape)) * dtype.itemsize * len(place.addressable_devices)
  stacked = weights[0].layer is not None
  alone = len(place.device_set) == 1 or len(weights[0].shape) == 1
  if alone and (_takes_over(place) or not stacked or held <= _STAGED_BYTES):
    return array(weights, shape, place)

  lead, body = (shape[:1], shape[1:]) if stacked else ((), shape)
  inputs = weights[0].inputs
  matrix = (math.prod(body[:inputs]), math.prod(body[inputs:])) if inputs else body
  flat = [weight.flat() for weight in weights]

  first, *then = _exchange(place, (*lead, *matrix), len(lead), inputs)

  def exchanged(part: jax.Array) -> jax.Array:
    for sharding in then:
      part = jax.lax.with_sharding_constraint(part, sharding)
    return part.reshape(part.shape[: len(lead)] + body)

  if not stacked or held <= _STAGED_BYTES:
    part = array(flat, (*lead, *matrix), first)
    return jax.jit(exchanged, out_shardings=place)(part)

  def put(whole: jax.Array, part: jax.Array, at: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, exchanged(part), at, 0)

  put_jit = jax.jit(put, donate_argnums=0, out_shardings=place)
  whole = jax.jit(lambda: jax.numpy.zeros(shape, dtype), out_shardings=place)()
  step = max(1, _STAGED_BYTES * shape[0] // held)
  for at in range(0, shape[0], step):
    some = flat[at : at + step]
    part = array(some, (len(some), *matrix), first)
    whole = put_jit(whole, part, at).block_until_ready()
  return whole


def _takes_over(place: Any) -> bool:
  """Whether devices use memory of this process as it is."""
  return next(iter(place.device_set)).platform == "cpu"


def _exchange(place: Any, shape: tuple[int, ...], lead: int, inputs: int) -> tuple[Any, ...]:
  """How devices first take rows of matrices, on the way, and what they are to hold in the end.

  With data=2, fsdp=2 and tensor=4 a matrix [inputs, outputs], whose outputs are the rows in the
  file, goes from (None, (tensor, fsdp, data)) over (None, (tensor, fsdp)) to (fsdp, tensor): one
  all-gather, one all-to-all. In a single step XLA would give every device the whole.

  Args:
    place: Of the parameter.
    shape: Of its matrices, [layers, inputs, outputs], or [vocab, embed] of the embedding.
    lead: Axes before the matrix: 1 with `layers`, or 0.
    inputs: Of `names.Weight`.
  """
  if not isinstance(place, NamedSharding):
    return place, place, place
  spec = [() if axes is None else axes for axes in (*place.spec, *[None] * 4)]
  # Of flattened axes only the first is ever cut.
  ends = [(axes,) if isinstance(axes, str) else axes for axes in spec]
  ends = [ends[lead], ends[lead + (inputs or 1)]]
  row = lead + bool(inputs)
  kept, moved = (ends[1], ends[0]) if inputs else (ends[0], ends[1])
  sizes = place.mesh.shape
  axes = [*kept, *moved]
  axes += [name for name, size in sizes.items() if size > 1 and name not in axes]
  while shape[row] % math.prod(sizes[name] for name in axes):
    axes.pop()
  middle = [name for name in axes if name in (*kept, *moved)]
  rows = lambda axes: PartitionSpec(*[None] * row, tuple(axes) or None)
  last = PartitionSpec(*[None] * lead, *(axes or None for axes in ends))
  return tuple(NamedSharding(place.mesh, spec) for spec in (rows(axes), rows(middle), last))


def _zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
  """Zeros on pages of their own: a CPU device takes them over without a copy."""
  size = math.prod(shape) * dtype.itemsize
  if size < 2**21:
    return np.zeros(shape, dtype)
  pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
  if hasattr(mmap, "MADV_HUGEPAGE"):
    # A transposed write touches thousands of pages at a time: large ones spare most misses.
    pages.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(pages, dtype).reshape(shape)


def _turns(
  tensor: Tensor, weight: names.Weight, bounds: list[slice], out: np.ndarray
) -> Iterator[Callable[[], bool]]:
  """What to call, in any order, to fill a block of ours from one tensor; see `_copy`.

  Args:
    tensor: Where it is stored.
    weight: Its place among ours.
    bounds: The block of `weight.shape`; what lies beyond that shape stays as it is.
    out: Of the shape of the block.
  """
  inside = [
    slice(min(part.start, size), min(part.stop, size))
    for part, size in zip(bounds, weight.shape, strict=True)
  ]
  ours = out[tuple(slice(part.stop - part.start) for part in inside)]
  block = weight.hf_block(inside)
  sizes = [part.stop - part.start for part in block]
  theirs = ours.reshape(sizes[::-1]).T if weight.inputs else ours
  if len(sizes) == 1:
    theirs, block = theirs[None], (slice(0, 1), block[0])
  start, columns = block[0].start, block[1]
  count = max(1, _TURN_BYTES // max(1, theirs[:1].nbytes))
  for at in range(0, len(theirs), count):
    piece = theirs[at : at + count]
    yield functools.partial(_copy, tensor, start + at, columns, piece)


def _copy(tensor: Tensor, start: int, columns: slice, out: np.ndarray) -> bool:
  """Reads rows from `start` on, of them `columns`, into a view of any strides and float type.

  Returns:
    Whether all that was read and converted, also of other columns, is finite.
  """
  width, stored = tensor.shape[-1], tensor_file.DTYPES[tensor.dtype]
  if out.flags.c_contiguous and out.dtype == stored and out.shape[1] == width:
    tensor.read_rows(start, out)
    return tensor_file.finite(out)
  strip = np.empty((min(tensor_file.STRIP, len(out)), width), stored)
  cast = strip if out.dtype == stored else np.empty(strip.shape, out.dtype)
  # Of the two the one that holds less: widened, a number stays what it is.
  narrow = strip if stored.itemsize < out.dtype.itemsize else cast
  finite = True
  for at in range(0, len(out), len(strip)):
    piece = out[at : at + len(strip)]
    tensor.read_rows(start + at, strip[: len(piece)])
    if cast is not strip:
      tensor_file.cast(strip[: len(piece)], cast[: len(piece)])
    finite = tensor_file.finite(narrow[: len(piece)]) and finite
    tensor_file.copy_strip(cast[: len(piece), columns], piece)
  return finite
