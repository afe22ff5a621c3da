"""Built data sets as random-access sources for Grain.

    from data_pipeline import records
    source = records.Trajectories("out/built", "sft")
    grain.MapDataset.source(source).seed(0).shuffle()…

Each has `__len__` and `__getitem__`, holds no record in memory, and may be sent to another
process. Opening one checks the proof of the splits and the checksums of the shards.
"""

import abc
from collections.abc import Iterator, Mapping
import dataclasses
import json
import os
import pathlib
from typing import Any, Generic, TypeVar

from data_pipeline.proof import Proof, require_proof
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError, PreferencePair, Trajectory

_T = TypeVar("_T")
_MEND = "build it with `python -m data_pipeline.builders.build`"


@dataclasses.dataclass(frozen=True)
class Reply:
  """One reply of a conversation; `scene` ends with it, and only it carries a plan."""

  id: str
  scene: Trajectory
  turn: int


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A place to reply as `speaker`; `scene` ends before it."""

  id: str
  scene: Trajectory
  turn: int
  speaker: str


class _Records(abc.ABC, Generic[_T]):
  """One split of a built data set.

  Args:
    out: folder that `build` wrote into.
    split: a purpose: sft, rl, judge_sft, judge_rl or test.
    check: whether to hold the shards to their checksums, which reads them once.

  Raises:
    DataError: the data set is missing, has no such split, or was changed.
  """

  KIND = ""

  def __init__(self, out: str | os.PathLike[str], split: str, check: bool = True):
    self.out, self.split = pathlib.Path(out), split
    lengths = splits_of(self.out, self.KIND)
    self.folder = folder_of(self.out, self.KIND) or self.out
    self.proof: Proof | None = require_proof(self.folder, split) if check else None
    if split not in lengths:
      raise DataError(
        f"{self.folder}: has no split {split!r}; choose one of {', '.join(lengths)}"
      )
    self._length = lengths[split]
    self._data: Any = None

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: Any) -> _T:
    return self.make(self.raw(index))

  def __iter__(self) -> Iterator[_T]:
    return (self[i] for i in range(len(self)))

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, "_data": None}  # Open files do not travel.

  def __repr__(self) -> str:  # Grain names it in the state of an iterator.
    return f"{type(self).__name__}({str(self.out)!r}, {self.split!r})"

  def raw(self, index: Any) -> dict[str, Any]:
    """The columns of a record; texts as str, numbers as int."""
    index = index.__index__()
    if not -self._length <= index < self._length:
      raise IndexError(f"record {index} of {self._length}")
    if self._data is None:
      import tensorflow_datasets as tfds  # Half a second.

      builder = tfds.builder_from_directory(str(self.folder))
      self._data = builder.as_data_source(split=self.split)
    return {name: _plain(value) for name, value in self._data[index % self._length].items()}

  @abc.abstractmethod
  def make(self, columns: Mapping[str, Any]) -> _T:
    """The record of these columns."""


def folder_of(out: str | os.PathLike[str], kind: str) -> pathlib.Path | None:
  """The newest version of a kind of records in a folder that `build` wrote; None if it has none."""
  versions = sorted(
    (p for p in (pathlib.Path(out) / f"her_{kind}").glob("*.*.*") if p.is_dir()),
    key=lambda p: [int(n) if n.isdigit() else -1 for n in p.name.split(".")],
  )
  return versions[-1] if versions else None


def splits_of(out: str | os.PathLike[str], kind: str) -> dict[str, int]:
  """How many records of a kind each split has.

  Raises:
    DataError: there is no such data set, or what describes it is damaged.
  """
  folder = folder_of(out, kind)
  if folder is None:
    raise DataError(f"{pathlib.Path(out) / f'her_{kind}'}: no such data set; {_MEND}")
  path = folder / "dataset_info.json"
  try:
    info = json.loads(path.read_text("utf-8"))
    return {str(s["name"]): sum(map(int, s["shardLengths"])) for s in info.get("splits", [])}
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise DataError(
      f"{path}: no description of a data set ({type(error).__name__}: {str(error)[:100]}); {_MEND}"
    ) from None


def _plain(value: Any) -> Any:
  return value.decode() if isinstance(value, bytes) else int(value)


class Trajectories(_Records[Trajectory]):
  """Whole conversations."""

  KIND = "trajectories"

  def make(self, columns: Mapping[str, Any]) -> Trajectory:
    return schema.build_trajectory(json.loads(columns["row"]))


class _OfConversation(_Records[_T]):
  """Records that point to a conversation, which is read with them."""

  def __init__(self, out: str | os.PathLike[str], split: str, check: bool = True):
    super().__init__(out, split, check)
    self._scenes = Trajectories(out, split, check)
    if self.proof and self._scenes.proof and self.proof.seal != self._scenes.proof.seal:
      raise DataError(
        f"{self.folder} and {self._scenes.folder} were built by two proofs; {_MEND}"
      )

  def scene_of(self, columns: Mapping[str, Any]) -> Trajectory:
    """The whole conversation that a record points to."""
    scene = self._scenes[columns["record"]]
    if scene.id != columns["conversation"]:
      raise DataError(
        f"{self.folder}: {columns['id']!r} points to {scene.id!r}, not to"
        f" {columns['conversation']!r}, in {self._scenes.folder}; {_MEND}"
      )
    return scene


class SftTurns(_OfConversation[Reply]):
  """Single replies with their history."""

  KIND = "sft_turns"

  def make(self, columns: Mapping[str, Any]) -> Reply:
    scene, turn = self.scene_of(columns), columns["turn"]
    past = tuple(dataclasses.replace(t, plan="") for t in scene.turns[:turn])
    last = dataclasses.replace(scene.turns[turn], plan=columns["plan"], reply=columns["reply"])
    return Reply(columns["id"], dataclasses.replace(scene, turns=(*past, last)), turn)


class RlPrompts(_OfConversation[Prompt]):
  """Places to reply, with the history without plans."""

  KIND = "rl_prompts"

  def make(self, columns: Mapping[str, Any]) -> Prompt:
    scene, turn = self.scene_of(columns), columns["turn"]
    past = tuple(dataclasses.replace(t, plan="") for t in scene.turns[:turn])
    cut = dataclasses.replace(scene, turns=past)
    return Prompt(columns["id"], cut, turn, columns["speaker"])


class PreferencePairs(_OfConversation[PreferencePair]):
  """Pairs; `scene(i)` is the conversation of the i-th."""

  KIND = "preference_pairs"

  def make(self, columns: Mapping[str, Any]) -> PreferencePair:
    return schema.pair_from_dict(json.loads(columns["row"]))

  def scene(self, index: Any) -> Trajectory:
    return self.scene_of(self.raw(index))
