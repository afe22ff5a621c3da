"""The TFDS builders: trajectories, SFT turns, RL prompts and preference pairs in ArrayRecord.

A trajectory's record holds the whole conversation as JSON beside columns to choose by. The
others point to it (`record`, its index within the same split of `her_trajectories`) and hold
what is their own, so that a character sheet stands in the data once and not once a turn;
`data_pipeline.records` puts them together again.

They are `ShardBasedBuilder`s, because those need no shuffling: TFDS' shuffler keeps 1 GB of
records in memory and then asks for TensorFlow. Grain shuffles by index when it reads.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
import functools
import json
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from data_pipeline.builders.source import KINDS, Reader, Source
from her_jax.roleplay.schema import Trajectory

LAYOUT = "1.0.0"  # Of the records; the content is told by the checksums.
Examples = Iterator[tuple[int, dict[str, Any]]]
_text, _number = tfds.features.Text, lambda: tfds.features.Scalar(np.int64)


class HerBuilder(tfds.core.ShardBasedBuilder):
  """What the four have in common.

  Args:
    source: what to write; not needed for reading.
    data_dir: folder that gets `her_<kind>/<version>/`.
  """

  VERSION = tfds.core.Version(LAYOUT)
  RELEASE_NOTES = {LAYOUT: "First layout."}
  KIND = ""
  TELLS = ""

  def __init__(self, *, source: Source | None = None, **kwargs: Any):
    self._source = source
    super().__init__(**kwargs)

  @abc.abstractmethod
  def columns(self) -> dict[str, Any]:
    """The features of a record."""

  @abc.abstractmethod
  def examples(self, reader: Reader, purpose: str, part: range) -> Iterator[dict[str, Any]]:
    """The records of one shard."""

  def _info(self) -> tfds.core.DatasetInfo:
    source = self._source
    return tfds.core.DatasetInfo(
      builder=self,
      description=self.TELLS,
      features=tfds.features.FeaturesDict(self.columns()),
      metadata=tfds.core.MetadataDict(proof=source.proof.seal if source else ""),
    )

  def _shard_iterators_per_split(
    self, dl_manager: Any
  ) -> Mapping[str, list[Callable[[], Examples]]]:
    del dl_manager
    source = self._source
    assert source is not None, "a builder without a source can only read"

    def shard(purpose: str, part: range) -> Examples:
      with source.open() as reader:
        yield from enumerate(self.examples(reader, purpose, part))

    return {
      purpose: [
        functools.partial(shard, purpose, part) for part in source.shards(self.KIND, purpose)
      ]
      for purpose in source.splits(self.KIND)
    }


class HerTrajectories(HerBuilder):
  """Whole conversations."""

  KIND = "trajectories"
  TELLS = "Role-play conversations with their plans, each as JSON in `row`."

  def columns(self) -> dict[str, Any]:
    texts = ("id", "source", "language", "purpose", "row")
    return {name: _text() for name in texts} | {"turns": _number(), "trained": _number()}

  def examples(self, reader: Reader, purpose: str, part: range) -> Iterator[dict[str, Any]]:
    for entry in reader.entries(purpose, part):
      row = entry.row
      yield {
        "id": row["id"],
        "source": row["source"],
        "language": row.get("language", "en"),
        "purpose": purpose,
        "turns": len(row["turns"]),
        "trained": sum(bool(turn.get("plan")) for turn in row["turns"]),
        "row": json.dumps(row, ensure_ascii=False, separators=(",", ":")),
      }


class HerSftTurns(HerBuilder):
  """Replies with their plans, one a record."""

  KIND = "sft_turns"
  TELLS = "Single replies to train on; the history is in `her_trajectories` at `record`."

  def columns(self) -> dict[str, Any]:
    texts = ("id", "conversation", "source", "language", "speaker", "plan", "reply")
    return {name: _text() for name in texts} | {"record": _number(), "turn": _number()}

  def examples(self, reader: Reader, purpose: str, part: range) -> Iterator[dict[str, Any]]:
    for entry in reader.entries(purpose, part):
      for example, turn in _turns(entry.scene(), entry.record):
        yield {**example, "plan": turn.plan, "reply": turn.reply}


class HerRlPrompts(HerBuilder):
  """Places where a character is to reply; the true reply is not part of them."""

  KIND = "rl_prompts"
  TELLS = "Prompts of reinforcement learning: reply `turn` of the conversation at `record`."

  def columns(self) -> dict[str, Any]:
    texts = ("id", "conversation", "source", "language", "speaker")
    return {name: _text() for name in texts} | {"record": _number(), "turn": _number()}

  def examples(self, reader: Reader, purpose: str, part: range) -> Iterator[dict[str, Any]]:
    for entry in reader.entries(purpose, part):
      for example, _ in _turns(entry.scene(), entry.record):
        yield example


class HerPreferencePairs(HerBuilder):
  """Pairs of candidate replies with the better one's label."""

  KIND = "preference_pairs"
  TELLS = "Pairs of replies, each as JSON in `row`; the conversation is at `record`."

  def columns(self) -> dict[str, Any]:
    texts = ("id", "conversation", "winner", "kind", "row")
    return {name: _text() for name in texts} | {"record": _number(), "turn": _number()}

  def examples(self, reader: Reader, purpose: str, part: range) -> Iterator[dict[str, Any]]:
    for number in part:
      pair, row, record = reader.pair(purpose, number)
      yield {
        "id": pair.id,
        "conversation": pair.scene,
        "winner": pair.winner,
        "kind": pair.kind,
        "record": record,
        "turn": pair.turn,
        "row": json.dumps(row, ensure_ascii=False, separators=(",", ":")),
      }


def _turns(scene: Trajectory, record: int) -> Iterator[tuple[dict[str, Any], Any]]:
  """Each trained turn: the columns that say where it is, and the turn itself."""
  for i in scene.trained_turns():
    turn = scene.turns[i]
    example = {
      "id": f"{scene.id}#{i}",
      "conversation": scene.id,
      "source": scene.source,
      "language": scene.language,
      "speaker": turn.speaker,
      "record": record,
      "turn": i,
    }
    yield example, turn


BUILDERS: Mapping[str, type[HerBuilder]] = {
  builder.KIND: builder
  for builder in (HerTrajectories, HerSftTurns, HerRlPrompts, HerPreferencePairs)
}
assert BUILDERS.keys() == KINDS.keys()
