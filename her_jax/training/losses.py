"""Log-probabilities of targets under a large vocabulary, a piece of the logits at a time."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from her_jax.sharding import RULES

# Vocabulary rows worked on together. A mesh gathers 160 MB of Qwen3-32B's head at a time and
# not 1.5 GiB, and sums as large a part of its gradient.
_BLOCK = 16_384
# Logit of rows beyond the tokenizer: finite, so that gradients stay numbers.
_NEVER = -1e30


def token_log_probs(
  hidden: jax.Array,
  head: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  *,
  valid_vocab: int,
  temperature: float = 1.0,
  chunk: int | None = None,
  block: int = _BLOCK,
) -> tuple[jax.Array, jax.Array]:
  """Log-probability of each weighted target and entropy of its distribution.

  The logits of `chunk` positions of each row and `block` rows of the vocabulary exist at a
  time, and are computed again for the gradient: 32k positions of fp32 logits over 152k rows
  would take 18 GiB. A chunk without a weighted target is skipped: with the loss on the last
  reply alone that is nearly all of a long conversation.

  On a mesh each device works on its own positions and, over `tensor`, its own part of the
  vocabulary. It sums the head's gradient over them in float32, and the sums meet once: left
  to the compiler they would meet in every chunk.

  Args:
    hidden: [batch, length, hidden], after the final norm.
    head: [hidden, vocab].
    targets: int32 [batch, length].
    weights: [batch, length]; where it is 0 the target is not looked up.
    valid_vocab: rows of the tokenizer; rows beyond it get no probability.
    temperature: logits are divided by it, as the sampler does.
    chunk: positions at a time. None: 128, or 512 from 8192 rows of vocabulary on, so that the
      head is read from memory less often.
    block: rows of the vocabulary at a time, at most; up to twice as many are one block.

  Returns:
    log_probs, entropy: float32 [batch, length], in nats; 0 in skipped chunks. No gradient
    flows through the entropy.

  Raises:
    ValueError: The temperature is not above 0.
  """
  if not temperature > 0:  # NaN is not above 0 either.
    raise ValueError(
      f"temperature is {temperature}; logits are divided by it: pass one above 0"
    )
  mesh = jax.sharding.get_abstract_mesh()
  alone = mesh.empty or mesh.size == 1
  embed, vocab = (None, None) if alone else RULES.spec(("embed", "vocab"), head.shape, mesh)
  rows = head.shape[1] // (mesh.shape[vocab] if vocab else 1)
  # Cutting a small vocabulary saves little and takes copies.
  blocks = -(-rows // block) if rows > 2 * block else 1
  static = _Static(
    valid_vocab=valid_vocab,
    temperature=temperature,
    chunk=min(chunk or (128 if rows < 8192 else 512), hidden.shape[1]),
    # As even as multiples of 128, a TPU's lanes, allow.
    block=rows if blocks == 1 else -(-rows // (128 * blocks)) * 128,
    head_axes=embed if isinstance(embed, tuple) else (embed,) if embed else (),
    vocab_axis=vocab,
  )
  if alone:
    return _chunked(static, hidden, head, targets, weights)
  batch, length, _ = RULES.spec(("batch", "length", "act_embed"), hidden.shape, mesh)
  at = PartitionSpec(batch, length)
  # check_vma: an axis that does not divide the rows leaves them alike on its devices, which
  # is not derived.
  return jax.shard_map(
    functools.partial(_chunked, static),
    in_specs=(at, PartitionSpec(embed, vocab), at, at),
    out_specs=(at, at),
    check_vma=False,
  )(hidden, head, targets, weights)


class _Static(NamedTuple):
  """What is known when the program is built; as in `token_log_probs` where named alike."""

  valid_vocab: int
  temperature: float
  chunk: int
  block: int
  head_axes: tuple[str, ...]  # Mesh axes that each hold a part of the head's width,
  vocab_axis: str | None  # and the one that splits its vocabulary.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(
  static: _Static,
  hidden: jax.Array,
  head: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """`token_log_probs` of the positions of one device, which has a part of the head."""
  return _chunked_fwd(static, hidden, head, targets, weights)[0]


def _chunked_fwd(static, hidden, head, targets, weights):
  pieces = tuple(_split(x, static.chunk) for x in (hidden, targets, weights))

  def block(so_far, part):
    index, whole = _gathered(static, part, hidden.dtype)

    def one(piece):
      h, t, w, *state = piece
      add = lambda: _add_block(static, h, t, whole, index, *state)
      return jax.lax.cond(jnp.any(w != 0), add, lambda: tuple(state))

    return jax.lax.map(one, (*pieces, *so_far)), None

  zeros = jnp.zeros(pieces[1].shape, jnp.float32)
  start = (zeros - jnp.inf, zeros, zeros, zeros)
  state, _ = jax.lax.scan(block, start, _blocks(static, head))
  peak, total, moment, chosen = (_join(x, hidden.shape[1]) for x in state)
  if static.vocab_axis:
    highest = jax.lax.pmax(peak, static.vocab_axis)
    scale = jnp.where(total > 0, jnp.exp(peak - highest), 0.0)
    peak = highest
    total, moment, chosen = jax.lax.psum(
      (total * scale, moment * scale, chosen), static.vocab_axis
    )
  seen = total > 0  # False in chunks that were skipped.
  log_z = jnp.where(seen, peak + jnp.log(jnp.where(seen, total, 1.0)), 0.0)
  log_probs = jnp.where(seen, chosen - log_z, 0.0)
  entropy = jnp.where(seen, log_z - moment / jnp.where(seen, total, 1.0), 0.0)
  return (log_probs, entropy), (hidden, head, targets, weights, log_z)


def _chunked_bwd(static, kept, cotangents):
  hidden, head, targets, weights, log_z = kept
  d_log_probs = cotangents[0]
  if static.vocab_axis:  # Each device of the axis was given its share of the cotangent.
    d_log_probs = jax.lax.psum(d_log_probs, static.vocab_axis)
  pieces = tuple(
    _split(x, static.chunk) for x in (hidden, targets, weights, log_z, d_log_probs)
  )

  def block(d_hidden, part):
    index, whole = _gathered(static, part, hidden.dtype)

    def one(d_whole, piece):
      h, t, w, z, d, d_h = piece

      def add(d_whole, d_h):
        more_h, more_whole = _block_gradient(static, h, t, z, d, whole, index)
        return d_whole + more_whole, d_h + more_h

      keep = lambda d_whole, d_h: (d_whole, d_h)
      return jax.lax.cond(jnp.any(w != 0), add, keep, d_whole, d_h)

    zeros = jnp.zeros(whole.shape, jnp.float32)
    d_whole, d_hidden = jax.lax.scan(one, zeros, (*pieces, d_hidden))
    if static.head_axes:
      d_whole = jax.lax.psum_scatter(d_whole, static.head_axes, scatter_dimension=0, tiled=True)
    return d_hidden, d_whole.astype(head.dtype)

  start = jnp.zeros(pieces[0].shape, jnp.float32)
  d_hidden, d_blocks = jax.lax.scan(block, start, _blocks(static, head))
  d_head = d_blocks.swapaxes(0, 1).reshape(head.shape[0], -1)[:, : head.shape[1]]
  d_hidden = _join(d_hidden, hidden.shape[1]).astype(hidden.dtype)
  return d_hidden, d_head, None, None


_chunked.defvjp(_chunked_fwd, _chunked_bwd)


def _blocks(static: _Static, head: jax.Array) -> tuple[jax.Array, jax.Array]:
  """For each block the vocabulary row of each column, and its part of the head.

  Columns that fill up the last block get the row `valid_vocab`, which is none.
  """
  width, rows = head.shape
  count = -(-rows // static.block)
  head = jnp.pad(head, ((0, 0), (0, count * static.block - rows)))
  before = jax.lax.axis_index(static.vocab_axis) * rows if static.vocab_axis else 0
  column = jnp.arange(count * static.block)
  index = jnp.where(column < rows, before + column, static.valid_vocab)
  return index.reshape(count, -1), head.reshape(width, count, -1).swapaxes(0, 1)


def _gathered(
  static: _Static, part: tuple[jax.Array, jax.Array], dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """A block with its whole width, in the dtype of the computation."""
  index, shard = part
  shard = shard.astype(dtype)  # First, so that half the bytes move.
  if static.head_axes:
    shard = jax.lax.all_gather(shard, static.head_axes, axis=0, tiled=True)
  return index, shard


def _block_logits(
  static: _Static, h: jax.Array, t: jax.Array, whole: jax.Array, index: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """float32 logits [batch, chunk, block], and where the target stands among them."""
  logits = jnp.einsum("ble,ev->blv", h, whole, preferred_element_type=jnp.float32)
  logits = jnp.where(index < static.valid_vocab, logits / static.temperature, _NEVER)
  # A mask and not a gather: the gradient of a gather is a scatter, many times slower.
  return logits, index == t[..., None]


def _add_block(static, h, t, whole, index, peak, total, moment, chosen):
  """Adds a block to the running softmax of one chunk; all of them float32 [batch, chunk].

  Args:
    h, t, whole, index: As in `_block_logits`.
    peak: Highest logit so far.
    total: Sum of exp(logit - peak).
    moment: Sum of exp(logit - peak) · logit.
    chosen: The target's logit, once its block has come.
  """
  logits, is_target = _block_logits(static, h, t, whole, index)
  highest = jnp.maximum(peak, jnp.max(logits, axis=-1))
  scale = jnp.exp(peak - highest)
  weights = jnp.exp(logits - highest[..., None])
  return (
    highest,
    total * scale + jnp.sum(weights, axis=-1),
    moment * scale + jnp.sum(weights * logits, axis=-1),
    chosen + jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1),
  )


def _block_gradient(static, h, t, log_z, d, whole, index):
  """float32 gradients of a chunk's h and of `whole`; d is that of log_probs."""
  logits, is_target = _block_logits(static, h, t, whole, index)
  d_logits = is_target - jnp.exp(logits - log_z[..., None])
  d_logits = (d_logits * (d[..., None] / static.temperature)).astype(h.dtype)
  wide = jnp.float32
  return (
    jnp.einsum("blv,ev->ble", d_logits, whole, preferred_element_type=wide),
    jnp.einsum("ble,blv->ev", h, d_logits, preferred_element_type=wide),
  )


def _split(x: jax.Array, chunk: int) -> jax.Array:
  """[batch, length, ...] -> [chunks, batch, chunk, ...], padded with zeros."""
  x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % chunk), *[(0, 0)] * (x.ndim - 2)))
  return x.reshape(len(x), -1, chunk, *x.shape[2:]).swapaxes(0, 1)


def _join(x: jax.Array, length: int) -> jax.Array:
  """[chunks, batch, chunk, ...] -> [batch, length, ...]."""
  x = x.swapaxes(0, 1)
  return x.reshape(len(x), -1, *x.shape[3:])[:, :length]


def mask_vocab(logits: jax.Array, valid_vocab: int) -> jax.Array:
  """Takes all probability from rows beyond the tokenizer: [..., vocab] -> [..., vocab]."""
  if logits.shape[-1] == valid_vocab:
    return logits
  return jnp.where(jnp.arange(logits.shape[-1]) < valid_vocab, logits, _NEVER)
