"""HER-Dataset: whole conversations (`full_info`, `clean`) and chats of one character.

    configuration    row                                              read by
    full_info        a plot's conversation with everything about it   formats.from_her_row
    clean            the same without what the making of it left      formats.from_her_row
    sft_multi_turn   one character's chat                             formats.from_messages
    sft_single_turn  the same up to one reply                         formats.from_messages

What the rows tell of their making goes where this project's own stages keep it: `extra["her"]`
with `book`, `chapter` and `passage` of a conversation; `origin_ids`, `original`, `reason`,
`layout` and `draft` of a turn.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
from typing import Any

from her_jax.roleplay import formats, rows
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory, Turn

CONFIGS = ("full_info", "clean", "sft_multi_turn", "sft_single_turn")
# Fields that hold objects by name, which tables keep as JSON in a text.
_PACKED = (
  "character_datasets",
  "training_samples",
  "conversation",
  "key_characters",
  "messages",
)
_MAKING = {
  "reason": "enhanced_reason",
  "layout": "enhanced_pattern",
  "draft": "sys_thinking_original",
}
_ORIGINALS = ("standard_format", "message")


def from_row(row: Row) -> list[Trajectory]:
  """The conversations of a row of `full_info` or `clean`.

  Raises:
    DataError: names the field and the mend.
  """
  return [_told(made) for made in formats.from_her_row(unpacked(row))]


def from_sft(row: Row, books: Mapping[str, str] | None = None) -> list[Trajectory]:
  """A chat of `sft_multi_turn` or `sft_single_turn`.

  A row names its book nowhere but in `trace_id`; see `books_of`. Without it the trace itself is
  the source, so that a conversation's samples stay together.

  Args:
    books: the book's name by trace id.

  Raises:
    DataError: names the field and the mend.
  """
  row = unpacked(row)
  made = formats.from_messages(row)
  trace = "" if row.get("trace_id") is None else str(row["trace_id"])
  book = rows.text_of(row, "book_name") or (books or {}).get(trace, "")
  extra = dict(made.extra)
  if book:
    extra["her"] = {**extra["her"], "book": book}
  return [dataclasses.replace(made, source=book or trace, extra=extra)]


def books_of(found: Iterable[Row]) -> dict[str, str]:
  """The book's name by trace id, out of rows of `full_info` or `clean`."""
  return {
    row["trace_id_book_chapter"]: row["book_name"]
    for row in found
    if isinstance(row, Mapping)
    and isinstance(row.get("trace_id_book_chapter"), str)
    and isinstance(row.get("book_name"), str)
  }


def unpacked(row: Row) -> Row:
  """A row whose objects stand in it as such, where a table keeps them as JSON in a text.

  Raises:
    DataError: the text is no JSON.
  """
  found: dict[str, Any] = {}
  for field in _PACKED:
    value = row.get(field)
    if isinstance(value, str) and value.strip():
      try:
        found[field] = json.loads(value)
      except (ValueError, RecursionError):
        raise DataError(f"{field}: a text that is no JSON; give the object itself") from None
  return {**row, **found} if found else row


def _told(made: Trajectory) -> Trajectory:
  """A conversation with what is known of its making under this project's names."""
  her = dict(made.extra["her"])
  told = {"book": made.source}
  for name, field in (("chapter", "chapter"), ("passage", "text")):
    if isinstance(value := her.pop(field, None), str) and value:
      told[name] = value
    elif value:
      her[field] = value
  turns = tuple(_turn_told(turn) for turn in made.turns)
  return dataclasses.replace(made, turns=turns, extra={**made.extra, "her": {**her, **told}})


def _turn_told(turn: Turn) -> Turn:
  her = turn.extra.get("her")
  if not her:
    return turn
  her = dict(her)
  told: dict[str, Any] = {}
  origin = her.pop("origin_id", None)
  if origin is not None:
    told["origin_ids"] = [str(o) for o in (origin if isinstance(origin, list) else [origin])]
  for field in _ORIGINALS:
    # Where nothing was enhanced, the reply itself is the original.
    if isinstance(her.get(field), str) and her[field].strip():
      told["original"] = her.pop(field)
      break
  for name, field in _MAKING.items():
    if isinstance(her.get(field), str) and her[field].strip():
      told[name] = her.pop(field)
  return dataclasses.replace(turn, extra={**turn.extra, "her": {**her, **told}})
