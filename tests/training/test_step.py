"""One update: the same loss however it is split, skipped or small."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import sft
from her_jax import sharding
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState


@pytest.fixture(scope="module", autouse=True)
def _quick_compile():
  """Each program runs a few times: XLA's optimisations would take most of the time."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


class _Scale(nnx.Module):
  """A model of one weight; a target's loss is the weight times the number given for it."""

  def __init__(self):
    self.weight = nnx.Param(jnp.ones(()))


def _given_losses(model, batch):
  weights = batch["loss_weights"]
  total = jnp.sum(weights * batch["losses"] * model.weight[...])
  return total, jnp.sum(weights), {"twice": 2 * total}


def _uneven_batch():
  """Four rows with 1, 0, 6 and 4 targets: one at loss 10, ten at loss 2."""
  weights = np.zeros((4, 8), np.float32)
  values = np.full((4, 8), 2, np.float32)
  weights[0, 3], values[0, 3] = 1, 10
  weights[2, :6] = weights[3, 2:6] = 1
  return {"loss_weights": jnp.asarray(weights), "losses": jnp.asarray(values)}


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2]])
def test_the_loss_is_the_mean_over_all_targets(micro_batches, order):
  """Ten targets at loss 2 and one at 10 give 30 / 11, not a mean of means."""
  graphdef, params = nnx.split(_Scale())
  optimizer = optax.sgd(1.0)
  step = steps.make_train_step(graphdef, optimizer, _given_losses, micro_batches)
  batch = {name: values[jnp.asarray(order)] for name, values in _uneven_batch().items()}
  state, metrics = step(TrainState.create(params, optimizer), batch)
  np.testing.assert_allclose(metrics["loss"], 30 / 11, rtol=1e-6)
  np.testing.assert_allclose(metrics["gradient_norm"], 30 / 11, rtol=1e-6)
  np.testing.assert_allclose(metrics["twice"], 60 / 11, rtol=1e-6)
  np.testing.assert_allclose(state.params["weight"].get_value(), 1 - 30 / 11, rtol=1e-6)
  assert metrics["targets"] == 11
  assert state.step == 1


def test_a_batch_without_targets_is_zero_and_not_nan():
  graphdef, params = nnx.split(_Scale())
  optimizer = optax.sgd(1.0)
  step = steps.make_train_step(graphdef, optimizer, _given_losses, 2)
  batch = _uneven_batch()
  batch["loss_weights"] = jnp.zeros_like(batch["loss_weights"])
  state, metrics = step(TrainState.create(params, optimizer), batch)
  assert metrics["loss"] == 0 and metrics["targets"] == 0
  assert state.params["weight"].get_value() == 1


def test_a_hundred_small_updates_move_a_weight():
  """bfloat16 has steps of 1.2e-4 at 0.02 and would stay where it is."""
  graphdef, params = nnx.split(_Scale())
  params["weight"].set_value(jnp.float32(0.02))
  optimizer = optax.sgd(1e-6)
  step = steps.make_train_step(graphdef, optimizer, _given_losses)
  state = TrainState.create(params, optimizer)
  ones = {"loss_weights": jnp.ones((1, 1)), "losses": jnp.ones((1, 1))}
  for _ in range(100):
    state, _ = step(state, ones)
  np.testing.assert_allclose(state.params["weight"].get_value(), 0.02 - 1e-4, rtol=1e-4)
  assert jnp.bfloat16(0.02) - jnp.bfloat16(1e-6) == jnp.bfloat16(0.02)


def test_the_masters_of_a_bfloat16_model_are_float32():
  config = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    tie_embeddings=True,
    max_position_embeddings=16,
    dtype="bfloat16",
  )
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  optimizer = optax.adamw(1e-6)
  step = steps.make_train_step(graphdef, optimizer, steps.next_token_loss(16))
  index = jnp.arange(8)[None]
  batch = {"tokens": index, "targets": index + 1, "positions": index}
  batch |= {"visible_until": jnp.full((1, 8), 8), "loss_weights": jnp.ones((1, 8))}
  before = np.asarray(params["embedding"].get_value())
  state, _ = step(TrainState.create(params, optimizer), batch)
  leaves = jax.tree.leaves((state.params, state.opt_state))
  assert {leaf.dtype.name for leaf in leaves if leaf.ndim} == {"float32"}
  moved = np.abs(np.asarray(state.params["embedding"].get_value()) - before)
  assert 0 < moved.max() < 2e-6


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_are_split_as_their_parameters_from_the_start(name):
  """Whole on every device, those of Qwen3-32B alone would take 262 GB of each."""
  config = ModelConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2,
    num_kv_heads=2, head_dim=8, tie_embeddings=False, max_position_embeddings=16,
    dtype="float32",
  )  # fmt: skip
  mesh = sharding.make_mesh(fsdp=4, tensor=2, devices=jax.devices()[:8])
  graphdef, params = sharding.init_sharded(config, 0, mesh)
  settings = sft.get_config("tiny").optimizer
  settings.name = name
  optimizer, _ = optimizers.build(settings, 5)
  state = TrainState.create(params, optimizer)
  places = {x.shape: x.sharding for x in jax.tree.leaves(params)}
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim > 1]
  assert len(moments) >= len([x for x in places if len(x) > 1])
  for moment in moments:
    assert moment.sharding.is_equivalent_to(places[moment.shape], moment.ndim), moment.shape
  whole = np.full((8, 16), 16)
  index = np.tile(np.arange(16), (8, 1))
  batch = {"tokens": index, "targets": index, "positions": index, "visible_until": whole}
  batch["loss_weights"] = np.ones((8, 16), np.float32)
  before = jax.tree.map(lambda x: x.sharding, state)
  step = steps.make_train_step(graphdef, optimizer, steps.next_token_loss(32))
  with jax.set_mesh(mesh):
    after, _ = step(state, sharding.to_global(batch, mesh))
  # So the second step is not compiled anew.
  for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
    assert new.sharding.is_equivalent_to(old, new.ndim)


def test_each_layer_has_the_mean_of_its_own_targets():
  """A layer that the batch does not hold has no number."""
  config = ModelConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2,
    num_kv_heads=1, head_dim=8, tie_embeddings=True, max_position_embeddings=64, dtype="float32",
  )  # fmt: skip
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  rng = np.random.default_rng(0)
  shape = (4, 12)
  batch = {
    "tokens": rng.integers(0, 32, shape, np.int32), "targets": rng.integers(0, 32, shape, np.int32),
    "positions": np.tile(np.arange(12, dtype=np.int32), (4, 1)),
    "visible_until": np.full(shape, 12, np.int32),
    "loss_weights": rng.integers(0, 3, shape).astype(np.float32),
    "layers": rng.choice(np.array([0, 1, 2, 4], np.float32), shape),
  }  # fmt: skip
  loss_fn, optimizer = steps.next_token_loss(32), optax.sgd(0.1)

  def alone(number):
    own = np.where(batch["layers"] == number, batch["loss_weights"], 0).astype(np.float32)
    total, count, _ = loss_fn(nnx.merge(graphdef, params), {**batch, "loss_weights": own})
    return float(total / count)

  expected = {"plan": alone(1), "thought": alone(2), "speech": alone(4)}
  for micro_batches in (1, 2):
    step = steps.make_train_step(graphdef, optimizer, loss_fn, micro_batches)
    _, found = step(TrainState.create(params, optimizer), batch)
    for name, value in expected.items():
      np.testing.assert_allclose(found[f"loss_{name}"], value, rtol=1e-5)
    assert np.isnan(found["loss_action"])
