"""Keys and values in pages, and attention that reads each page once for all that share it.

A page holds the keys and values of up to `page_size` neighbouring tokens, of all layers. What a
token sees is a list of stretches of pages, so a prompt that many share is kept once, wherever one
request leaves another's path. The attention of a step is a list of items, each a stretch and the
queries that see it; what a query finds in its stretches is put together by log-sum-exp:

    m = max m_i,   total = Σ exp(m_i - m) · total_i,   mixed = Σ exp(m_i - m) · mixed_i / total

Three requests share a prompt of six tokens, in pages of four; each has written two of its own:

    page     1: s0 s1 s2 s3    2: s4 s5 .. ..    3: a6 a7    4: b6 b7    5: c6 c7
    items    page  first  low  high  queries
                1      0    0     4  a b c          of the positions 0 … 3
                2      4    0     2  a b c          4, 5; what lies behind is not theirs
                3      6    0     4  a              6, 7
                4      6    0     4  b
                5      6    0     4  c
"""

from flax import struct
import jax
import jax.numpy as jnp

from her_jax.models.config import ModelConfig
from her_jax.sharding import constrain

_MASKED = -1e30
# Page 0 is written to by the tokens that only fill up a batch, and read by nobody.
SCRATCH = 0


class Pool(struct.PyTreeNode):
  """The pages of one engine.

  Attributes:
    keys: [layers, pages, kv_heads, page_size, head_dim], rotated.
    values: the same shape.
  """

  keys: jax.Array
  values: jax.Array


def init_pool(config: ModelConfig, pages: int, page_size: int) -> Pool:
  """`pages` empty pages, that of `SCRATCH` among them, in `config.dtype`."""
  shape = (config.num_layers, pages, config.num_kv_heads, page_size, config.head_dim)
  names = ("layers", "pages", "kv_heads", "slots", "head_dim")
  empty = lambda: constrain(jnp.zeros(shape, config.dtype), *names)
  return Pool(keys=empty(), values=empty())


class Items(struct.PyTreeNode):
  """Stretches of pages and who sees them, a list with room for `items`.

  Attributes:
    page: int32 [items].
    first: int32 [items], position of the token in the page's first slot, or that it would have.
    low: int32 [items], the first slot that is seen.
    high: int32 [items], the slot after the last.
    queries: int32 [items, shared], of the step's tokens; their number where there is none.
    count: int32 scalar, items that are there.
    block: items that are worked on together.
  """

  page: jax.Array
  first: jax.Array
  low: jax.Array
  high: jax.Array
  queries: jax.Array
  count: jax.Array
  block: int = struct.field(pytree_node=False)


class PagedCache(struct.PyTreeNode):
  """A pool and what one step does with it; a `models.qwen3.Cache`.

  Its tokens are one row, [1, tokens], whatever requests they belong to. `visible_until` and
  `slots` of the model are not used.

  Attributes:
    slots: int32 [tokens], page · page_size + slot, where each is written.
    positions: int32 [tokens].
    lists: items by how many queries they share.
  """

  pool: Pool
  slots: jax.Array
  positions: jax.Array
  lists: tuple[Items, ...]

  def begin(self, visible_until: jax.Array, slots: jax.Array | None) -> "PagedCache":
    """Nothing to be done."""
    return self

  def attend(
    self, layer: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array | None
  ) -> tuple[jax.Array, "PagedCache"]:
    """As `Cache.attend`, of one row."""
    page_size = self.pool.keys.shape[3]
    at = (layer, self.slots // page_size, slice(None), self.slots % page_size)
    pool = self.pool.replace(
      keys=self.pool.keys.at[at].set(k[0]), values=self.pool.values.at[at].set(v[0])
    )
    mixed = paged_attention(q[0], pool, layer, self.positions, self.lists)
    return mixed[None], self.replace(pool=pool)

  def end(self, length: int, slots: jax.Array | None) -> "PagedCache":
    """Nothing to be done."""
    return self


def paged_attention(
  q: jax.Array, pool: Pool, layer: jax.Array, positions: jax.Array, lists: tuple[Items, ...]
) -> jax.Array:
  """Softmax attention of every query to the stretches that it is named for.

  A query at position p sees slot s of an item where low <= s < high and first + s <= p.

  Args:
    q: [tokens, heads, head_dim].
    layer: int32 scalar.
    positions: int32 [tokens].
    lists: as many as there are numbers of queries that share an item.

  Returns:
    [tokens, heads, head_dim], in q's dtype; anything finite for a query without items.
  """
  tokens, heads, head_dim = q.shape
  _, _, kv_heads, page_size, _ = pool.keys.shape
  group = heads // kv_heads
  scaled = (q * head_dim**-0.5).reshape(tokens, kv_heads, group, head_dim)
  # One more, which stands for no query.
  scaled = jnp.pad(scaled, ((0, 1), (0, 0), (0, 0), (0, 0)))
  positions = jnp.pad(positions, (0, 1), constant_values=-1)
  slot = jnp.arange(page_size)

  def work(items: Items, i: jax.Array, found):
    peak, total, mixed = found
    cut = lambda x: jax.lax.dynamic_slice_in_dim(x, i * items.block, items.block)
    page, first, low, high, queries = map(
      cut, (items.page, items.first, items.low, items.high, items.queries)
    )
    count, shared = queries.shape
    k, v = pool.keys[layer, page], pool.values[layer, page]
    stacked = (count, kv_heads, shared * group)
    ours = scaled[queries].swapaxes(1, 2).reshape(*stacked, head_dim)
    scores = jnp.einsum("nkqd,nksd->nkqs", ours, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(count, kv_heads, shared, group, page_size)
    inside = (low[:, None] <= slot) & (slot < high[:, None])
    past = (first[:, None] + slot)[:, None] <= positions[queries][..., None]
    seen = inside[:, None] & past  # [count, shared, slots]
    scores = jnp.where(seen[:, None, :, None], scores, _MASKED)
    top = jnp.max(scores, axis=-1)
    weights = jnp.where(seen[:, None, :, None], jnp.exp(scores - top[..., None]), 0.0)
    sums = jnp.sum(weights, axis=-1).swapaxes(1, 2)  # [count, shared, kv_heads, group]
    parts = jnp.einsum(
      "nkqs,nksd->nkqd", weights.astype(v.dtype).reshape(*stacked, page_size), v,
      preferred_element_type=jnp.float32,
    )  # fmt: skip
    parts = parts.reshape(count, kv_heads, shared, group, head_dim).swapaxes(1, 2)
    top = top.swapaxes(1, 2)
    # Several items of a block may be of one query.
    higher = peak.at[queries].max(top)
    kept, new = jnp.exp(peak - higher), jnp.exp(top - higher[queries])
    total = (total * kept).at[queries].add(sums * new)
    mixed = (mixed * kept[..., None]).at[queries].add(parts * new[..., None])
    return higher, total, mixed

  shape = (tokens + 1, kv_heads, group)
  found = (
    jnp.full(shape, _MASKED, jnp.float32),
    jnp.zeros(shape, jnp.float32),
    jnp.zeros((*shape, head_dim), jnp.float32),
  )
  for items in lists:
    blocks = (items.count + items.block - 1) // items.block
    found = jax.lax.fori_loop(0, blocks, lambda i, x, items=items: work(items, i, x), found)
  _, total, mixed = found
  mixed = mixed[:tokens] / jnp.maximum(total[:tokens], 1e-30)[..., None]
  return mixed.reshape(tokens, heads, head_dim).astype(q.dtype)
