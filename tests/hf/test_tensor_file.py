"""Headers of safetensors files: what the format's own library writes is read, and the reverse."""

import json
import math
import struct

import hypothesis
from hypothesis import strategies as st
import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from her_jax.errors import ConfigError
from her_jax.hf import tensor_file

_KINDS = [np.dtype(t) for t in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)]
_names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
_tensors = st.dictionaries(
  _names.filter(lambda name: name != "__metadata__"),
  st.tuples(st.integers(0, 5), st.integers(1, 7)),
  max_size=4,
)


def _values(shapes, kind):
  rng = np.random.default_rng(0)
  return {name: rng.normal(size=shape).astype(kind) for name, shape in shapes.items()}


def _written(path, values, kind):
  with open(path, "wb", buffering=0) as file:
    tensor_file.write(file, tensor_file.header([(n, v.shape) for n, v in values.items()], kind))
    for value in values.values():
      tensor_file.write(file, value)


@hypothesis.settings(max_examples=30)
@hypothesis.given(shapes=_tensors, kind=st.sampled_from(_KINDS))
def test_both_ways_agree_with_the_library(tmp_path_factory, shapes, kind):
  folder = tmp_path_factory.mktemp("both")
  values = _values(shapes, kind)
  _written(folder / "ours", values, kind)
  theirs = load_file(folder / "ours")
  assert theirs.keys() == values.keys()
  save_file(values, folder / "theirs")
  for name, value in values.items():
    assert theirs[name].dtype == kind
    np.testing.assert_array_equal(theirs[name], value)
  with tensor_file.opened(folder / "theirs") as tensors:
    assert tensors.keys() == values.keys()
    for name, value in values.items():
      assert tensors[name].shape == value.shape
      out = np.empty(value.shape, tensor_file.DTYPES[tensors[name].dtype])
      tensors[name].read_rows(0, out)
      np.testing.assert_array_equal(out, value)
      if len(value) > 1:
        tensors[name].read_rows(1, out[1:])
        np.testing.assert_array_equal(out, value)


@hypothesis.given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
@hypothesis.example(
  bits=[0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF, 0x3F808000, 0x3F818000]
)
def test_bfloat16_is_rounded_as_everywhere(bits):
  """Infinities, halves, the largest numbers, and each NaN stays one."""
  wide = np.array(bits, np.uint32).view(np.float32)
  for values in (wide, wide[~np.isnan(wide)]):
    half, again = np.empty(values.shape, ml_dtypes.bfloat16), np.empty_like(values)
    with np.errstate(invalid="ignore"):
      tensor_file.cast(values, half)
      expected = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(half, expected)
    tensor_file.cast(half, again)
    np.testing.assert_array_equal(again, half.astype(np.float32))


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 7, 11])
def test_what_is_not_finite_is_found_anywhere(kind, value, at):
  numbers = np.resize(np.array([0, -0.0, 1, -1]), 12).astype(kind)
  numbers[3:5] = ml_dtypes.finfo(kind).max, ml_dtypes.finfo(kind).min
  assert tensor_file.finite(numbers.reshape(3, 4))
  numbers[at] = value
  assert not tensor_file.finite(numbers.reshape(3, 4))


@hypothesis.given(bits=st.lists(st.integers(0, 2**16 - 1)))
def test_every_number_is_finite_or_not_as_numpy_says(bits):
  for kind in (np.float16, ml_dtypes.bfloat16):
    values = np.array(bits, np.uint16).view(kind)
    assert tensor_file.finite(values) == np.isfinite(values).all()


def _entry(**changes):
  return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes


