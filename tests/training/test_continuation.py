"""Whole checkpoints: what is saved, kept and restored, and what is refused in words."""

import collections
import dataclasses
import pathlib
import shutil

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sft
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.roleplay.prompts import Variant
from her_jax.training import checkpoint, continuation, lora, origin
from her_jax.training import optimizer as optimizers
from her_jax.training import saver as savers
from her_jax.training.state import TrainState, count

_MODEL = ModelConfig(
  vocab_size=317,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  dtype="float32",
)
_DATA = "0123"


def _mesh(devices: int, **sizes: int) -> jax.sharding.Mesh:
  return sharding.make_mesh(**sizes, devices=jax.devices()[:devices])


def _config(**fields):
  config = sft.get_config("tiny")
  for name, value in fields.items():
    section, _, field = name.rpartition("__")
    (config[section] if section else config)[field] = value
  return config


def _batches() -> grain.DatasetIterator:
  return iter(grain.MapDataset.range(1000).shuffle(seed=1).to_iter_dataset())


def _model(config: ModelConfig, mesh: jax.sharding.Mesh) -> checkpoint.Checkpoint:
  graphdef, params = sharding.init_sharded(config, 0, mesh)
  return checkpoint.Checkpoint(config, graphdef, params, None, Variant("brief"))


def _state(model, config, mesh, step: int = 0) -> TrainState:
  """A state whose every moment is another number; rows that fill up are zeros, as they stay."""
  optimizer, _ = optimizers.build(config.optimizer, config.steps)
  state = TrainState.create(model.params, optimizer)

  def fill(moment: jax.Array, param: jax.Array) -> jax.Array:
    return jnp.where(param == 0, 0, jnp.sin(jnp.arange(moment.size, dtype=moment.dtype))
                     .reshape(moment.shape))  # fmt: skip

  by_shape = {leaf.shape: leaf for leaf in jax.tree.leaves(state.params)}
  moments = jax.tree.map(
    lambda x: fill(x, by_shape[x.shape]) if x.shape in by_shape else x + step, state.opt_state
  )
  return TrainState(count(step, mesh), state.params, moments)


@dataclasses.dataclass
class _Saved:
  """A run of three steps, saved."""

  workdir: str
  config: object
  state: TrainState
  following: list[int]  # elements that come next


def _save(workdir, config, mesh, model_config=_MODEL, steps=(3,)) -> _Saved:
  model = _model(model_config, mesh)
  batches = _batches()
  run = continuation.describe(config, {"heldout_loss": np.float32(2.5)}, _DATA)
  tuning = lora.Tuning(model.graphdef)
  with savers.Saver(str(workdir), config.checkpoint, model, tuning, batches, run) as saver:
    for step in steps:
      next(batches)
      state = _state(model, config, mesh, step)
      saver.save(state)
  return _Saved(str(workdir), config, state, [next(batches) for _ in range(5)])


def _restore(workdir, config, mesh, data=_DATA, batches=None) -> TrainState:
  earlier = continuation.find(config, str(workdir))
  found, graphdef, params, variant, step = checkpoint.load_params(str(workdir), mesh, "workdir")
  model = checkpoint.Checkpoint(found, graphdef, params, None, variant, step)
  optimizer, _ = optimizers.build(config.optimizer, config.steps)
  batches = batches or _batches()
  return earlier.restore(model, lora.Settings(), optimizer, batches, mesh, data)[1]


@pytest.fixture(scope="module", params=["adamw", "muon"])
def on_eight(request, tmp_path_factory):
  """Saved by eight devices, four of which share the vocabulary: 317 tokens have 320 rows."""
  mesh = _mesh(8, fsdp=2, tensor=4)
  config = _config(optimizer__name=request.param, optimizer__ema=0.5)
  model = dataclasses.replace(_MODEL, vocab_multiple=4)
  return _save(tmp_path_factory.mktemp("eight"), config, mesh, model)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
  return _save(tmp_path_factory.mktemp("one"), _config(), _mesh(1))


