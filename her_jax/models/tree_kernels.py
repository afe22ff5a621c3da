"""What `tree_attention` computes on the chip for one pair of blocks, forward and backward.

A step reads its entry of the list, see `block_pairs`, and the blocks that the entry names:

    q, out, d_out, dq   [block_q, head_dim]      of one query head
    k, v, dk, dv        [block_k, head_dim]      of one key/value head
    ends                [1, block_k]             visible_until of the keys
    lse, delta          [1, block_q]             float32
    *_sum, peak, total  float32, live from a row's first entry to its last

`order` is the list and `first` the slot of each query block's first query. `size` is the
length of one row's list, `block_k` the keys in a block, `scale` is head_dim ** -0.5.
"""

from collections.abc import Callable

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from her_jax.models.block_pairs import FIRST, FULL, LAST, MASKED, column, row

# Finite: a query that sees nothing of a masked block gets numbers there and no NaN. They
# vanish with the first key that it does see, for they are then scaled by exp(_HIDDEN - peak).
_HIDDEN = -1e30


def forward_kernel(
  order, first, q, k, v, ends, out, lse, peak, total, mixed, *, size, block_k, scale
):  # fmt: skip
  """Softmax with a running maximum.

  Sums: peak and total, float32 [block_q, 128], every column the same, as reductions over
  lanes leave it; mixed [block_q, head_dim].
  """
  entry = order[pl.program_id(0) * size + pl.program_id(2)]

  @pl.when(entry & FIRST != 0)
  def _():
    peak[...] = jnp.full_like(peak, _HIDDEN)
    total[...] = jnp.zeros_like(total)
    mixed[...] = jnp.zeros_like(mixed)

  def step(masked: bool) -> None:
    scores = _dot_t(q[...], k[...]) * scale
    if masked:
      scores = _mask(scores, first[row(entry)], column(entry) * block_k, ends[...], 0)
    before = peak[...]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp(scores - now[:, :1])
    shrink = jnp.exp(before - now)
    peak[...] = now
    total[...] = shrink * total[...] + weights.sum(axis=1, keepdims=True)
    mixed[...] = shrink[:, :1] * mixed[...] + _dot(weights.astype(v.dtype), v[...])

  _visit(entry, step)

  @pl.when(entry & LAST != 0)
  def _():
    out[...] = (mixed[...] / total[:, :1]).astype(out.dtype)
    lse[...] = (peak[...] + jnp.log(total[...])).T[:1]


def dq_kernel(
  order, first, q, k, v, ends, d_out, lse, delta, dq, dq_sum, *, size, block_k, scale
):  # fmt: skip
  """The weights are computed again from lse; dq_sum [block_q, head_dim]."""
  entry = order[pl.program_id(0) * size + pl.program_id(2)]

  @pl.when(entry & FIRST != 0)
  def _():
    dq_sum[...] = jnp.zeros_like(dq_sum)

  def step(masked: bool) -> None:
    scores = _dot_t(q[...], k[...]) * scale
    if masked:
      scores = _mask(scores, first[row(entry)], column(entry) * block_k, ends[...], 0)
    weights = jnp.exp(scores - lse[0][:, None])
    d_scores = weights * (_dot_t(d_out[...], v[...]) - delta[0][:, None])
    dq_sum[...] += _dot(d_scores.astype(k.dtype), k[...])

  _visit(entry, step)

  @pl.when(entry & LAST != 0)
  def _():
    dq[...] = (dq_sum[...] * scale).astype(dq.dtype)


def dkv_kernel(
  order, first, q, k, v, ends, d_out, lse, delta, dk, dv, dk_sum, dv_sum,
  *, size, block_k, scale, group,
):  # fmt: skip
  """As `dq_kernel`, over the query heads of a group too; both sums [block_k, head_dim].

  Scores are [block_k, block_q] here, so that neither product needs them transposed.
  """
  entry = order[pl.program_id(0) * size + pl.program_id(2)]
  member = pl.program_id(3)

  @pl.when((entry & FIRST != 0) & (member == 0))
  def _():
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)

  def step(masked: bool) -> None:
    scores = _dot_t(k[...], q[...]) * scale
    if masked:
      key_ends = ends[0][:, None]
      scores = _mask(scores, first[column(entry)], row(entry) * block_k, key_ends, 1)
    weights = jnp.exp(scores - lse[...])
    dv_sum[...] += _dot(weights.astype(d_out.dtype), d_out[...])
    d_scores = weights * (_dot_t(v[...], d_out[...]) - delta[...])
    dk_sum[...] += _dot(d_scores.astype(q.dtype), q[...])

  _visit(entry, step)

  @pl.when((entry & LAST != 0) & (member == group - 1))
  def _():
    dk[...] = (dk_sum[...] * scale).astype(dk.dtype)
    dv[...] = dv_sum[...].astype(dv.dtype)


def _visit(entry: jax.Array, step: Callable[[bool], None]) -> None:
  """Runs `step(masked)` for an entry that stands for a pair, without a mask if it is full."""
  pl.when(entry & FULL != 0)(lambda: step(False))
  pl.when(entry & MASKED != 0)(lambda: step(True))


def _mask(
  scores: jax.Array, first_q: jax.Array, first_k: jax.Array, ends: jax.Array, axis: int
) -> jax.Array:
  """Hides the scores of keys that a query does not see.

  Args:
    scores: float32, queries along `axis`, keys along the other.
    first_q: slot of the first query.
    first_k: slot of the first key.
    ends: visible_until of the keys, along their axis.
    axis: 0 or 1.
  """
  query = first_q + lax.broadcasted_iota(jnp.int32, scores.shape, axis)
  key = first_k + lax.broadcasted_iota(jnp.int32, scores.shape, 1 - axis)
  return jnp.where((key <= query) & (query < ends), scores, _HIDDEN)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """a @ b in float32."""
  return lax.dot(a, b, preferred_element_type=jnp.float32)


def _dot_t(a: jax.Array, b: jax.Array) -> jax.Array:
  """a @ b.T in float32."""
  return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
