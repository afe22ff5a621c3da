"""GGUF files give the weights, the config and the tokenizer they were made of, or are refused."""

import dataclasses
import json
import math
import sys

import gguf
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sft
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import gguf as hf_gguf
from her_jax.hf import names
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.hf.load import load
from her_jax.models.config import ModelConfig, RopeScaling
from her_jax.models.qwen3 import abstract_model
from her_jax.models.rope import scaling_factors
from her_jax.roleplay import chat
from her_jax.tasks import data, start

_Q = gguf.GGMLQuantizationType
_LLAMA = ModelConfig(
  vocab_size=96,
  hidden_size=64,
  intermediate_size=96,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=16,
  tie_embeddings=True,
  max_position_embeddings=64,
  qk_norm=False,
  rope_theta=1e4,
  rms_norm_eps=1e-5,
  dtype="float32",
)
_QWEN3 = dataclasses.replace(
  _LLAMA, qk_norm=True, head_dim=32, tie_embeddings=False, rope_theta=1e6, rms_norm_eps=1e-6
)
_CONFIGS = {"llama": _LLAMA, "qwen3": _QWEN3}
_TOKEN_TYPES = {"normal": 1, "control": 3, "user defined": 4, "unused": 5}


def _weights(config: ModelConfig) -> dict[str, np.ndarray]:
  """Random weights by their names and in the shapes of Hugging Face."""
  rng = np.random.default_rng(0)
  all_weights = names.weights(abstract_model(config)[1])
  return {w.name: rng.normal(size=w.hf_shape).astype(np.float32) for w in all_weights}


def _llama_cpp_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
  """The two halves of every head, taken in turns."""
  return np.concatenate(
    [
      np.stack(np.split(head, 2), axis=1).reshape(head.shape)
      for head in np.split(matrix, heads)
    ]
  )


def _metadata(config: ModelConfig) -> dict[str, int | float | str]:
  return {
    "block_count": config.num_layers,
    "context_length": config.max_position_embeddings,
    "embedding_length": config.hidden_size,
    "feed_forward_length": config.intermediate_size,
    "attention.head_count": config.num_heads,
    "attention.head_count_kv": config.num_kv_heads,
    "attention.key_length": config.head_dim,
    "attention.value_length": config.head_dim,
    "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    "rope.freq_base": config.rope_theta,
  }


def _write(path, config, stored=_Q.F32, metadata=None, tensors=None, arch=None, extra=None):
  """Writes a file as llama.cpp's converter would.

  Args:
    stored: Type of the matrices; vectors are float32.
    metadata: Keys behind the architecture to change; None takes one out.
    tensors: By their names in the file, to change; None takes one out.
    arch: In the place of the config's own.
    extra: Takes the writer, to add more.
  """
  own = "qwen3" if config.qk_norm else "llama"
  arch = arch or own
  writer = gguf.GGUFWriter(path, arch)
  for key, value in (_metadata(config) | (metadata or {})).items():
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
      add[type(value)](f"{arch}.{key}", value)
  table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[own.upper()], config.num_layers)
  heads = {"q": config.num_heads, "k": config.num_kv_heads}
  found = {}
  for name, array in _weights(config).items():
    if own == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
      array = _llama_cpp_rows(array, heads[name.split(".")[-2][0]])
    found[table.get_name(name, try_suffixes=(".weight",))] = array
  for name, array in (found | (tensors or {})).items():
    if array is not None:
      kind = stored if array.ndim > 1 else _Q.F32
      writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
  if extra is not None:
    extra(writer)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _assert_holds(params, config: ModelConfig, stored) -> None:
  """Every parameter is what its weight is after it was stored."""
  flat, expected = names.flatten(params), _weights(config)
  for weight in names.weights(params):
    ours = np.asarray(flat[weight.path])
    ours = weight.to_hf(ours if weight.layer is None else ours[weight.layer])
    theirs = expected[weight.name]
    if theirs.ndim > 1:
      theirs = gguf.quants.dequantize(gguf.quants.quantize(theirs, stored), stored)
    np.testing.assert_array_equal(ours, theirs, err_msg=weight.name)