@pytest.mark.parametrize("devices, tensor", [(1, 1), (2, 1), (4, 2), (8, 8)])
def test_a_run_goes_on_with_another_number_of_devices(on_eight, devices, tensor):
  """Parameters and moments are the same, each split as those of a new run are."""
  mesh = _mesh(devices, tensor=tensor)
  batches = _batches()
  found = _restore(on_eight.workdir, on_eight.config, mesh, batches=batches)
  assert [next(batches) for _ in range(5)] == on_eight.following
  assert found.step == 3
  new = _model(dataclasses.replace(_MODEL, vocab_multiple=tensor), mesh)
  optimizer, _ = optimizers.build(on_eight.config.optimizer, on_eight.config.steps)
  like = TrainState.create(new.params, optimizer)
  assert jax.tree.structure(found) == jax.tree.structure(like)
  # All have the vocabulary's rows on one axis or on none.
  for (path, a), b, expected in zip(
    jax.tree.leaves_with_path(found),
    jax.tree.leaves(on_eight.state),
    jax.tree.leaves(like),
    strict=True,
  ):
    assert a.shape == expected.shape and a.dtype == expected.dtype, path
    assert a.sharding.is_equivalent_to(expected.sharding, a.ndim), path
    common = tuple(slice(min(sizes)) for sizes in zip(a.shape, b.shape, strict=True))
    np.testing.assert_array_equal(np.asarray(a)[common], np.asarray(b)[common], str(path))
    assert np.count_nonzero(a) == np.count_nonzero(b)


def test_first_measures_come_back(on_one):
  earlier = continuation.find(on_one.config, on_one.workdir)
  assert (earlier.step, earlier.before) == (3, {"heldout_loss": 2.5})


def test_the_newest_are_kept(tmp_path):
  config = _config(checkpoint__keep=2)
  _save(tmp_path, config, _mesh(1), steps=(9, 10, 100))
  assert checkpoint.steps(str(tmp_path)) == [10, 100]
  assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "100"]


def test_readers_of_the_model_need_nothing_else(on_one, tmp_path):
  for part in ("train", "data", "run"):
    assert (pathlib.Path(on_one.workdir) / "checkpoints" / "3" / part).is_dir()
  workdir = shutil.copytree(on_one.workdir, tmp_path / "copy")
  for part in ("train", "data", "run"):
    shutil.rmtree(workdir / "checkpoints" / "3" / part)
  _, _, params, *_ = checkpoint.load_params(str(workdir), _mesh(1), "config.policy")
  jax.tree.map(np.testing.assert_array_equal, params, on_one.state.params)
  with pytest.raises(ConfigError, match="(?s)without the state of a training.*init_from"):
    continuation.find(on_one.config, str(workdir))


def test_a_folder_that_is_no_checkpoint_is_none(tmp_path):
  """As a disk that renames file by file leaves one, or a person."""
  (tmp_path / "checkpoints" / "7").mkdir(parents=True)
  assert continuation.find(_config(), str(tmp_path)) is None


@pytest.mark.parametrize(
  "fields",
  [
    {"log_every": 3, "checkpoint__every": 7, "checkpoint__keep": 9},
    {"mesh__tensor": 2, "cpu_devices": 2, "micro_batches": 2, "remat": "none"},
    {"data__eval_batch_size": 4},
  ],
)
def test_what_does_not_change_the_training_may_be_another(on_one, fields):
  assert continuation.find(_config(**fields), on_one.workdir).step == 3


@pytest.mark.parametrize(
  "fields, told",
  [
    ({"steps": 9}, "config.steps was 450 and is 9 .the rates of all steps"),
    ({"seed": 5}, "config.seed was 0 and is 5"),
    ({"data__workers": 2}, "config.data.workers was 0 and is 2"),
    ({"init_from": "x"}, 'config.init_from was "" and is "x"'),
    (
      {"optimizer__b1": 0.5, "batch_size": 3},
      "config.batch_size was 2 and is 3; config.optimizer.b1 was 0.9 and is 0.5",
    ),
  ],
)
def test_another_config_is_refused_with_what_differs(on_one, fields, told):
  with pytest.raises(ConfigError, match=f"{told}.*another folder.*checkpoint.resume=False"):
    continuation.find(_config(**fields), on_one.workdir)
  assert continuation.find(_config(**fields, checkpoint__resume=False), on_one.workdir) is None


