"""Whichever kernel a model runs, on whichever mesh, it computes what the reference does."""

import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.models import dispatch
from her_jax.models.attention import attention
from her_jax.models.config import ModelConfig
from her_jax.models.library_attention import masked_attention
from tests.models.tree_rows import QUICK_COMPILE, qkv_of

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
_ROWS, _LENGTH, _USED = 4, 120, 110


def _batch() -> dict[str, np.ndarray]:
  """Trunk and two branches in half of the rows, two packed documents in the others."""
  rng = np.random.default_rng(0)
  until = np.full((_ROWS, _LENGTH), _USED, np.int32)
  until[::2, 40:70] = 70
  until[::2, 70:110] = 110
  until[1::2, :50] = 50
  until[:, _USED:] = np.arange(_USED + 1, _LENGTH + 1)  # Padding.
  return {
    "tokens": rng.integers(0, 64, (_ROWS, _LENGTH)).astype(np.int32),
    "positions": np.broadcast_to(np.arange(_LENGTH, dtype=np.int32), until.shape).copy(),
    "visible_until": until,
  }


def _loss_and_gradients(sizes: dict[str, int], **changes):
  """Of a model whose config is changed, on a mesh."""
  devices = jax.devices()[: int(np.prod(list(sizes.values())))]
  mesh = sharding.make_mesh(**{"fsdp": 1, **sizes}, devices=devices)
  config = dataclasses.replace(_CONFIG, **changes)
  graphdef, params = sharding.init_sharded(config, 0, mesh)

  def loss(params, batch):
    model = nnx.merge(graphdef, params)
    hidden, _ = model(batch["tokens"], batch["positions"], batch["visible_until"])
    logits = model.logits(hidden)
    weights = jnp.arange(_LENGTH) < _USED
    return jnp.sum(logits**2 * weights[:, None]) / 1e4, logits[:, :_USED]

  with jax.set_mesh(mesh):
    step = jax.value_and_grad(loss, has_aux=True)
    step = jax.jit(step, compiler_options=QUICK_COMPILE)
    (value, logits), gradients = step(params, sharding.to_global(_batch(), mesh))
  return value, np.asarray(logits), jax.tree.map(np.asarray, gradients)


@pytest.fixture(scope="module")
def wanted():
  """On one device, by the reference."""
  return _loss_and_gradients({}, attention="reference", remat="none")


@pytest.mark.parametrize(
  "sizes, remat",
  [
    ({}, "none"),
    ({"data": 2, "fsdp": 2, "tensor": 2}, "attention"),
    ({"fsdp": 2, "context": 2, "tensor": 2}, "full"),
    pytest.param({"fsdp": 2, "context": 4}, "attention", marks=pytest.mark.slow),
    pytest.param({"tensor": 8}, "full", marks=pytest.mark.slow),  # Two key heads on eight.
  ],
  ids=str,
)
def test_the_tree_kernel_in_a_model_equals_the_reference(wanted, sizes, remat):
  got = _loss_and_gradients(sizes, attention="tree_interpret", remat=remat)
  np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
  np.testing.assert_allclose(got[1], wanted[1], atol=2e-5)
  for a, b in zip(jax.tree.leaves(got[2]), jax.tree.leaves(wanted[2]), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5 * max(np.abs(b).max(), 1e-3))


# Kinds of attention.


@pytest.fixture
def four_devices():
  """Of which two hold the halves of rows."""
  mesh = sharding.make_mesh(fsdp=2, context=2, devices=jax.devices()[:4])
  with jax.set_mesh(mesh):
    yield mesh


def _attend(plan, qkv, visible_until):
  run = jax.jit(lambda qkv: dispatch.attend(plan, *qkv, visible_until))
  return run(qkv)


def test_a_mask_is_split_with_the_queries(four_devices, monkeypatch):
  """cuDNN's path over the mesh, by the implementation that a CPU has."""
  xla = functools.partial(masked_attention, implementation="xla")
  monkeypatch.setattr(dispatch, "masked_attention", xla)
  monkeypatch.setattr(dispatch, "cudnn_refusal", lambda *_: None)
  visible_until = jnp.asarray(_batch()["visible_until"])
  qkv = qkv_of(0, _ROWS, _LENGTH, 4, 2, 16)
  plan = dispatch.prepare("cudnn", visible_until, 16, "float32")
  found = _attend(plan, qkv, visible_until)
  np.testing.assert_allclose(found, attention(*qkv, None, visible_until), atol=2e-6)


def test_splash_runs_on_rows_that_are_whole_and_on_no_others(four_devices):
  visible_until = jnp.asarray(_batch()["visible_until"])[1::2]
  with pytest.raises(ConfigError, match="'splash' needs whole rows.*context=2.*'tree'"):
    dispatch.prepare("splash", visible_until, 128, "float32")
  qkv = qkv_of(0, 2, _LENGTH, 4, 2, 16)
  with jax.set_mesh(sharding.make_mesh(fsdp=2, tensor=2, devices=jax.devices()[:4])):
    plan = dispatch.prepare("splash_interpret", visible_until, 16, "float32")
    found = _attend(plan, qkv, visible_until)
  np.testing.assert_allclose(found, attention(*qkv, None, visible_until), atol=2e-6)


@pytest.mark.parametrize(
  "backend, refusal, kind",
  [("cpu", "why", "reference"), ("tpu", "why", "tree"), ("gpu", None, "cudnn")]
  + [("gpu", "head_dim=36", "reference")],
)
def test_auto_goes_by_what_is_there(monkeypatch, backend, refusal, kind):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  monkeypatch.setattr(dispatch, "cudnn_refusal", lambda *_: refusal)
  assert dispatch.resolve("auto", 128, 36, "float32") == kind
  assert dispatch.resolve("tree", 128, 36, "float32") == "tree"


def test_the_reference_needs_no_plan():
  ones = jnp.ones((1, 8), jnp.int32)
  for kind in ("auto", "reference"):
    assert dispatch.prepare(kind, ones, 64, "float32") is None


def test_cudnn_that_is_asked_for_where_it_cannot_be_is_an_error():
  with pytest.raises(ConfigError, match="'cudnn': the backend is cpu.*'auto' or 'reference'"):
    dispatch.resolve("cudnn", 128, 128, "bfloat16")
