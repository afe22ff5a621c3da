"""JSON that others wrote: one object, or an error that names the file and what is wrong."""

import json
from pathlib import Path
import reprlib
from typing import Any

from her_jax.errors import ConfigError


def read(path: Path) -> dict[str, Any]:
  """The object that a file holds; raises as `parse` does."""
  try:
    data = path.read_bytes()
  except PermissionError:
    raise ConfigError(f"{path} cannot be read: this user may not.") from None
  return parse(data, str(path))


def parse(data: bytes, what: str) -> dict[str, Any]:
  """The object that some bytes hold.

  Args:
    data: JSON in UTF-8. A name may stand once in each object: of two, readers take different
      ones.
    what: Whose bytes they are, for the error.

  Raises:
    ConfigError: They are something else.
  """
  try:
    text = data.decode()
    if not text.strip():
      raise ValueError("it is empty")
    value = json.loads(text, object_pairs_hook=_once)
    if not isinstance(value, dict):
      raise ValueError(f"it is {reprlib.repr(value)} instead of an object in braces")
    return value
  except UnicodeDecodeError as error:
    reason = f"byte {error.start:,} is not UTF-8"
  except json.JSONDecodeError as error:
    begun, end = text.lstrip().startswith("{"), text.rstrip()
    cut = begun and (error.pos >= len(end) or not end.endswith("}"))
    reason = f"{'it is cut short' if cut else 'it is not JSON'}: {error}"
  except RecursionError:
    reason = "it is nested too deeply"
  except ValueError as error:
    reason = str(error)
  raise broken(what, reason)


def broken(what: object, reason: str) -> ConfigError:
  """The error for a damaged file."""
  return ConfigError(f"{what} is broken ({reason}): copy or download the file again.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{twice} stands in it twice")
  return found
