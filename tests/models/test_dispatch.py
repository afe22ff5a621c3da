"""A whole model with the kernel computes what it computes with the reference."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax import sharding
from her_jax.models import dispatch
from her_jax.models.config import ModelConfig

_CONFIG = ModelConfig(
  vocab_size=64,
  hidden_size=32,
  intermediate_size=64,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=64,
  tie_embeddings=True,
  max_position_embeddings=512,
  dtype="float32",
)
_ROWS, _LENGTH = 4, 120


def _batch() -> dict[str, np.ndarray]:
  """Trunk and two branches in half of the rows, two packed documents in the others."""
  rng = np.random.default_rng(0)
  until = np.full((_ROWS, _LENGTH), _LENGTH, np.int32)
  until[::2, 40:70] = 70
  until[::2, 70:110] = 110
  until[1::2, :50] = 50
  until[:, 110:] = np.arange(111, _LENGTH + 1)  # Padding.
  return {
    "tokens": rng.integers(0, 64, (_ROWS, _LENGTH)).astype(np.int32),
    "positions": np.broadcast_to(np.arange(_LENGTH, dtype=np.int32), until.shape).copy(),
    "visible_until": until,
  }


def _loss_and_gradients(config: ModelConfig, mesh) -> tuple[jax.Array, jax.Array, nnx.State]:
  graphdef, params = sharding.init_sharded(config, 0, mesh)

  def loss(params, batch):
    model = nnx.merge(graphdef, params)
    hidden, _ = model(batch["tokens"], batch["positions"], batch["visible_until"])
    weights = jnp.arange(_LENGTH) < 110
    return jnp.sum(model.logits(hidden) ** 2 * weights[:, None]) / 1e4, hidden[:, :110]

  with jax.set_mesh(mesh):
    batch = sharding.to_global(_batch(), mesh)
    (value, hidden), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch)
  return value, np.asarray(hidden), jax.tree.map(np.asarray, gradients)


@pytest.mark.parametrize(
  "mesh, remat",
  [
    ({"fsdp": 1}, "none"),
    ({"data": 2, "fsdp": 2, "tensor": 2}, "attention"),
    pytest.param({"tensor": 8}, "full", marks=pytest.mark.slow),  # Two key heads on eight.
  ],
)
def test_the_kernel_in_a_model_equals_the_reference(mesh, remat):
  count = int(np.prod(list(mesh.values())))
  made = sharding.make_mesh(**{"fsdp": 1, **mesh}, devices=jax.devices()[:count])
  config = dataclasses.replace(_CONFIG, remat=remat)
  plain = dataclasses.replace(config, attention="reference")
  kernel = dataclasses.replace(config, attention="tree_interpret")
  want, got = (_loss_and_gradients(c, made) for c in (plain, kernel))
  np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
  np.testing.assert_allclose(got[1], want[1], atol=2e-5)
  for a, b in zip(jax.tree.leaves(got[2]), jax.tree.leaves(want[2]), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5 * max(np.abs(b).max(), 1e-3))


def test_rows_that_are_split_are_refused_by_the_kernel():
  mesh = sharding.make_mesh(context=2, fsdp=1, devices=jax.devices()[:2])
  with pytest.raises(ValueError, match="needs whole rows.*attention='reference'"):
    _loss_and_gradients(dataclasses.replace(_CONFIG, attention="tree_interpret"), mesh)


def test_auto_is_the_reference_where_there_is_no_tpu():
  assert dispatch.resolve("auto") == "reference"
  assert dispatch.pairs_for("auto", jnp.ones((1, 8), jnp.int32), 64) is None
  assert dispatch.resolve("tree") == "tree"
