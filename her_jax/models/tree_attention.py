"""Grouped-query attention over trees on TPU: `attention.attention` as a Pallas kernel.

Flash attention (arXiv:2205.14135, backward pass of arXiv:2307.08691) that visits only the
blocks in which the tree shows something, see `block_pairs`. Counted at 8192 slots in blocks
of 512: 136 pairs in a causal row, 24 in eight packed documents.

    pairs = block_pairs(visible_until, *block_sizes(length, head_dim))    # once a batch
    mixed = tree_attention(q, k, v, visible_until, pairs)                 # in every layer
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from her_jax.errors import ConfigError
from her_jax.models.block_pairs import (
  LANES,
  MAX_LIST_BYTES,
  BlockPairs,
  block_pairs,
  block_sizes,
  column,
  pad_visible_until,
  round_up,
  row,
)
from her_jax.models.tree_kernels import dkv_kernel, dq_kernel, forward_kernel

# What a remat policy may save, so that the backward pass does not run the forward kernel
# again: jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES).
SAVED_NAMES = ("attn_out", "attn_lse")


def tree_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  visible_until: jax.Array,
  pairs: BlockPairs | None = None,
  *,
  interpret: bool = False,
) -> jax.Array:
  """Softmax attention in which slot `i` sees slot `j` iff `j <= i < visible_until[j]`.

  Scaled by `head_dim ** -0.5`; scores and softmax are float32. Query head `h` reads
  key/value head `h // (heads / kv_heads)`. For the gradient only q, k, v, the output and the
  logarithm of each softmax's sum [batch, heads, 1, length] are kept.

  A Pallas kernel is opaque to the partitioner: over several devices call this under
  `jax.shard_map(..., check_vma=False)`. Split the batch of all arguments (those in `pairs`
  too) as you please, the heads of q, k and v into equally many parts, k and v's length not at
  all, the queries as `context.deal` does.

  Args:
    q: [batch, queries, heads, head_dim], float32 or bfloat16; all slots of a row in order, or
      those of one shard as `pairs.first` names them, block by block.
    k: [batch, length, kv_heads, head_dim].
    v: [batch, length, kv_heads, head_dim].
    visible_until: int32 [batch, length], each greater than its own slot; padding has its own
      slot + 1.
    pairs: of `block_pairs(visible_until, ...)`, one shard. They are the same in every layer,
      so build them before the scan; built here when None, for whole rows.
    interpret: run the kernel on the CPU, step by step: for tests.

  Returns:
    [batch, queries, heads, head_dim], in q's dtype.

  Raises:
    ValueError: shapes or types do not fit together, or `pairs` are those of other rows.
    ConfigError: their lists exceed the chip's scalar memory.
  """
  _check(q, k, v, visible_until)
  batch, queries, _, head_dim = q.shape
  length = k.shape[1]
  if pairs is None:
    pairs = block_pairs(visible_until, *block_sizes(length, head_dim))
  blocks = pairs.block_q, pairs.block_k
  padded = round_up(queries, pairs.block_q)
  expected = batch, 1, padded // pairs.block_q
  if pairs.first.shape != expected or pairs.slots != length:
    shards, given = pairs.first.shape[1:]
    raise ValueError(
      f"Block pairs of {len(pairs.first)} rows of {pairs.slots} slots, {shards} shards of "
      f"{given} blocks, are not those of {batch} rows of {length} slots, of which {queries} "
      f"query, in blocks of {blocks}: build them from the same visible_until."
    )
  if (pairs.q_major.size + padded // pairs.block_q) * 4 > MAX_LIST_BYTES:
    raise ConfigError(
      f"{batch} rows of {length} slots list {batch} · {pairs.q_major.shape[2]} block pairs; "
      f"the scalar memory holds {MAX_LIST_BYTES // 4}: take larger blocks, or fewer rows a "
      "device."
    )
  if not interpret and (blocks[0] % LANES or blocks[1] % LANES):
    raise ValueError(f"Blocks of {blocks} slots: a TPU needs multiples of {LANES}.")

  # Heads before slots: a block of one head's slots is then contiguous.
  ends = pad_visible_until(visible_until, pairs.block_k)[:, None]
  widths = padded - queries, ends.shape[2] - length, ends.shape[2] - length
  q, k, v = (
    jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, width), (0, 0)))
    for x, width in zip((q, k, v), widths, strict=True)
  )
  mixed = _attend(q, k, v, ends, pairs, interpret)
  return mixed[:, :, :queries].swapaxes(1, 2)


def _check(q: jax.Array, k: jax.Array, v: jax.Array, visible_until: jax.Array) -> None:
  """Raises ValueError where the arguments of `tree_attention` do not fit together."""
  batch, _, heads, head_dim = q.shape
  length, kv_heads = k.shape[1:3]
  if k.shape != v.shape or k.shape != (batch, length, kv_heads, head_dim):
    raise ValueError(
      f"k {k.shape} and v {v.shape} do not fit q {q.shape}: batch and head_dim are the same "
      "in all three, length in k and v."
    )
  if heads % kv_heads:
    raise ValueError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly.")
  if not q.dtype == k.dtype == v.dtype or q.dtype not in (jnp.float32, jnp.bfloat16):
    raise ValueError(
      f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}: all float32 or all bfloat16 is needed."
    )
  if visible_until.shape != (batch, length) or visible_until.dtype != jnp.int32:
    raise ValueError(
      f"visible_until is {visible_until.dtype}{list(visible_until.shape)}; "
      f"int32 [{batch}, {length}] is needed."
    )


# From here on heads come before slots. q [batch, heads, queries, head_dim]; k and v
# [batch, kv_heads, length, head_dim]; ends (visible_until) [batch, 1, length]; what is kept
# of each query, lse and delta, float32 [batch, heads, 1, queries].


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  ends: jax.Array,
  pairs: BlockPairs,
  interpret: bool,
) -> jax.Array:
  return _forward(q, k, v, ends, pairs, interpret)[0]


def _attend_fwd(q, k, v, ends, pairs, interpret):
  out, lse = _forward(q, k, v, ends, pairs, interpret)
  out, lse = (checkpoint_name(x, name) for x, name in zip((out, lse), SAVED_NAMES, strict=True))
  return out, (q, k, v, ends, pairs, out, lse)


def _attend_bwd(interpret, kept, d_out):
  q, k, v, ends, pairs, out, lse = kept
  # What softmax's gradient subtracts, sum_j p_ij dp_ij, needs no scores: it is out · d_out.
  products = out.astype(jnp.float32) * d_out.astype(jnp.float32)
  delta = jnp.sum(products, axis=-1)[:, :, None]
  inputs = (q, k, v, ends, d_out, lse, delta)
  dq = _backward_q(inputs, pairs, interpret)
  dk, dv = _backward_kv(inputs, pairs, interpret)
  return dq, dk, dv, None, None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _forward(
  q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array, pairs: BlockPairs, interpret: bool
) -> tuple[jax.Array, jax.Array]:
  """The output, in q's shape and dtype, and lse."""
  batch, heads, queries, head_dim = q.shape
  specs = _q_major_specs(pairs, heads // k.shape[1], head_dim)
  lse = jax.ShapeDtypeStruct((batch, heads, 1, queries), jnp.float32)
  return _call(
    forward_kernel, "tree_attention_forward", pairs, (pairs.q_major, pairs.q_count),
    (q, k, v, ends),
    in_specs=[specs["q"], specs["kv"], specs["kv"], specs["ends"]],
    outputs=[jax.ShapeDtypeStruct(q.shape, q.dtype), lse],
    out_specs=[specs["q"], specs["query"]],
    sums=[(pairs.block_q, LANES), (pairs.block_q, LANES), (pairs.block_q, head_dim)],
    products=2, interpret=interpret,
  )  # fmt: skip


def _backward_q(inputs: Sequence[jax.Array], pairs: BlockPairs, interpret: bool) -> jax.Array:
  """dq, from (q, k, v, ends, d_out, lse, delta)."""
  q, k = inputs[:2]
  specs = _q_major_specs(pairs, q.shape[1] // k.shape[1], q.shape[3])
  return _call(
    dq_kernel, "tree_attention_dq", pairs, (pairs.q_major, pairs.q_count), inputs,
    in_specs=[specs[x] for x in ("q", "kv", "kv", "ends", "q", "query", "query")],
    outputs=[jax.ShapeDtypeStruct(q.shape, q.dtype)],
    out_specs=[specs["q"]],
    sums=[(pairs.block_q, q.shape[3])],
    products=3, interpret=interpret,
  )[0]  # fmt: skip


def _backward_kv(
  inputs: Sequence[jax.Array], pairs: BlockPairs, interpret: bool
) -> tuple[jax.Array, jax.Array]:
  """dk and dv, from (q, k, v, ends, d_out, lse, delta)."""
  q, k, v = inputs[:3]
  group = q.shape[1] // k.shape[1]
  specs = _k_major_specs(pairs, group, q.shape[3])
  return _call(
    functools.partial(dkv_kernel, group=group),
    "tree_attention_dkv", pairs, (pairs.k_major, pairs.k_count), inputs,
    in_specs=[specs[x] for x in ("q", "kv", "kv", "ends", "q", "query", "query")],
    outputs=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    out_specs=[specs["kv"], specs["kv"]],
    sums=[(pairs.block_k, q.shape[3])] * 2,
    products=4, interpret=interpret, group=group,
  )  # fmt: skip


def _call(
  kernel: Callable[..., None],
  name: str,
  pairs: BlockPairs,
  walk: tuple[jax.Array, jax.Array],
  inputs: Sequence[jax.Array],
  *,
  in_specs: Sequence[pl.BlockSpec],
  outputs: Sequence[jax.ShapeDtypeStruct],
  out_specs: Sequence[pl.BlockSpec],
  sums: Sequence[tuple[int, int]],
  products: int,
  interpret: bool,
  group: int | None = None,
) -> Any:
  """Runs a kernel over all heads and all entries of a list.

  Args:
    kernel: called with (list, pairs.first, *inputs, *outputs, *sums).
    name: by which profiles and compiled programs know it.
    pairs: both lists.
    walk: the list that is walked, and its count.
    inputs: q first.
    in_specs: the part of each input that a step reads.
    outputs: shapes and types.
    out_specs: the part of each output that a step may write.
    sums: shapes of the float32 memory that lives from a row's first entry to its last.
    products: matrix products of a step, each of block_q · block_k · head_dim.
    interpret: as in `tree_attention`.
    group: query heads of a key/value head, where these are the grid's innermost axis.
  """
  batch, heads, _, head_dim = inputs[0].shape
  order, count = walk
  # As many steps as the longest list in this batch has pairs, not as a causal row would have.
  grid: tuple[Any, ...] = (batch, heads, jnp.max(count))
  semantics: tuple[Any, ...] = ("parallel", "parallel", "arbitrary")
  if group is not None:
    grid = (batch, heads // group, grid[2], group)
    semantics = (*semantics, "arbitrary")
  return pl.pallas_call(
    functools.partial(
      kernel, size=order.shape[2], block_k=pairs.block_k, scale=head_dim**-0.5
    ),
    name=name,
    out_shape=outputs,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=grid,
      in_specs=in_specs,
      out_specs=out_specs,
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in sums],
    ),
    compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    cost_estimate=_cost(inputs, outputs, pairs, products),
    interpret=interpret,
  )(order.reshape(-1), pairs.first[0, 0], *inputs)  # fmt: skip


def _cost(
  inputs: Sequence[jax.Array],
  outputs: Sequence[jax.ShapeDtypeStruct],
  pairs: BlockPairs,
  products: int,
) -> pl.CostEstimate:
  """What a causal row would cost, the most that a tree of its length can."""
  batch, heads, _, head_dim = inputs[0].shape
  steps = batch * heads * pairs.q_major.shape[2]
  scores = steps * pairs.block_q * pairs.block_k
  # A step fetches two blocks, keys and values or queries and the output's gradient.
  fetched = steps * 2 * max(pairs.block_q, pairs.block_k) * head_dim
  arrays: list[jax.Array | jax.ShapeDtypeStruct] = [*inputs, *outputs]
  return pl.CostEstimate(
    flops=2 * products * scores * head_dim,
    transcendentals=scores,
    bytes_accessed=fetched * inputs[0].dtype.itemsize
    + sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays),
  )


