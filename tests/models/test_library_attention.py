"""The kernels that come with JAX, as far as a CPU can run them, against the reference."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax.models.attention import attention_mask
from her_jax.models.library_attention import (
  cudnn_refusal,
  masked_attention,
  packed_attention,
  segment_ids,
)
from tests.models.tree_rows import (
  QUICK_COMPILE,
  SLOTS,
  assert_equal,
  named_row,
  qkv_of,
  reference,
)


def _with_gradients(function, qkv, d_out):
  @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
  def run(qkv, d_out):
    out, vjp = jax.vjp(function, *qkv)
    return out, vjp(d_out)

  return run(qkv, d_out)


# cuDNN.


def test_the_call_of_cudnn_means_what_the_reference_does():
  """By the other implementation of the same function: the arguments are what is tested."""
  names = ("causal", "packed", "padded")
  visible_until = jnp.asarray([named_row(name, SLOTS) for name in names])
  visible_until = visible_until.at[0, 5:20].set(20)  # A branch.
  qkv = qkv_of(0, 3, SLOTS, 4, 2, 16)
  d_out = qkv_of(1, 3, SLOTS, 4, 4, 16)[0]
  mask = attention_mask(jnp.arange(SLOTS), visible_until)
  call = lambda *qkv: masked_attention(*qkv, mask, implementation="xla")
  found = _with_gradients(call, qkv, d_out)
  assert_equal(found, reference(qkv, visible_until, d_out))


@pytest.mark.parametrize(
  "backend, capability, arguments, reason",
  [
    ("cpu", "9.0", (128, 128, "bfloat16"), "the backend is cpu"),
    ("gpu", "9.0", (128, 128, "bfloat16"), None),
    ("gpu", "8.0", (8192, 64, "float16"), None),
    ("gpu", "12.0", (128, 128, "bfloat16"), None),
    ("gpu", "7.5", (128, 128, "bfloat16"), "needs compute capability 8.0.*7.5"),
    ("gpu", "gfx942", (128, 128, "bfloat16"), "gfx942"),
    ("gpu", "9.0", (128, 128, "float32"), "dtype is float32"),
    ("gpu", "9.0", (128, 136, "bfloat16"), "head_dim=136"),
    ("gpu", "9.0", (128, 36, "bfloat16"), "head_dim=36"),
    ("gpu", "9.0", (129, 128, "bfloat16"), "129 slots are of odd length"),
  ],
)
def test_what_cudnn_cannot_compute(monkeypatch, backend, capability, arguments, reason):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  devices = [SimpleNamespace(compute_capability=capability)]
  monkeypatch.setattr(jax, "local_devices", lambda: devices)
  found = cudnn_refusal(*arguments)
  if reason is None:
    assert found is None
  else:
    assert pytest.raises(ValueError, _raise, found).match(reason)


def _raise(message):
  raise ValueError(message)


# Splash.


def _packed_rows(slots: int) -> jax.Array:
  """Two documents and padding; one document; a document of one token and padding."""
  rows = np.tile(np.arange(1, slots + 1, dtype=np.int32), (3, 1))
  third, most = slots // 3, slots - 17
  rows[0, :third], rows[0, third:most] = third, most
  rows[1] = slots
  rows[2, :most] = np.maximum(1, np.arange(most) > 0) * most
  rows[2, 0] = 1
  return jnp.asarray(rows)


@pytest.mark.parametrize("slots, head_dim", [(128, 128), (150, 64)])
def test_splash_equals_the_reference_on_packed_rows(slots, head_dim):
  visible_until = _packed_rows(slots)
  qkv = qkv_of(2, 3, slots, 4, 2, head_dim)
  d_out = qkv_of(3, 3, slots, 4, 4, head_dim)[0]
  segments = segment_ids(visible_until)
  np.testing.assert_array_equal(segments, visible_until)
  call = lambda *qkv: packed_attention(*qkv, segments, interpret=True)
  found = _with_gradients(call, qkv, d_out)
  assert_equal(found, reference(qkv, visible_until, d_out), gradient_bound=2e-5)


def test_splash_answers_a_row_that_branches_with_nan():
  slots = 128
  rows = _packed_rows(slots).at[1, 40:60].set(60)
  segments = segment_ids(rows)
  assert segments.min(axis=1).tolist() == [rows[0].min(), -1, 1]
  q, k, v = qkv_of(4, 3, slots, 2, 2, 128)
  out = packed_attention(q, k, v, segments, interpret=True)
  assert np.isnan(out[1]).all() and np.isfinite(out[0]).all() and np.isfinite(out[2]).all()


@pytest.mark.slow
def test_splash_compiles_for_a_chip_that_is_not_here(chips):
  slots, chip = 2048, jax.sharding.SingleDeviceSharding(chips[0])

  def run(qkv, visible_until, d_out):
    segments = segment_ids(visible_until)
    out, vjp = jax.vjp(lambda *qkv: packed_attention(*qkv, segments), *qkv)
    return out, vjp(d_out)

  q, kv = (
    jax.ShapeDtypeStruct((1, slots, n, 128), jnp.bfloat16, sharding=chip) for n in (64, 8)
  )
  visible_until = jax.ShapeDtypeStruct((1, slots), jnp.int32, sharding=chip)
  program = jax.jit(run).lower((q, kv, kv), visible_until, q).compile().as_text()
  for kernel in ("fwd", "dq", "dkv"):
    assert f"splash_mha_{kernel}" in program
