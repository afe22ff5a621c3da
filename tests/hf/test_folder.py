"""A folder that is damaged or says two things is refused with the file that is to blame."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import sft
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import names
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.hf.export import export_model
from her_jax.hf.load import load, read_config
from her_jax.tasks import data, start

_INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train(["Una waits. Una: Sit."], 320)


@pytest.fixture(params=["one file", "many"])
def folder(config, request, params, tokenizer, tmp_path):
  size = {"one file": 2**30, "many": 8000}[request.param]
  export_model(config, params, tmp_path, tokenizer, max_shard_bytes=size)
  return tmp_path


@pytest.fixture
def one(config, params, tokenizer, tmp_path):
  export_model(config, params, tmp_path, tokenizer)
  return tmp_path


@pytest.fixture
def many(config, params, tokenizer, tmp_path):
  export_model(config, params, tmp_path, tokenizer, max_shard_bytes=8000)
  return tmp_path


def _start(folder) -> None:
  """As a stage does: the tokenizer first."""
  settings = sft.get_config("tiny")
  settings.init_from = str(folder)
  start.start_model(settings, sharding.make_mesh(), data.Scenes([], []))


_DAMAGES = {
  "empty": (lambda text: b"", "it is empty"),
  "blank": (lambda text: b" \n", "it is empty"),
  "cut": (lambda text: text[: len(text) // 2], "it is cut short"),
  "cut by one": (lambda text: text.rstrip()[:-1], "it is cut short"),
  "cut in a word": (lambda text: text[: text.rindex(b'"')], "it is cut short"),
  "no JSON": (lambda text: b"version https://git-lfs.github.com/spec/v1", "it is not JSON"),
  "not UTF-8": (lambda text: text[:5] + b"\xff" + text[5:], "byte 5 is not UTF-8"),
  "UTF-16": (lambda text: text.decode().encode("utf-16"), "byte 0 is not UTF-8"),
  "zeros": (lambda text: bytes(100), "it is not JSON"),
  "twice": (lambda text: b'{"a": 1, "b": {"c": 1, "c": 2}}', "c stands in it twice"),
  "deep": (lambda text: b'{"a":' * 100_000, "nested too deeply"),
  "long number": (lambda text: b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
  **{
    value: (lambda text, value=value: value.encode(), "instead of an object")
    for value in ("[]", "null", "true", "3", '"{}"')
  },
}


@pytest.mark.parametrize("damage", _DAMAGES)
@pytest.mark.parametrize("name", ["config.json", _INDEX])
def test_a_damaged_file_is_named_with_what_is_wrong(many, name, damage):
  spoil, message = _DAMAGES[damage]
  (many / name).write_bytes(spoil((many / name).read_bytes()))
  for read in (load, read_config, _start):
    with pytest.raises(ConfigError, match=f"{name} is broken .*{message}.*: copy or download"):
      read(many)


@pytest.mark.parametrize(
  "field", ["vocab_size", "rope_theta", "tie_word_embeddings", "head_dim"]
)
@pytest.mark.parametrize("value", ["131", [], {}, 1e400])
def test_a_wrong_field_is_named_with_its_file(one, field, value):
  hf = json.loads((one / "config.json").read_text())
  (one / "config.json").write_text(json.dumps(hf | {field: value}))
  for read in (load, read_config, _start):
    with pytest.raises(ConfigError, match=rf"config.json: {field} must be .*, got "):
      read(one)


@pytest.mark.parametrize("size", [10**6, 2**31 - 1])
def test_more_layers_than_tensors_are_refused_at_once(one, size):
  hf = json.loads((one / "config.json").read_text())
  (one / "config.json").write_text(json.dumps(hf | {"num_hidden_layers": size}))
  with pytest.raises(ConfigError, match=f"config.json: {size:,} layers are more than"):
    load(one)


@pytest.mark.parametrize("value", [None, [], {}, "x", 3, ["model.safetensors"]])
def test_the_index_maps_names(many, value):
  (many / _INDEX).write_text(json.dumps({"weight_map": value}))
  with pytest.raises(ConfigError, match=f"{_INDEX} is broken .*weight_map must be an object"):
    load(many)


@pytest.mark.parametrize(
  "name",
  [
    "../model.safetensors", "..", ".", "", "/etc/passwd", "sub/model.safetensors", "a\\b",
    "a\0b", "model.safetensors/", 3, None, True, [], {}, ["model.safetensors"],
  ],
  ids=str,
)  # fmt: skip
def test_the_index_names_files_of_its_folder(many, name):
  """A path could lead to any file of the disk."""
  index = json.loads((many / _INDEX).read_text())
  index["weight_map"]["model.norm.weight"] = name
  (many / _INDEX).write_text(json.dumps(index))
  with pytest.raises(
    ConfigError, match="puts model.norm.weight into .*no name of a file beside"
  ):
    load(many)


def test_two_sets_of_weights_are_refused(config, many, params, tmp_path):
  """The index of one model, and the only file of a newer one."""
  export_model(config, params, tmp_path / "new")
  (tmp_path / "new" / "model.safetensors").rename(many / "model.safetensors")
  for read in (load, read_config, _start):
    with pytest.raises(
      ConfigError, match=f"two sets of weights.*delete {_INDEX} .* or model.s"
    ):
      read(many)
  (many / _INDEX).unlink()
  load(many)


def test_an_index_of_the_only_file_is_believed(one):
  tensors = load_file(one / "model.safetensors")
  places = dict.fromkeys(tensors, "model.safetensors")
  (one / _INDEX).write_text(json.dumps({"weight_map": places}))
  load(one)


def test_two_files_with_one_tensor_are_refused(many):
  first, second, *_ = sorted(many.glob("*.safetensors"))
  save_file({**load_file(second), **load_file(first)}, second)
  with pytest.raises(ConfigError, match=f"{second.name} holds .* a second time"):
    load(many)


def test_absent_files_are_named(many, tmp_path):
  with pytest.raises(FileNotFoundError, match="config.json is missing"):
    load(tmp_path / "nowhere")
  lost = sorted(many.glob("*.safetensors"))[1]
  lost.unlink()
  with pytest.raises(FileNotFoundError, match=lost.name):
    load(many)


@pytest.mark.parametrize("kind", ["cut", "header", "pointer", "empty"])
def test_damaged_weights_are_named(folder, kind):
  path = sorted(folder.glob("*.safetensors"))[-1]
  whole = path.read_bytes()
  damaged = {
    "cut": whole[:-1],
    "header": struct.pack("<Q", 2) + b"[]",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "empty": b"",
  }
  path.write_bytes(damaged[kind])
  for read in (load, read_config, _start):
    with pytest.raises(ConfigError, match=f"{path.name} .*copy or download the file again"):
      read(folder)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.bool_])
def test_the_type_of_a_tensor_is_told_as_it_is(one, dtype):
  file = one / "model.safetensors"
  tensors = load_file(file)
  save_file(tensors | {"model.norm.weight": np.ones(16, dtype)}, file)
  stored = {"int": "I", "uint": "U"}.get(np.dtype(dtype).name.rstrip("0123456789"), "BOOL")
  with pytest.raises(
    ConfigError, match=f"  {stored}[0-9]* instead of F64 .*: model.norm.weight"
  ):
    load(one)


@pytest.mark.parametrize(
  ("embedding", "head"),
  [
    ((0, 16), (0, 16)),
    ((320, 0), (320, 0)),
    ((320,), (320,)),
    ((), ()),
    ((1, 320, 16), (1, 320, 16)),
    ((319, 16), (319, 16)),
    ((319, 16), (320, 16)),
  ],
)
def test_a_tied_head_of_any_shape_is_no_crash(one, embedding, head):
  """The copy is compared with the embedding only if that has its shape."""
  file = one / "model.safetensors"
  shapes = {names.EMBEDDING: embedding, names.LM_HEAD: head}
  made = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
  save_file(load_file(file) | made, file)
  with pytest.raises(ConfigError) as error:
    load(one)
  assert str(error.value).splitlines()[1:] == [
    f"  shape {embedding} instead of (320, 16): {names.EMBEDDING}"
  ]


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("tokenizer.json", ""),
    ("tokenizer.json", "{"),
    ("tokenizer.json", "[]"),
    ("tokenizer.json", '{"model": 3}'),
    ("tokenizer_config.json", "{"),
    ("tokenizer_config.json", "[]"),
  ],
)
def test_a_damaged_tokenizer_is_named(one, name, text):
  (one / name).write_text(text)
  for read in (hf_tokenizer.load, _start):
    with pytest.raises(ConfigError, match=f"tokenizer in {one} cannot be read .*download"):
      read(one)


def test_a_tokenizer_without_the_tokens_of_chat_is_refused(one):
  for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
    file = one / name
    file.write_text(file.read_text().replace("<|im_end|>", "<|no_end|>"))
  with pytest.raises(ConfigError, match=f"{one}: .*im_end"):
    hf_tokenizer.load(one)
