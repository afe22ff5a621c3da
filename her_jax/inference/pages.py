"""Keys and values in pages, and attention that reads each page once for all that share it.

A page holds the keys and values of up to `page_size` neighbouring tokens, of all layers. What a
token sees is a list of stretches of pages, so a prompt that many share is kept once, wherever one
request leaves another's path. The attention of a step goes by groups: queries, and the stretches
that all of them see. What a query finds in its groups is put together by log-sum-exp:

    m = max m_i,   total = Σ exp(m_i - m) · total_i,   mixed = Σ exp(m_i - m) · mixed_i / total

Three requests share a prompt of six tokens, in pages of four; each has written two of its own:

    page    1: s0 s1 s2 s3    2: s4 s5 .. ..    3: a6 a7    4: b6 b7    5: c6 c7

    group   queries   stretches (page, position of slot 0, low, high)
    0       a b c     (1, 0, 0, 4) (2, 4, 0, 2)     what lies behind slot 1 is not theirs
    1       a         (3, 6, 0, 4)
    2       b         (4, 6, 0, 4)
    3       c         (5, 6, 0, 4)

    places  a: 0, 3   b: 1, 4   c: 2, 5             rows of the groups' results, one after another
"""

import functools
from typing import TypeAlias

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from her_jax.models.config import ModelConfig
from her_jax.sharding import constrain

# Finite, so that a query which sees nothing gives numbers; its weights are exp(_MASKED - _LEAST) = 0.
_MASKED, _LEAST = -2e30, -1e30
# What the host prepares is NumPy's until a program takes it.
Array: TypeAlias = jax.Array | np.ndarray
# Page 0 is written to by the tokens that only fill up a batch, and read by nobody.
SCRATCH = 0


class Pool(struct.PyTreeNode):
  """The pages of one engine.

  Attributes:
    keys: [layers, pages, page_size, kv_heads, head_dim], rotated. A token's numbers lie together:
      in another order a TPU would copy all pages twice a layer, between the order in which it
      writes and that in which it reads.
    values: the same shape.
  """

  keys: jax.Array
  values: jax.Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def init_pool(config: ModelConfig, pages: int, page_size: int) -> Pool:
  """`pages` empty pages, that of `SCRATCH` among them, in `config.dtype`.

  Each chip makes its own part: whole, 5,120 pages of Qwen3-32B take 160 GiB.
  """
  shape = (config.num_layers, pages, page_size, config.num_kv_heads, config.head_dim)
  names = ("layers", "pages", "slots", "kv_heads", "head_dim")
  empty = lambda: constrain(jnp.zeros(shape, config.dtype), *names)
  return Pool(keys=empty(), values=empty())


class Groups(struct.PyTreeNode):
  """Queries with stretches in common, a list with room for `groups`, the longest first.

  Attributes:
    queries: int32 [groups, shared], of the step's tokens; their number where there is none.
    page: int32 [groups, stretches].
    first: int32 [groups, stretches], position of the token in the page's first slot, or that it
      would have.
    low: int32 [groups, stretches], the first slot that is seen.
    high: int32 [groups, stretches], the slot after the last; low = high where there is none.
    rounds: int32 [groups / block], of `wide` stretches each block needs.
    blocks: int32 scalar, that are worked on.
    block: groups that are worked on together.
    wide: stretches that are.
  """

  queries: Array
  page: Array
  first: Array
  low: Array
  high: Array
  rounds: Array
  blocks: Array
  block: int = struct.field(pytree_node=False)
  wide: int = struct.field(pytree_node=False)


class PagedCache(struct.PyTreeNode):
  """A pool and what one step does with it; a `models.qwen3.Cache`.

  Its tokens are one row, [1, tokens], whatever requests they belong to.

  Attributes:
    slots: int32 [tokens], page · page_size + slot, where each is written.
    positions: int32 [tokens].
    lists: groups by the number of queries that they have room for.
    places: int32 [tokens, most], rows of the groups' results in which each token is; their number
      where it is in fewer.
  """

  pool: Pool
  slots: Array
  positions: Array
  lists: tuple[Groups, ...]
  places: Array

  def attend(
    self, layer: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array
  ) -> tuple[jax.Array, "PagedCache"]:
    """As `Cache.attend`, of one row."""
    page_size = self.pool.values.shape[2]
    page, slot = self.slots // page_size, self.slots % page_size
    pool = self.pool.replace(
      keys=self.pool.keys.at[layer, page, slot].set(k[0]),
      values=self.pool.values.at[layer, page, slot].set(v[0]),
    )
    mixed = paged_attention(q[0], pool, layer, self.positions, self.lists, self.places)
    return mixed[None], self.replace(pool=pool)


