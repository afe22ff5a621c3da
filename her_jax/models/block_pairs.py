"""Which blocks of queries and keys a tree's attention has to visit.

Cut into blocks, most of a tree's mask is empty: a branch sees the trunk and itself, never
the branches beside it. The pairs that hold a visible slot are listed once a batch, outside
the scan over layers, and `tree_attention` walks the lists.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from her_jax.errors import ConfigError

# What a list entry says beside its two blocks. Nothing is computed for one that is neither
# full nor masked: what follows the end of a list, and the one entry of a row without pairs.
FIRST = 1  # of its row: the row's sums start at nothing
LAST = 2  # of its row: the row's result is written
MASKED = 4  # some slots of the pair are hidden
FULL = 8  # every query of the pair sees every key: no mask is computed

# An entry is one int32: row << 16 | column << 4 | flags. 12 bits hold the column, and each
# block is a column in one of the two orders.
MAX_BLOCKS = 4095
# The list that is walked lies in the scalar memory: 1 MiB on every chip from v5e to tpu7x, a
# little of which the compiler needs.
MAX_LIST_BYTES = 2**20 - 2**15
# Lanes of a TPU register: blocks on a chip are multiples of it.
LANES = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockPairs:
  """The pairs to visit, in both orders; see `block_pairs`.

  Every array begins with batch and shards, so that it is split as the rows are.

  Attributes:
    q_major: int32 [batch, shards, entries], a row is a block of the shard's queries, its
      columns the blocks of keys it sees, ascending.
    k_major: int32 [batch, shards, entries], a row is a block of keys, its columns the blocks
      of the shard's queries that see it, ascending.
    q_count: int32 [batch, shards], entries of `q_major` before its end.
    k_count: int32 [batch, shards], those of `k_major`: more where a shard's queries see
      nothing of some blocks of keys, which then have an entry without a pair.
    first: int32 [batch, shards, query blocks of a shard], slot of each block's first query.
    slots: of a row.
    block_q: queries in a block.
    block_k: keys in a block.
  """

  q_major: jax.Array
  k_major: jax.Array
  q_count: jax.Array
  k_count: jax.Array
  first: jax.Array
  slots: int = dataclasses.field(metadata={"static": True})
  block_q: int = dataclasses.field(metadata={"static": True})
  block_k: int = dataclasses.field(metadata={"static": True})


def block_sizes(length: int, head_dim: int) -> tuple[int, int]:
  """How many queries and keys one step of the kernel computes, for rows of `length`.

  At most 512, where a step's scores are 1 MiB of float32 (256 for heads wider than 256,
  whose blocks are large themselves). A short row is one block; of the sizes for a longer
  row the one that pads it least is taken, and of several the largest.

      length   100  300  512  640  4096  4224
      block    128  384  512  384   512   384
      padded   128  384  512  768  4096  4224

  Returns:
    block_q, block_k: multiples of 128.
  """
  largest = 512 if head_dim <= 256 else 256
  if length <= largest:
    block = round_up(length, LANES)
  else:
    sizes = range(256, largest + 1, LANES)
    block = min(sizes, key=lambda size: (round_up(length, size), -size))
  return block, block


def pad_visible_until(visible_until: jax.Array, block_k: int) -> jax.Array:
  """Adds slots that see and are seen by themselves alone, until the blocks divide a row."""
  batch, given = visible_until.shape
  own = jnp.arange(given, round_up(given, block_k), dtype=jnp.int32) + 1
  return jnp.concatenate([visible_until, jnp.broadcast_to(own, (batch, own.size))], axis=1)


def first_queries(slots: int, block_q: int, shards: int = 1) -> np.ndarray:
  """The slot of each block's first query, int32 [shards, query blocks of a shard].

  A single shard has all queries in order. Of several each has two chunks, an early and a
  late one, since a query sees the more the later it stands. With four shards the chunks are
  0 7 | 2 5 | 4 3 | 6 1: the even one first, see `context.deal`.

  Raises:
    ConfigError: the slots do not divide into two equal chunks a shard.
  """
  if shards == 1:
    return np.arange(0, slots, block_q, dtype=np.int32)[None]
  if slots % (2 * shards):
    raise ConfigError(
      f"Rows of {slots} slots over context={shards}: each shard has two equal chunks, so take "
      f"a length that {2 * shards} divides, as {round_up(slots, 2 * shards)}, or another context "
      "of the mesh."
    )
  chunk = slots // (2 * shards)
  even = np.arange(shards)
  even = np.where(even % 2, 2 * shards - 1 - even, even)
  chunks = np.stack([even, 2 * shards - 1 - even], axis=1)
  blocks = chunks[:, :, None] * chunk + np.arange(0, chunk, block_q)
  return blocks.reshape(shards, -1).astype(np.int32)


def block_pairs(
  visible_until: jax.Array, block_q: int, block_k: int, shards: int = 1
) -> BlockPairs:
  """Lists the pairs of blocks in which some query sees some key.

  A trunk S S and two branches p1 r1 and p2 r2 off it, in blocks of two:

      visible_until   6 6 | 4 4 | 6 6

                      keys  0       1       2
      queries 0             masked
      queries 1             full    masked
      queries 2             full    hidden  masked

      q_major (0,0) first last masked   (1,0) first full   (1,1) last masked
              (2,0) first full          (2,2) last masked  (2,2) -
      k_major (0,0) first masked        (0,1) full         (0,2) last full
              (1,1) first last masked   (2,2) first last masked   (2,2) -
      count   5 and 5

  The lists have room for the six pairs of a causal row. What is left over repeats the last
  pair without a flag: the blocks it names are in place already, so nothing is fetched.

  Args:
    visible_until: int32 [batch, length], each greater than its own slot; a length that the
      blocks do not divide is padded by slots that see themselves alone.
    block_q: queries in a block.
    block_k: keys in a block.
    shards: among which a row's queries are dealt out, see `first_queries`. Each has lists of
      its own, over all keys of the row.

  Raises:
    ValueError: `visible_until` is not int32 [batch, length].
    ConfigError: the shards do not divide it, or there are more blocks than an entry can name.
  """
  if visible_until.ndim != 2 or visible_until.dtype != jnp.int32:
    raise ValueError(
      f"visible_until is {visible_until.dtype}{list(visible_until.shape)}; "
      "int32 [batch, length] is needed."
    )
  batch, slots = visible_until.shape
  first = first_queries(slots, block_q, shards)
  first_k = np.arange(0, slots, block_k)
  if max(first.shape[1], first_k.size) > MAX_BLOCKS:
    raise ConfigError(
      f"{slots} slots are {first.shape[1]} blocks of {block_q} queries and {first_k.size} "
      f"blocks of {block_k} keys; at most {MAX_BLOCKS} of either fit a list entry: take "
      "larger blocks."
    )
  first_q = first[:, :, None]
  last_q, last_k = first_q + block_q - 1, first_k + block_k - 1
  # The most that any tree takes: a causal row's pairs, and the blocks of keys without one.
  size = int(np.maximum((first_k <= last_q).sum(1), 1).sum(1).max())

  # Only a key's end counts, so a block of keys is known by its least and its greatest.
  ends = pad_visible_until(visible_until, block_k).reshape(batch, 1, 1, -1, block_k)
  active = (ends.max(-1) > first_q) & (first_k <= last_q)
  full = (ends.min(-1) > last_q) & (last_k <= first_q)
  q_major, q_count = _pack(active, full, size)
  k_major, k_count = _pack(active.mT, full.mT, size)
  return BlockPairs(
    q_major=q_major,
    k_major=k_major,
    q_count=q_count,
    k_count=k_count,
    first=jnp.broadcast_to(first, (batch, *first.shape)),
    slots=slots,
    block_q=block_q,
    block_k=block_k,
  )


def row(entry: jax.Array) -> jax.Array:
  """The block whose sums an entry adds to."""
  return entry >> 16


def column(entry: jax.Array) -> jax.Array:
  """The block that an entry reads beside its row."""
  return (entry >> 4) & 0xFFF


def round_up(number: int, multiple: int) -> int:
  """The least multiple that is not less."""
  return -(-number // multiple) * multiple


def _pack(active: jax.Array, full: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """Entries [batch, shards, size] of the active pairs, row by row, and their count.

  Args:
    active: bool [batch, shards, rows, columns].
    full: bool [batch, shards, rows, columns].
    size: at least as many as there are entries.
  """
  columns = active.shape[-1]
  # A row without pairs still has a result to write, which is zero.
  nothing = ~active.any(-1, keepdims=True) & (jnp.arange(columns) == 0)

  def one(active: jax.Array, full: jax.Array, nothing: jax.Array) -> jax.Array:
    active, full = active.reshape(-1), full.reshape(-1)
    listed = active | nothing.reshape(-1)
    number = jnp.arange(size)
    last = listed.sum() - 1
    place = jnp.flatnonzero(listed, size=size, fill_value=0)
    place = jnp.where(number <= last, place, place[last])
    row = place // columns
    changes = row[1:] != row[:-1]
    first = jnp.concatenate([jnp.array([True]), changes])
    final = jnp.concatenate([changes, jnp.array([True])]) | (number == last)
    flags = jnp.where(first, FIRST, 0) | jnp.where(final, LAST, 0)
    flags |= jnp.where(full[place], FULL, jnp.where(active[place], MASKED, 0))
    flags = jnp.where(number <= last, flags, 0)
    return (row << 16 | (place % columns) << 4 | flags).astype(jnp.int32)

  entries = jax.vmap(jax.vmap(one))(active, full, nothing)
  return entries, (active | nothing).sum((2, 3), dtype=jnp.int32)
