"""A character's lorebook: texts that join the prompt once the talk comes to their keys.

Read are the books of V2 and V3 cards and the world-info export, which names some fields
differently and keeps its entries in an object. Decorators (lines with `@@`) stay in the
content, and the export's `selectiveLogic` in `extra`: neither is obeyed.
"""

from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

from her_jax.roleplay.schema import DataError

REGEX_SECONDS = 1.0  # A pattern of a stranger's card may take for ever; `re` has no limit.

# What a world-info export calls the fields.
_WORLD_INFO = {
  "key": "keys",
  "keysecondary": "secondary_keys",
  "order": "insertion_order",
  "uid": "id",
  "caseSensitive": "case_sensitive",
}
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}


@dataclasses.dataclass(frozen=True)
class LoreEntry:
  """One text of a lorebook and when it applies.

  Attributes:
    keys: any of them in the talk makes the entry apply; patterns if `use_regex`.
    content: what joins the prompt.
    name: a label for people, as is `comment`; neither belongs into a prompt.
    secondary_keys: with `selective`, one of them must occur too; none at all demand nothing.
    constant: applies whatever was said.
    enabled: applies never if False.
    case_sensitive: None, where the card leaves it open, counts as False.
    use_regex: keys are regular expressions, bare or as `/pattern/flags`.
    insertion_order: the lower, the earlier in the prompt.
    priority: the lower, the earlier it gives way where the book exceeds its budget.
    position: "before_char", "after_char" or a world-info export's number.
    extra: fields that are not known here, `extensions` among them; none of the known names.
  """

  keys: tuple[str, ...]
  content: str
  name: str = ""
  comment: str = ""
  id: int | float | str | None = None
  secondary_keys: tuple[str, ...] = ()
  selective: bool = False
  constant: bool = False
  enabled: bool = True
  case_sensitive: bool | None = None
  use_regex: bool = False
  insertion_order: int | float = 0
  priority: int | float | None = None
  position: int | float | str | None = None
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Lorebook:
  """Entries and how they are looked for.

  Attributes:
    scan_depth: how many of the last messages are searched; None means all.
    token_budget: in tokens of the caller's tokenizer, so keeping to it is the caller's part.
    recursive_scanning: whether the content of entries that apply is searched too.
    extra: fields that are not known here, `extensions` among them.
  """

  name: str = ""
  description: str = ""
  scan_depth: int | float | None = None
  token_budget: int | float | None = None
  recursive_scanning: bool = False
  entries: tuple[LoreEntry, ...] = ()
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)

  def active(self, recent_texts: Sequence[str]) -> list[LoreEntry]:
    """The entries that apply, by insertion order.

    Args:
      recent_texts: the messages, the oldest first.

    Raises:
      DataError: a pattern is no regular expression or takes longer than REGEX_SECONDS.

    Example:
      entry = LoreEntry(("quay",), "It is slippery.")
      Lorebook(entries=(entry,)).active(["On the Quay."]) == [entry]
    """
    texts = list(recent_texts)
    if self.scan_depth is not None:
      texts = texts[max(len(texts) - max(int(self.scan_depth), 0), 0) :]
    waiting = [i for i, entry in enumerate(self.entries) if entry.enabled]
    chosen: list[int] = []
    # Every round takes an entry from those that wait, or is the last.
    while found := [i for i in waiting if self._applies(i, texts)]:
      chosen += found
      if not self.recursive_scanning:
        break
      texts += [self.entries[i].content for i in found]
      waiting = [i for i in waiting if i not in chosen]
    # Sorted by place first: entries of the same order stay as the book has them.
    entries = [self.entries[i] for i in sorted(chosen)]
    return sorted(entries, key=lambda entry: entry.insertion_order)

  def _applies(self, index: int, texts: Sequence[str]) -> bool:
    entry = self.entries[index]
    if entry.constant:
      return True
    if not self._any(index, "keys", texts):
      return False
    needs_second = entry.selective and any(key.strip() for key in entry.secondary_keys)
    return not needs_second or self._any(index, "secondary_keys", texts)

  def _any(self, index: int, field: str, texts: Sequence[str]) -> bool:
    entry = self.entries[index]
    keys = [(i, key) for i, key in enumerate(getattr(entry, field)) if key.strip()]
    if entry.use_regex:
      label = entry.name or entry.comment
      named = f" ({label!r})" if label else ""
      return any(
        _search(key, bool(entry.case_sensitive), texts, f"entries[{index}]{named}.{field}[{i}]")
        for i, key in keys
      )
    if entry.case_sensitive:
      return any(key in text for _, key in keys for text in texts)
    folded = [text.casefold() for text in texts]
    return any(key.casefold() in text for _, key in keys for text in folded)


def lorebook_from_dict(row: Any, where: str) -> Lorebook:
  """Builds a lorebook from a card's JSON; `where` is its place for the messages.

  Raises:
    DataError: names the field and the mend.
  """
  fields = Fields(row, where)
  entries = fields.take("entries")
  if entries is None:
    entries = []
  elif isinstance(entries, dict):  # A world-info export numbers them by key.
    entries = list(entries.values())
  elif not isinstance(entries, list):
    raise DataError(f"{where}.entries: expected a list, got {kind(entries)}; give a list")
  return Lorebook(
    name=fields.text("name", numbers=True),
    description=fields.text("description"),
    scan_depth=fields.number("scan_depth"),
    token_budget=fields.number("token_budget"),
    recursive_scanning=bool(fields.flag("recursive_scanning")),
    entries=tuple(_entry(e, f"{where}.entries[{i}]") for i, e in enumerate(entries)),
    extra=fields.rest,
  )


