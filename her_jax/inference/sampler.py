"""A simple sampler: one jitted program that reads prompts and writes completions.

Token in, token out: the ids come back as they were drawn, the end token among them, with
their log-probabilities at the sampling temperature, so that training never tokenises again.
"""

from collections.abc import Sequence
import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import init_cache
from her_jax.training import losses


@dataclasses.dataclass(frozen=True)
class Completion:
  """One sampled completion.

  Attributes:
    ids: the sampled ids; the last is the stop id where `finished`.
    log_probs: log-probability in nats of each id at the sampling temperature.
    finished: False where the length limit cut it off.
  """

  ids: list[int]
  log_probs: list[float]
  finished: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
  """Samples from one model architecture with fixed shapes, whatever the weights.

  Every call runs the same compiled program, and equal samplers share it: prompts are padded
  on the left to `prompt_length`, their number to `prompts_per_call`, or to half of it where
  that is enough.

  Attributes:
    prompt_length: longest prompt, in tokens.
    max_new_tokens: longest completion, the stop id included.
    prompts_per_call: prompts worked on together.
    stop_ids: ids that end a completion.
    pad_id: id of what fills up a row.
    valid_vocab: rows of the tokenizer; ids beyond it are never drawn.
    temperature: 0 takes the likeliest id.
  """

  config: ModelConfig
  graphdef: nnx.GraphDef
  prompt_length: int
  max_new_tokens: int
  prompts_per_call: int
  stop_ids: tuple[int, ...]
  pad_id: int
  valid_vocab: int
  temperature: float = 1.0

  def __call__(
    self, params: nnx.State, prompts: Sequence[Sequence[int]], *, n: int, seed: int
  ) -> list[list[Completion]]:
    """Draws `n` completions for each prompt.

    A completion depends on the seed, the prompt's place and its own number, not on what else
    is in the batch.

    Raises:
      ValueError: a prompt is longer than `prompt_length`.
    """
    for i, prompt in enumerate(prompts):
      if len(prompt) > self.prompt_length:
        raise ValueError(
          f"prompt {i} has {len(prompt)} tokens, more than prompt_length ="
          f" {self.prompt_length}; raise it or render the prompt with max_tokens"
        )
    completions: list[list[Completion]] = []
    for start in range(0, len(prompts), self.prompts_per_call):
      chunk = list(prompts[start : start + self.prompts_per_call])
      size = self._rows(len(chunk))
      filled = chunk + [[]] * (size - len(chunk))
      keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(
        jnp.arange(start * n, (start + size) * n)
      )
      tokens, lengths = self._pad_left(filled)
      ids, log_probs, counts, finished = jax.device_get(
        self._generate(params, tokens, lengths, keys, n=n)
      )
      rows = [
        Completion(ids[r, :c].tolist(), log_probs[r, :c].tolist(), bool(finished[r]))
        for r, c in enumerate(counts)
      ]
      completions += [rows[i * n : (i + 1) * n] for i in range(len(chunk))]
    return completions

  def _rows(self, prompts: int) -> int:
    """Rows to compute for so many prompts: half where they fit, and all devices have a share."""
    half, odd = divmod(self.prompts_per_call, 2)
    if odd or half % jax.device_count() or prompts > half:
      return self.prompts_per_call
    return half

  def _pad_left(self, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.full((len(prompts), self.prompt_length), self.pad_id, np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
      row[len(row) - len(prompt) :] = prompt
    return tokens, np.asarray([len(p) for p in prompts], np.int32)

  @functools.partial(jax.jit, static_argnames=("self", "n"))
  def _generate(self, params, tokens, lengths, keys, n):
    """Reads the prompts once and grows `n` branches off each, side by side.

    A row of the cache is a tree: the prompt's slots, then `max_new_tokens` slots for every
    branch. All branches of all prompts advance by one token at a time.

        slot            0 … prompt_length - 1 | branch 0 …  | branch 1 …  | …
        visible_until   the end of the row    | its own end | its own end | …

    Args:
      tokens: int32 [prompts, prompt_length], padded on the left.
      lengths: int32 [prompts]; 0 marks a row that only fills up the batch.
      keys: [prompts * n] random keys.

    Returns:
      ids and log_probs [prompts * n, max_new_tokens], counts and finished [prompts * n].
    """
    model = nnx.merge(self.graphdef, params)
    prompts, limit = len(tokens), self.max_new_tokens
    room = self.prompt_length + n * limit
    index = jnp.arange(self.prompt_length)
    pads = self.prompt_length - lengths[:, None]
    visible_until = jnp.where(index < pads, index + 1, room)
    cache = init_cache(self.config, prompts, room)
    hidden, cache = model(tokens, jnp.maximum(index - pads, 0), visible_until, cache)
    logits = jnp.repeat(model.logits(hidden[:, -1]), n, axis=0)
    first = self.prompt_length + jnp.arange(n) * limit
    ends = jnp.broadcast_to(first + limit, (prompts, n))

    def draw(t, logits):
      logits = losses.mask_vocab(logits, self.valid_vocab)
      if self.temperature == 0:
        ids = jnp.argmax(logits, axis=-1)
      else:
        logits = logits / self.temperature
        at = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        ids = jax.vmap(jax.random.categorical)(at, logits)
      log_p = jax.nn.log_softmax(logits)
      return ids.astype(jnp.int32), jnp.take_along_axis(log_p, ids[:, None], axis=-1)[:, 0]

    def running(carry):
      t, *_, done = carry
      return (t < limit) & ~jnp.all(done)

    def advance(carry):
      t, cache, logits, ids, log_probs, counts, done = carry
      new, log_p = draw(t, logits)
      new = jnp.where(done, self.pad_id, new)
      ids = ids.at[:, t].set(new)
      log_probs = log_probs.at[:, t].set(jnp.where(done, 0.0, log_p))
      counts = counts + ~done
      done = done | jnp.isin(new, jnp.asarray(self.stop_ids))
      positions = jnp.broadcast_to(lengths[:, None] + t, (prompts, n))
      hidden, cache = model(new.reshape(prompts, n), positions, ends, cache, slots=first + t)
      logits = model.logits(hidden).reshape(prompts * n, -1)
      return t + 1, cache, logits, ids, log_probs, counts, done

    rows = prompts * n
    start = (
      jnp.int32(0),
      cache,
      logits,
      jnp.full((rows, limit), self.pad_id, jnp.int32),
      jnp.zeros((rows, limit), jnp.float32),
      jnp.zeros(rows, jnp.int32),
      jnp.repeat(lengths == 0, n),
    )
    _, _, _, ids, log_probs, counts, done = jax.lax.while_loop(running, advance, start)
    return ids, log_probs, counts, done
