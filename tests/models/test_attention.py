"""The attention contract against a brute-force reading of the tree."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax.models import attention as attention_lib
from her_jax.models.attention import attention, attention_mask

_SLOTS, _HEADS, _KV_HEADS, _HEAD_DIM = 20, 4, 2, 8


@st.composite
def trees(draw) -> list[set[int]]:
  """Tokens laid out depth-first: for each its ancestors, itself included.

  A token's parent is the token before it or, at the start of a branch, one of that token's
  ancestors; none at the start of a document.
  """
  paths: list[list[int]] = []
  for i in range(_SLOTS):
    previous = paths[-1] if paths else []
    keep = draw(st.just(len(previous)) | st.integers(0, len(previous)))
    paths.append([*previous[:keep], i])
  return [set(path) for path in paths]


def _visible_until(ancestors: list[set[int]]) -> jax.Array:
  """One past the last descendant of each token, [1, slots]."""
  last = [max(i for i, path in enumerate(ancestors) if j in path) for j in range(_SLOTS)]
  return jnp.asarray([last], jnp.int32) + 1


def _qkv(seed: int, slots: int = _SLOTS, batch: int = 1) -> list[np.ndarray]:
  rng = np.random.default_rng(seed)
  heads = (_HEADS, _KV_HEADS, _KV_HEADS)
  return [rng.normal(size=(batch, slots, n, _HEAD_DIM)).astype(np.float32) for n in heads]


def _brute_force(q, k, v, ancestors: list[set[int]]) -> np.ndarray:
  """Token by token and head by head, over the ancestors alone, in float64."""
  q, k, v = (x[0].astype(np.float64) for x in (q, k, v))
  out = np.zeros_like(q)
  for i, path in enumerate(ancestors):
    keys = sorted(path)
    for head in range(_HEADS):
      kv_head = head // (_HEADS // _KV_HEADS)
      scores = k[keys, kv_head] @ q[i, head] / np.sqrt(_HEAD_DIM)
      weights = np.exp(scores - scores.max())
      out[i, head] = (weights / weights.sum()) @ v[keys, kv_head]
  return out[None]


@settings(deadline=None, max_examples=20)
@given(trees(), st.integers(0, 2**16), st.sampled_from([7, 256]))
def test_equals_brute_force_on_any_tree(ancestors, seed, block):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(attention_lib, "_BLOCK", block)
    q, k, v = _qkv(seed)
    out = attention(q, k, v, None, _visible_until(ancestors))
  np.testing.assert_allclose(out, _brute_force(q, k, v, ancestors), atol=2e-6)


@settings(deadline=None, max_examples=20)
@given(trees(), st.integers(0, _SLOTS - 1))
def test_a_change_reaches_descendants_and_no_one_else(ancestors, changed):
  q, k, v = _qkv(0)
  visible_until = _visible_until(ancestors)
  before = np.asarray(attention(q, k, v, None, visible_until))
  q[:, changed], k[:, changed], v[:, changed] = 1.0, -2.0, 3.0
  after = np.asarray(attention(q, k, v, None, visible_until))
  moved = {i for i in range(_SLOTS) if not np.array_equal(before[:, i], after[:, i])}
  assert moved == {i for i, path in enumerate(ancestors) if changed in path}


def test_mask_of_the_documented_example():
  visible_until = jnp.array([[9, 9, 9, 5, 5, 9, 9, 9, 9]])
  mask = attention_mask(jnp.arange(9), visible_until)[0]
  seen = {i: np.flatnonzero(mask[i]).tolist() for i in (4, 6, 8)}
  assert seen == {4: [0, 1, 2, 3, 4], 6: [0, 1, 2, 5, 6], 8: [0, 1, 2, 5, 6, 7, 8]}


def test_blocks_equal_the_plain_form_and_its_gradient():
  """600 slots: two whole blocks and a part, in documents that cross their borders."""
  slots = 600
  q, k, v = _qkv(1, slots, batch=2)
  ends = np.repeat([[100, 500, 600], [250, 300, 600]], [100, 400, 100], axis=1)
  visible_until = jnp.asarray(np.maximum(ends, np.arange(slots) + 1), jnp.int32)
  weights = np.random.default_rng(2).normal(size=q.shape)

  def loss(qkv, query_index):
    out = attention(*qkv, query_index, visible_until)
    return jnp.sum(out * weights), out

  options = {"xla_backend_optimization_level": 0}  # Each program runs once.
  run = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=options)
  (_, blocked), blocked_grads = run((q, k, v), None)
  plain = _plain(q, k, v, visible_until)
  (_, indexed), indexed_grads = run((q, k, v), jnp.arange(slots))
  np.testing.assert_allclose(blocked, plain, atol=2e-6)
  np.testing.assert_allclose(indexed, plain, atol=2e-6)
  for a, b in zip(blocked_grads, indexed_grads, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)


def _plain(q, k, v, visible_until):
  """One matrix of scores over repeated heads."""
  k, v = (jnp.repeat(x, _HEADS // _KV_HEADS, axis=2) for x in (k, v))
  scores = jnp.einsum("bqhd,bshd->bhqs", q, k) * _HEAD_DIM**-0.5
  i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(q.shape[1])
  mask = (j <= i) & (i < visible_until[:, None, None, :])
  return jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)


def test_queries_may_stand_at_a_slot_of_their_own_in_every_row():
  q, k, v = _qkv(3, batch=2)
  visible_until = jnp.full((2, _SLOTS), _SLOTS, jnp.int32)
  every = attention(q, k, v, None, visible_until)
  picked = jnp.array([[4, 17], [0, 9]])
  few = attention(
    np.take_along_axis(q, picked[..., None, None], 1), k, v, picked, visible_until
  )
  np.testing.assert_allclose(
    few, np.take_along_axis(every, picked[..., None, None], 1), atol=1e-6
  )
  same = attention(q[:, [4, 17]], k, v, jnp.array([4, 17]), visible_until)
  np.testing.assert_allclose(same, every[:, [4, 17]], atol=1e-6)


def test_unwritten_slots_are_never_seen_and_all_masked_stays_finite():
  q, k, v = _qkv(4)
  visible_until = jnp.full((1, _SLOTS), _SLOTS, jnp.int32).at[:, 10:].set(0)
  k[:, 10:], v[:, 10:] = 1e4, 1e4
  out = attention(q[:, :1], k, v, jnp.array([15]), visible_until)
  assert np.abs(out).max() < 10
  nothing = jnp.zeros((1, _SLOTS), jnp.int32)
  gradient = jax.grad(lambda q: attention(q, k, v, None, nothing).sum())(q)
  assert np.isfinite(gradient).all()


def test_fewer_queries_than_slots_need_their_index():
  q, k, v = _qkv(5)
  with pytest.raises(ValueError, match="query_index"):
    attention(q[:, :3], k, v, None, jnp.full((1, _SLOTS), _SLOTS))