@pytest.mark.parametrize(
  "data",
  [
    b"",
    b"\x01",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    struct.pack("<Q", 2**62) + b"{}",
    struct.pack("<Q", 4) + b"nope",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 2) + b"\xff\xff",
    struct.pack("<Q", 200_000) + b'{"w":' + b"[" * 199_995,
    struct.pack("<Q", 5000) + b'{"w":' + b"9" * 4994 + b"}",
    struct.pack("<Q", 15) + b'{"w":{},"w":{}}',
    [],
    None,
    "w",
    {},
    _entry(data_offsets=[0, 17]),
    _entry(data_offsets=[16, 32]),
    _entry(data_offsets=[-16, 0]),
    _entry(data_offsets=[0]),
    _entry(shape=[-2, -2]),
    _entry(data_offsets=[0, 16, 16]),
    _entry(data_offsets=[0.0, 16.0]),
    _entry(data_offsets=["0", "16"]),
    _entry(data_offsets=[False, 16]),
    _entry(data_offsets={"0": 16}),
    _entry(data_offsets=[8, 0]),
    _entry(data_offsets=[0, 1e400]),
    _entry(data_offsets=[0, 10**400]),
    _entry(data_offsets=None),
    _entry(shape="22"),
    _entry(shape=[2.5, 2]),
    _entry(shape=[2.0, 2.0]),
    _entry(shape=[True, 4]),
    _entry(shape=["2", 2]),
    _entry(shape=[[2, 2]]),
    _entry(shape=[math.nan]),
    _entry(shape=[1e400]),
    _entry(shape=[10**400, 10**400]),
    _entry(shape={"2": 2}),
    _entry(shape=4),
    _entry(shape=[2]),
    _entry(dtype=4),
    _entry(dtype=None),
    _entry(dtype=["F32"]),
    _entry(dtype="F16"),
    {"dtype": "F32"},
  ],
  ids=lambda data: str(data)[:60],
)
def test_a_broken_file_is_refused_by_name(tmp_path, data):
  if not isinstance(data, bytes):
    text = json.dumps({"w": data}).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(16)
  path = tmp_path / "model.safetensors"
  path.write_bytes(data)
  with pytest.raises(ConfigError, match="model.safetensors .*download the file again"):
    with tensor_file.opened(path):
      pass


@pytest.mark.parametrize(
  ("spans", "message"),
  [
    ({"a": [0, 8], "b": [8, 16]}, None),
    ({"b": [8, 16], "a": [0, 8]}, None),
    ({"a": [0, 8], "none": [8, 8], "b": [8, 16]}, None),
    ({"a": [0, 8], "b": [4, 12], "c": [12, 16]}, "b begins at byte 4 .* instead of 8"),
    ({"a": [0, 16], "b": [0, 16]}, "b begins at byte 0 .* instead of 16"),
    ({"a": [0, 4], "b": [8, 16]}, "b begins at byte 8 .* instead of 4"),
    ({"a": [4, 16]}, "a begins at byte 4 .* instead of 0"),
    ({"a": [0, 16], "none": [8, 8]}, "none begins at byte 8 .* instead of 16"),
    ({"a": [0, 8]}, "the last 8 bytes belong to no tensor"),
    ({}, "the last 16 bytes belong to no tensor"),
  ],
  ids=str,
)
def test_tensors_fill_a_file_exactly(tmp_path, spans, message):
  """As the format's own library has it: no overlap, no gap, nothing behind the last."""
  entries = {
    name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
    for name, (begin, end) in spans.items()
  }
  text = json.dumps(entries).encode()
  path = tmp_path / "model.safetensors"
  path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
  if message is None:
    load_file(path)
    with tensor_file.opened(path) as found:
      assert found.keys() == spans.keys()
  else:
    with pytest.raises(SafetensorError):
      load_file(path)
    with pytest.raises(ConfigError, match=message):
      with tensor_file.opened(path):
        pass


@pytest.mark.parametrize("metadata", [[], "pt", 3, None, {"format": 1}, {"a": {"b": "c"}}])
def test_metadata_are_texts(tmp_path, metadata):
  text = json.dumps({"__metadata__": metadata}).encode()
  path = tmp_path / "model.safetensors"
  path.write_bytes(struct.pack("<Q", len(text)) + text)
  with pytest.raises(ConfigError, match="__metadata__ is"):
    with tensor_file.opened(path):
      pass


_json = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)


@hypothesis.given(
  entry=st.fixed_dictionaries(
    {
      "dtype": st.sampled_from(["F32", "I8", "X"]) | _json,
      "shape": st.lists(st.integers(0, 4)) | _json,
      "data_offsets": st.tuples(st.integers(0, 20), st.integers(0, 20)) | _json,
    }
  ),
)
def test_no_header_raises_anything_else(tmp_path_factory, entry):
  text = json.dumps({"w": entry}).encode()
  path = tmp_path_factory.getbasetemp() / "header.safetensors"
  path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
  try:
    with tensor_file.opened(path):
      pass
  except ConfigError as error:
    assert str(path) in str(error)


@hypothesis.given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(tmp_path_factory, data):
  path = tmp_path_factory.getbasetemp() / "noise.safetensors"
  path.write_bytes(struct.pack("<Q", len(data)) + data)
  try:
    with tensor_file.opened(path):
      pass
  except ConfigError as error:
    assert str(path) in str(error)


def test_a_file_that_is_cut_short_is_refused(tmp_path):
  path = tmp_path / "model.safetensors"
  save_file({"a": np.ones((4, 4), np.float32)}, path)
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(ValueError, match="a ends behind the file's .* bytes"):
    with tensor_file.opened(path):
      pass
