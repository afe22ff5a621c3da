"""What we export, transformers loads; what is loaded is complete or refused."""

import dataclasses
import json
import logging

from flax import nnx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import torch
from transformers import AutoModelForCausalLM

from her_jax import sharding
from her_jax.hf import load as load_module
from her_jax.hf import names, tensor_file
from her_jax.hf.export import export_model
from her_jax.hf.load import load
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3, abstract_model


def _config(tied: bool) -> ModelConfig:
  return ModelConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    tie_embeddings=tied,
    max_position_embeddings=64,
    dtype="float32",
  )


def _random_params(config: ModelConfig) -> nnx.State:
  """Every weight random, norms included."""
  rng = np.random.default_rng(0)

  def fill(path, param):
    values = rng.normal(size=param.shape).astype(np.float32)
    return jnp.asarray(1 + 0.3 * values if "norm" in str(path) else 0.2 * values)

  return jax.tree_util.tree_map_with_path(fill, abstract_model(config)[1])


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request) -> Qwen3:
  config = _config(request.param)
  return nnx.merge(abstract_model(config)[0], _random_params(config))


def _assert_equal(a: nnx.State, b: nnx.State) -> None:
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def _their_logits(folder, tokens, **kwargs) -> np.ndarray:
  reference, info = AutoModelForCausalLM.from_pretrained(
    folder, local_files_only=True, output_loading_info=True, **kwargs
  )
  assert not any(info.values()), info
  with torch.no_grad():
    return reference(torch.tensor(tokens)).logits.float().numpy()


@pytest.mark.parametrize("max_shard_bytes", [2**30, 20_000], ids=["one file", "many"])
def test_exported_folder_gives_our_logits_and_comes_back(model, tmp_path, max_shard_bytes):
  params = nnx.state(model)
  export_model(model.config, params, tmp_path, max_shard_bytes=max_shard_bytes)
  files = list(tmp_path.glob("*.safetensors"))
  assert (len(files) > 3) == (max_shard_bytes == 20_000)
  stored = {name for file in files for name in load_file(file)}
  assert ("lm_head.weight" in stored) != model.config.tie_embeddings

  tokens = np.random.default_rng(1).integers(0, 96, (2, 12))
  rows = [jnp.broadcast_to(x, (2, 12)) for x in (jnp.arange(12), jnp.full(12, 12))]
  ours = model.logits(model(tokens, *rows)[0])
  assert np.abs(ours).max() > 1
  np.testing.assert_allclose(_their_logits(tmp_path, tokens), ours, atol=1e-4)

  config, graphdef, loaded = load(tmp_path, dtype="float32")
  assert config == model.config
  assert graphdef == nnx.split(model)[0]
  _assert_equal(loaded, params)


def test_sharded_parameters_export_and_load_the_same(model, tmp_path):
  """From one mesh to disk to another, with heads, KV heads, MLP and embeddings cut."""
  params = nnx.state(model)
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  export_model(model.config, jax.device_put(params, sharding.shardings(params, mesh)), tmp_path)
  _assert_equal(load(tmp_path)[2], params)
  other = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  loaded = load(tmp_path, mesh=other)[2]
  _assert_equal(jax.tree.map(np.asarray, loaded), jax.tree.map(np.asarray, params))
  expected = sharding.shardings(params, other)
  assert jax.tree.map(lambda x: x.sharding, loaded) == expected


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_all_devices_together_read_a_checkpoint_once(model, tmp_path, monkeypatch, sizes):
  """Replicas and cut columns included; each device reads the rows of its share alone."""
  export_model(model.config, nnx.state(model), tmp_path, max_shard_bytes=20_000)
  read = []
  real = tensor_file.Tensor.read_rows

  def counted(self, start, out):
    read.append(out.nbytes)
    real(self, start, out)

  monkeypatch.setattr(tensor_file.Tensor, "read_rows", counted)
  load(tmp_path, mesh=sharding.make_mesh(**sizes))
  stored = {k: v for f in tmp_path.glob("*.safetensors") for k, v in load_file(f).items()}
  norms = sum(v.nbytes for v in stored.values() if v.ndim == 1)
  matrices = sum(v.nbytes for v in stored.values() if v.ndim > 1)
  assert matrices <= sum(read) <= matrices + 8 * norms


@pytest.mark.parametrize("sizes", [{}, {"fsdp": 4, "tensor": 2}], ids=["one device", "eight"])
def test_layers_reach_an_accelerator_a_few_at_a_time(model, tmp_path, monkeypatch, sizes):
  """A CPU device takes over what was read; here it is made to copy like the others."""
  params = nnx.state(model)
  export_model(model.config, params, tmp_path)
  monkeypatch.setattr(load_module, "_STAGED_BYTES", 20_000)  # Two layers of a projection.
  monkeypatch.setattr(load_module, "_takes_over", lambda place: False)
  mesh = sharding.make_mesh(**sizes, devices=jax.devices()[: 8 if sizes else 1])
  loaded = load(tmp_path, mesh=mesh)[2]
  _assert_equal(jax.tree.map(np.asarray, loaded), jax.tree.map(np.asarray, params))
  assert jax.tree.map(lambda x: x.sharding, loaded) == sharding.shardings(params, mesh)