def paged_attention(
  q: jax.Array,
  pool: Pool,
  layer: jax.Array,
  positions: Array,
  lists: tuple[Groups, ...],
  places: Array,
) -> jax.Array:
  """Softmax attention of every query to the stretches of its groups.

  A query at position p sees slot s of a stretch where low <= s < high and first + s <= p.

  Args:
    q: [tokens, heads, head_dim].
    layer: int32 scalar.
    positions: int32 [tokens].
    lists, places: as of `PagedCache`.

  Returns:
    [tokens, heads, head_dim], in q's dtype; zeros for a query without groups.
  """
  tokens, heads, head_dim = q.shape
  kv_heads = pool.keys.shape[3]
  scaled = (q * head_dim**-0.5).reshape(tokens, kv_heads, heads // kv_heads, head_dim)
  # One more, which stands for no query, and for no group among the results.
  scaled = jnp.pad(scaled, ((0, 1), (0, 0), (0, 0), (0, 0)))
  positions = jnp.pad(positions, (0, 1), constant_values=-1)
  results = []
  for groups in lists:
    # In profiles, and in compiled text, one tells the lists apart by it.
    with jax.named_scope(f"shared_by_{groups.queries.shape[1]}"):
      results.append(_attend(scaled, pool, layer, positions, groups))
  results.append(_nothing(1, *scaled.shape[1:]))
  peak, total, mixed = (jnp.concatenate(parts)[places] for parts in zip(*results, strict=True))
  share = jnp.exp(peak - jnp.max(peak, axis=1, keepdims=True))
  total = jnp.maximum(jnp.sum(total * share, axis=1), 1e-30)
  mixed = jnp.sum(mixed * share[..., None], axis=1) / total[..., None]
  return mixed.reshape(tokens, heads, head_dim).astype(q.dtype)


def _attend(
  q: jax.Array, pool: Pool, layer: jax.Array, positions: jax.Array, groups: Groups
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Peak and total [rows, kv_heads, heads / kv_heads] and mixed values [..., head_dim].

  `rows` are those of all groups, one after another.
  """
  count, wide = groups.block, groups.wide
  _, kv_heads, group, head_dim = q.shape
  page_size = pool.values.shape[2]
  rows, shared = groups.queries.shape
  stacked = (count, wide, kv_heads, shared * group)
  slot = jnp.arange(page_size)

  def work(i: jax.Array, results):
    queries = jax.lax.dynamic_slice_in_dim(groups.queries, i * count, count)
    ours = q[queries].swapaxes(1, 2).reshape(count, 1, kv_heads, shared * group, head_dim)
    ours = jnp.broadcast_to(ours, (*stacked, head_dim))
    at = positions[queries][:, None, :, None]

    def look(j: jax.Array, found):
      peak, total, mixed = found
      page, first, low, high = (
        jax.lax.dynamic_slice(x, (i * count, j * wide), (count, wide))
        for x in (groups.page, groups.first, groups.low, groups.high)
      )
      # The mode spares a check of every number that is copied, which takes as long as the copy.
      k, v = (x.at[layer, page].get(mode="promise_in_bounds") for x in (pool.keys, pool.values))
      scores = jnp.einsum("nwkqd,nwskd->nwkqs", ours, k, preferred_element_type=jnp.float32)
      inside = (low[..., None] <= slot) & (slot < high[..., None])
      past = (first[..., None] + slot)[:, :, None] <= at
      seen = inside[:, :, None] & past  # [count, wide, shared, slots]
      scores = scores.reshape(count, wide, kv_heads, shared, group, page_size)
      scores = jnp.where(seen[:, :, None, :, None], scores, _MASKED)
      top = jnp.maximum(peak, jnp.max(scores, axis=(1, 5)))
      weights = jnp.exp(scores - top[:, None, ..., None])
      parts = jnp.einsum(
        "nwkqs,nwskd->nwkqd", weights.astype(v.dtype).reshape(*stacked, page_size), v,
        preferred_element_type=jnp.float32,
      )  # fmt: skip
      kept = jnp.exp(peak - top)
      return (
        top,
        total * kept + jnp.sum(weights, axis=(1, 5)),
        mixed * kept[..., None] + jnp.sum(parts, axis=1).reshape(mixed.shape),
      )

    shape = (count, kv_heads, shared, group)
    start = (
      jnp.full(shape, _LEAST, jnp.float32),
      jnp.zeros(shape, jnp.float32),
      jnp.zeros((*shape, head_dim), jnp.float32),
    )
    found = jax.lax.fori_loop(0, groups.rounds[i], look, start)
    put = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(
      whole,
      part.swapaxes(1, 2).reshape(count * shared, *whole.shape[1:]),
      i * count * shared,
      0,
    )
    return jax.tree.map(put, results, found)

  start = _nothing(rows * shared, kv_heads, group, head_dim)
  return jax.lax.fori_loop(0, groups.blocks, work, start)


def _nothing(
  rows: int, kv_heads: int, group: int, head_dim: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """What a query finds where it looks at nothing."""
  shape = (rows, kv_heads, group)
  return (
    jnp.full(shape, _LEAST, jnp.float32),
    jnp.zeros(shape, jnp.float32),
    jnp.zeros((*shape, head_dim), jnp.float32),
  )
