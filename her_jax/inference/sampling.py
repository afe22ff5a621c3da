"""How the next id is drawn, for many requests at once, each with settings of its own."""

from collections.abc import Sequence
import dataclasses
import math

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from her_jax.inference.pages import Array
from her_jax.training import losses

_NEVER = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """The settings of one request.

  Attributes:
    max_tokens: longest completion, the stop id included.
    temperature: 0 takes the likeliest id.
    top_k: draw from the k likeliest alone; 0: from all.
    top_p: draw from the fewest of the likeliest that together have this probability.
    min_p: draw from those with this share of the likeliest's probability.
    repetition_penalty: logits of ids in prompt or completion are divided by it where positive,
      else multiplied (arXiv:1909.05858).
    seed: a completion depends on it, the prompt and the settings alone.
    stop_ids: ids that end a completion and are its last.
    stop: texts that end a completion, wherever their tokens' borders are.
  """

  max_tokens: int = 256
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  seed: int = 0
  stop_ids: tuple[int, ...] = ()
  stop: tuple[str, ...] = ()

  def __post_init__(self):
    """Refuses what cannot be sampled with.

    Raises:
      ValueError: naming the setting and what it may be.
    """
    for name, holds, what in (
      ("max_tokens", self.max_tokens >= 1, "at least 1"),
      ("temperature", 0 <= self.temperature < math.inf, "a number from 0 on"),
      ("top_k", self.top_k >= 0, "at least 0"),
      ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
      ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
      ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
      ("seed", 0 <= self.seed < 2**64, "from 0 to 2**64 - 1"),
      ("stop", "" not in self.stop, "texts that are not empty"),
    ):
      if not holds:
        raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {what}")

  @property
  def filtered(self) -> bool:
    """Whether more than the temperature bears on the draw."""
    return bool(self.top_k or self.top_p < 1 or self.min_p > 0 or self.repetition_penalty != 1)


def with_seeds(sampling: Sampling, seed: int, count: int) -> list[Sampling]:
  """The settings of `count` completions, each with a seed of its own that `seed` gives.

  That of the i-th does not depend on how many there are.
  """
  words = np.random.SeedSequence(seed).generate_state(count, np.uint64)
  return [dataclasses.replace(sampling, seed=int(word)) for word in words]


class Settings(struct.PyTreeNode):
  """Those of all rows of a step.

  Attributes:
    temperature, top_p, min_p, penalty: float32 [rows].
    top_k: int32 [rows].
    seed: uint32 [rows, 2], the upper half first.
  """

  temperature: Array
  top_k: Array
  top_p: Array
  min_p: Array
  penalty: Array
  seed: Array

  @classmethod
  def stack(cls, requests: Sequence[Sampling], rows: int) -> "Settings":
    """Of `requests`, filled up to `rows`."""
    filled = [*requests, *[Sampling()] * (rows - len(requests))]
    column = lambda name, dtype: np.asarray([getattr(s, name) for s in filled], dtype)
    return cls(
      temperature=column("temperature", np.float32),
      top_k=column("top_k", np.int32),
      top_p=column("top_p", np.float32),
      min_p=column("min_p", np.float32),
      penalty=column("repetition_penalty", np.float32),
      seed=np.asarray([(s.seed >> 32, s.seed & 0xFFFFFFFF) for s in filled], np.uint32),
    )


def draw(
  logits: jax.Array,
  settings: Settings,
  positions: jax.Array,
  valid_vocab: int,
  seen: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
  """Draws one id a row.

  The random numbers are those of (seed, position), so they do not depend on who else is there.

  Args:
    logits: float32 [rows, vocab].
    positions: int32 [rows], of the ids that are drawn.
    valid_vocab: rows of the tokenizer; ids beyond are never drawn.
    seen: bool [rows, vocab], ids of prompt and completion; None where no row has more than a
      temperature, which spares sorting the vocabulary.

  Returns:
    int32 [rows] and their log-probabilities in nats, at the temperature (1 in the place of 0)
    and before any filter.
  """
  logits = losses.mask_vocab(logits, valid_vocab)
  warm = settings.temperature > 0
  if seen is not None:
    penalty = settings.penalty[:, None]
    punished = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(seen, punished, logits)
  logits = logits / jnp.where(warm, settings.temperature, 1.0)[:, None]
  log_p = jax.nn.log_softmax(logits)
  allowed = log_p if seen is None else _filter(log_p, settings)

  def key(seed, position):
    return jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)

  drawn = jax.vmap(jax.random.categorical)(jax.vmap(key)(settings.seed, positions), allowed)
  ids = jnp.where(warm, drawn, jnp.argmax(log_p, axis=-1)).astype(jnp.int32)
  return ids, jnp.take_along_axis(log_p, ids[:, None], axis=-1)[:, 0]


def _filter(log_p: jax.Array, settings: Settings) -> jax.Array:
  """Takes what top-k, then min-p, then top-p leave out; the likeliest always stays.

  With probabilities 0.5 0.3 0.15 0.05: top_p = 0.6 leaves 0.5 and 0.3, the fewest that reach it.
  """
  order = jnp.argsort(log_p, axis=-1, descending=True)
  ranked = jnp.take_along_axis(log_p, order, axis=-1)
  rank = jnp.arange(log_p.shape[-1])
  top_k = settings.top_k[:, None]
  keep = (top_k == 0) | (rank < top_k)
  # min_p of the likeliest's probability.
  keep &= ranked >= ranked[:, :1] + jnp.log(settings.min_p)[:, None]
  p = jnp.where(keep, jnp.exp(ranked), 0.0)
  p = p / jnp.sum(p, axis=-1, keepdims=True)
  before = jnp.cumsum(p, axis=-1) - p
  keep &= (before < settings.top_p[:, None]) | (settings.top_p[:, None] >= 1)
  keep = keep.at[:, 0].set(True)
  back = jnp.argsort(order, axis=-1)
  return jnp.where(jnp.take_along_axis(keep, back, axis=-1), log_p, _NEVER)
