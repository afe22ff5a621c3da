"""Log-probabilities of targets under a large vocabulary, a chunk of positions at a time."""

import jax
import jax.numpy as jnp


def token_log_probs(
  hidden: jax.Array,
  head: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  *,
  valid_vocab: int,
  temperature: float = 1.0,
  chunk: int = 128,
) -> tuple[jax.Array, jax.Array]:
  """Log-probability of each weighted target and entropy of its distribution.

  The logits of `chunk` positions of each row exist at a time, and are computed again for the
  gradient: with 152k rows of vocabulary, 32k positions of fp32 logits would take 18 GiB. A
  chunk without a weighted target is skipped: with the loss on the last reply alone that is
  nearly all of a long conversation.

  Args:
    hidden: [batch, length, hidden], after the final norm.
    head: [hidden, vocab].
    targets: int32 [batch, length].
    weights: [batch, length]; where it is 0 the target is not looked up.
    valid_vocab: rows of the tokenizer; rows beyond it get no probability.
    temperature: logits are divided by it, as the sampler does.
    chunk: positions at a time.

  Returns:
    log_probs, entropy: float32 [batch, length], in nats; 0 in skipped chunks.
  """
  batch, length, width = hidden.shape
  chunk = min(chunk, length)
  padding = -length % chunk
  chunks = (length + padding) // chunk

  def split(x: jax.Array) -> jax.Array:
    x = jnp.pad(x, ((0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)))
    return x.reshape(batch, chunks, chunk, *x.shape[2:]).swapaxes(0, 1)

  head = head.astype(hidden.dtype)

  def compute(h: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = jnp.einsum("ble,ev->blv", h, head, preferred_element_type=jnp.float32)
    logits = mask_vocab(logits / temperature, valid_vocab)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A masked sum and not a gather: the gradient of a gather is a scatter, many times slower.
    chosen = jnp.arange(logits.shape[-1]) == t[..., None]
    log_probs = jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1) - log_z
    mean_logit = jnp.sum(jnp.exp(logits - log_z[..., None]) * logits, axis=-1)
    return log_probs, log_z - mean_logit

  @jax.checkpoint
  def one(piece: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    h, t, w = piece
    nothing = jnp.zeros(t.shape, jnp.float32)
    return jax.lax.cond(jnp.any(w > 0), compute, lambda h, t: (nothing, nothing), h, t)

  log_probs, entropy = jax.lax.map(one, (split(hidden), split(targets), split(weights)))
  join = lambda x: x.swapaxes(0, 1).reshape(batch, -1)[:, :length]
  return join(log_probs), join(jax.lax.stop_gradient(entropy))


def mask_vocab(logits: jax.Array, valid_vocab: int) -> jax.Array:
  """Takes all probability from rows beyond the tokenizer: [..., vocab] -> [..., vocab]."""
  if logits.shape[-1] == valid_vocab:
    return logits
  return jnp.where(jnp.arange(logits.shape[-1]) < valid_vocab, logits, -1e30)
