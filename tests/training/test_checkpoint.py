"""A checkpoint comes back as it was, on the same or another mesh."""

import dataclasses
import pathlib
import shutil

from flax import nnx
import jax
import numpy as np
import pytest

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.roleplay.prompts import Variant
from her_jax.training import checkpoint

_CONFIG = ModelConfig(
  vocab_size=320,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  dtype="bfloat16",
)
TEXT = "<system_thinking>Una waits.</system_thinking>Una: Sit."


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train(["Una waits. Una: Sit."], 320)


def _mesh(count: int, **sizes) -> jax.sharding.Mesh:
  return sharding.make_mesh(**sizes, devices=jax.devices()[:count])


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
  """workdir and params, saved from one device."""
  workdir = str(tmp_path_factory.mktemp("stage"))
  _, params = sharding.init_sharded(_CONFIG, 0, _mesh(1))
  checkpoint.save(workdir, 7, _CONFIG, params, tokenizer, Variant("brief"))
  return workdir, params


def _assert_equal(one: nnx.State, two: nnx.State) -> None:
  assert jax.tree.structure(one) == jax.tree.structure(two)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_relative_workdir_is_as_good_as_an_absolute_one(tokenizer, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _, params = sharding.init_sharded(_CONFIG, 0, _mesh(1))
  checkpoint.save("out/stage", 7, _CONFIG, params, tokenizer, Variant("brief"))
  _assert_equal(checkpoint.load("out/stage", _mesh(1), "config.policy").params, params)
  assert (tmp_path / "out/stage/checkpoints/7").is_dir()
  checkpoint.clear("out/stage")
  assert not (tmp_path / "out/stage/checkpoints").exists()


def test_what_is_saved_is_loaded(saved, tokenizer):
  workdir, params = saved
  loaded = checkpoint.load(workdir, _mesh(1), "config.policy")
  _assert_equal(loaded.params, params)
  assert loaded.config == _CONFIG
  assert (loaded.variant, loaded.step) == (Variant("brief"), 7)
  assert loaded.tokenizer.get_vocab() == tokenizer.get_vocab()
  assert loaded.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)
  assert loaded.tokenizer.chat_template == tokenizer.chat_template
  # The model can be put together again.
  assert nnx.merge(loaded.graphdef, loaded.params).config == _CONFIG


@pytest.mark.parametrize(
  "sizes", [{"fsdp": 8}, {"fsdp": 2, "tensor": 4}, {"data": 4, "fsdp": 2}]
)
def test_it_is_restored_on_eight_devices(saved, sizes):
  workdir, params = saved
  mesh = _mesh(8, **sizes)
  loaded = checkpoint.load(workdir, mesh, "config.policy")
  _assert_equal(loaded.params, params)
  placed = jax.tree.leaves(sharding.shardings(loaded.params, mesh))
  for leaf, expected in zip(jax.tree.leaves(loaded.params), placed, strict=True):
    assert leaf.sharding.is_equivalent_to(expected, leaf.ndim)
  # Each device holds its own part, not a copy.
  assert not loaded.params["lm_head"].get_value().sharding.is_fully_replicated


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("before", [1, 3, 4, 8])
@pytest.mark.parametrize("after", [1, 2, 8])
def test_the_vocabulary_is_filled_up_to_what_the_mesh_needs(tmp_path, tied, before, after):
  """317 tokens: 318 rows for 3, 320 for 4 and 8. No token's row changes, and all divide."""
  config = dataclasses.replace(
    _CONFIG, vocab_size=317, vocab_multiple=before, tie_embeddings=tied
  )
  _, params = sharding.init_sharded(config, 0, _mesh(1))
  checkpoint.save(str(tmp_path), 1, config, params, None, Variant("full"))
  mesh = _mesh(8, tensor=after)
  found, graphdef, loaded, *_ = checkpoint.load_params(str(tmp_path), mesh, "config.policy")
  assert found == dataclasses.replace(config, vocab_multiple=after)
  assert nnx.merge(graphdef, loaded).config == found
  expected = sharding.init_sharded(found, 0, mesh)[1]
  assert jax.tree.map(lambda x: (x.shape, x.sharding), loaded) == jax.tree.map(
    lambda x: (x.shape, x.sharding), expected
  )
  tables = {"embedding": 0} if tied else {"embedding": 0, "lm_head": 1}
  for name, axis in tables.items():
    old, new = (np.moveaxis(np.asarray(p[name].get_value()), axis, 0) for p in (params, loaded))
    assert len(new) % after == 0
    np.testing.assert_array_equal(new[:317], old[:317])
    assert not new[317:].any()
  rest = [{k: v for k, v in p.items() if k not in tables} for p in (params, loaded)]
  jax.tree.map(np.testing.assert_array_equal, *rest)


def test_what_eight_devices_save_one_loads(tokenizer, tmp_path):
  _, params = sharding.init_sharded(_CONFIG, 1, _mesh(8, fsdp=8))
  checkpoint.save(str(tmp_path), 1, _CONFIG, params, tokenizer, Variant("full"))
  for count in (1, 2):
    loaded = checkpoint.load(str(tmp_path), _mesh(count), "config.policy")
    _assert_equal(loaded.params, params)