@pytest.mark.parametrize("stored", [_Q.F32, _Q.F16, _Q.BF16, _Q.Q8_0, _Q.Q4_1])
@pytest.mark.parametrize("name", _CONFIGS)
def test_file_gives_the_weights_and_the_config_it_was_made_of(name, stored, tmp_path):
  expected = _CONFIGS[name]
  path = _write(tmp_path / "model.gguf", expected, stored)
  for place in (path, tmp_path):
    config, graphdef, params = load(place, dtype="float32")
    assert config == expected
    assert graphdef == abstract_model(expected)[0]
    _assert_holds(params, expected, stored)


@pytest.mark.parametrize("name", _CONFIGS)
def test_every_device_gets_its_own_block(name, tmp_path):
  """Heads, KV heads, MLP and embeddings are cut, and the order of rows in a head is put right."""
  path = _write(tmp_path / "model.gguf", _CONFIGS[name], _Q.Q8_0)
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  params = load(path, mesh=mesh)[2]
  assert jax.tree.map(lambda x: x.sharding, params) == sharding.shardings(params, mesh)
  _assert_holds(params, _CONFIGS[name], _Q.Q8_0)


def test_every_wrong_tensor_is_listed_by_its_name_in_the_file(tmp_path):
  changed = {
    "blk.0.attn_q_norm.weight": None,
    "blk.1.ffn_up.weight": None,
    "blk.1.attn_q.bias": np.ones(128, np.float32),
    "output_norm.weight": np.ones(65, np.float32),
  }
  path = _write(tmp_path / "model.gguf", _QWEN3, tensors=changed)
  with pytest.raises(ConfigError) as error:
    load(path)
  assert str(error.value).splitlines()[1:] == [
    "  missing: blk.0.attn_q_norm.weight",
    "  missing: blk.1.ffn_up.weight",
    "  unexpected: blk.1.attn_q.bias",
    "  shape (65,) instead of (64,): output_norm.weight",
  ]
  without = _write(tmp_path / "other.gguf", _QWEN3, tensors={"token_embd.weight": None})
  with pytest.raises(ConfigError, match=r"other.gguf: .*lacks vocab_size"):
    load(without)


def test_fields_that_llama_may_leave_out_are_derived(tmp_path):
  left_out = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
  config = dataclasses.replace(_LLAMA, num_kv_heads=4)
  metadata = dict.fromkeys((*left_out, "rope.freq_base")) | {"rope.dimension_count": 16}
  path = _write(tmp_path / "model.gguf", config, metadata=metadata)
  assert load(path, dtype="float32")[0] == config


@pytest.mark.parametrize(
  ("metadata", "scaling"),
  [
    ({"type": "none"}, None),
    ({"type": "linear", "factor": 2.0}, RopeScaling(rope_type="linear", factor=2.0)),
    (
      {"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_beta_fast": 20.0},
      RopeScaling(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=20.0
      ),
    ),
  ],
)
def test_rotary_scaling_is_read(metadata, scaling, tmp_path):
  metadata = {f"rope.scaling.{key}": value for key, value in metadata.items()}
  path = _write(tmp_path / "model.gguf", _QWEN3, metadata=metadata)
  assert load(path)[0].rope_scaling == scaling


def test_rotary_factors_of_llama_3_are_recognised_or_refused(tmp_path):
  scaling = RopeScaling(
    rope_type="llama3",
    factor=32.0,
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
  )
  factors = 1 / scaling_factors(scaling, 16, 1e4)[0]
  path = _write(tmp_path / "a.gguf", _LLAMA, tensors={"rope_freqs.weight": factors})
  assert load(path)[0].rope_scaling == scaling
  factors[3] *= 1.5
  path = _write(tmp_path / "b.gguf", _LLAMA, tensors={"rope_freqs.weight": factors})
  with pytest.raises(ConfigError, match="rope_freqs.weight is not of Llama 3"):
    load(path)


