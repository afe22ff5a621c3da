"""A JSON object → a dataclass, field by field.

What has no field goes into `extra`. Under `her` there stands what the stages of data making
write: it comes back in with the rows, from files that others may have changed, so that what a
later stage relies on is checked here.
"""

from collections.abc import Mapping
import dataclasses
import difflib
from typing import Any, TypeVar

from her_jax.roleplay.jsonl import DataError

_T = TypeVar("_T")
NOTES = "her"


def build(cls: type[_T], row: Any, where: str, required: tuple[str, ...]) -> _T:
  """Makes a dataclass of a row; what it has no field for goes into `extra`.

  Raises:
    DataError: names the field, behind `where`, and the mend.
  """
  if not isinstance(row, Mapping):
    raise DataError(f"{where}: expected an object, got {type(row).__name__}")
  known = {f.name: f for f in dataclasses.fields(cls) if f.name != "extra"}  # type: ignore[arg-type]
  for name, field in known.items():
    if field.type is not str:
      continue
    at = f"{where}.{name}" if where else name
    if name in required and not (isinstance(row.get(name), str) and row[name].strip()):
      raise DataError(f"{at}: missing or empty; give it a text")
    if name in row and not isinstance(row[name], str):
      raise DataError(f"{at}: expected a text, got {row[name]!r}")
  extra = {name: value for name, value in row.items() if name not in known}
  for name in extra:
    if near := _misspelt(name, set(known) - set(row)):
      raise DataError(f"{f'{where}.' if where else ''}{name}: no such field; is it {near!r}?")
  check_notes(extra, where)
  fields = {name: row[name] for name in known if name in row}
  return cls(**fields, extra=extra)  # type: ignore[call-arg]


def _misspelt(name: str, absent: set[str]) -> str | None:
  """The absent field that `name` is a slip for: a plan under `plans` would never be trained."""
  for field in sorted(absent):
    if sorted(field) == sorted(name):
      return field
  return next(iter(difflib.get_close_matches(name, sorted(absent), 1, 0.85)), None)


def list_of(row: Mapping[str, Any], field: str) -> list[Any]:
  value = row.get(field)
  if not isinstance(value, list) or not value:
    raise DataError(f"{field}: missing or empty; give a list of objects")
  return value


def one_of(value: str, allowed: tuple[str, ...], field: str) -> None:
  if value not in allowed:
    raise DataError(f"{field}: {value!r} is not one of {', '.join(allowed)}")


def check_notes(extra: Mapping[str, Any], where: str = "") -> None:
  """Checks the shape of the notes in `extra`, if there are any.

  Raises:
    DataError: names the field, behind `where`, and the mend.
  """
  if NOTES not in extra:
    return
  at = f"{where}.{NOTES}" if where else NOTES
  notes = extra[NOTES]
  if not isinstance(notes, Mapping):
    raise DataError(
      f"{at}: expected an object, got {type(notes).__name__}; rename or remove the field"
    )
  for name, (expected, fits) in _SHAPES.items():
    if name in notes and not fits(notes[name]):
      raise DataError(
        f"{at}.{name}: expected {expected}, got {str(notes[name])[:80]!r}; remove it"
      )


def _text(value: Any) -> bool:
  return isinstance(value, str)


def _texts(value: Any) -> bool:
  return isinstance(value, list) and all(map(_text, value))


def _objects(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _winners(value: Any) -> bool:
  return isinstance(value, list) and all(w is None or isinstance(w, str) for w in value)


_SHAPES = {
  "settings_added": ("a list of objects", _objects),
  "draft": ("a text", _text),
  "flags": ("a list of texts", _texts),
  "verdicts": ("a list of winners", _winners),
  "breaks": ("[principle, winner]", lambda v: _texts(v) and len(v) == 2),
  "candidates": ("a list of two", lambda v: isinstance(v, list) and len(v) == 2),
}