def test_a_device_takes_over_what_was_read(tmp_path):
  """4 MB of a table in pages of its own are not copied once more."""
  config = dataclasses.replace(_config(tied=True), vocab_size=32_768)
  params = _random_params(config)
  export_model(config, params, tmp_path)
  made = []
  real = load_module._zeros
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(load_module, "_zeros", lambda *a: made.append(real(*a)) or made[-1])
    loaded = load(tmp_path)[2]
  table = loaded["embedding"].get_value()
  assert table.unsafe_buffer_pointer() in {array.ctypes.data for array in made}
  _assert_equal(loaded, params)


def test_bfloat16_export_is_rounded_once_and_says_so(model, tmp_path):
  params = nnx.state(model)
  export_model(model.config, params, tmp_path, dtype="bfloat16")
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["dtype"] == config["torch_dtype"] == "bfloat16"
  assert _their_logits(tmp_path, [[1, 2]], dtype="auto").shape == (1, 2, 96)
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  _assert_equal(load(tmp_path, param_dtype="bfloat16")[2], rounded)
  wide = load(tmp_path)[2]
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(wide))
  _assert_equal(wide, jax.tree.map(lambda x: x.astype(jnp.float32), rounded))


def test_every_wrong_weight_is_listed(model, tmp_path):
  export_model(model.config, nnx.state(model), tmp_path)
  file = tmp_path / "model.safetensors"
  tensors = load_file(file)
  del tensors["model.layers.0.self_attn.q_norm.weight"]
  del tensors["model.layers.2.mlp.up_proj.weight"]
  tensors["model.layers.1.self_attn.q_proj.bias"] = np.ones(64, np.float32)
  tensors["model.norm.weight"] = np.ones(33, np.float32)
  save_file(tensors, file)
  with pytest.raises(ValueError) as error:
    load(tmp_path)
  assert str(error.value).splitlines()[1:] == [
    "  missing: model.layers.0.self_attn.q_norm.weight",
    "  missing: model.layers.2.mlp.up_proj.weight",
    "  unexpected: model.layers.1.self_attn.q_proj.bias",
    "  shape (33,) instead of (32,): model.norm.weight",
  ]


@pytest.mark.parametrize("sizes", [{}, {"fsdp": 4, "tensor": 2}], ids=["one device", "eight"])
@pytest.mark.parametrize(
  ("stored", "value", "held"),
  [
    (np.float32, np.nan, "float32"),
    (np.float32, -np.inf, "bfloat16"),
    (ml_dtypes.bfloat16, np.inf, "float32"),
    (ml_dtypes.bfloat16, -np.nan, "bfloat16"),
    (np.float64, 1e300, "float32"),
  ],
)
def test_weights_that_are_not_finite_are_named_once(
  model, tmp_path, caplog, sizes, stored, value, held
):
  """They are loaded: whoever looks for the cause needs them."""
  export_model(model.config, nnx.state(model), tmp_path)
  mesh = sharding.make_mesh(**sizes) if sizes else None
  file = tmp_path / "model.safetensors"
  tensors = {name: x.astype(stored) for name, x in load_file(file).items()}
  bad = [
    "model.embed_tokens.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.norm.weight",
  ]
  with caplog.at_level(logging.WARNING, logger="absl"):
    save_file(tensors, file)
    load(tmp_path, mesh=mesh, param_dtype=held)
    assert not caplog.records
    for name in bad:
      tensors[name][(-1,) * tensors[name].ndim] = value
    save_file(tensors, file)
    params = load(tmp_path, mesh=mesh, param_dtype=held)[2]
  (record,) = caplog.records
  expected = f"{tmp_path}: NaN or infinite as {held}: {', '.join(bad)}"
  assert record.getMessage() == expected
  assert not np.isfinite(params["embedding"].get_value()).all()


def test_second_copy_of_a_tied_head_must_be_a_copy(tmp_path):
  config = _config(tied=True)
  params = _random_params(config)
  export_model(config, params, tmp_path)
  file = tmp_path / "model.safetensors"
  tensors = load_file(file)
  save_file({**tensors, names.LM_HEAD: tensors[names.EMBEDDING]}, file)
  _assert_equal(load(tmp_path)[2], params)
  save_file({**tensors, names.LM_HEAD: 1 + tensors[names.EMBEDDING]}, file)
  with pytest.raises(ValueError, match="differs from the embedding"):
    load(tmp_path)


def test_block_of_flattened_heads():
  weight = names.Weight("q", ("q",), 0, shape=(4, 2, 3), inputs=1)
  ours = np.arange(24).reshape(4, 2, 3)
  block = (slice(1, 3), slice(1, 2), slice(0, 3))
  theirs = weight.to_hf(ours)
  assert theirs.shape == weight.hf_shape == (6, 4)
  assert weight.hf_block(block) == (slice(3, 6), slice(1, 3))
  np.testing.assert_array_equal(
    weight.from_hf(theirs[weight.hf_block(block)], (2, 1, 3)), ours[block]
  )
  with pytest.raises(ValueError, match="only the first"):
    weight.hf_block((slice(0, 4), slice(0, 2), slice(0, 1)))
