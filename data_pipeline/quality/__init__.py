"""Flags for what is wrong with a trajectory, each with its place and evidence; see `MEANINGS`.

What a model would have to judge is left to the judge; here is what can be checked without one.

    python -m data_pipeline.quality scenes.jsonl
"""

from collections.abc import Callable, Iterable, Iterator

from data_pipeline.quality import future, leaks, others, repetition, voice
from data_pipeline.quality.flags import MEANINGS, NAMES, Flag
from data_pipeline.quality.future import Book
from data_pipeline.quality.view import SceneView
from her_jax.roleplay.schema import Trajectory

_CHECKS: dict[str, Callable[[SceneView], Iterator[Flag]]] = {
  "reply_in_plan": leaks.reply_in_plan,
  "reply_in_prompt": leaks.reply_in_prompt,
  "plan_first_person": voice.plan_first_person,
  "thought_not_first_person": voice.thought_not_first_person,
  "analyst_voice": voice.analyst_voice,
  "prompt_words": voice.prompt_words,
  "action_not_grounded": others.action_not_grounded,
  "speaks_for_other": others.speaks_for_other,
  "repetition": repetition.repetition,
  "mixed_language": voice.mixed_language,
}


def check(
  trajectory: Trajectory, book: Book | None = None, only: Iterable[str] = NAMES
) -> list[Flag]:
  """The flags of a trajectory, by turn; at most one of a kind in a turn.

  Args:
    book: the passages of the trajectory's book; what only a later one has is future knowledge.
    only: the names to look for.

  Raises:
    ValueError: there is no flag of that name.
  """
  names = tuple(only)
  if unknown := set(names) - set(NAMES):
    raise ValueError(f"no flag {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
  view = SceneView(trajectory)
  found: list[Flag] = []
  for name in names:
    if name == "future_knowledge":
      found += future.future_knowledge(view, book)
    else:
      found += _CHECKS[name](view)
  return sorted(found, key=lambda flag: (flag.turn, NAMES.index(flag.name)))


__all__ = ["MEANINGS", "NAMES", "Book", "Flag", "check"]
