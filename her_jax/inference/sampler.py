"""Groups of completions, with whatever weights are to be sampled from, by all hosts together.

sampler = Sampler(make_engine, weights, Sampling(max_tokens=256, stop_ids=(end,)), prompt_length=512)
groups = sampler(state.params, prompts, n=8, seed=step)
"""

from collections.abc import Callable, Sequence

from flax import nnx
import jax
from jax.experimental import multihost_utils
import numpy as np

from her_jax.inference.engine import Completion, Engine
from her_jax.inference.replicas import RolloutWeights
from her_jax.inference.sampling import Sampling, with_seeds


class Sampler:
  """An engine on each host's own chips, and how it is asked.

  Attributes:
    settings: of every completion; the seed is each call's own.
    prompt_length: longest prompt, in tokens.
  """

  def __init__(
    self,
    make_engine: Callable[[nnx.State], Engine],
    weights: RolloutWeights,
    settings: Sampling,
    prompt_length: int,
  ):
    """The engine is made by the first call, and takes no room before.

    Args:
      make_engine: of weights on `weights.mesh`.
      weights: takes those of a call there.
    """
    self.settings, self.prompt_length = settings, prompt_length
    self._make_engine, self._weights = make_engine, weights
    self._engine: Engine | None = None
    self._loaded: nnx.State | None = None

  def __call__(
    self, params: nnx.State, prompts: Sequence[Sequence[int]], *, n: int, seed: int
  ) -> list[list[Completion]]:
    """Draws `n` completions for each prompt; a prompt is read once for all of them.

    A completion depends on the seed, the prompt, its place and its own number, not on what else
    is sampled. What was computed for these very `params` before is used again. All hosts call it
    with the same arguments; each answers its share of the prompts, and all get all completions.

    Raises:
      ValueError: a prompt is longer than `prompt_length`.
    """
    for i, prompt in enumerate(prompts):
      if len(prompt) > self.prompt_length:
        raise ValueError(
          f"prompt {i} has {len(prompt)} tokens, more than prompt_length ="
          f" {self.prompt_length}; raise it or render the prompt with max_tokens"
        )
    settings = with_seeds(self.settings, seed, n * len(prompts))
    host, hosts = jax.process_index(), jax.process_count()
    ours = [i * n + j for i in range(host, len(prompts), hosts) for j in range(n)]
    engine = self._engine_with(params)
    with jax.set_mesh(self._weights.mesh):
      drawn = engine.generate([prompts[i // n] for i in ours], [settings[i] for i in ours])
    if hosts > 1:
      drawn = self._from_all(drawn, len(prompts), n, hosts)
    return [drawn[i : i + n] for i in range(0, len(drawn), n)]

  def _engine_with(self, params: nnx.State) -> Engine:
    if self._engine is None or params is not self._loaded:
      copies = self._weights(params)
      with jax.set_mesh(self._weights.mesh):
        if self._engine is None:
          self._engine = self._make_engine(copies)
          self._engine.tell_weights()
        else:
          self._engine.load(copies)
      self._loaded = params
    return self._engine

  def _from_all(
    self, drawn: Sequence[Completion], prompts: int, n: int, hosts: int
  ) -> list[Completion]:
    """The completions of all prompts, of which this host has drawn those of every `hosts`-th."""
    share = -(-prompts // hosts) * n
    ids = np.zeros((share, self.settings.max_tokens), np.int32)
    logprobs = np.zeros(ids.shape, np.float32)
    # Tokens, and whether it came to its end.
    ends = np.zeros((share, 2), np.int32)
    for i, completion in enumerate(drawn):
      count = len(completion.ids)
      ids[i, :count], logprobs[i, :count] = completion.ids, completion.logprobs
      ends[i] = count, completion.finished
    ids, logprobs, ends = multihost_utils.process_allgather((ids, logprobs, ends))
    found = []
    for i in range(prompts):
      host, at = i % hosts, i // hosts * n
      for row in range(at, at + n):
        count, finished = ends[host, row]
        found.append(
          Completion(
            ids[host, row, :count].tolist(),
            logprobs[host, row, :count].tolist(),
            "stop" if finished else "length",
          )
        )
    return found