def lorebook_to_dict(book: Lorebook) -> dict[str, Any]:
  """The book as in a V3 card; `lorebook_from_dict` gives it back."""
  return {**_row(book), "entries": [_row(entry) for entry in book.entries]}


class Fields:
  """Takes the known fields out of a JSON object; `rest` is what nobody asked for.

  A missing field, null and an empty text all mean the default: cards come from many editors.
  """

  def __init__(self, row: Any, where: str):
    if not isinstance(row, dict):
      raise DataError(f"{where}: expected an object, got {kind(row)}; write it as {{…}}")
    self.rest = dict(row)
    self._where = where

  def take(self, name: str) -> Any:
    """The value as it is; None where it is missing or an empty text."""
    value = self.rest.pop(name, None)
    return None if value == "" else value

  def text(self, name: str, numbers: bool = False) -> str:
    """A text; with `numbers` a number is taken for its digits."""
    value = self.take(name)
    if value is None:
      return ""
    if numbers and _is_number(value):
      return str(value)
    if not isinstance(value, str):
      raise self.fault(name, f"expected a text, got {kind(value)}", "put it in quotes")
    return value

  def texts(self, name: str, split: bool = False) -> tuple[str, ...]:
    """A list of texts; with `split` numbers and a text with commas will do."""
    value = self.take(name)
    if value is None:
      return ()
    if split and isinstance(value, str):
      return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list):
      raise self.fault(name, f"expected a list, got {kind(value)}", "give a list of texts")
    if split:
      value = [str(v) if _is_number(v) else v for v in value]
    for i, v in enumerate(value):
      if not isinstance(v, str):
        raise self.fault(
          f"{name}[{i}]", f"expected a text, got {kind(v)}", "give it in quotes or remove it"
        )
    return tuple(value)

  def number(self, name: str) -> int | float | None:
    value = self.take(name)
    if value is not None and not _is_number(value):
      raise self.fault(name, f"expected a number, got {kind(value)}", "write it without quotes")
    return value

  def flag(self, name: str) -> bool | None:
    value = self.take(name)
    if value is not None and not isinstance(value, bool):
      raise self.fault(
        name, f"expected true or false, got {kind(value)}", "write true or false without quotes"
      )
    return value

  def label(self, name: str) -> int | float | str | None:
    """A text or a number, whichever the card has."""
    value = self.take(name)
    if value is not None and not isinstance(value, str) and not _is_number(value):
      raise self.fault(name, f"expected a text or a number, got {kind(value)}", "give either")
    return value

  def fault(self, name: str, what: str, mend: str) -> DataError:
    return DataError(f"{self.place(name)}: {what}; {mend}")

  def place(self, name: str) -> str:
    """Where a field stands, for messages."""
    return f"{self._where}.{name}" if self._where else name


def kind(value: Any) -> str:
  """What JSON calls a value. The value itself may be too long for a message."""
  if isinstance(value, float) and not math.isfinite(value):
    return "an infinite number or NaN"
  return "null" if value is None else _KINDS.get(type(value), "a number")


def _entry(row: Any, where: str) -> LoreEntry:
  if isinstance(row, dict) and "key" in row and "keys" not in row:
    row = {_WORLD_INFO.get(name, name): value for name, value in row.items()}
    if isinstance(row.get("disable"), bool):
      row["enabled"] = not row.pop("disable")
  fields = Fields(row, where)
  enabled = fields.flag("enabled")
  use_regex = bool(fields.flag("use_regex"))
  if use_regex and isinstance(row.get("keys"), str):
    fields.rest["keys"] = [row["keys"]]  # A comma within a pattern separates nothing.
  return LoreEntry(
    keys=fields.texts("keys", split=True),
    content=fields.text("content"),
    name=fields.text("name", numbers=True),
    comment=fields.text("comment", numbers=True),
    id=fields.label("id"),
    secondary_keys=fields.texts("secondary_keys", split=True),
    selective=bool(fields.flag("selective")),
    constant=bool(fields.flag("constant")),
    enabled=True if enabled is None else enabled,
    case_sensitive=fields.flag("case_sensitive"),
    use_regex=use_regex,
    insertion_order=fields.number("insertion_order") or 0,
    priority=fields.number("priority"),
    position=fields.label("position"),
    extra=fields.rest,
  )


def _row(made: LoreEntry | Lorebook) -> dict[str, Any]:
  """The known fields that say something, then the others."""
  names = [field.name for field in dataclasses.fields(made) if field.name != "extra"]
  known = {name: v for name in names if (v := getattr(made, name)) not in (None, "")}
  return {**known, **made.extra, **known}


def _is_number(value: Any) -> bool:
  """A finite one: Python's JSON also reads NaN and 1e999, which no order or depth can be."""
  if isinstance(value, float):
    return math.isfinite(value)
  return isinstance(value, int) and not isinstance(value, bool)


def _search(pattern: str, case_sensitive: bool, texts: Sequence[str], where: str) -> bool:
  import regex  # Comes with transformers; unlike `re` it can be stopped.

  flags = 0 if case_sensitive else regex.IGNORECASE
  if parts := re.fullmatch(r"/(.*)/([a-z]*)", pattern, re.DOTALL):
    pattern, letters = parts.groups()
    for letter, flag in (("i", regex.I), ("m", regex.M), ("s", regex.S)):
      flags |= flag if letter in letters else 0
  try:
    compiled = regex.compile(pattern, flags)
    return any(compiled.search(text, timeout=REGEX_SECONDS) for text in texts)
  except TimeoutError:
    raise DataError(
      f"{where}: searching takes more than {REGEX_SECONDS:g} s; simplify nested repetitions"
    ) from None
  except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
    raise DataError(
      f"{where}: not a regular expression ({error}); mend it or set use_regex to false"
    ) from None
