"""Adapters: what they add, what moves, what is merged, on one device and on eight."""

import dataclasses
import types

from flax import nnx
import jax
import numpy as np
import optax
import pytest

from configs import sft
from her_jax import command_line, sharding
from her_jax.errors import ConfigError
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.training import budget, lora
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState

_CONFIG = ModelConfig(
  vocab_size=96,
  hidden_size=32,
  intermediate_size=64,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  dtype="float32",
)
_SETTINGS = lora.Settings(rank=4, alpha=8.0)
_ROWS, _LENGTH = 8, 16


@pytest.fixture(scope="module", autouse=True)
def _quick_compile():
  """Each program runs a few times: XLA's optimisations would take most of the time."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


def _mesh(devices=1, **sizes):
  return sharding.make_mesh(**sizes, devices=jax.devices()[:devices])


def _batch():
  tokens = np.random.default_rng(0).integers(0, 96, (_ROWS, _LENGTH), dtype=np.int32)
  positions = np.tile(np.arange(_LENGTH, dtype=np.int32), (_ROWS, 1))
  return {
    "tokens": tokens,
    "targets": np.roll(tokens, -1, axis=1),
    "positions": positions,
    "visible_until": np.full_like(tokens, _LENGTH),
    "loss_weights": np.ones(tokens.shape, np.float32),
  }


def _begin(settings=_SETTINGS, mesh=None, config=_CONFIG):
  mesh = mesh or _mesh()
  graphdef, params = sharding.init_sharded(config, 0, mesh)
  return graphdef, params, *lora.begin(config, params, settings, 3, mesh)


@pytest.fixture(scope="module")
def run():
  """Five updates on one device."""
  graphdef, params, tuning, noise = _begin()
  before = jax.tree.map(np.array, (params, noise))
  trained, losses = _train(tuning, noise, 5)
  return types.SimpleNamespace(**locals())


def _loss(graphdef, *states):
  total, count, _ = steps.next_token_loss(96)(nnx.merge(graphdef, *states), _batch())
  return float(total / count)


def _train(tuning, trained, count, rate=1e-2, mesh=None, micro_batches=1, name="adamw"):
  """The trained adapters and the loss before each update."""
  settings = sft.get_config("tiny").optimizer
  settings.update(name=name, learning_rate=rate, weight_decay=0.0, warmup_steps=0)
  optimizer, _ = optimizers.build(settings, count)
  loss_fn = steps.next_token_loss(96)
  step = steps.make_train_step(tuning.graphdef, optimizer, loss_fn, micro_batches)
  state, found = TrainState.create(trained, optimizer), []
  mesh = mesh or _mesh()
  with jax.set_mesh(mesh):
    batch = sharding.to_global(_batch(), mesh)
    for _ in range(count):
      state, metrics = step(state, batch, *tuning.frozen)
      found.append(float(metrics["loss"]))
  return state.params, found


def _assert_equal(one, two):
  assert jax.tree.structure(one) == jax.tree.structure(two)
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), b), one, two)


def _arrays(state):
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
  }


@pytest.mark.parametrize("targets", [("attention",), ("mlp",), ("attention", "mlp")], ids=str)
def test_the_first_step_is_the_base_models_bit_for_bit(targets):
  settings = dataclasses.replace(_SETTINGS, targets=targets)
  graphdef, params, tuning, trained = _begin(settings)
  rows = [_batch()[name] for name in ("tokens", "positions", "visible_until")]

  @jax.jit
  def logits(model):
    return model.logits(model(*rows)[0])

  base = logits(nnx.merge(graphdef, params))
  np.testing.assert_array_equal(
    logits(nnx.merge(tuning.graphdef, trained, *tuning.frozen)), base
  )
  assert np.abs(base).max() > 1
  parts = {name.split(".")[1] for name in _arrays(trained)}
  assert parts == set(targets)
  _assert_equal(tuning.whole(trained), params)


def test_adapters_alone_move_and_the_base_stays_bit_for_bit(run):
  tuning, (before, noise) = run.tuning, run.before
  _assert_equal(tuning.frozen[0], before)
  for name, value in _arrays(run.trained).items():
    assert np.abs(value - _arrays(noise)[name]).max() > 1e-4, name
  assert run.losses[-1] < run.losses[0]
  # Only the adapted matrices are others in what is merged, and all of them are.
  merged, old = _arrays(tuning.whole(run.trained)), _arrays(before)
  moved = {name for name in merged if not np.array_equal(merged[name], old[name])}
  matrices = ("attention.q", "attention.k", "attention.v", "attention.o")
  matrices += ("mlp.gate", "mlp.up", "mlp.down")
  assert moved == {f"layers.{name}.weight.value" for name in matrices}
  _assert_equal(tuning.frozen[0], before)


def test_gradients_are_those_of_the_merged_weights(run):
  """dA = scale · dW Bᵀ and dB = scale · Aᵀ dW, of a dW that LoRA itself never makes."""
  graphdef, tuning, trained = run.graphdef, run.tuning, run.trained
  total = lambda graphdef: (
    lambda *states: steps.next_token_loss(96)(nnx.merge(graphdef, *states), _batch())[0]
  )
  ours = jax.jit(jax.grad(total(tuning.graphdef)))(trained, *tuning.frozen)
  wide = jax.jit(jax.grad(total(graphdef)))(tuning.whole(trained))
  for part, name, taken in (("attention", "q", 1), ("attention", "o", 2), ("mlp", "down", 1)):
    at = lambda tree, part=part, name=name: tree["layers"][part][name]
    d_weight = at(wide)["weight"].get_value()
    layers, inputs = len(d_weight), int(np.prod(d_weight.shape[1 : 1 + taken]))
    d_weight = d_weight.reshape(layers, inputs, -1)
    for letter, factors in (("a", "nio,nro->nir"), ("b", "nio,nir->nro")):
      other = at(trained)["adapter"]["b" if letter == "a" else "a"].get_value()
      shape = (layers, 4, -1) if letter == "a" else (layers, inputs, 4)
      expected = 8 / 4 * np.einsum(factors, d_weight, other.reshape(shape))
      found = at(ours)["adapter"][letter].get_value().reshape(expected.shape)
      np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_merged_model_is_the_adapted_one(run):
  graphdef, tuning, trained = run.graphdef, run.tuning, run.trained
  merged = _loss(graphdef, tuning.whole(trained))
  np.testing.assert_allclose(merged, _loss(tuning.graphdef, trained, *tuning.frozen), rtol=1e-5)
  assert abs(merged - _loss(graphdef, *tuning.frozen)) > 0.1


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("rank", [1, 32])
def test_a_batch_is_learnt_also_at_the_full_rank(rank, name):
  """At 32, the width, A B can be any change of a matrix."""
  _, _, tuning, trained = _begin(lora.Settings(rank=rank, alpha=2.0 * rank))
  _, losses = _train(tuning, trained, 30, name=name)
  assert losses[-1] < (0.8 if rank == 1 else 0.3) * losses[0], losses


def test_the_split_into_micro_batches_changes_nothing(run):
  losses = _train(run.tuning, run.noise, 5, micro_batches=4)[1]
  np.testing.assert_allclose(losses, run.losses, rtol=1e-5)


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_eight_devices_train_as_one(run, sizes):
  mesh = _mesh(8, **sizes)
  _, _, tuning, trained = _begin(mesh=mesh)
  _assert_equal(jax.tree.map(np.asarray, trained), run.before[1])
  q = trained["layers"]["attention"]["q"]["adapter"]
  embed, heads = ("fsdp", "tensor")
  assert q["a"].get_value().sharding.spec == jax.P(None, (embed, "context"), None)
  assert q["b"].get_value().sharding.spec == jax.P(None, None, heads, None)
  with jax.set_mesh(mesh):
    found, losses = _train(tuning, trained, 5, mesh=mesh)
    whole = tuning.whole(found)
  np.testing.assert_allclose(losses, run.losses, rtol=1e-5)
  places = lambda tree: jax.tree.map(lambda x: x.sharding, tree)
  assert places(whole) == places(tuning.frozen[0])
  for name, value in _arrays(run.tuning.whole(run.trained)).items():
    np.testing.assert_allclose(_arrays(whole)[name], value, atol=2e-4, err_msg=name)


def test_a_base_in_bfloat16_stays_so_and_adapters_are_float32():
  config = dataclasses.replace(_CONFIG, dtype="bfloat16", param_dtype="bfloat16")
  _, params, tuning, trained = _begin(config=config)
  trained, losses = _train(tuning, trained, 5)
  assert losses[-1] < losses[0]
  assert {x.dtype.name for x in jax.tree.leaves(trained)} == {"float32"}
  whole = tuning.whole(trained)
  assert {x.dtype.name for x in jax.tree.leaves(whole)} == {"bfloat16"}
  assert jax.tree.structure(whole) == jax.tree.structure(params)


def test_no_matrix_has_a_gradient_or_a_merged_copy():
  """One row through matrices that are much larger than it: the step's own memory is counted."""
  config = dataclasses.replace(
    _CONFIG, hidden_size=256, intermediate_size=1024, num_layers=4, remat="full"
  )
  _, params, tuning, trained = _begin(config=config)
  optimizer = optax.adamw(1e-3)
  batch = {name: rows[:1] for name, rows in _batch().items()}

  def memory(graphdef, params, *frozen):
    state = TrainState.create(params, optimizer)
    step = steps.make_train_step(graphdef, optimizer, steps.next_token_loss(96))
    return step.lower(state, batch, *frozen).compile().memory_analysis()

  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  adapters = sum(x.nbytes for x in jax.tree.leaves(trained))
  found = memory(tuning.graphdef, trained, *tuning.frozen)
  assert found.argument_size_in_bytes < weights + 3.1 * adapters
  assert found.temp_size_in_bytes < 0.5 * weights, found.temp_size_in_bytes / weights
  assert found.output_size_in_bytes < 3.1 * adapters


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("rank", -1, r"config\.lora\.rank is -1; it must be 0"),
    ("alpha", 0.0, r"config\.lora\.alpha is 0\.0; it must be a number above 0"),
    ("alpha", -2.0, r"config\.lora\.alpha is -2\.0"),
    ("alpha", float("nan"), r"config\.lora\.alpha is nan"),
    ("alpha", float("inf"), r"config\.lora\.alpha is inf"),
    ("targets", "attention,head", r"config\.lora\.targets: no target 'head'; there are att"),
    ("targets", "", r"config\.lora\.targets: no target ''; there are attention, mlp"),
  ],
)
def test_what_cannot_be_is_refused_by_name(field, value, message):
  config = sft.get_config("tiny")
  config.lora[field] = value
  with pytest.raises(ConfigError, match=message):
    command_line.check(config)


