"""What a stage that asks a model is, to the pipeline that runs it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, Protocol

from data_pipeline.asking.question import Job
from data_pipeline.synthesis.ask import Fault
from her_jax.roleplay.schema import Trajectory


@dataclasses.dataclass(frozen=True)
class Guide:
  """What the run tells a conversation's jobs.

  Attributes:
    shared: what `Stage.guide` made for the block, the same when the block is done again.
    place: of the conversation in its block.
    again: how often each unit of the retry list has been asked for anew.
  """

  shared: Mapping[str, Any]
  place: int = 0
  again: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """A conversation as a stage leaves it.

  Attributes:
    counts: of what was done; "units" is the number of questions that the stage had.
    used: layouts of the turns, for those that come after.
  """

  scene: Trajectory
  faults: tuple[Fault, ...] = ()
  counts: Counter[str] = dataclasses.field(default_factory=Counter)
  used: Counter[str] = dataclasses.field(default_factory=Counter)


class Stage(Protocol):
  """Jobs for each conversation, and what is made of their results.

  A job's requests depend on the conversation and its guide alone, never on the time or on
  other conversations: a run that is taken up again asks what it asked before.
  """

  @property
  def name(self) -> str:
    """As requests and tables call it."""

  @property
  def folder(self) -> str:
    """Where its files lie, in the workdir."""

  def fingerprint(self) -> dict[str, Any]:
    """Settings and wording; with others, what lies in the folder is of another run."""

  def guide(self, used: Mapping[str, int]) -> dict[str, Any]:
    """What a block is told, from the layouts of all blocks before it."""

  def jobs(self, scene: Trajectory, guide: Guide) -> Iterable[Job[Any]]:
    """The questions of a conversation, independent of each other."""

  def finish(self, scene: Trajectory, results: Sequence[Any]) -> Outcome:
    """The conversation with what its jobs returned, in their order."""
