"""Rows that fill up the vocabulary: never seen in a file, never learnt."""

import dataclasses
import json

from flax import nnx
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

from configs import sft
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.hf.config import to_hf
from her_jax.hf.export import export_model
from her_jax.hf.load import load
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.roleplay.prompts import Variant
from her_jax.tasks import data, start
from her_jax.training import checkpoint
from her_jax.training import step as steps
from her_jax.training.state import TrainState

_CONFIG = ModelConfig(
  vocab_size=97,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=4,
  num_kv_heads=4,
  head_dim=8,
  tie_embeddings=True,
  max_position_embeddings=64,
  dtype="float32",
)


def _mesh(**sizes) -> jax.sharding.Mesh:
  count = int(np.prod(list(sizes.values())))
  return sharding.make_mesh(**sizes, devices=jax.devices()[:count])


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
  """A checkpoint of 97 rows, which nothing divides, and its config."""
  config = dataclasses.replace(_CONFIG, tie_embeddings=request.param)
  _, params = sharding.init_sharded(config, 0, _mesh(fsdp=1))
  path = tmp_path_factory.mktemp("model")
  export_model(config, params, path)
  return config, path


def _logits(graphdef, params, tokens):
  model = nnx.merge(graphdef, params)
  rows = [jnp.broadcast_to(x, tokens.shape) for x in (jnp.arange(8), jnp.full(8, 8))]
  return np.asarray(model.logits(model(tokens, *rows)[0]))


def test_the_round_trip_is_exact_and_the_table_is_split(folder, tmp_path):
  config, path = folder
  mesh = _mesh(fsdp=2, tensor=4)
  padded, graphdef, params = load(path, mesh=mesh, dtype="float32", vocab_multiple=4)
  assert padded == dataclasses.replace(config, vocab_multiple=4)
  assert padded.vocab_rows == 100 and to_hf(padded) == to_hf(config)
  table = params["embedding"].get_value()
  assert table.shape == (100, 16)
  assert table.addressable_shards[0].data.shape[0] == 25
  assert not np.asarray(table[97:]).any()
  if not config.tie_embeddings:
    head = params["lm_head"].get_value()
    assert head.shape == (16, 100) and head.addressable_shards[0].data.shape[1] == 25
    assert not np.asarray(head[:, 97:]).any()

  export_model(padded, params, tmp_path)
  for file in path.glob("*.safetensors"):
    theirs, ours = load_file(file), load_file(tmp_path / file.name)
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
      np.testing.assert_array_equal(ours[name], value)
  assert (path / "config.json").read_text() == (tmp_path / "config.json").read_text()

  tokens = np.random.default_rng(1).integers(0, 97, (2, 8))
  _, plain_graphdef, plain = load(path, dtype="float32")
  expected = _logits(plain_graphdef, plain, tokens)
  with jax.set_mesh(mesh):
    found = _logits(graphdef, params, tokens)
  assert found.shape == (2, 8, 100) and np.abs(expected).max() > 0.1
  np.testing.assert_allclose(found[..., :97], expected, atol=1e-5)


def test_fresh_weights_do_not_depend_on_the_multiple():
  config = dataclasses.replace(_CONFIG, tie_embeddings=False)
  mesh = _mesh(fsdp=1)
  plain = sharding.init_sharded(config, 3, mesh)[1]
  padded = sharding.init_sharded(dataclasses.replace(config, vocab_multiple=8), 3, mesh)[1]
  for name, cut in (("embedding", np.s_[:97]), ("lm_head", np.s_[:, :97])):
    value = np.asarray(padded[name].get_value())
    np.testing.assert_array_equal(value[cut], np.asarray(plain[name].get_value()))
    assert np.abs(value).sum() == np.abs(value[cut]).sum()
  jax.tree.map(np.testing.assert_array_equal, padded["layers"], plain["layers"])