def _q_major_specs(pairs: BlockPairs, group: int, head_dim: int) -> dict[str, pl.BlockSpec]:
  """Grid (batch, heads, steps): a row of the list is a block of queries."""
  size = pairs.q_major.shape[2]

  def place(b, head, step, order, first):
    entry = order[b * size + step]
    # Not `//`: rounding down needs a sign, for which the lowering asks which chip is present,
    # and there is none when a program is compiled ahead of time.
    return b, head, lax.div(head, group), row(entry), column(entry)

  return _specs(place, pairs, head_dim)


def _k_major_specs(pairs: BlockPairs, group: int, head_dim: int) -> dict[str, pl.BlockSpec]:
  """Grid (batch, kv_heads, steps, group): a row of the list is a block of keys.

  The heads of a group are innermost, so their gradients meet in one sum.
  """
  size = pairs.k_major.shape[2]

  def place(b, kv_head, step, member, order, first):
    entry = order[b * size + step]
    return b, kv_head * group + member, kv_head, column(entry), row(entry)

  return _specs(place, pairs, head_dim)


def _specs(
  place: Callable[..., tuple[Any, ...]], pairs: BlockPairs, head_dim: int
) -> dict[str, pl.BlockSpec]:
  """The parts of arrays that a step works on.

  Args:
    place: grid indices, list and first -> (batch, head, kv_head, query block, key block).
    pairs: names the sizes of the blocks.
    head_dim: as it says.

  Returns:
    q: [block_q, head_dim] of q, the output and their gradients.
    kv: [block_k, head_dim] of k, v and their gradients.
    ends: [1, block_k] of visible_until.
    query: [1, block_q] of lse and delta.
  """

  def spec(shape, choose):
    return pl.BlockSpec(shape, lambda *at: choose(*place(*at)))

  block_q, block_k = pairs.block_q, pairs.block_k
  return {
    "q": spec((None, None, block_q, head_dim), lambda b, h, kv, i, j: (b, h, i, 0)),
    "kv": spec((None, None, block_k, head_dim), lambda b, h, kv, i, j: (b, kv, j, 0)),
    "ends": spec((None, 1, block_k), lambda b, h, kv, i, j: (b, 0, j)),
    "query": spec((None, None, 1, block_q), lambda b, h, kv, i, j: (b, h, 0, i)),
  }