def _began_from(workdir, source) -> object:
  """A config of a run, saved in `workdir`, that started from `source`."""
  config, model = _config(init_from=str(source)), _model(_MODEL, _mesh(1))
  run = continuation.describe(config, {}, _DATA, origin.identity(config.init_from))
  tuning = lora.Tuning(model.graphdef)
  with savers.Saver(str(workdir), config.checkpoint, model, tuning, _batches(), run) as saver:
    saver.save(_state(model, config, _mesh(1), 3))
  return config


def test_other_weights_under_the_same_path_are_refused(tmp_path):
  """Those of a stage that has gone on since; gone altogether they are not needed."""
  _save(tmp_path / "sft", _config(), _mesh(1), steps=(3,))
  config = _began_from(tmp_path / "run", tmp_path / "sft")
  workdir = str(tmp_path / "run")
  assert continuation.find(config, workdir).step == 3
  shutil.copytree(tmp_path / "sft", tmp_path / "old")
  shutil.rmtree(tmp_path / "sft")
  assert continuation.find(config, workdir).step == 3
  _save(tmp_path / "sft", _config(), _mesh(1), steps=(3,))  # Trained anew.
  with pytest.raises(ConfigError, match="started from other weights .*sft.*resume=False"):
    continuation.find(config, workdir)
  config.checkpoint.resume = False
  assert continuation.find(config, workdir) is None
  config.checkpoint.resume = True
  shutil.rmtree(tmp_path / "sft")
  shutil.copytree(tmp_path / "old", tmp_path / "sft")
  assert continuation.find(config, workdir).step == 3


@pytest.mark.parametrize("size", [100, 1 << 16, (1 << 16) + 1, 3_000_000])
@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_files_of_weights_are_told_by_their_contents(tmp_path, size, name):
  rng = np.random.default_rng(0)
  weights = rng.bytes(size)
  for folder in ("one", "copy", "end", "other", "longer"):
    (tmp_path / folder).mkdir()
  (tmp_path / "one" / name).write_bytes(weights)
  (tmp_path / "copy" / name).write_bytes(weights)
  (tmp_path / "end" / name).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
  (tmp_path / "other" / name).write_bytes(weights[: size // 2] + rng.bytes(size - size // 2))
  (tmp_path / "longer" / name).write_bytes(weights + b"x")
  found = [origin.identity(str(tmp_path / f)) for f in ("one", "end", "other", "longer")]
  assert origin.identity(str(tmp_path / "copy")) == found[0]
  assert len(set(found)) == 4 and all(found)
  if name.endswith("gguf"):
    assert origin.identity(str(tmp_path / "one" / name)) == found[0]


def test_what_is_not_there_has_no_identity(tmp_path):
  assert [origin.identity(s) for s in ("", str(tmp_path), str(tmp_path / "none"))] == [""] * 3


def test_other_data_are_refused(on_one):
  with pytest.raises(
    ConfigError, match="other training data.*files, or the tokenizer .* have changed"
  ):
    _restore(on_one.workdir, on_one.config, _mesh(1), "4567")


def _cut(folder: pathlib.Path, pattern: str) -> None:
  for path in filter(pathlib.Path.is_file, folder.glob(pattern)):
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
  "part, pattern",
  [
    ("train", None),
    ("train", "_METADATA"),
    ("train", "ocdbt.process_0/d/*"),
    ("data", None),
    ("data", "*"),
    ("run", "*"),
  ],
)
@pytest.mark.parametrize("older", [False, True])
def test_a_damaged_part_is_named_with_the_mend(part, pattern, older, tmp_path):
  config = _config()
  _save(tmp_path, config, _mesh(1), steps=(2, 3) if older else (3,))
  folder = tmp_path / "checkpoints" / "3" / part
  if pattern:
    _cut(folder, pattern)
  else:
    shutil.rmtree(folder)
  mend = "delete 3/ to continue from step 2" if older else "resume=False begins anew"
  with pytest.raises(ConfigError, match=f"checkpoints/3 cannot be read.*{mend}.*of its {part}"):
    _restore(tmp_path, config, _mesh(1))
  if older:
    shutil.rmtree(tmp_path / "checkpoints" / "3")
    assert _restore(tmp_path, config, _mesh(1)).step == 2


def test_damaged_weights_are_named_with_the_mend(tmp_path):
  _save(tmp_path, _config(), _mesh(1), steps=(2, 3))
  checkpoint.write_tokenizer(str(tmp_path), hf_tokenizer.train(["Una waits."], 300))
  _cut(tmp_path / "checkpoints" / "3" / "params", "_METADATA")
  earlier = continuation.find(_config(), str(tmp_path))
  with pytest.raises(ConfigError, match="checkpoints/3 cannot.*Or else delete 3/ to continue"):
    earlier.load_model(_mesh(1))
  shutil.rmtree(tmp_path / "checkpoints" / "3")
  assert continuation.find(_config(), str(tmp_path)).load_model(_mesh(1)).step == 2


def test_too_little_space_is_told_before_the_first_step(tmp_path, monkeypatch):
  config, mesh = _config(checkpoint__keep=3), _mesh(1)
  model = _model(_MODEL, mesh)
  state = _state(model, config, mesh)
  size = sum(x.nbytes for x in jax.tree.leaves((state.params, state.opt_state)))
  tuning = lora.Tuning(model.graphdef)
  saver = savers.Saver(str(tmp_path), config.checkpoint, model, tuning, _batches(), {})
  usage = collections.namedtuple("usage", "free")
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(4 * size))
  saver.require_space(state)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(4 * size - 1))
  with pytest.raises(ConfigError, match="GiB free, and .* need .* GiB.*keep = 3.*keep fewer"):
    saver.require_space(state)
  # Those that lie there already take no more.
  _save(tmp_path, config, mesh, steps=(1, 2))
  saver.require_space(state)