@pytest.mark.parametrize(
  ("metadata", "message"),
  [
    ({"expert_count": 8}, "not implemented: qwen3.expert_count=8"),
    ({"attention.sliding_window": 4096}, "qwen3.attention.sliding_window"),
    ({"block_count": None}, "lacks the metadata qwen3.block_count"),
    ({"attention.head_count_kv": None}, "lacks the metadata qwen3.attention.head_count_kv"),
    ({"attention.value_length": 8}, "value_length=8 is unsupported where heads are 32 wide"),
    ({"rope.dimension_count": 16}, "rope.dimension_count=16"),
    ({"attention.head_count": 3}, "model.gguf: num_heads=3 is not a multiple"),
    ({"attention.head_count": 0}, "model.gguf: qwen3.attention.head_count must be a whole"),
    ({"embedding_length": 64.0}, "model.gguf: qwen3.embedding_length must be a whole number"),
    ({"block_count": "2"}, "model.gguf: qwen3.block_count must be a whole number"),
    ({"block_count": 2**31 - 1}, "model.gguf: qwen3.block_count=2,147,483,647 is more than"),
    ({"context_length": "64"}, "model.gguf: max_position_embeddings must be a whole number"),
    ({"rope.freq_base": math.nan}, "model.gguf: rope_theta must be a finite number"),
    ({"rope.scaling.type": "longrope"}, "model.gguf: .*rope_type='longrope'"),
  ],
)
def test_unsupported_metadata_are_refused_in_words(metadata, message, tmp_path):
  path = _write(tmp_path / "model.gguf", _QWEN3, metadata=metadata)
  with pytest.raises(ConfigError, match=message):
    load(path)


def test_other_files_are_refused_in_words(tmp_path, monkeypatch):
  folder = tmp_path / "models"
  folder.mkdir()
  gpt2 = _write(folder / "gpt2.gguf", _LLAMA, arch="gpt2")
  with pytest.raises(ConfigError, match="general.architecture='gpt2' is unsupported"):
    load(gpt2)
  part = _write(
    folder / "part.gguf", _LLAMA, extra=lambda writer: writer.add_uint16("split.count", 3)
  )
  with pytest.raises(ConfigError, match="one of 3 parts"):
    load(part)
  with pytest.raises(ConfigError, match="several GGUF files: .*gpt2.gguf, part.gguf"):
    load(folder)
  with pytest.raises(FileNotFoundError, match="or a .gguf file"):
    load(tmp_path / "none.gguf")
  integers = np.ones((2, 2), np.int32)
  add = lambda writer: writer.add_tensor("blk.0.attn_q.weight", integers)
  path = _write(
    tmp_path / "int.gguf",
    dataclasses.replace(_LLAMA, hidden_size=2, head_dim=2, num_heads=1, num_kv_heads=1),
    tensors={"blk.0.attn_q.weight": None},
    extra=add,
  )
  with pytest.raises(ConfigError, match="blk.0.attn_q.weight is stored as I32"):
    load(path)
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(ConfigError, match="pip install gguf"):
    load(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
  return _write(tmp_path_factory.mktemp("whole") / "model.gguf", _LLAMA, _Q.Q8_0).read_bytes()


@hypothesis.settings(max_examples=60)
@hypothesis.given(share=st.floats(0, 1, exclude_max=True))
def test_file_cut_anywhere_is_refused_in_words(whole, tmp_path_factory, share):
  path = tmp_path_factory.mktemp("cut") / "cut.gguf"
  path.write_bytes(whole[: int(share * len(whole))])
  with pytest.raises(ConfigError, match="cut.gguf is no whole GGUF file"):
    load(path)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer, rows: int, pre: str = "qwen2") -> None:
  """Writes a byte-level tokenizer's parts, filled up to `rows` as llama.cpp's converter does."""
  parts = json.loads(tokenizer.backend_tokenizer.to_str())
  added = {token["id"]: token for token in parts["added_tokens"]}
  by_id = {index: token for token, index in tokenizer.get_vocab().items()}
  kinds = {True: _TOKEN_TYPES["control"], False: _TOKEN_TYPES["user defined"]}
  types = [
    kinds[added[i]["special"]] if i in added else _TOKEN_TYPES["normal"]
    for i in range(len(by_id))
  ]
  filling = [f"[PAD{i}]" for i in range(len(by_id), rows)]
  merges = parts["model"]["merges"]
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre(pre)
  writer.add_token_list([*(by_id[i] for i in range(len(by_id))), *filling])
  writer.add_token_types([*types, *[_TOKEN_TYPES["unused"]] * len(filling)])
  writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
  writer.add_eos_token_id(tokenizer.convert_tokens_to_ids(chat.IM_END))
  writer.add_pad_token_id(tokenizer.convert_tokens_to_ids(chat.PAD))
  writer.add_chat_template(hf_tokenizer.CHAT_TEMPLATE)


