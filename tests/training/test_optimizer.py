"""The optimisers: who is updated by which rule, and that the rate is the schedule's."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from her_jax.errors import ConfigError
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.training import optimizer as optimizers

_CONFIG = ModelConfig(
  vocab_size=32,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=True,
  max_position_embeddings=64,
  dtype="float32",
)


def _updates(name: str, scale: float = 1.0):
  """One update of a model whose gradients are random and `scale` times as large."""
  config = common.base("sft", "tiny").optimizer
  config.name, config.weight_decay, config.warmup_steps, config.clip_norm = name, 0.0, 0, 1e9
  transform, schedule = optimizers.build(config, 10)
  params = nnx.split(Qwen3(_CONFIG, rngs=nnx.Rngs(0)))[1]
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(0)
  gradients = tree.unflatten(
    [scale * jnp.asarray(rng.normal(size=x.shape), jnp.float32) for x in leaves]
  )
  updates, _ = transform.update(gradients, transform.init(params), params)
  return {jax.tree_util.keystr(k): v for k, v in jax.tree.leaves_with_path(updates)}, schedule


def _matrices(updates, name):
  """The layers' [inputs, outputs] matrices of one weight."""
  (value,) = (v for k, v in updates.items() if name in k and "norm" not in k)
  if name == "['o']":
    return value.reshape(len(value), -1, value.shape[-1])
  return value.reshape(len(value), value.shape[1], -1)


def test_muon_makes_the_layers_matrices_orthogonal_and_leaves_the_rest_to_adam():
  muon, schedule = _updates("muon")
  adam, _ = _updates("adamw")
  for name in ("['q']", "['k']", "['v']", "['o']", "['gate']", "['up']", "['down']"):
    for matrix in _matrices(muon, name):
      singular = np.linalg.svd(np.asarray(matrix), compute_uv=False)
      # Newton-Schulz brings singular values near one, not onto it.
      assert singular.max() / singular.min() < 3, name
  for key, update in muon.items():
    if "norm" in key or "embedding" in key:
      # Adam's direction; with Nesterov's momentum the first update is (1 + b1 / (1 + b1)) as long.
      np.testing.assert_allclose(update, adam[key] * (1 + 0.9 / 1.9), rtol=1e-4, atol=1e-9)
  embedding = next(v for k, v in adam.items() if "embedding" in k)
  np.testing.assert_allclose(np.abs(embedding).max(), schedule(0), rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_size_of_the_gradient_does_not_set_the_size_of_the_update(name):
  small, _ = _updates(name)
  large, _ = _updates(name, scale=100.0)
  for key in small:
    np.testing.assert_allclose(large[key], small[key], rtol=2e-3, atol=1e-6)


def test_an_unknown_optimizer_is_refused_by_name():
  config = common.base("sft", "tiny").optimizer
  config.name = "muonn"
  with pytest.raises(ConfigError, match="'muonn'; there are 'adamw' and 'muon'"):
    optimizers.build(config, 10)


def test_the_running_mean_is_of_the_parameters_and_changes_no_update():
  config = common.base("sft", "tiny").optimizer
  config.name, config.ema = "adamw", 0.75
  with_mean, _ = optimizers.build(config, 10)
  config.ema = 0.0
  without, _ = optimizers.build(config, 10)
  params = same = {"w": jnp.arange(6.0).reshape(2, 3)}
  state, other = with_mean.init(params), without.init(params)
  assert optimizers.averaged(other) is None
  mean = params["w"]
  for step in range(3):
    gradients = {"w": jnp.full((2, 3), 1.0 + step)}
    updates, state = with_mean.update(gradients, state, params)
    plain, other = without.update(gradients, other, same)
    np.testing.assert_array_equal(updates["w"], plain["w"])
    params = same = {"w": params["w"] + updates["w"]}
    mean = 0.75 * mean + 0.25 * params["w"]
    np.testing.assert_allclose(optimizers.averaged(state)["w"], mean, rtol=1e-6)


@pytest.mark.parametrize("decay", [1.0, -0.5, float("nan")])
def test_a_decay_that_is_none_is_refused(decay):
  config = common.base("sft", "tiny").optimizer
  config.ema = decay
  with pytest.raises(ConfigError, match=f"optimizer.ema is {decay}; give a decay"):
    optimizers.build(config, 10)
