"""The library of principles that judgements refer to, read from `principles.json`."""

import dataclasses
import functools
import json
import os
import pathlib

from her_jax.roleplay.schema import DataError

DIMENSIONS = (
  "character development",
  "relationship development",
  "emotional expression",
  "action description",
  "atmosphere and environment",
  "dialogue and interaction",
  "narrative and plot",
  "conflict and tension",
  "details and description",
  "overall quality",
  "safety and boundaries",
  "worldview consistency",
)
_LIBRARY = pathlib.Path(__file__).with_name("principles.json")


@dataclasses.dataclass(frozen=True)
class Principle:
  """A criterion for comparing replies. `names` and `definitions` are keyed by language.

  A negative principle decides by violation: who breaks it loses. `level` says whether one
  sentence shows it or only the whole session.
  """

  id: str
  dimension: str
  level: str
  polarity: str
  names: dict[str, str]
  definitions: dict[str, str]


def load(path: str | os.PathLike[str] = _LIBRARY) -> dict[str, Principle]:
  """Reads and checks a library.

  Raises:
    DataError: names the entry and the field.
  """
  rows = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  library: dict[str, Principle] = {}
  for number, row in enumerate(rows, 1):
    where = f"{path}: entry {number} ({row.get('id', 'no id')})"
    for field, allowed in (
      ("dimension", DIMENSIONS),
      ("level", ("sentence", "session")),
      ("polarity", ("negative", "positive")),
    ):
      if row.get(field) not in allowed:
        raise DataError(f"{where}: {field}: {row.get(field)!r} is not one of {allowed}")
    for language in ("en", "zh"):
      for field in ("name", "definition"):
        if not row.get(language, {}).get(field):
          raise DataError(f"{where}: {language}.{field}: missing; give it a text")
    if row["id"] in library:
      raise DataError(f"{where}: id stands twice; ids must be unique")
    library[row["id"]] = Principle(
      row["id"],
      row["dimension"],
      row["level"],
      row["polarity"],
      {language: row[language]["name"] for language in ("en", "zh")},
      {language: row[language]["definition"] for language in ("en", "zh")},
    )
  return library


@functools.cache
def library() -> dict[str, Principle]:
  """The library that ships with the package."""
  return load()
