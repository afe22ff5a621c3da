"""What a flag is, and the names that there are."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from her_jax.roleplay.schema import Trajectory

# Name -> what it says of a text, for reports and pages.
MEANINGS = {
  "reply_in_plan": "the plan gives away words of the reply that it leads to",
  "reply_in_prompt": "the reply stands in the sheets, the scenario or an earlier turn",
  "plan_first_person": "the plan speaks as I or we, where it should tell of the character",
  "thought_not_first_person": "a thought tells of its own thinker from outside",
  "analyst_voice": "a thought or speech talks of the story as a text",
  "prompt_words": "words of an assistant or of the instructions it was given",
  "future_knowledge": "something that only a later turn or chapter brings",
  "action_not_grounded": "an action of somebody else, or with a name that the scene has not",
  "speaks_for_other": "the reply speaks as somebody else",
  "repetition": "the same words again, within a reply or in a later turn of its speaker",
  "mixed_language": "a stretch in another script or language than the scene's",
}
NAMES = tuple(MEANINGS)


@dataclasses.dataclass(frozen=True)
class Flag:
  """One fault and where it stands.

  Attributes:
    name: a key of MEANINGS.
    turn: index of the turn.
    field: "reply" or "plan", the text of that turn in which `evidence` stands.
    start: where it begins; `evidence` is that text's [start:end].
    why: what it was held against, for a reader.
  """

  name: str
  turn: int
  field: str
  start: int
  end: int
  evidence: str
  why: str

  def as_dict(self) -> dict[str, Any]:
    return dataclasses.asdict(self)


def notes(trajectory: Trajectory) -> Mapping[str, Any]:
  """What the stages added to a trajectory; nothing where that is no object."""
  found = trajectory.extra.get("her")
  return found if isinstance(found, Mapping) else {}
