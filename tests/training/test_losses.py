"""Log-probabilities in pieces are those of the whole, and so are their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax import sharding
from her_jax.training import losses

_VOCAB = 300
_VALID = 290  # Rows of the tokenizer.


@pytest.fixture(scope="module", autouse=True)
def _quick_compile():
  """Each program runs a few times: XLA's optimisations would take most of the time."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


def _inputs(rows=2):
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(rows, 32, 8)), jnp.float32)
  head = jnp.asarray(rng.normal(size=(8, _VOCAB)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, _VALID, (rows, 32)), jnp.int32)
  weights = np.zeros((rows, 32), np.float32)
  weights[0, 9:14] = 1.0
  weights[1, 31] = 0.5
  return hidden, head, targets, weights


def _plain(hidden, head, targets, weights, temperature):
  """Loss, and what it is made of, from all logits at once."""
  logits = hidden @ head / temperature
  log_probs = jax.nn.log_softmax(logits[..., :_VALID])
  chosen = jnp.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
  entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
  return -jnp.sum(weights * chosen), (chosen, entropy)


def _pieces(hidden, head, targets, weights, temperature, **sizes):
  log_probs, entropy = losses.token_log_probs(
    hidden, head, targets, weights, valid_vocab=_VALID, temperature=temperature, **sizes
  )
  return -jnp.sum(weights * log_probs), (log_probs, entropy)


def _run(fn, hidden, head, *others, **sizes):
  both = lambda hidden, head: fn(hidden, head, *others, **sizes)
  return jax.jit(jax.value_and_grad(both, (0, 1), has_aux=True))(hidden, head)


def _assert_equal(found, plain, weights):
  (loss, (chosen, entropy)), gradients = found
  (plain_loss, (plain_chosen, plain_entropy)), plain_gradients = plain
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  on = weights != 0
  np.testing.assert_allclose(chosen[on], plain_chosen[on], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(entropy[on], plain_entropy[on], rtol=1e-4, atol=1e-5)
  for one, two in zip(gradients, plain_gradients, strict=True):
    np.testing.assert_allclose(one, two, atol=1e-5)


# One chunk, chunks that divide the length, chunks that do not; the vocabulary in one block, and
# in three of which the last is padded.
@pytest.mark.parametrize("chunk", [64, 8, 7])
@pytest.mark.parametrize("block", [512, 128])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_pieces_and_skipped_chunks_are_the_plain_loss(chunk, block, temperature):
  inputs = _inputs()
  found = _run(_pieces, *inputs, temperature, chunk=chunk, block=block)
  _assert_equal(found, _run(_plain, *inputs, temperature), inputs[3])
  chosen = np.asarray(found[0][1][0])
  assert chosen.shape == (2, 32)
  # The last chunk that nobody asks for is not computed.
  if chunk < 32:
    assert not np.any(chosen[:, 16:21])


@pytest.mark.parametrize(
  "sizes",
  [
    {"data": 2, "fsdp": 4},
    {"fsdp": 2, "context": 2, "tensor": 2},
    {"data": 2, "fsdp": 2, "context": 2},
    {"fsdp": 1, "tensor": 8},  # Does not divide the vocabulary: each device works on all of it.
  ],
  ids=str,
)
@pytest.mark.parametrize("rows", [2, 8])  # Two rows are alike on some of the devices.
def test_a_mesh_finds_what_one_device_finds(sizes, rows):
  inputs = _inputs(rows)
  mesh = sharding.make_mesh(**sizes)
  embed = sharding.RULES.spec(("embed", "vocab"), inputs[1].shape, mesh)
  with jax.set_mesh(mesh):
    head = jax.device_put(inputs[1], jax.sharding.NamedSharding(mesh, embed))
    found = _run(_pieces, inputs[0], head, *inputs[2:], 0.6, chunk=8, block=128)
  _assert_equal(found, _run(_plain, *inputs, 0.6), inputs[3])


def test_the_head_gradient_is_summed_in_float32():
  """300 equal terms of 1/256: bfloat16 sums stop growing at 2, where its steps are 1/64."""
  hidden = jnp.ones((1, 300, 1), jnp.bfloat16)
  head = jnp.zeros((1, 2), jnp.float32)
  targets = jnp.zeros((1, 300), jnp.int32)
  weights = jnp.full((1, 300), 1 / 128)

  def loss(head):
    log_probs, _ = losses.token_log_probs(
      hidden, head, targets, weights, valid_vocab=2, chunk=1
    )
    return jnp.sum(weights * log_probs)

  np.testing.assert_allclose(jax.grad(loss)(head), [[300 / 256, -300 / 256]], rtol=1e-6)


def test_rows_beyond_the_tokenizer_get_no_probability_and_no_gradient():
  hidden, head = jnp.ones((1, 4, 3)), jnp.ones((3, 10)) * jnp.arange(10)
  targets, weights = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4))

  def loss(head):
    log_probs, _ = losses.token_log_probs(hidden, head, targets, weights, valid_vocab=6)
    return -jnp.sum(log_probs)

  gradient = np.asarray(jax.grad(loss)(head))
  assert not gradient[:, 6:].any() and gradient[:, :6].any()


def test_a_chunk_is_skipped_only_where_every_weight_is_0():
  """Also where all weights of a chunk are below 0, or cancel out."""
  hidden, head, targets, weights = _inputs()
  weights[0, 9:14] = [-1.0, 1.0, -0.5, 0.25, 0.25]
  weights[1, 31] = -0.5
  inputs = hidden, head, targets, weights
  found = _run(_pieces, *inputs, 0.6, chunk=8, block=128)
  _assert_equal(found, _run(_plain, *inputs, 0.6), weights)
  assert np.asarray(found[0][1][0])[1, 31] != 0


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, float("nan")])
def test_a_temperature_without_a_distribution_is_refused(temperature):
  with pytest.raises(ValueError, match="temperature.* above 0"):
    jax.eval_shape(lambda *inputs: _pieces(*inputs, temperature), *_inputs())
