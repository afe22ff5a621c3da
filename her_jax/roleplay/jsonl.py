"""JSON Lines in, line by line, and objects → dataclasses, with the place of every fault."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import difflib
import json
import math
import os
import pathlib
from typing import Any, TypeVar

_T = TypeVar("_T")


class DataError(ValueError):
  """Input that breaks the data's contract. The message names the place and the mend."""


def read_jsonl(
  path: str | os.PathLike[str], make: Callable[[Mapping[str, Any]], _T]
) -> list[_T]:
  """Reads one value a line with `make`.

  Raises:
    DataError: with file, line and id in front of what is wrong.
  """
  made = []
  for number, row in each_line(path, make):
    if isinstance(row, DataError):
      raise DataError(f"{path}:{number}{row}")
    made.append(row)
  return made


def each_line(
  path: str | os.PathLike[str],
  make: Callable[[Mapping[str, Any]], _T],
  unique: bool = True,
) -> Iterator[tuple[int, _T | DataError]]:
  """Each line that is not blank: its number, and what `make` made of it or why it failed.

  Args:
    unique: whether an `id` that stands twice is a fault.

  Raises:
    DataError: there is no such file.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise DataError(f"{path}: no such file; pass an existing JSON Lines file")
  first_line: dict[Any, int] = {}
  with path.open("rb") as f:
    for number, raw in enumerate(f, 1):
      row: Any = None
      try:
        row = parse_json(raw)
        if row is None:
          continue
        if not isinstance(row, dict):
          raise DataError(f"expected one JSON object a line, got {type(row).__name__}")
        made = make(row)
        if unique and isinstance(own := row.get("id"), str):
          if own in first_line:
            raise DataError(
              f"id: stands twice, in line {first_line[own]} too; ids must be unique"
            )
          first_line[own] = number
        yield number, made
      except DataError as error:
        name = f" (id {row['id']!r})" if isinstance(row, dict) and row.get("id") else ""
        yield number, DataError(f"{name}: {error}")


def parse_json(raw: bytes) -> Any:
  """One JSON text; None for blanks alone.

  Raises:
    DataError: it is no UTF-8, no JSON, or holds what cannot be written again.
  """
  try:
    text = raw.decode("utf-8-sig")
  except UnicodeDecodeError:
    raise DataError("not UTF-8; save the file in that encoding") from None
  text = text.strip()
  if not text:
    return None
  try:
    row = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
  except json.JSONDecodeError as error:
    raise DataError(
      f"not valid JSON at {f'line {error.lineno}, ' if error.lineno > 1 else ''}column"
      f" {error.colno} ({error.msg}); each line must be one whole JSON object"
    ) from None
  except (RecursionError, ValueError) as error:  # Nested without end, or a number without.
    try:
      refuse_odd_numbers(json.loads(text))
    except (RecursionError, ValueError) as odd:
      if isinstance(odd, DataError):
        raise odd from None
    raise DataError(f"not usable JSON ({type(error).__name__}); write it more simply") from None
  if "\\ud" in text.lower():
    try:
      json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
      raise DataError(
        "half of a surrogate pair (\\ud800–\\udfff); write the whole one"
      ) from None
  return row


def _no_constant(name: str) -> Any:
  raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
  value = float(text)
  return value if math.isfinite(value) else _no_constant(text)


def _no_field_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  made = dict(pairs)
  if len(made) < len(pairs):
    raise ValueError("a field stands twice")
  return made


# Python's reader takes NaN, 1e999 and doubled fields; with these arguments they are ValueErrors.
STRICT: dict[str, Any] = {
  "parse_constant": _no_constant, "parse_float": _finite, "object_pairs_hook": _no_field_twice,
}  # fmt: skip


def odd_number(value: Any, where: str = "") -> str | None:
  """The place of the first number that JSON has none for (NaN, Infinity), or None.

  Example:
    odd_number({"her": {"scores": [1.0, math.nan]}}) == "her.scores[1]"
  """
  if isinstance(value, float):
    return None if math.isfinite(value) else where or "the row"
  if isinstance(value, Mapping):
    parts = ((f"{where}.{name}" if where else str(name), v) for name, v in value.items())
  elif isinstance(value, list | tuple):
    parts = ((f"{where}[{i}]", entry) for i, entry in enumerate(value))
  else:
    return None
  return next((found for at, v in parts if (found := odd_number(v, at))), None)


def refuse_odd_numbers(value: Any) -> None:
  """Raises DataError, naming the field, where a number is NaN or Infinity."""
  if at := odd_number(value):
    raise DataError(
      f"{at}: NaN or Infinity, which JSON has no sign for; write null, or leave the field out"
    )


def written(row: Mapping[str, Any]) -> str:
  """A row as one line of JSON, without its line break.

  Raises:
    DataError: a number in it is NaN or Infinity; names the row and the field.
  """
  try:
    return json.dumps(row, ensure_ascii=False, allow_nan=False)
  except ValueError:
    name = f"{row['id']!r}: " if isinstance(row.get("id"), str) else ""
    try:
      refuse_odd_numbers(row)
    except DataError as error:
      raise DataError(f"{name}{error}") from None
    raise


def build(cls: type[_T], row: Any, where: str, required: tuple[str, ...]) -> _T:
  """Makes a dataclass of a row; what it has no field for goes into `extra`."""
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
