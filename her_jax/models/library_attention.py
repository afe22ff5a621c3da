"""The attention of `attention.attention` by kernels that come with JAX.

cuDNN's on NVIDIA GPUs, for trees; splash on TPU, for packed rows alone.
"""

from typing import Any, Literal

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as masks,
)
import jax.numpy as jnp

from her_jax.models.block_pairs import LANES, block_sizes, pad_visible_until, round_up
from her_jax.models.tree_attention import SAVED_NAMES


def masked_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: jax.Array,
  implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
  """Softmax attention under a mask that is stored whole, a byte a pair of slots.

  cuDNN turns the mask into a bias in q's dtype: two bytes a pair more, once for all heads.
  8 rows of 8192 slots take 1.5 GiB.

  Args:
    q: [batch, queries, heads, head_dim].
    k: [batch, slots, kv_heads, head_dim].
    v: [batch, slots, kv_heads, head_dim].
    mask: bool [batch, queries, slots] of `attention_mask`, which shows each query a slot.
    implementation: of `jax.nn.dot_product_attention`.

  Returns:
    [batch, queries, heads, head_dim], in q's dtype.
  """
  return jax.nn.dot_product_attention(
    q, k, v, mask=mask[:, None], implementation=implementation
  )


def cudnn_refusal(length: int, head_dim: int, dtype: str) -> str | None:
  """Why cuDNN cannot compute this attention here; None if it can."""
  if jax.default_backend() != "gpu":
    return f"the backend is {jax.default_backend()}, and cuDNN runs on NVIDIA GPUs"
  capabilities = [getattr(x, "compute_capability", "") for x in jax.local_devices()]
  # "9.0" for NVIDIA; AMD's devices name an architecture, such as gfx942.
  versions = [x.partition(".")[0] for x in capabilities]
  if not all(version.isdigit() and int(version) >= 8 for version in versions):
    return f"it needs compute capability 8.0, and the devices have {sorted(set(capabilities))}"
  if dtype not in ("bfloat16", "float16"):
    return f"it computes in bfloat16 or float16, and dtype is {dtype}"
  if head_dim > 128 or head_dim % 8:
    return f"head_dim={head_dim} is not a multiple of 8 up to 128"
  if length % 2:
    return f"rows of {length} slots are of odd length"
  return None


def segment_ids(visible_until: jax.Array) -> jax.Array:
  """Names each document of a row for `packed_attention`: int32 [batch, length].

  The documents must not branch. All tokens of one then have its end as their
  `visible_until`, no two documents have the same, and padding has its own slot + 1, which is
  nobody else's: the integers name the segments as they are.

      tokens          a  a  a  b  b  -  -
      visible_until   3  3  3  5  5  6  7

  In a row that does branch, slots of one document would be taken for strangers. No program
  can refuse what it reads only when it runs, so every slot of such a row gets -1, and
  `packed_attention` answers with NaN, which the loss shows.
  """
  # Where nothing branches, a slot has the end of the slot before it, or that end is here.
  before, after = visible_until[:, :-1], visible_until[:, 1:]
  starts = before == jnp.arange(1, visible_until.shape[1])
  packed = jnp.all((before == after) | starts, axis=1, keepdims=True)
  return jnp.where(packed, visible_until, -1)


def packed_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  segments: jax.Array,
  *,
  interpret: bool = False,
) -> jax.Array:
  """Causal attention within each of a row's documents, by the splash kernel.

  Args:
    q: [batch, length, heads, head_dim].
    k: [batch, length, kv_heads, head_dim].
    v: [batch, length, kv_heads, head_dim].
    segments: of `segment_ids`.
    interpret: run the kernel on the CPU, step by step: for tests.

  Returns:
    [batch, length, heads, head_dim], in q's dtype; NaN in rows that branch.
  """
  _, length, heads, head_dim = q.shape
  block, _ = block_sizes(length, head_dim)
  padded = round_up(length, block)
  names = ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")
  sizes: Any = {f"block_{name}": block for name in names}
  kernel = splash.make_splash_mha(
    masks.MultiHeadMask([masks.CausalMask((padded, padded))] * heads),
    block_sizes=splash.BlockSizes(**sizes),
    head_shards=1,
    q_seq_shards=1,
    # By this name a remat policy keeps the output and the logarithm of the softmax's sum.
    residual_checkpoint_name=SAVED_NAMES[0],
    interpret=interpret,
  )
  # Heads before slots, and filled up to whole blocks and lanes.
  lanes = round_up(head_dim, LANES) - head_dim
  width = ((0, 0), (0, 0), (0, padded - length), (0, lanes))
  q, k, v = (jnp.pad(x.swapaxes(1, 2), width) for x in (q * head_dim**-0.5, k, v))
  ids = pad_visible_until(segments, block)
  out = jax.vmap(kernel)(q, k, v, splash.SegmentIds(ids, ids))
  out = out[:, :, :length, :head_dim].swapaxes(1, 2)
  return jnp.where(segments[:, :1, None, None] < 0, jnp.nan, out)
