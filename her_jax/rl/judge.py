"""The judge at work: pairs of replies in, verdicts out."""

from collections.abc import Sequence
import dataclasses

from flax import nnx
from transformers import PreTrainedTokenizerBase

from her_jax.inference.sampler import Sampler
from her_jax.roleplay import chat, judging, prompts
from her_jax.roleplay.schema import Trajectory


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Two replies to one turn, as the judge sees them (no plan, no name prefix)."""

  scene: Trajectory
  turn: int
  candidate_1: str
  candidate_2: str


class Judge:
  """A generative judge: it writes a judgement, and its verdict line is read."""

  def __init__(
    self,
    sampler: Sampler,
    params: nnx.State,
    tokenizer: PreTrainedTokenizerBase,
    history: int | None,
    variant: prompts.Variant,
  ):
    """Takes a sampler at temperature 0 and the weights to use with it.

    Args:
      history: past turns that the judge reads, as in its training.
      variant: of its context, as in its training.
    """
    self._sampler = sampler
    self._params = params
    self._tokenizer = tokenizer
    self._history = history
    self._variant = variant

  def compare(self, comparisons: Sequence[Comparison]) -> list[judging.Verdict]:
    """The verdict on each comparison, in the order it is given."""
    prompts = [self.prompt(c) for c in comparisons]
    fitting = [i for i, prompt in enumerate(prompts) if prompt is not None]
    drawn = self._sampler(self._params, [prompts[i] or [] for i in fitting], n=1, seed=0)
    verdicts = [judging.Verdict(None, "too long")] * len(prompts)
    for i, (completion,) in zip(fitting, drawn, strict=True):
      text = chat.decode_text(completion.ids, self._tokenizer)
      verdicts[i] = judging.parse_verdict(text, completion.finished)
    return verdicts

  def prompt(self, comparison: Comparison) -> list[int] | None:
    """The judge's prompt, oldest turns left out if it is too long.

    None where character, scene and candidates alone do not fit: no verdict is to be had, and
    one odd reply must not end a long run.
    """
    candidates = judging.candidates_ids(
      comparison.candidate_1, comparison.candidate_2, self._tokenizer
    )
    history = comparison.turn if self._history is None else min(self._history, comparison.turn)
    for turns in range(history, -1, -1):
      context = judging.context_ids(
        comparison.scene, comparison.turn, self._tokenizer, turns, self._variant
      )
      if len(context) + len(candidates) <= self._sampler.prompt_length:
        return context + candidates
    return None
