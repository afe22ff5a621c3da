"""What a policy writes on held-out scenes: validity, layouts, length, loss."""

from collections import Counter
from collections.abc import Sequence

from flax import nnx
from transformers import PreTrainedTokenizerBase

from her_jax.evaluation.console import Sample
from her_jax.inference.engine import Completion
from her_jax.inference.sampler import Sampler
from her_jax.roleplay import chat, grammar, prompts
from her_jax.roleplay.layouts import entropy_bits
from her_jax.roleplay.schema import Trajectory

Prompt = tuple[Trajectory, int]


def pick_turns(scenes: Sequence[Trajectory], count: int) -> list[Prompt]:
  """`count` trained turns spread evenly over the scenes, the same at every call."""
  turns = [(scene, turn) for scene in scenes for turn in scene.trained_turns()]
  count = min(count, len(turns))
  return [turns[i * len(turns) // count] for i in range(count)]


def sample_replies(
  sampler: Sampler,
  params: nnx.State,
  turns: Sequence[Prompt],
  tokenizer: PreTrainedTokenizerBase,
  seed: int,
  variant: prompts.Variant,
) -> tuple[list[Sample], list[Completion]]:
  """One reply to each turn, as text for people and as ids."""
  rendered = [
    chat.render_prompt(scene, turn, tokenizer, sampler.prompt_length, variant)
    for scene, turn in turns
  ]
  drawn = [group[0] for group in sampler(params, rendered, n=1, seed=seed)]
  samples = [
    as_sample(scene, turn, completion, tokenizer)
    for (scene, turn), completion in zip(turns, drawn, strict=True)
  ]
  return samples, drawn


def as_sample(
  scene: Trajectory, turn: int, completion: Completion, tokenizer: PreTrainedTokenizerBase
) -> Sample:
  """A completion as text, with whether it is a whole and valid turn."""
  speaker = scene.turns[turn].speaker
  text = chat.decode_text(completion.ids, tokenizer)
  others = [c.name for c in scene.characters if c.name != speaker]
  return Sample(
    scene=scene.id,
    turn=turn,
    speaker=speaker,
    heard=_heard(scene, turn),
    reply=text,
    finished=completion.finished,
    valid=completion.finished
    and chat.is_valid_completion(completion.ids, tokenizer, speaker, others),
  )


def describe(
  samples: Sequence[Sample], completions: Sequence[Completion]
) -> dict[str, float | None]:
  """Shares and means over sampled replies; layouts are those of finished replies."""
  layouts = [
    grammar.parse(sample.reply, sample.speaker).layout()
    for sample in samples
    if sample.finished
  ]
  return {
    "replies": len(samples),
    "grammar_valid": sum(s.valid for s in samples) / len(samples),
    "layout_entropy": entropy_bits(Counter(layouts)),
    "layout_top1": top_share(layouts),
    "completion_tokens": sum(len(c.ids) for c in completions) / len(completions),
  }


def top_share(values: Sequence[str]) -> float | None:
  """Share of the commonest value; None where there are none."""
  return max(Counter(values).values()) / len(values) if values else None


def _heard(scene: Trajectory, turn: int) -> str:
  if turn == 0:
    return prompts.MARKER
  last = scene.turns[turn - 1]
  return f"{last.speaker}: {grammar.parse(last.reply).view_for('other')}"