def test_a_workdir_that_is_removed_is_whole_again_at_the_next_save(tmp_path, caplog):
  """With the tokenizer, without which its checkpoints cannot be loaded."""
  workdir, config, mesh = tmp_path / "run", _config(), _mesh(1)
  tokenizer = hf_tokenizer.train(["Una waits."], 300)
  model = dataclasses.replace(_model(_MODEL, mesh), tokenizer=tokenizer)
  checkpoint.write_tokenizer(str(workdir), tokenizer)
  tuning, run = lora.Tuning(model.graphdef), continuation.describe(config, {}, _DATA)
  with (
    savers.Saver(str(workdir), config.checkpoint, model, tuning, _batches(), run) as saver,
    caplog.at_level("ERROR"),
  ):
    saver.save(_state(model, config, mesh, 1))
    saver.wait()
    assert not caplog.messages
    shutil.rmtree(workdir)
    saver.save(_state(model, config, mesh, 2))
  assert len(caplog.messages) == 1 and "was removed" in caplog.messages[0]
  assert checkpoint.load(str(workdir), mesh, "workdir").step == 2
  assert continuation.find(config, str(workdir)).step == 2


def test_a_state_may_be_donated_while_it_is_saved(tmp_path):
  config, mesh = _config(), _mesh(1)
  model = _model(dataclasses.replace(_MODEL, hidden_size=256, intermediate_size=1024), mesh)
  state = _state(model, config, mesh, 1)
  expected = jax.tree.map(np.array, state.params)
  spoil = jax.jit(lambda x: jax.tree.map(lambda a: a * 2 + 1, x), donate_argnums=0)
  run = continuation.describe(config, {}, _DATA)
  tuning = lora.Tuning(model.graphdef)
  with savers.Saver(str(tmp_path), config.checkpoint, model, tuning, _batches(), run) as saver:
    saver.save(state)
    spoilt = state.params
    for _ in range(5):
      spoilt = spoil(spoilt)
    jax.block_until_ready(spoilt)
  found = checkpoint.load_params(str(tmp_path), mesh, "workdir")[2]
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_loss_says_what_to_do(tmp_path):
  again = "start the same command again on every host"
  assert continuation.after_a_loss("rl", str(tmp_path)) == again
  assert continuation.after_a_loss("sft", str(tmp_path)).startswith(f"{again}: it begins anew")
  _save(tmp_path, _config(), _mesh(1))
  assert (
    continuation.after_a_loss("sft", str(tmp_path)) == f"{again}: it continues after step 3"
  )


def test_a_run_of_before_there_were_adapters_goes_on_without(tmp_path):
  config, old = _config(), _config()
  with old.unlocked():
    del old.lora
  _save(tmp_path, old, _mesh(1))
  _restore(tmp_path, config, _mesh(1))
  with pytest.raises(ConfigError, match=r"config\.lora\.rank was 0 and is 4"):
    continuation.find(_config(lora__rank=4), str(tmp_path))