def test_the_settings_are_those_of_the_config():
  config = sft.get_config("tiny")
  assert lora.settings(config.lora) == lora.Settings()
  config.lora.update(rank=8, targets="mlp, attention")
  assert lora.settings(config.lora) == lora.Settings(8, 32.0, ("mlp", "attention"))


def test_what_a_run_needs_is_counted_by_what_it_trains():
  """Rank 16 beside all matrices of Qwen3-32B: 4 bytes a weight, twice at a save, and adapters."""
  model = PRESETS["qwen3-32b"]
  adapters, merged = lora.counts(model, lora.Settings(16))
  of_a_layer = (5120 + 8192) * 2 + 2 * (5120 + 1024) + 3 * (5120 + 25600)
  assert adapters == 64 * 16 * of_a_layer
  needed = budget.required_bytes("sft", model, lora.Settings(16))
  assert needed == 4 * model.num_params() + 4 * merged + 16 * adapters
  assert needed < 0.52 * budget.required_bytes("sft", model)
  config = sft.get_config("qwen3-32b")
  device = types.SimpleNamespace(
    platform="tpu", process_index=0, memory_stats=lambda: {"bytes_limit": 300 * 2**30}
  )
  with pytest.raises(budget.TooLarge):
    budget.check(config, [device])
  config.lora.rank = 16
  budget.check(config, [device])
