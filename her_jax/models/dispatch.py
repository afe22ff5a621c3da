"""Which attention a model runs, and how it is spread over a mesh.

plan = prepare(kind, visible_until, head_dim, dtype)                  # once a batch
mixed = attend(plan, q, k, v, visible_until)                          # in every layer
"""

import dataclasses
import functools
from typing import Literal

from absl import logging
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from her_jax.errors import ConfigError
from her_jax.models import context
from her_jax.models.attention import attention, attention_mask
from her_jax.models.block_pairs import BlockPairs, block_pairs, block_sizes
from her_jax.models.library_attention import (
  cudnn_refusal,
  masked_attention,
  packed_attention,
  segment_ids,
)
from her_jax.models.tree_attention import tree_attention
from her_jax.sharding import RULES

# "*_interpret" run a TPU kernel step by step on a CPU, for tests.
Kind = Literal[
  "auto", "reference", "tree", "tree_interpret", "splash", "splash_interpret", "cudnn"
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What a kernel needs of a batch beside q, k and v. All arrays begin with batch, shards.

  One of the first three is given, and says which kernel it is.

  Attributes:
    pairs: of the tree kernel.
    segments: of splash, int32 [batch, length].
    mask: of cuDNN, bool [batch, length, slots].
    interpret: run the kernel step by step.
  """

  pairs: BlockPairs | None = None
  segments: jax.Array | None = None
  mask: jax.Array | None = None
  interpret: bool = dataclasses.field(default=False, metadata={"static": True})


def resolve(kind: Kind, length: int, head_dim: int, dtype: str) -> Kind:
  """What "auto" means here; every other kind is itself.

  Our kernel on TPU; cuDNN on a GPU where it can (see `library_attention.cudnn_refusal`); the
  reference elsewhere.

  Raises:
    ConfigError: kind is "cudnn", which cannot compute this.
  """
  if kind == "cudnn" and (reason := cudnn_refusal(length, head_dim, dtype)):
    raise ConfigError(f"attention='cudnn': {reason}. Take attention='auto' or 'reference'.")
  if kind != "auto":
    return kind
  if jax.default_backend() == "tpu":
    return "tree"
  if jax.default_backend() == "gpu":
    reason = cudnn_refusal(length, head_dim, dtype)
    if reason is None:
      return "cudnn"
    logging.log_first_n(logging.WARNING, "Attention by the reference: cuDNN: %s.", 1, reason)
  return "reference"


def prepare(kind: Kind, visible_until: jax.Array, head_dim: int, dtype: str) -> Plan | None:
  """What a kernel needs of a batch, built once before the layers; None for the reference.

  Args:
    kind: of `ModelConfig.attention`.
    visible_until: int32 [batch, length].
    head_dim: of the model.
    dtype: of q, k and v.

  Raises:
    ConfigError: the kernel cannot compute rows of this length on this mesh or backend.
  """
  length = visible_until.shape[1]
  name, _, interpret = resolve(kind, length, head_dim, dtype).partition("_")
  shards = _shards(length)
  if name == "tree":
    # A shard of several has two chunks of queries, see `context`.
    chunk = length if shards == 1 else length // (2 * shards)
    blocks = block_sizes(chunk, head_dim)[0], block_sizes(length, head_dim)[1]
    return Plan(pairs=block_pairs(visible_until, *blocks, shards), interpret=bool(interpret))
  if name == "splash":
    if shards > 1:
      raise ConfigError(
        f"attention='splash' needs whole rows, but the mesh splits them over context={shards}: "
        "take attention='tree'."
      )
    return Plan(segments=segment_ids(visible_until), interpret=bool(interpret))
  if name == "cudnn":
    return Plan(mask=attention_mask(jnp.arange(length), visible_until))
  return None


def attend(
  plan: Plan | None,
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  visible_until: jax.Array,
) -> jax.Array:
  """As `attention.attention`, by the kernel of a plan where there is one.

  Over several devices each runs the kernel on its own rows, heads and queries: the batch is
  split as everywhere, the heads over `tensor` where it divides those of the keys too, the
  queries over `context`. Keys and values come in split over `context` too, and are gathered.

  Raises:
    ValueError: the arguments do not fit the plan.
  """
  if plan is None:
    return attention(q, k, v, None, visible_until)
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return _attend(q, k, v, visible_until, plan, None)
  wide = RULES.spec(("batch", "length", "kv_heads", "head_dim"), k.shape, mesh)
  batch = wide[0]
  split = wide[1] if _shards(k.shape[1]) > 1 else None

  def local(q, k, v, ends, plan):
    return _attend(q, k, v, ends, plan, split)

  # check_vma: the kernels' outputs carry no note of how they vary over the mesh.
  return jax.shard_map(
    local,
    in_specs=(wide, wide, wide, PartitionSpec(batch), PartitionSpec(batch, split)),
    out_specs=wide,
    check_vma=False,
  )(q, k, v, visible_until, plan)


def _attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  visible_until: jax.Array,
  plan: Plan,
  split: str | None,
) -> jax.Array:
  """One device's part; `split` is the mesh axis over which the slots of q, k and v lie."""
  if split:
    k, v = context.gather(k, split), context.gather(v, split)
  if plan.mask is not None:
    return masked_attention(q, k, v, plan.mask)
  if plan.segments is not None:
    return packed_attention(q, k, v, plan.segments, interpret=plan.interpret)
  assert plan.pairs is not None
  call = functools.partial(tree_attention, pairs=plan.pairs, interpret=plan.interpret)
  if not split:
    return call(q, k, v, visible_until)
  dealt = context.deal(q, split, plan.pairs.block_q)
  return context.collect(call(dealt, k, v, visible_until), split, q.shape[1])


def _shards(length: int) -> int:
  """Into how many parts the mesh splits rows of `length`."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return 1
  split = RULES.spec(("length",), (length,), mesh)[0]
  return mesh.shape[split] if split else 1
