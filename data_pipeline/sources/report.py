"""What became of the rows of a source: counts by reason, and the rows that were put aside."""

from collections import Counter
import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from her_jax.roleplay.check import kind_of_problem
from her_jax.roleplay.schema import DataError, Trajectory

# Fields that hold an object by name: a name is no kind of fault of its own.
_BY_NAME = re.compile(r"\b(character_profiles|character_datasets|training_samples)\.[^:;]*")
_MOST_TEXT = 200  # characters of a problem in the report


@dataclasses.dataclass
class Report:
  """Counts of a reading.

  Attributes:
    rows: rows or documents read, the rejected ones included.
    kept: trajectories given; `turns` are theirs.
    rejected: by kind of fault; `first` gives the place and the wording of the first of each.
    skipped: what holds no dialogue and is no fault, by kind.
    notes: what was read in another way than it stands there, by kind.
    encodings: of the files that are not UTF-8.
  """

  rows: int = 0
  kept: int = 0
  turns: int = 0
  rejected: Counter[str] = dataclasses.field(default_factory=Counter)
  first: dict[str, str] = dataclasses.field(default_factory=dict)
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)
  notes: Counter[str] = dataclasses.field(default_factory=Counter)
  encodings: dict[str, str] = dataclasses.field(default_factory=dict)

  def reject(self, place: str, problem: str) -> str:
    """Counts a fault; returns its kind."""
    kind = kind_of(problem)
    self.rejected[kind] += 1
    self.first.setdefault(kind, shortened(f"{place}: {problem}"))
    return kind

  def keep(self, trajectory: Trajectory) -> None:
    self.kept += 1
    self.turns += len(trajectory.turns)

  def as_dict(self) -> dict[str, Any]:
    """The report as JSON; of each reason the count and the first place."""
    return {
      "rows": self.rows,
      "kept": self.kept,
      "turns": self.turns,
      "rejected": {
        kind: {"count": count, "first": self.first[kind]}
        for kind, count in self.rejected.most_common()
      },
      "skipped": dict(self.skipped.most_common()),
      "notes": dict(self.notes.most_common()),
      "encodings": self.encodings,
    }


class Quarantine:
  """A JSON Lines file of what was put aside: `place`, `problem`, and `row` or `text`.

  The file is made when the first row comes, and replaces an older one whole.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._path = pathlib.Path(path)
    self._file: Any = None
    self._path.unlink(missing_ok=True)

  def put(self, place: str, problem: str, row: Any) -> None:
    """Writes a row down as it came; what is no JSON value goes in as text."""
    if self._file is None:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._file = self._path.open("w", encoding="utf-8")
    entry = {"place": place, "problem": problem}
    if isinstance(row, bytes | str):
      text = row.decode("utf-8", "backslashreplace") if isinstance(row, bytes) else row
      entry["text"] = text.encode("utf-8", "backslashreplace").decode()
      line = json.dumps(entry, ensure_ascii=False)
    else:
      try:
        line = json.dumps({**entry, "row": row}, ensure_ascii=False)
        line.encode()
      except (RecursionError, UnicodeEncodeError, TypeError, ValueError):
        line = json.dumps({**entry, "text": "(cannot be written as JSON; see the source)"})
    self._file.write(line + "\n")

  def close(self) -> None:
    if self._file is not None:
      self._file.close()

  def __enter__(self) -> "Quarantine":
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()


def kind_of(problem: str) -> str:
  """A fault without what differs from row to row."""
  return kind_of_problem(_BY_NAME.sub(r"\1.…", problem))


def shortened(text: str) -> str:
  text = " ".join(text.split())
  return text if len(text) <= 2 * _MOST_TEXT else f"{text[:_MOST_TEXT]} … {text[-_MOST_TEXT:]}"


def at(place: str, error: DataError) -> DataError:
  """A fault with its place in front, on one line."""
  return DataError(shortened(f"{place}: {str(error).lstrip(': ')}"))
