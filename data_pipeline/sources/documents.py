"""Files → their rows, one after another, each with its place, whatever form the file has.

JSON Lines, a JSON list, a single JSON object over many lines, Parquet, Arrow. A row that cannot
be read is given as its fault, so that the caller chooses to stop or to go on. Lists are read
element by element: memory does not grow with the file.
"""

import codecs
from collections.abc import Iterator, Mapping
import dataclasses
import os
import pathlib
import re
from typing import Any, BinaryIO

from data_pipeline.sources import encoding as enc
from data_pipeline.sources.json_list import ListReader
from her_jax.roleplay.jsonl import parse_json
from her_jax.roleplay.schema import DataError

MAX_ROW = 64 << 20  # bytes; a file without line breaks must not fill the memory
_CHUNK = 1 << 16  # bytes
_NUL = "holds NUL bytes, as a damaged file does; fetch it again, or " + enc.HINT


@dataclasses.dataclass(frozen=True)
class Record:
  """One row as it was read.

  Attributes:
    place: `file:line`, or `file: row N` where a file has no lines.
    row: its JSON value, or the fault that kept it from being read.
    raw: its text or bytes, where there are any; b"" for rows of Parquet and Arrow.
  """

  place: str
  row: Any
  raw: bytes | str = b""


def records(path: str | os.PathLike[str], encoding: str | None = None) -> Iterator[Record]:
  """The rows of one file, by its content.

  Args:
    encoding: of a text file; None looks at its bytes.

  Raises:
    DataError: there is no such file, or it can be no text.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise DataError(f"{path}: no such file; pass an existing one")
  with path.open("rb") as file:
    start = file.read(8)
  if start.startswith(b"PAR1"):
    yield from hub_rows(str(path), "parquet")
    return
  if start.startswith(b"ARROW1") or path.suffix.casefold() == ".arrow":
    yield from hub_rows(str(path), "arrow")
    return
  if start.startswith((b"\x1f\x8b", b"PK\x03\x04")):
    raise DataError(f"{path}: compressed; unpack it first")
  name = enc.known(encoding) if encoding else enc.detect(path)
  with path.open("rb") as file:
    yield from _text_records(path, file, name)


def _text_records(path: pathlib.Path, opened: BinaryIO, name: str) -> Iterator[Record]:
  file: Any = opened
  if name not in ("utf-8", "utf-8-sig", "ascii"):
    file = _Recoded(opened, name)
  first, _, second = _head(file).lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
  second = second.lstrip(b" \t\r\n")
  if not first:
    return
  if first.startswith(b"[") and not (second.startswith(b"[") and first.rstrip().endswith(b"]")):
    yield from _list_records(path, file)
  elif first.startswith(b"{") and _goes_on(first.rstrip(), second):
    yield from _whole(path, file)
  else:
    yield from _lines(path, file)


class _Recoded:
  """A file of another encoding as UTF-8, block by block.

  What cannot be decoded becomes the byte 0xFF, which no UTF-8 holds: its line is told of where
  it is parsed.
  """

  def __init__(self, file: BinaryIO, name: str):
    self._file, self._name = file, name
    codecs.register_error("her_jax.fault", lambda error: ("\udcff", _end_of(error)))
    self.seek(0)

  def seek(self, offset: int) -> None:
    """Back to the start, wherever `offset` is."""
    self._file.seek(0)
    self._decoder = codecs.getincrementaldecoder(self._name)("her_jax.fault")
    self._left, self._at_end = b"", False

  def readline(self, size: int) -> bytes:
    line = b""
    while True:
      cut = min(self._left.find(b"\n") + 1 or len(self._left), size - len(line))
      line, self._left = line + self._left[:cut], self._left[cut:]
      if line.endswith(b"\n") or len(line) >= size or not self._fill():
        return line

  def read(self, size: int) -> bytes:
    while len(self._left) < size and self._fill():
      pass
    data, self._left = self._left[:size], self._left[size:]
    return data

  def _fill(self) -> bool:
    """Decodes one more block; False at the end."""
    if self._at_end:
      return False
    block = self._file.read(_CHUNK)
    self._at_end = not block
    self._left += self._decoder.decode(block, self._at_end).encode("utf-8", "surrogateescape")
    return True


def _end_of(error: UnicodeError) -> int:
  return error.end if isinstance(error, UnicodeDecodeError) else 0


def _head(file: BinaryIO) -> bytes:
  """The start of a file, up to the end of its second line or a chunk."""
  head = b"".join(file.readline(_CHUNK) for _ in range(3))
  file.seek(0)
  return head


def _goes_on(line: bytes, following: bytes) -> bool:
  """Whether an object goes on over the line break, as an indented one does."""
  if not following or not line.endswith((b"{", b",", b"[")):
    return False
  return not following.startswith(b"{") or line.endswith(b"[")


def _lines(path: pathlib.Path, file: BinaryIO) -> Iterator[Record]:
  number = 0
  while raw := file.readline(MAX_ROW):
    number += 1
    place = f"{path}:{number}"
    if len(raw) >= MAX_ROW and not raw.endswith(b"\n"):
      while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
        pass
      fault = f"longer than {MAX_ROW >> 20} MiB; write one object a line"
      yield Record(place, DataError(fault), raw[:1000])
      continue
    row = _parsed(raw)
    if row is not None:
      yield Record(place, row, raw)


def _whole(path: pathlib.Path, file: BinaryIO) -> Iterator[Record]:
  raw = file.read(MAX_ROW + 1)
  if len(raw) > MAX_ROW:
    yield Record(f"{path}:1", DataError(f"larger than {MAX_ROW >> 20} MiB; write JSON Lines"))
    return
  row = _parsed(raw)
  line = 1
  if isinstance(row, DataError) and (told := re.search(r"at line (\d+)", str(row))):
    line = int(told[1])
  yield Record(f"{path}:{line}", row, raw)


def _parsed(raw: bytes) -> Any:
  """The value of one JSON text, None for blanks, or its fault."""
  if b"\0" in raw:
    return DataError(_NUL)
  try:
    row = parse_json(raw)
  except DataError as error:
    mend = f"; {enc.HINT}" if "not UTF-8" in str(error) else ""
    return DataError(f"{error}{mend}")
  return row


def _list_records(path: pathlib.Path, file: BinaryIO) -> Iterator[Record]:
  entries = ListReader(file, MAX_ROW)
  for line, raw in entries:
    row = _parsed(raw) if raw else DataError("an empty entry; remove the comma")
    yield Record(f"{path}:{line}", row, raw)
  if entries.fault:
    yield Record(f"{path}:{entries.fault_line}", DataError(entries.fault))


def hub_rows(
  source: str, builder: str = "", config: str | None = None, split: str = "train"
) -> Iterator[Record]:
  """Rows that the `datasets` library reads, streaming.

  Args:
    source: a Parquet or Arrow file with its `builder`; else a folder that `save_to_disk` made,
      a folder of files with a data set card, or a data set's name on the Hub.
    config: its configuration, where it has several.

  Raises:
    DataError: the library finds no such data set, configuration or split.
  """
  import datasets  # Takes seconds to import.

  try:
    if builder:
      # Bounded to one file, so that the row's number is that within the file.
      rows = datasets.load_dataset(builder, data_files=source, split="train", streaming=True)
    elif (pathlib.Path(source) / "state.json").is_file():
      rows = datasets.load_from_disk(source).to_iterable_dataset()
    elif (pathlib.Path(source) / "dataset_dict.json").is_file():
      rows = datasets.load_from_disk(source)[split].to_iterable_dataset()
    else:
      rows = datasets.load_dataset(source, config, split=split, streaming=True)
    for number, row in enumerate(rows, 1):
      yield Record(f"{source}: row {number}", without_nulls(row))
  except DataError:
    raise
  except Exception as error:  # The library raises a class of its own for each cause.
    told = " ".join(f"{type(error).__name__}: {error}".split())
    raise DataError(f"{source}: cannot be read as a data set ({told[:300]})") from None


def without_nulls(value: Any) -> Any:
  """A row without the fields that are null, or NaN, which many tables write for it.

  Tables give every row all the fields of all rows: objects by name hold a null for each name
  of the other rows.
  """
  if isinstance(value, Mapping):
    return {name: without_nulls(v) for name, v in value.items() if v is not None and v == v}
  if isinstance(value, list):
    return [without_nulls(entry) for entry in value]
  return value
