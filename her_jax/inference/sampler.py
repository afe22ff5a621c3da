"""Groups of completions from one engine, with whatever weights are to be sampled from.

sampler = Sampler(engine, Sampling(max_tokens=256, stop_ids=(end,)), prompt_length=512)
groups = sampler(state.params, prompts, n=8, seed=step)
"""

from collections.abc import Sequence
import dataclasses

from flax import nnx

from her_jax.inference.engine import Completion, Engine
from her_jax.inference.sampling import Sampling, with_seeds


@dataclasses.dataclass(frozen=True)
class Sampler:
  """An engine, and how it is asked.

  Attributes:
    settings: of every completion; the seed is each call's own.
    prompt_length: longest prompt, in tokens.
  """

  engine: Engine
  settings: Sampling
  prompt_length: int

  def __call__(
    self, params: nnx.State, prompts: Sequence[Sequence[int]], *, n: int, seed: int
  ) -> list[list[Completion]]:
    """Draws `n` completions for each prompt; a prompt is read once for all of them.

    A completion depends on the seed, the prompt, its place and its own number, not on what else
    is sampled. What was computed for these very `params` before is used again.

    Raises:
      ValueError: a prompt is longer than `prompt_length`.
    """
    for i, prompt in enumerate(prompts):
      if len(prompt) > self.prompt_length:
        raise ValueError(
          f"prompt {i} has {len(prompt)} tokens, more than prompt_length ="
          f" {self.prompt_length}; raise it or render the prompt with max_tokens"
        )
    if params is not self.engine.params:
      self.engine.load(params)
    settings = with_seeds(self.settings, seed, n * len(prompts))
    drawn = self.engine.generate([prompt for prompt in prompts for _ in range(n)], settings)
    return [drawn[i : i + n] for i in range(0, len(drawn), n)]
