"""JSON objects and tagged texts out of what a model wrote around them.

What is mended is bounded: text around an object, fences, trailing commas, raw line breaks
within strings. A reply that was cut is never completed, two answers are never chosen between,
nothing is evaluated, and the time is linear in the length.
"""

from collections.abc import Iterator
import json
import re
from typing import Any

from data_pipeline.asking.question import Rejected
from her_jax.roleplay import jsonl

MOST_CHARACTERS = 2_000_000
# Braces that begin no object, as in prose about {names}, are passed over so often.
_MOST_STARTS = 12
_SIGN = re.compile(r'\\.|["{}\[\],]', re.DOTALL)
_CLOSES = {"{": "}", "[": "]"}


class Unrecoverable(Rejected):
  """The text holds no usable answer."""


def json_object(text: str, key: str) -> dict[str, Any]:
  """The one JSON object at the top level of `text` that has the field `key`.

  Raises:
    Unrecoverable: `truncated` (an object is never closed), `ambiguous` (two objects have the
      field), `too_long`, or `malformed`.

  Example:
    json_object('Here: {"turns": [1, 2,]} Done.', "turns") == {"turns": [1, 2]}
  """
  if len(text) > MOST_CHARACTERS:
    raise Unrecoverable(
      "too_long", f"{len(text)} characters; at most {MOST_CHARACTERS} are read"
    )
  found, fault = [], Unrecoverable("malformed", f"no JSON object with the field {key!r}")
  for piece in _objects(text):
    if isinstance(piece, Unrecoverable):
      fault = piece
      continue
    try:
      value = _load(piece)
    except Unrecoverable as error:
      fault = error if fault.cause != "truncated" else fault
      continue
    if isinstance(value, dict) and key in value:
      found.append(value)
  if fault.cause == "truncated":  # Whole or not, what precedes a cut is not the answer.
    raise fault
  if len(found) > 1:
    raise Unrecoverable("ambiguous", f"{len(found)} objects with the field {key!r}; write one")
  if not found:
    raise fault
  return found[0]


def tagged(text: str, name: str) -> str:
  """The text between `<name>` and `</name>`, each of which has to stand once.

  Raises:
    Unrecoverable: `truncated`, `ambiguous` or `malformed`.
  """
  opens, closes = text.count(f"<{name}>"), text.count(f"</{name}>")
  if opens == 1 and not closes:
    raise Unrecoverable("truncated", f"<{name}> is never closed")
  if opens > 1 or closes > 1:
    raise Unrecoverable("ambiguous", f"<{name}> or </{name}> stands more than once; write one")
  _, opened, rest = text.partition(f"<{name}>")
  inside, closed, _ = rest.partition(f"</{name}>")
  if not opened or not closed:
    raise Unrecoverable("malformed", f"no <{name}>…</{name}>")
  return inside.strip()


def _objects(text: str) -> Iterator[str | Unrecoverable]:
  """The balanced `{…}` at the top level, without trailing commas; or why one is none."""
  at = starts = 0
  while (start := text.find("{", at)) >= 0:
    starts += 1
    if starts > _MOST_STARTS:
      yield Unrecoverable("malformed", f"more than {_MOST_STARTS} braces outside of objects")
      return
    end, commas = _end(text, start)
    if end is None:
      if _begins_object(text, start):
        yield Unrecoverable("truncated", "an object is begun and never closed")
        return
      at = start + 1
      continue
    kept, done = [], start
    for comma in commas:
      kept.append(text[done:comma])
      done = comma + 1
    yield "".join([*kept, text[done:end]])
    at = end


def _begins_object(text: str, start: int) -> bool:
  """Whether a field's name or nothing at all stands behind the brace: then prose it is not."""
  return not (rest := text[start + 1 : start + 1000].lstrip()) or rest[0] == '"'


def _end(text: str, start: int) -> tuple[int | None, list[int]]:
  """Where the object that opens at `start` ends, and its trailing commas."""
  stack: list[str] = []
  commas: list[int] = []
  in_string, comma, last, done = False, -1, "", start
  for match in _SIGN.finditer(text, start):
    sign = match[0]
    if sign == '"':
      in_string = not in_string
    elif in_string or sign[0] == "\\":
      continue
    elif sign == ",":
      # One behind nothing, as in [,], is no trailing comma.
      first = last in ("{", "[", ",") and not text[done : match.start()].strip()
      comma = -1 if first else match.start()
    elif sign in _CLOSES:
      stack.append(_CLOSES[sign])
    elif stack[-1] != sign:
      return None, []
    else:
      if comma >= 0 and not text[comma + 1 : match.start()].strip():
        commas.append(comma)
      stack.pop()
      if not stack:
        return match.end(), commas
    if sign != ",":
      comma = -1
    last, done = sign, match.end()
  return None, []


def _load(text: str) -> Any:
  try:
    value = json.loads(text, strict=False, **jsonl.STRICT)
    json.dumps(value, ensure_ascii=False).encode()
    jsonl.refuse_nul(value)
  except UnicodeEncodeError:
    raise Unrecoverable("malformed", "half of a surrogate pair") from None
  except RecursionError:
    raise Unrecoverable("malformed", "nested too deeply") from None
  except json.JSONDecodeError as error:
    raise Unrecoverable("malformed", f"no JSON: {error.msg} at character {error.pos}") from None
  except ValueError as error:
    raise Unrecoverable("malformed", f"no JSON: {error}") from None
  return value
