"""The library of principles that judgements refer to, read from `principles.jsonl`.

A team edits that file or brings its own: one JSON object a line. `python -m
her_jax.roleplay.check FILE` says what is wrong with one.
"""

from collections.abc import Mapping
import dataclasses
import functools
import os
import pathlib
from typing import Any

from her_jax.roleplay.jsonl import DataError, read_jsonl

SAFETY = "safety and boundaries"
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
  SAFETY,
  "worldview consistency",
)
LEVELS = ("sentence", "session")
POLARITIES = ("negative", "positive")
LANGUAGES = ("en", "zh")
_LIBRARY = pathlib.Path(__file__).with_name("principles.jsonl")


@dataclasses.dataclass(frozen=True)
class Principle:
  """A criterion for comparing replies. `names` and `definitions` are keyed by language.

  A negative principle decides by violation: who breaks it loses, and it is looked at first. Of
  a positive one, who has more of it wins. `level` says whether one sentence shows it or only
  the whole session.
  """

  id: str
  dimension: str
  level: str
  polarity: str
  names: Mapping[str, str] = dataclasses.field(hash=False)
  definitions: Mapping[str, str] = dataclasses.field(hash=False)


def principle_from_dict(row: Mapping[str, Any]) -> Principle:
  """Builds and checks a principle.

  Raises:
    DataError: names the field and the mend.
  """
  if not isinstance(row.get("id"), str) or not row["id"].strip():
    raise DataError("id: missing or empty; give it a text")
  for field, allowed in (
    ("dimension", DIMENSIONS), ("level", LEVELS), ("polarity", POLARITIES)
  ):  # fmt: skip
    if row.get(field) not in allowed:
      raise DataError(f"{field}: {row.get(field)!r} is not one of {', '.join(allowed)}")
  for language in LANGUAGES:
    given = row.get(language)
    texts = given if isinstance(given, Mapping) else {}
    for field in ("name", "definition"):
      text = texts.get(field)
      if not isinstance(text, str) or not text.strip():
        raise DataError(f"{language}.{field}: missing or empty; give it a text")
    if texts["name"] != texts["name"].strip():
      raise DataError(f"{language}.name: has blanks around it; remove them")
    if any(sign in texts["name"] for sign in ":：\n"):
      raise DataError(
        f"{language}.name: holds a colon or a line break; judgements end it there"
      )
  return Principle(
    row["id"],
    row["dimension"],
    row["level"],
    row["polarity"],
    {language: row[language]["name"] for language in LANGUAGES},
    {language: row[language]["definition"] for language in LANGUAGES},
  )


def load(
  path: str | os.PathLike[str] = _LIBRARY, *, safety: bool = True
) -> dict[str, Principle]:
  """Reads and checks a library, id → principle in the order of the file.

  Args:
    safety: False leaves out the dimension of that name. It alone is about real people and real
      harm, and where it is in it comes before the others: stopping because the user asks for
      it breaks the character and is right. No other principle holds a dark character's
      faithfulness against it.

  Raises:
    DataError: names file, line and field; a name that stands twice too.
  """
  principles = read_jsonl(path, principle_from_dict)
  for language in LANGUAGES:
    first: dict[str, str] = {}
    for principle in principles:
      name = principle.names[language].casefold()
      if name in first:
        raise DataError(
          f"{path}: {principle.id} and {first[name]} have the same {language}.name"
          f" {principle.names[language]!r}; judgements tell principles apart by it"
        )
      first[name] = principle.id
  return {p.id: p for p in principles if safety or p.dimension != SAFETY}


@functools.cache
def library(safety: bool = True) -> dict[str, Principle]:
  """The library that ships with the package; see `load`."""
  return load(safety=safety)


def find(name: str, language: str) -> Principle | None:
  """The shipped principle that a judgement calls `name`."""
  return _by_name(language).get(name.strip().casefold())


@functools.cache
def _by_name(language: str) -> dict[str, Principle]:
  return {p.names[language].casefold(): p for p in library().values()}
