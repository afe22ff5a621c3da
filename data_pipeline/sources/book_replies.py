"""A model's answers about a book, read and held to their form. What does not fit is a fault."""

from collections.abc import Mapping
import dataclasses
import json
import re
from typing import Any

from her_jax.roleplay import jsonl, rows
from her_jax.roleplay.schema import DataError

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
_MANY = "holds more than one JSON object"
_CUTS = {"": (False, False), "start": (True, False), "end": (False, True), "both": (True, True)}


@dataclasses.dataclass(frozen=True)
class Person:
  """Somebody as one part of the book calls and describes them."""

  name: str
  aliases: tuple[str, ...] = ()
  description: str = ""


@dataclasses.dataclass(frozen=True)
class Stretch:
  """A scene's paragraphs, `first` to `last`, and whether it goes on beyond what was shown."""

  first: int
  last: int
  cut_start: bool = False
  cut_end: bool = False


@dataclasses.dataclass(frozen=True)
class Line:
  speaker: str
  speech: str
  action: str = ""


@dataclasses.dataclass(frozen=True)
class Dialogue:
  """A scene as a model wrote it down; `motives` and `experience` by the names it used."""

  scenario: str
  topic: str
  summary: str
  motives: Mapping[str, str]
  experience: Mapping[str, str]
  lines: tuple[Line, ...]


def json_of(text: str) -> Mapping[str, Any]:
  """The one JSON object of an answer, also within a fence or after a sentence.

  Nothing is mended or chosen between: an answer that is cut, broken or double is asked for again.

  Raises:
    DataError: there is none, or more than one.
  """
  fenced = [match for match in _FENCED.finditer(text) if "{" in match[1]]
  if len(fenced) > 1:
    raise DataError(_MANY)
  inner = (fenced[0][1] if fenced else text).strip()
  start = inner.find("{")
  if start < 0:
    raise DataError("holds no JSON object")
  try:
    value, end = json.JSONDecoder(**jsonl.STRICT).raw_decode(inner, start)
    json.dumps(value, ensure_ascii=False).encode()
  except json.JSONDecodeError as error:
    raise DataError(f"not valid JSON ({error.msg} at character {error.pos})") from None
  except UnicodeEncodeError:
    raise DataError("not usable JSON (half of a surrogate pair)") from None
  except RecursionError:
    raise DataError("not usable JSON (nested too deeply)") from None
  except ValueError as error:
    raise DataError(f"not usable JSON ({error})") from None
  around = [text[: fenced[0].start()], text[fenced[0].end() :]] if fenced else []
  if "{" in inner[end:] or any(map(_holds_object, around)):
    raise DataError(_MANY)
  return rows.object_of(value, "answer")


def _holds_object(text: str) -> bool:
  """Whether there is an object with a field in it; prose about {names} has none."""
  return bool(re.search(r'\{\s*"', text))


def scenes(text: str, first: int, last: int) -> tuple[list[Person], list[Stretch]]:
  """Who was found in the paragraphs `first` to `last`, and the scenes.

  Raises:
    DataError: the form is not that asked for, or a number lies outside.
  """
  row = json_of(text)
  found = []
  for i, entry in enumerate(_objects(row, "scenes")):
    a, b = entry.get("first"), entry.get("last")
    if type(a) is not int or type(b) is not int:  # true is an int too.
      raise DataError(f"scenes[{i}]: first and last must be numbers of paragraphs")
    if not first <= a <= b <= last:
      raise DataError(f"scenes[{i}]: {a} to {b} is not within {first} to {last}, in order")
    cut = entry.get("cut") or ""
    if cut not in _CUTS:
      raise DataError(f"scenes[{i}].cut: {str(cut)[:40]!r} is not one of {', '.join(_CUTS)}")
    found.append(Stretch(a, b, *_CUTS[cut]))
  return _people(row), sorted(found, key=lambda s: (s.first, s.last))


def cast(text: str) -> list[Person]:
  """The characters of the whole book.

  Raises:
    DataError: the form is not that asked for.
  """
  found = _people(json_of(text))
  if not found:
    raise DataError("characters: missing or empty")
  return found


def dialogue(text: str) -> Dialogue:
  """A scene's dialogue.

  Raises:
    DataError: the form is not that asked for, or the scenario is missing.
  """
  row = json_of(text)
  lines = []
  for i, entry in enumerate(_objects(row, "lines")):
    at = f"lines[{i}]."
    speaker = rows.required_text(entry, "speaker", "name the speaker", at).strip()
    speech = rows.text_of(entry, "speech", at).strip()
    lines.append(Line(speaker, speech, rows.text_of(entry, "action", at).strip()))
  motives, experience = {}, {}
  for i, entry in enumerate(_objects(row, "characters")):
    at = f"characters[{i}]."
    name = rows.required_text(entry, "name", "name the character", at).strip()
    motives[name] = rows.text_of(entry, "motivation", at).strip()
    experience[name] = rows.text_of(entry, "experience", at).strip()
  return Dialogue(
    rows.required_text(row, "scenario", "describe the situation").strip(),
    rows.text_of(row, "topic").strip(),
    rows.text_of(row, "summary").strip(),
    motives,
    experience,
    tuple(lines),
  )


def profile(text: str) -> str:
  """A character's profile.

  Raises:
    DataError: there is none.
  """
  return rows.required_text(json_of(text), "profile", "write it").strip()


def _people(row: Mapping[str, Any]) -> list[Person]:
  found = []
  for i, entry in enumerate(_objects(row, "characters")):
    at = f"characters[{i}]."
    name = rows.required_text(entry, "name", "name the character", at).strip()
    aliases = entry.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(a, str) for a in aliases):
      raise DataError(f"{at}aliases: expected a list of texts")
    description = rows.text_of(entry, "description", at).strip()
    found.append(Person(name, tuple(a.strip() for a in aliases if a.strip()), description))
  return found


def _objects(row: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
  value = row.get(field, [])
  if not isinstance(value, list):
    raise DataError(f"{field}: expected a list of objects")
  return [rows.object_of(entry, f"{field}[{i}]") for i, entry in enumerate(value)]