def test_filled_up_rows_stay_zero_in_training():
  config = dataclasses.replace(_CONFIG, vocab_multiple=64)
  graphdef, params = sharding.init_sharded(config, 0, _mesh(fsdp=1))
  optimizer = optax.adamw(1e-2, weight_decay=0.1)
  step = steps.make_train_step(graphdef, optimizer, steps.next_token_loss(97))
  tokens = np.random.default_rng(0).integers(0, 97, (2, 8), dtype=np.int32)
  batch = {
    "tokens": tokens,
    "targets": np.roll(tokens, -1, 1),
    "positions": np.tile(np.arange(8, dtype=np.int32), (2, 1)),
    "visible_until": np.full((2, 8), 8, np.int32),
    "loss_weights": np.ones((2, 8), np.float32),
  }
  before = np.asarray(params["embedding"].get_value())
  state = TrainState.create(params, optimizer)
  for _ in range(2):
    state, metrics = step(state, batch)
  after = np.asarray(state.params["embedding"].get_value())
  assert (after[:97] != before[:97]).any(1).all() and not after[97:].any()
  assert float(metrics["loss"]) < 2 * np.log(97)


def test_the_mesh_decides_the_multiple_where_a_model_starts():
  config = ml_collections.ConfigDict({
    "init_from": "", "tokenizer": "", "tokenizer_vocab": 301, "model": "tiny", "seed": 0,
    "prompt": {"style": "brief"},
  })  # fmt: skip
  model = start.start_model(config, _mesh(tensor=4), data.Scenes([], []))
  assert model.config.vocab_multiple == 4
  table = model.params["embedding"].get_value()
  assert len(table) % 4 == 0 and len(table) >= len(model.tokenizer)


def _tokenizer(folder, last, count=301):
  """Saves one with ids up to `last`; returns the folder."""
  tokenizer = hf_tokenizer.train(["Una waits."], 290)
  tokenizer.add_tokens([f"<extra {i}>" for i in range(count - 1 - len(tokenizer))])
  tokenizer.save_pretrained(folder)
  path = folder / "tokenizer.json"
  parts = json.loads(path.read_text())
  parts["model"]["vocab"]["<last>"] = last
  path.write_text(json.dumps(parts))
  return folder


@pytest.mark.parametrize("given", ["its own", "config.tokenizer"])
@pytest.mark.parametrize("source", ["random weights", "folder", "workdir"])
@pytest.mark.parametrize(
  "last, count, message",
  [
    (300, 301, None),
    (301, 302, "has 302 ids, the model only 301 rows; pass the tokenizer that belongs"),
    (301, 301, "has 302 ids, the model only 301 rows"),
    (300, 300, "has 300 tokens and ids up to 300; number them without gaps"),
  ],
)
def test_training_starts_only_with_a_row_for_every_id(
  source, given, last, count, message, tmp_path, monkeypatch
):
  """Where there is none JAX looks up another, and the loss looks like any other."""
  model = dataclasses.replace(_CONFIG, vocab_size=301)
  monkeypatch.setitem(start.PRESETS, "random weights", model)
  config = sft.get_config("tiny")
  folder = tmp_path / source
  if source != "random weights":
    config.init_from = str(folder)
    params = sharding.init_sharded(model, 0, _mesh(fsdp=1))[1]
    if source == "folder":
      export_model(model, params, folder)
    else:
      checkpoint.save(str(folder), 1, model, params, None, Variant())
  config.model = "random weights"
  if given == "its own" and source != "random weights":
    _tokenizer({"folder": folder, "workdir": folder / "tokenizer"}[source], last, count)
  else:
    config.tokenizer = str(_tokenizer(tmp_path / "given", last, count))
  begin = lambda: start.start_model(config, _mesh(fsdp=1), data.Scenes([], []))
  if message is None:
    assert len(begin().tokenizer) == count
    return
  with pytest.raises(ConfigError, match=message):
    begin()


def test_a_multiple_below_one_is_refused():
  with pytest.raises(ValueError, match="vocab_multiple must be a whole number from 1"):
    dataclasses.replace(_CONFIG, vocab_multiple=0)
  assert dataclasses.replace(_CONFIG, vocab_multiple=7).num_params() == _CONFIG.num_params()
  assert abstract_model(_CONFIG)[1]["embedding"].get_value().shape == (97, 16)
