"""The two programs of the engine: read a chunk of prompts, and grow replies by a few tokens."""

import dataclasses
import functools

from flax import nnx, struct
import jax
import jax.numpy as jnp

from her_jax.inference import sampling
from her_jax.inference.pages import Array, Groups, PagedCache, Pool


class Chunk(struct.PyTreeNode):
  """Prompt tokens to be read together, of whatever requests; [tokens] each, see `PagedCache`."""

  tokens: Array
  positions: Array
  slots: Array
  lists: tuple[Groups, ...]
  places: Array


class Rows(struct.PyTreeNode):
  """Requests that grow together.

  Attributes:
    token: int32 [rows], the last id of each.
    position: int32 [rows], of that id.
    slots: int32 [rows, steps], where it and those after it are written.
    lists, places: of `PagedCache`; the pages of all the steps are among them, as nothing is seen before
      it is written.
    settings: of each row.
    history: int32 [rows, context], ids so far, filled up with the first; None where no row has
      more than a temperature.
    steps: int32 scalar, how many tokens to grow by, at most those of `slots`.
  """

  token: Array
  position: Array
  slots: Array
  lists: tuple[Groups, ...]
  places: Array
  settings: sampling.Settings
  history: Array | None
  steps: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
  """Of one architecture, whatever the weights; equal ones share what is compiled."""

  graphdef: nnx.GraphDef
  valid_vocab: int

  @functools.partial(jax.jit, static_argnames="self", donate_argnames="pool")
  def prefill(self, params: nnx.State, pool: Pool, chunk: Chunk) -> Pool:
    """Writes keys and values of a chunk. Logits are left to `decode`, which reads each prompt's
    last token: so a prompt that is wholly there already needs nothing read again."""
    model = nnx.merge(self.graphdef, params)
    cache = PagedCache(pool, chunk.slots, chunk.positions, chunk.lists, chunk.places)
    _, cache = model(chunk.tokens[None], chunk.positions[None], chunk.tokens[None], cache)
    return cache.pool

  @functools.partial(jax.jit, static_argnames="self", donate_argnames="pool")
  def decode(
    self, params: nnx.State, pool: Pool, rows: Rows
  ) -> tuple[Pool, jax.Array, jax.Array]:
    """Grows each row by `rows.steps` ids, and goes on behind an end; the caller cuts.

    Returns:
      The pool; int32 [rows, steps] and float32 [rows, steps], ids and log-probabilities.
    """
    model = nnx.merge(self.graphdef, params)
    count, room = rows.slots.shape
    index = jnp.arange(count)
    seen = None
    if rows.history is not None:
      vocab = model.config.vocab_rows
      seen = jnp.zeros((count, vocab), bool).at[index[:, None], rows.history].set(True)

    def grow(t, carry):
      pool, token, seen, ids, log_probs = carry
      at = rows.position + t
      cache = PagedCache(pool, rows.slots[:, t], at, rows.lists, rows.places)
      hidden, cache = model(token[None], at[None], token[None], cache)
      logits = model.logits(hidden[0])
      new, log_p = sampling.draw(logits, rows.settings, at + 1, self.valid_vocab, seen)
      if seen is not None:
        seen = seen.at[index, new].set(True)
      return (
        cache.pool, new, seen, ids.at[:, t].set(new), log_probs.at[:, t].set(log_p)
      )  # fmt: skip

    start = (
      pool,
      rows.token,
      seen,
      jnp.zeros((count, room), jnp.int32),
      jnp.zeros((count, room), jnp.float32),
    )
    pool, _, _, ids, log_probs = jax.lax.fori_loop(0, rows.steps, grow, start)
    return pool, ids, log_probs
