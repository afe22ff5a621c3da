"""One update: the same loss however it is split, skipped or small."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.training import losses
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


# One chunk, chunks that divide the length, chunks that do not.
@pytest.mark.parametrize("chunk", [64, 8, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunks_and_skipped_chunks_are_the_plain_loss(chunk, temperature):
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(2, 32, 6)), jnp.float32)
  head = jnp.asarray(rng.normal(size=(6, 20)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, 18, (2, 32)), jnp.int32)
  weights = np.zeros((2, 32), np.float32)
  weights[0, 9:14] = 1.0
  weights[1, 31] = 0.5

  def plain(hidden, head):
    logits = hidden @ head / temperature
    log_probs = jax.nn.log_softmax(logits[..., :18])  # The tokenizer has 18 of 20 rows.
    chosen = jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
    return -jnp.sum(weights * chosen), (chosen, entropy)

  def chunked(hidden, head):
    log_probs, entropy = losses.token_log_probs(
      hidden, head, targets, weights, valid_vocab=18, temperature=temperature, chunk=chunk
    )
    return -jnp.sum(weights * log_probs), (log_probs, entropy)

  run = lambda fn: jax.jit(jax.value_and_grad(fn, (0, 1), has_aux=True))(hidden, head)
  (loss, (chosen, entropy)), gradients = run(chunked)
  (plain_loss, (plain_chosen, plain_entropy)), plain_gradients = run(plain)
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  on = weights > 0
  np.testing.assert_allclose(chosen[on], plain_chosen[on], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(entropy[on], plain_entropy[on], rtol=1e-4, atol=1e-5)
  for one, two in zip(gradients, plain_gradients, strict=True):
    np.testing.assert_allclose(one, two, atol=1e-5)
  assert chosen.shape == (2, 32)
  # The last chunk that nobody asks for is not computed.
  if chunk < 32:
    assert not np.any(np.asarray(chosen)[:, 16:21])


def test_rows_beyond_the_tokenizer_get_no_probability_and_no_gradient():
  hidden, head = jnp.ones((1, 4, 3)), jnp.ones((3, 10)) * jnp.arange(10)
  targets, weights = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4))

  def loss(head):
    log_probs, _ = losses.token_log_probs(hidden, head, targets, weights, valid_vocab=6)
    return -jnp.sum(log_probs)

  gradient = np.asarray(jax.grad(loss)(head))
  assert not gradient[:, 6:].any() and gradient[:, :6].any()
