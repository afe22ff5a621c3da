"""Which attention a model runs: the jnp reference, or the Pallas kernel on TPU."""

from typing import Literal

import jax
from jax.sharding import PartitionSpec

from her_jax.models.attention import attention
from her_jax.models.block_pairs import BlockPairs, block_pairs, block_sizes
from her_jax.models.tree_attention import tree_attention
from her_jax.sharding import RULES

# "tree_interpret" runs the kernel step by step on a CPU, for tests.
Kind = Literal["auto", "reference", "tree", "tree_interpret"]


def resolve(kind: Kind) -> Kind:
  """What "auto" means here: the kernel on TPU, unless rows are split over `context`."""
  if kind != "auto":
    return kind
  split = jax.sharding.get_abstract_mesh().shape.get("context", 1) > 1
  return "tree" if jax.default_backend() == "tpu" and not split else "reference"


def pairs_for(kind: Kind, visible_until: jax.Array, head_dim: int) -> BlockPairs | None:
  """What the kernel needs of a batch, built once before the layers; None for the reference."""
  if not resolve(kind).startswith("tree"):
    return None
  return block_pairs(visible_until, *block_sizes(visible_until.shape[1], head_dim))


def attend(
  kind: Kind,
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  query_index: jax.Array | None,
  visible_until: jax.Array,
  pairs: BlockPairs | None,
) -> jax.Array:
  """As `attention.attention`, by the kernel where `pairs` are given.

  Over several devices each runs the kernel on its own rows and heads: the batch is split as
  everywhere, the heads over `tensor` where it divides those of the keys too.

  Raises:
    ValueError: the mesh splits rows over `context`, which the kernel cannot.
  """
  if pairs is None:
    return attention(q, k, v, query_index, visible_until)
  interpret = kind == "tree_interpret"
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return tree_attention(q, k, v, visible_until, pairs, interpret=interpret)
  if mesh.shape["context"] > 1:
    raise ValueError(
      "attention='tree' needs whole rows, but the mesh splits them over context:"
      " take attention='reference'."
    )
  batch, _, heads, _ = RULES.spec(("batch", "slots", "kv_heads", "head_dim"), k.shape, mesh)
  wide = PartitionSpec(batch, None, heads, None)
  rows = PartitionSpec(batch)

  def local(q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array, own: BlockPairs):
    return tree_attention(q, k, v, ends, own, interpret=interpret)

  # check_vma: the kernel's outputs carry no note of how they vary over the mesh.
  return jax.shard_map(
    local, in_specs=(wide, wide, wide, rows, rows), out_specs=wide, check_vma=False
  )(q, k, v, visible_until, pairs)
