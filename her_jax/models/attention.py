"""Grouped-query attention over trees: the jnp reference, which is also the contract.

Slot `i` sees slot `j` exactly when `j <= i < visible_until[j]`. One integer a token
expresses a causal row, packed documents and branches off a shared trunk alike.
"""

import jax
import jax.numpy as jnp

# Finite, so that a row with every key masked gives numbers and not NaN, and its gradient too.
_MASKED = -1e30
# Queries that are scored together. A block reads only the keys up to its last query, so a
# row of length L costs about L²/2 scores; it also bounds the score matrix at block · slots.
_BLOCK = 512


def attention_mask(query_index: jax.Array, visible_until: jax.Array) -> jax.Array:
  """Which slots each query sees.

  A trunk S of three slots; a plan p1 and reply r1 that branch off it; the reply as history
  r1' and another's line u; then a second branch p2 r2:

      tokens          S  S  S  p1 r1 r1' u  p2 r2
      index           0  1  2  3  4  5   6  7  8
      visible_until   9  9  9  5  5  9   9  9  9

      slot 4 (r1) sees 0 1 2 3 4          its plan, and the trunk
      slot 6 (u)  sees 0 1 2 5 6          the history, but not the first branch
      slot 8 (r2) sees 0 1 2 5 6 7 8

  Args:
    query_index: int32 [queries] or [batch, queries], the slot each query stands in.
    visible_until: int32 [batch, slots]; padding has its own slot + 1 (sees and is seen by
      itself alone), a slot not yet written 0 (is never seen).

  Returns:
    bool [batch, queries, slots].
  """
  slot = jnp.arange(visible_until.shape[-1])
  query = query_index[..., :, None]
  return (slot <= query) & (query < visible_until[:, None, :])


def attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  query_index: jax.Array | None,
  visible_until: jax.Array,
) -> jax.Array:
  """Softmax attention under `attention_mask`, scaled by `head_dim ** -0.5`.

  Query head `h` reads key/value head `h // (heads / kv_heads)`; keys and values are never
  repeated in memory. Scores and softmax are float32.

  Args:
    q: [batch, queries, heads, head_dim].
    k: [batch, slots, kv_heads, head_dim].
    v: [batch, slots, kv_heads, head_dim].
    query_index: int32 [queries] or [batch, queries]. None where the queries are all the
      slots in order, as in training: keys that lie wholly ahead are then never read.
    visible_until: int32 [batch, slots].

  Returns:
    [batch, queries, heads, head_dim], in q's dtype.

  Raises:
    ValueError: query_index is None though there are fewer queries than slots.
  """
  batch, queries, heads, head_dim = q.shape
  slots, kv_heads = k.shape[1:3]
  if query_index is None and queries != slots:
    raise ValueError(f"{queries} queries for {slots} slots: pass query_index.")
  q = (q * head_dim**-0.5).reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
  q, k, v = q.transpose(0, 2, 3, 1, 4), k.swapaxes(1, 2), v.swapaxes(1, 2)
  index = jnp.arange(queries) if query_index is None else query_index

  outputs = []
  for start in range(0, queries, _BLOCK):
    stop = min(start + _BLOCK, queries)
    seen = slots if query_index is not None else stop
    mask = attention_mask(index[..., start:stop], visible_until[:, :seen])
    outputs.append(_attend(q[:, :, :, start:stop], k[:, :, :seen], v[:, :, :seen], mask))
  mixed = jnp.concatenate(outputs, axis=3)
  return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, queries, heads, head_dim)


@jax.checkpoint
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """One block, as plain matrix products: a group's queries lie under one another.

  The scores are computed again for the gradient: kept, they are 4 · block · slots bytes a
  head and layer, and slower to store and read back than to compute.

  Args:
    q: [batch, kv_heads, group, queries, head_dim], scaled.
    k: [batch, kv_heads, slots, head_dim]; v likewise.
    mask: bool [batch, queries, slots].

  Returns:
    [batch, kv_heads, group, queries, head_dim].
  """
  batch, kv_heads, group, queries, head_dim = q.shape
  stacked = (batch, kv_heads, group * queries)
  scores = jnp.einsum(
    "bkqd,bksd->bkqs", q.reshape(*stacked, head_dim), k, preferred_element_type=jnp.float32
  )
  scores = scores.reshape(batch, kv_heads, group, queries, -1)
  scores = jnp.where(mask[:, None, None], scores, _MASKED)
  # Normalised after the product with the values: one pass less over the scores.
  peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
  weights = jnp.exp(scores - peak)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  mixed = jnp.einsum(
    "bkqs,bksd->bkqd", weights.astype(v.dtype).reshape(*stacked, -1), v,
    preferred_element_type=jnp.float32,
  )  # fmt: skip
  return (mixed.reshape(q.shape) / total).astype(v.dtype)