_TEXTS = (
  "Una waits on the quay. <role_action>sits</role_action> <|im_end|> <think>no</think>",
  "Perran — “late” again, isn't she?\n\n  I'd say 1834 or so…",
  "海面上起风了。\tcafe\u0301 naïve 😀",
)


def test_training_starts_from_a_file_with_its_own_tokenizer(tmp_path):
  tokenizer = hf_tokenizer.train(["Una waits on the quay. Perran sits."], 320)
  config = dataclasses.replace(_LLAMA, vocab_size=352)
  path = _write(
    tmp_path / "model.gguf", config, extra=lambda writer: _add_tokenizer(writer, tokenizer, 352)
  )
  messages = [{"role": "user", "content": "Sit."}]
  render = lambda t: t.apply_chat_template(messages, add_generation_prompt=True)
  for place in (path, tmp_path):
    settings = sft.get_config("tiny")
    settings.init_from = str(place)
    model = start.start_model(settings, sharding.make_mesh(), data.Scenes([], []))
    assert model.config == dataclasses.replace(config, remat="none")
    assert len(model.tokenizer) == len(tokenizer)  # Without the rows that only fill up.
    text = _TEXTS[0]
    ids = chat.encode_text(text, model.tokenizer)
    assert ids == chat.encode_text(text, tokenizer)
    assert model.tokenizer.encode(text) == tokenizer.encode(text)
    assert render(model.tokenizer) == render(tokenizer)
  flat = names.flatten(model.params)
  assert all(value.dtype == jnp.float32 for value in flat.values())


@pytest.mark.parametrize("given", ["its own", "config.tokenizer"])
def test_file_with_fewer_rows_than_its_tokenizer_has_ids_is_refused(given, tmp_path):
  tokenizer = hf_tokenizer.train(["Una waits on the quay. Perran sits."], 320)
  config = dataclasses.replace(_LLAMA, vocab_size=len(tokenizer) - 1)
  settings = sft.get_config("tiny")
  settings.init_from = str(tmp_path / "model.gguf")
  extra = None
  if given == "its own":
    extra = lambda writer: _add_tokenizer(writer, tokenizer, len(tokenizer))
  else:
    tokenizer.save_pretrained(tmp_path / "given")
    settings.tokenizer = str(tmp_path / "given")
  _write(tmp_path / "model.gguf", config, extra=extra)
  message = f"has {len(tokenizer)} ids, the model only {len(tokenizer) - 1} rows"
  with pytest.raises(ConfigError, match=message):
    start.start_model(settings, sharding.make_mesh(), data.Scenes([], []))


def test_tokenizer_that_cannot_be_rebuilt_is_refused(tmp_path):
  bare = _write(tmp_path / "bare.gguf", _LLAMA)
  with pytest.raises(ConfigError, match="kind None.*set config.tokenizer"):
    hf_tokenizer.load(bare)
  tokenizer = hf_tokenizer.train(["Una waits."], 300)
  add = lambda writer: _add_tokenizer(writer, tokenizer, 300, pre="tekken")
  other = _write(tmp_path / "other.gguf", _LLAMA, extra=add)
  with pytest.raises(ConfigError, match="pre='tekken' is not one of gpt-2"):
    hf_tokenizer.load(other)


@pytest.mark.slow
def test_qwen3_tokenizer_survives_a_file_exactly(qwen3_folder, tmp_path):
  tokenizer = hf_tokenizer.load(qwen3_folder)
  add = lambda writer: _add_tokenizer(writer, tokenizer, 151_936)
  again = hf_gguf.tokenizer(_write(tmp_path / "model.gguf", _QWEN3, extra=add))
  assert len(again) == len(tokenizer) == 151_669
  assert again.get_vocab() == tokenizer.get_vocab()
  for text in _TEXTS:
    assert again.encode(text) == tokenizer.encode(text)
    assert chat.encode_text(text, again) == chat.encode_text(text, tokenizer)
    assert again.decode(again.encode(text)) == tokenizer.decode(tokenizer.encode(text))
