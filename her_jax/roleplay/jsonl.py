"""JSON Lines in, line by line, with the place of every fault."""

from collections.abc import Callable, Iterator, Mapping
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
  if "\\u0000" in text:  # As six signs of a text, `\\\\u0000` in the file, it does no harm.
    refuse_nul(row)
  return row


def refuse_nul(value: Any, where: str = "") -> None:
  """Raises DataError where a text holds NUL, at which many readers end a text."""
  if isinstance(value, str) and "\0" in value:
    raise DataError(f"{where or 'row'}: holds a NUL character (\\u0000); remove it")
  if isinstance(value, Mapping):
    for name, entry in value.items():
      refuse_nul(name, f"{where}.{name!r}" if where else repr(name))
      refuse_nul(entry, f"{where}.{name}" if where else str(name))
  if isinstance(value, list | tuple):
    for i, entry in enumerate(value):
      refuse_nul(entry, f"{where}[{i}]")


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
