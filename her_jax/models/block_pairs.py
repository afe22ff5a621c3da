"""Which blocks of queries and keys a tree's attention has to visit.

Cut into blocks, most of a tree's mask is empty: a branch sees the trunk and itself, never
the branches beside it. The pairs that hold a visible slot are listed once a batch, outside
the scan over layers, and `tree_attention` walks the lists.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

# What a list entry says beside its two blocks. An entry after the end of its list says
# nothing: it is neither full nor masked, so nothing is computed for it.
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

  Every array begins with the batch, so that it is split as the rows are.

  Attributes:
    q_major: int32 [batch, entries], a row is a block of queries, its columns the blocks of
      keys it sees, ascending.
    k_major: int32 [batch, entries], a row is a block of keys, its columns the blocks of
      queries that see it, ascending.
    count: int32 [batch], entries of either list that stand for a pair.
    block_q: queries in a block.
    block_k: keys in a block.
  """

  q_major: jax.Array
  k_major: jax.Array
  count: jax.Array
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
    block = _round_up(length, LANES)
  else:
    sizes = range(256, largest + 1, LANES)
    block = min(sizes, key=lambda size: (_round_up(length, size), -size))
  return block, block


def padded_length(length: int, block_q: int, block_k: int) -> int:
  """The next length that both blocks divide."""
  return _round_up(length, math.lcm(block_q, block_k))


def pad_visible_until(visible_until: jax.Array, length: int) -> jax.Array:
  """Adds slots that see and are seen by themselves alone: [batch, length]."""
  batch, given = visible_until.shape
  own = jnp.broadcast_to(
    jnp.arange(given, length, dtype=jnp.int32) + 1, (batch, length - given)
  )
  return jnp.concatenate([visible_until, own], axis=1)


def entries(length: int, block_q: int, block_k: int) -> int:
  """Length of the lists: all pairs of a causal row of `length`, which is the most."""
  key_blocks = length // block_k
  return sum(
    min(key_blocks, (start + block_q - 1) // block_k + 1) for start in range(0, length, block_q)
  )


def block_pairs(visible_until: jax.Array, block_q: int, block_k: int) -> BlockPairs:
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
      count   5

  The lists have room for the six pairs of a causal row. What is left over repeats the last
  pair without a flag: the blocks it names are in place already, so nothing is fetched.

  Args:
    visible_until: int32 [batch, length], each greater than its own slot; a length that the
      blocks do not divide is padded by slots that see themselves alone.
    block_q: queries in a block.
    block_k: keys in a block.

  Raises:
    ValueError: `visible_until` is not int32 [batch, length], or there are more blocks than
      an entry can name.
  """
  if visible_until.ndim != 2 or visible_until.dtype != jnp.int32:
    raise ValueError(
      f"visible_until is {visible_until.dtype}{list(visible_until.shape)}; "
      "int32 [batch, length] is needed."
    )
  batch, length = visible_until.shape
  length = padded_length(length, block_q, block_k)
  queries, keys = length // block_q, length // block_k
  if max(queries, keys) > MAX_BLOCKS:
    raise ValueError(
      f"{length} slots are {queries} blocks of {block_q} queries and {keys} blocks of "
      f"{block_k} keys; at most {MAX_BLOCKS} of either fit a list entry: take larger blocks."
    )
  size = entries(length, block_q, block_k)

  # Only a key's end counts, so a block of keys is known by its least and its greatest.
  ends = pad_visible_until(visible_until, length).reshape(batch, 1, keys, block_k)
  first_q = jnp.arange(0, length, block_q)[:, None]
  first_k = jnp.arange(0, length, block_k)
  last_q, last_k = first_q + block_q - 1, first_k + block_k - 1
  active = (first_k <= last_q) & (ends.max(-1) > first_q)
  full = (last_k <= first_q) & (ends.min(-1) > last_q)
  return BlockPairs(
    q_major=_pack(active, full, size),
    k_major=_pack(active.mT, full.mT, size),
    count=active.sum((1, 2), dtype=jnp.int32),
    block_q=block_q,
    block_k=block_k,
  )


def row(entry: jax.Array) -> jax.Array:
  """The block whose sums an entry adds to."""
  return entry >> 16


def column(entry: jax.Array) -> jax.Array:
  """The block that an entry reads beside its row."""
  return (entry >> 4) & 0xFFF


def _pack(active: jax.Array, full: jax.Array, size: int) -> jax.Array:
  """Entries [batch, size] of the active pairs, row by row.

  Args:
    active: bool [batch, rows, columns].
    full: bool [batch, rows, columns].
    size: at least as many as are active.
  """
  columns = active.shape[2]

  def one(active: jax.Array, full: jax.Array) -> jax.Array:
    active, full = active.reshape(-1), full.reshape(-1)
    number = jnp.arange(size)
    last = active.sum() - 1
    place = jnp.flatnonzero(active, size=size, fill_value=0)
    place = jnp.where(number <= last, place, place[last])
    row = place // columns
    changes = row[1:] != row[:-1]
    first = jnp.concatenate([jnp.array([True]), changes])
    final = jnp.concatenate([changes, jnp.array([True])]) | (number == last)
    flags = jnp.where(first, FIRST, 0) | jnp.where(final, LAST, 0)
    flags |= jnp.where(full[place], FULL, MASKED)
    flags = jnp.where(number <= last, flags, 0)
    return (row << 16 | (place % columns) << 4 | flags).astype(jnp.int32)

  return jax.vmap(one)(active, full)


def _round_up(number: int, multiple: int) -> int:
  return -(-number // multiple) * multiple
