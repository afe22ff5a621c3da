"""Safetensors files by byte ranges: what is in them, and writing one tensor at a time.

A file is 8 bytes that hold the length of the header, the header in JSON, and the tensors one
behind the other. The library of the format maps a whole file into memory, or holds a whole file
before it writes; both are more than a host of a pod has to spare.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import json
import math
import os
from pathlib import Path
import reprlib
import struct
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from her_jax.errors import ConfigError
from her_jax.hf import json_object

# The format's names of the float types that a model can be loaded from.
DTYPES: Mapping[str, np.dtype] = {
  "F64": np.dtype(np.float64),
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# The bits of both infinities: (integers of the same width, value).
_INFINITE = {
  dtype: [
    (kind := np.dtype(f"{sign}{dtype.itemsize}"), np.array(value, dtype).view(kind)[()])
    for sign, value in (("i", np.inf), ("u", -np.inf))
  ]
  for dtype in DTYPES.values()
}
# Rows that are read or written, cast and transposed while the processor's cache holds them: as
# many as fill whole cache lines of the transposed side. Reading, 16 take 1.5 times as long and
# 256 1.7 times.
STRIP = 64
_MAX_HEADER = 100_000_000  # The format's own limit, in bytes.


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One tensor of an open file.

  Attributes:
    file: Its name, for errors.
    fd: The open file.
    dtype: In the format's spelling, such as "BF16".
    shape: As stored.
    offset: Of its first byte, from the start of the file.
  """

  file: Path
  fd: int
  dtype: str
  shape: tuple[int, ...]
  offset: int

  def read_rows(self, start: int, out: np.ndarray) -> None:
    """Fills `out`, contiguous and of the stored dtype, with rows from `start` on.

    A row is all that one index of the first axis holds; a tensor of one axis has one row.

    Raises:
      ConfigError: The file ends too early.
    """
    if not out.size:
      return
    at = self.offset + start * (out.nbytes // len(out))
    # Types that are not Python's own have no buffer; their bytes do.
    rest = out.reshape(-1).view(np.uint8).data
    while rest:
      done = os.preadv(self.fd, [rest], at)
      if not done:
        raise ConfigError(f"{self.file} ended while it was read: was it changed?")
      rest, at = rest[done:], at + done


@contextlib.contextmanager
def opened(path: Path) -> Iterator[dict[str, Tensor]]:
  """Opens a file and gives the `Tensor`s in it by name; nothing but the header is read.

  Raises:
    ConfigError: It is no safetensors file, or its header and its bytes disagree.
  """
  fd = os.open(path, os.O_RDONLY)
  try:
    yield _parse(path, fd)
  finally:
    os.close(fd)


def _parse(path: Path, fd: int) -> dict[str, Tensor]:
  """The header as tensors, which have to fill the file exactly, as the format demands."""
  size = os.fstat(fd).st_size
  length = struct.unpack("<Q", os.pread(fd, 8, 0))[0] if size >= 8 else 0
  if not 2 <= length <= min(_MAX_HEADER, size - 8):
    raise ConfigError(
      f"{path} is no safetensors file, or a part of one: copy or download the file again."
    )
  entries = json_object.parse(os.pread(fd, length, 8), f"The header of {path}")
  start = 8 + length
  try:
    _check_metadata(entries.pop("__metadata__", {}))
    found = {name: _entry(name, entry) for name, entry in entries.items()}
    taken = 0
    for (begin, end), name in sorted((span, name) for name, (_, _, span) in found.items()):
      if begin != taken:
        raise ValueError(f"{name} begins at byte {begin:,} of the tensors instead of {taken:,}")
      if start + end > size:
        raise ValueError(f"{name} ends behind the file's {size:,} bytes")
      taken = end
    if start + taken < size:
      raise ValueError(f"the last {size - start - taken:,} bytes belong to no tensor")
  except ValueError as error:
    raise json_object.broken(path, str(error)) from None
  return {
    name: Tensor(path, fd, dtype, shape, start + span[0])
    for name, (dtype, shape, span) in found.items()
  }


def _entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
  """What the header says of one tensor: type, shape, and the ends of its bytes.

  Raises:
    ValueError: That is not of its kind, or contradicts itself.
  """
  if not isinstance(entry, dict):
    raise ValueError(f"{name} is {reprlib.repr(entry)} instead of an object")
  dtype = entry.get("dtype")
  if not isinstance(dtype, str):
    raise ValueError(f"the dtype of {name} is {reprlib.repr(dtype)} instead of a word")
  shape, span = (_whole(name, field, entry.get(field)) for field in ("shape", "data_offsets"))
  if len(span) != 2 or span[0] > span[1]:
    raise ValueError(f"the data_offsets of {name} are {reprlib.repr(span)}: begin, then end")
  kind = DTYPES.get(dtype)
  if kind is not None and span[1] - span[0] != math.prod(shape) * kind.itemsize:
    raise ValueError(
      f"{name} has {span[1] - span[0]:,} bytes, not those of {dtype} {reprlib.repr(shape)}"
    )
  return dtype, tuple(shape), (span[0], span[1])


def _whole(name: str, field: str, value: Any) -> list[int]:
  """A field of a tensor that has to be a list of whole numbers; raises ValueError else."""
  # bool is an int to Python.
  if not isinstance(value, list) or any(type(x) is not int or x < 0 for x in value):
    raise ValueError(
      f"the {field} of {name} is {reprlib.repr(value)} instead of a list of whole numbers"
    )
  return value


def _check_metadata(metadata: Any) -> None:
  """Raises ValueError unless they are texts by name."""
  texts = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
  if not texts:
    raise ValueError(f"__metadata__ is {reprlib.repr(metadata)} instead of texts by name")


def header(tensors: Iterable[tuple[str, tuple[int, ...]]], dtype: np.dtype) -> np.ndarray:
  """All bytes of a file before the first tensor.

  Args:
    tensors: Name and shape of each, in the order in which they will follow.
    dtype: Of all of them.
  """
  entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  end = 0
  for name, shape in tensors:
    begin, end = end, end + math.prod(shape) * dtype.itemsize
    entries[name] = {
      "dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]
    }  # fmt: skip
  text = json.dumps(entries, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # So that the tensors lie at multiples of eight bytes.
  return np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8)


def copy_strip(source: np.ndarray, out: np.ndarray) -> None:
  """Copies some rows, one side of which may be transposed.

  Copied whole, a transposed matrix of 6144 x 2048 floats takes eight times as long: of each
  cache line that is fetched one number is used, and the line is gone before the next is.
  """
  bits = f"u{out.dtype.itemsize}"
  source, out = source.view(bits), out.view(bits)
  for column in range(0, out.shape[1], 128):
    part = slice(column, column + 128)
    out[:, part] = source[:, part]


def cast(source: np.ndarray, out: np.ndarray) -> None:
  """Converts between float types, both contiguous; what bfloat16 cannot hold is rounded to even.

  bfloat16 is the upper half of float32. With integers numpy lets all threads work at once, while
  its extension for bfloat16 keeps Python's lock: with it a second core gains nothing.
  """
  kinds = source.dtype, out.dtype
  if kinds == (DTYPES["BF16"], DTYPES["F32"]):
    np.left_shift(source.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
  elif kinds == (DTYPES["F32"], DTYPES["BF16"]) and not np.isnan(source).any():
    bits, half = source.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint16)
    scratch = np.empty(min(2**15, len(bits)), np.uint32)  # The cache holds all five steps.
    for at in range(0, len(bits), 2**15):
      part = bits[at : at + 2**15]
      rounded = np.right_shift(part, 16, out=scratch[: len(part)])
      np.bitwise_and(rounded, 1, out=rounded)
      np.add(rounded, 0x7FFF, out=rounded)
      np.add(rounded, part, out=rounded)
      half[at : at + 2**15] = np.right_shift(rounded, 16, out=rounded)
  else:
    with np.errstate(over="ignore"):  # `finite` finds what becomes infinite.
      out[...] = source


def finite(values: np.ndarray) -> bool:
  """Whether no number of a contiguous array is infinite or NaN.

  Their bits are, without the sign, the largest that there are: 0x7F80 and above in bfloat16. As
  signed integers the largest is that of a positive number, as unsigned ones of a negative. For
  bfloat16 numpy's own isfinite takes ten times as long; this adds 2 to 8 % to the processor time
  of a load.
  """
  flat = values.reshape(-1)
  return all(flat.view(kind).max(initial=0) < top for kind, top in _INFINITE[values.dtype])


def write(file: BinaryIO, data: np.ndarray) -> None:
  """Appends a contiguous array to an unbuffered file."""
  rest = data.reshape(-1).view(np.uint8).data
  while rest:
    rest = rest[file.write(rest) :]