def test_the_newest_is_loaded_and_one_of_the_same_step_replaced(tokenizer, tmp_path):
  """Steps are numbers: 100 is newer than 20."""
  states = [sharding.init_sharded(_CONFIG, seed, _mesh(1))[1] for seed in range(3)]
  for step, params in ((20, states[0]), (100, states[1]), (100, states[2])):
    checkpoint.save(str(tmp_path), step, _CONFIG, params, tokenizer, Variant("full"))
  (tmp_path / "checkpoints" / "999.orbax-checkpoint-tmp").mkdir()  # A save that was killed.
  loaded = checkpoint.load(str(tmp_path), _mesh(1), "config.policy")
  assert loaded.step == 100
  _assert_equal(loaded.params, states[2])


def test_clear_removes_checkpoints_alone(tokenizer, tmp_path):
  params = sharding.init_sharded(_CONFIG, 0, _mesh(1))[1]
  checkpoint.save(str(tmp_path), 1, _CONFIG, params, tokenizer, Variant("full"))
  (tmp_path / "notes.txt").write_text("mine")
  checkpoint.clear(str(tmp_path))
  assert (tmp_path / "notes.txt").read_text() == "mine"
  with pytest.raises(checkpoint.MissingCheckpoint):
    checkpoint.load(str(tmp_path), _mesh(1), "config.policy")
  checkpoint.clear(str(tmp_path))  # Nothing to do is no error.


@pytest.mark.parametrize("workdir", ["", "nowhere", "empty"])
def test_a_missing_checkpoint_names_the_field_and_the_mend(workdir, tmp_path):
  (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
  path = str(tmp_path / workdir) if workdir else ""
  with pytest.raises(checkpoint.MissingCheckpoint) as caught:
    checkpoint.load(path, _mesh(1), "config.judge.checkpoint")
  message = str(caught.value)
  assert "--config.judge.checkpoint" in message and "run the stage" in message
  assert (path or "an empty path") in message


def test_no_parameter_is_left_at_its_initial_value(saved, tokenizer, tmp_path):
  """A checkpoint that lacks a layer's weight does not load as if it had it."""
  workdir, params = saved
  pure = nnx.to_pure_dict(params)
  del pure["layers"]["mlp"]["gate"]
  broken = nnx.State(pure)
  checkpoint.save(str(tmp_path), 1, _CONFIG, broken, tokenizer, Variant("full"))
  with pytest.raises(Exception, match="gate"):
    checkpoint.load(str(tmp_path), _mesh(1), "config.policy")


def test_a_model_of_another_width_does_not_load(saved, tokenizer, tmp_path):
  other = dataclasses.replace(_CONFIG, intermediate_size=48)
  checkpoint.save(str(tmp_path), 1, other, saved[1], tokenizer, Variant("full"))
  with pytest.raises(Exception, match="(?i)shape"):
    checkpoint.load(str(tmp_path), _mesh(1), "config.policy")


def test_the_layout_on_disk(saved):
  workdir = pathlib.Path(saved[0])
  assert (workdir / "checkpoints" / "7" / "params").is_dir()
  assert (workdir / "tokenizer" / "tokenizer.json").is_file()


@pytest.mark.parametrize("same", ["{}", "{}/", "{}/../{name}"])
def test_a_run_does_not_clear_what_it_starts_from(saved, same):
  workdir, params = saved
  source = same.format(workdir, name=pathlib.Path(workdir).name)
  with pytest.raises(ConfigError, match="choose another folder"):
    checkpoint.clear(workdir, "", source)
  _assert_equal(checkpoint.load(workdir, _mesh(1), "config.policy").params, params)


def test_all_that_is_missing_is_named_at_once(saved, tmp_path):
  places = {"config.policy": saved[0], "config.baseline": "", "config.judge": str(tmp_path)}
  with pytest.raises(checkpoint.MissingCheckpoint) as error:
    checkpoint.require(places)
  one, two = str(error.value).splitlines()
  assert "--config.baseline" in one and "empty path" in one
  assert "--config.judge" in two and str(tmp_path) in two


def _without(name):
  return lambda step: shutil.rmtree(step / name)


def _cut(pattern):
  def cut(step):
    for path in filter(pathlib.Path.is_file, step.glob(pattern)):
      path.write_bytes(path.read_bytes()[:20])

  return cut


@pytest.mark.parametrize("read", ["load", "load_params"])
@pytest.mark.parametrize(
  "damage, part",
  [
    (_without("meta"), "meta"),
    (_cut("meta/**/*"), "meta"),
    (_without("params"), "params"),
    (_cut("params/_METADATA"), "params"),
    (_cut("params/ocdbt.process_0/d/*"), "params"),
  ],
  ids=["no meta", "meta cut", "no params", "list cut", "weights cut"],
)
def test_a_damaged_checkpoint_is_named_with_the_mend(saved, read, damage, part, tmp_path):
  workdir = shutil.copytree(saved[0], tmp_path / "copy")
  damage(workdir / "checkpoints" / "7")
  message = f"(?s){workdir}/checkpoints/7 cannot be read.* copy it again.* of its {part}: "
  with pytest.raises(ConfigError, match=message) as error:
    getattr(checkpoint, read)(str(workdir), _mesh(1), "config.policy")
  assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_tokenizer_is_named(saved, name, text, tmp_path):
  workdir = shutil.copytree(saved[0], tmp_path / "copy")
  (workdir / "tokenizer" / name).write_text(text)
  with pytest.raises(ConfigError, match=f"tokenizer in {workdir}/tokenizer cannot be read"):
    checkpoint.load(str(workdir), _mesh(1), "config.policy")
