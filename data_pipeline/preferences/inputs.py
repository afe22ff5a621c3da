"""Rows in, strictly or with what is refused counted; rows and reports out."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
from typing import Any, TextIO, TypeVar

from data_pipeline.files import whole_file
from her_jax.roleplay import check, jsonl, schema
from her_jax.roleplay.schema import DataError, Trajectory

T = TypeVar("T")
_SHOWN = 100  # So many refused lines are named; all are counted.


@dataclasses.dataclass
class Refused:
  """Lines that were left out, by kind of fault.

  Attributes:
    lenient: whether a faulty line is counted; otherwise the first one ends the run.
  """

  lenient: bool = False
  kinds: Counter[str] = dataclasses.field(default_factory=Counter)
  lines: list[str] = dataclasses.field(default_factory=list)

  def add(self, message: str, error: DataError) -> None:
    """Counts a fault.

    Raises:
      DataError: with `message`, if not lenient.
    """
    if not self.lenient:
      raise DataError(message)
    self.kinds[check.kind_of_problem(str(error))] += 1
    if len(self.lines) < _SHOWN:
      self.lines.append(message)

  def as_dict(self) -> dict[str, Any]:
    return {"count": self.kinds.total(), "kinds": dict(sorted(self.kinds.items()))}


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
  """Where a row stands: file, line (from 1), byte offset and length."""

  path: pathlib.Path
  line: int
  offset: int
  length: int

  def __str__(self) -> str:
    return f"{self.path}:{self.line}"

  def read(self) -> dict[str, Any]:
    """The row, which an earlier pass has checked."""
    with self.path.open("rb") as f:
      f.seek(self.offset)
      row = jsonl.parse_json(f.read(self.length))
    assert isinstance(row, dict)
    return row


def placed_rows(
  paths: Sequence[str | os.PathLike[str]],
  make: Callable[[Mapping[str, Any]], T],
  refused: Refused,
) -> Iterator[tuple[Place, T]]:
  """Each row of several files with its place; an `id` stands in one row of all of them.

  Raises:
    DataError: with file, line and mend; if lenient, only where no row is left.
  """
  first: dict[str, Place] = {}
  for path in map(pathlib.Path, paths):
    if not path.is_file():
      raise DataError(f"{path}: no such file; pass an existing JSON Lines file")
    with path.open("rb") as f:
      offset = 0
      for number, raw in enumerate(f, 1):
        place = Place(path, number, offset, len(raw))
        offset += len(raw)
        try:
          row = jsonl.parse_json(raw)
          if row is None:
            continue
          if not isinstance(row, dict):
            raise DataError(f"expected one JSON object a line, got {type(row).__name__}")
          made = make(row)
          if first.setdefault(row["id"], place) is not place:
            raise DataError(
              f"id: {row['id']!r} stands in {first[row['id']]} too; ids must be unique"
            )
        except DataError as error:
          refused.add(f"{place}: {error}", error)
          continue
        yield place, made
  if not first:
    raise DataError(f"{', '.join(map(str, paths))}: no usable row; pass a file with some")


class Scenes:
  """Scenes by id, read from disk when they are asked for; in memory are their places alone."""

  def __init__(self, paths: Sequence[str | os.PathLike[str]], refused: Refused):
    """Reads and checks all files once.

    Raises:
      DataError: with file, line and mend.
    """
    rows = placed_rows(paths, schema.trajectory_from_dict, refused)
    self._places = {scene.id: place for place, scene in rows}

  def __len__(self) -> int:
    return len(self._places)

  def __contains__(self, scene: str) -> bool:
    return scene in self._places

  def __getitem__(self, scene: str) -> Trajectory:
    return _read_scene(self._places[scene])

  def __iter__(self) -> Iterator[Trajectory]:
    """All scenes in the order of the files."""
    return map(_read_scene, self._places.values())


@functools.lru_cache(maxsize=64)
def _read_scene(place: Place) -> Trajectory:
  return schema.build_trajectory(place.read())


def write_row(file: TextIO, row: Any) -> None:
  """Writes a JSON object, or a dataclass of `schema`, as one line."""
  row = schema.to_dict(row) if dataclasses.is_dataclass(row) else row
  file.write(jsonl.written(row) + "\n")


def write_report(path: str | os.PathLike[str], report: Mapping[str, Any]) -> None:
  with whole_file(path) as f:
    json.dump(report, f, ensure_ascii=False, indent=2)
    f.write("\n")
