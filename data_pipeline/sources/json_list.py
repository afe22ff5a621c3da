"""The entries of a JSON list one at a time: a list of any length takes little memory."""

import codecs
from collections.abc import Iterator
import re
from typing import BinaryIO

_CHUNK = 1 << 16  # bytes
_SIGNS = re.compile(r'["\\{}\[\],\n]')


class ListReader:
  """Finds where the entries of a list begin and end, by its brackets and quotes.

  What stands in an entry is not looked at; bytes that are no UTF-8 come out as they are.

  Example:
    list(ListReader(io.BytesIO(b'[{"a": 1},\\n {"b": 2}]'), 1000)) ==
      [(1, b'{"a": 1}'), (2, b'{"b": 2}')]

  Attributes:
    fault: why it ended early, with `fault_line`; "" after a whole list.
  """

  def __init__(self, file: BinaryIO, longest: int):
    self._file, self._longest = file, longest
    self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    self._line = 1
    self._text = ""  # what was read and is not given yet
    self._entry_line = 1  # where `_text` begins
    self.fault, self.fault_line = "", 1

  def __iter__(self) -> Iterator[tuple[int, bytes]]:
    at, depth, quoted, given, skip = 0, 0, False, 0, -1
    while self._more():
      start = 0
      for sign in _SIGNS.finditer(self._text, at):
        kind = sign[0]
        if sign.start() < skip:
          continue
        if kind == "\n":
          self._line += 1
        elif quoted:
          if kind == "\\":
            skip = sign.start() + 2
          quoted = kind != '"'
        elif kind == '"':
          quoted = True
        elif kind in "{[":
          depth += 1
          if depth == 1:
            start, self._entry_line = sign.end(), self._line
        elif depth == 1 and kind in ",]":
          raw = self._text[start : sign.start()]
          if kind == "," or raw.strip() or given:
            yield self._given(raw)
            given += 1
          start, self._entry_line = sign.end(), self._line
          if kind == "]":
            self._text = self._text[start:]
            self._check_end()
            return
        elif kind in "}]":
          depth -= 1
      at, self._text = len(self._text) - start, self._text[start:]
      skip -= start
      if len(self._text) > self._longest:
        self._end("an entry without end; close it, or give each entry a line of its own")
        return
    self._end("the list ends within this entry; fetch the file again, or close the list")

  def _more(self) -> bool:
    block = self._file.read(_CHUNK)
    self._text += self._decoder.decode(block, final=not block)
    return bool(block)

  def _given(self, raw: str) -> tuple[int, bytes]:
    before = raw[: len(raw) - len(raw.lstrip())].count("\n")
    return self._entry_line + before, raw.strip().encode("utf-8", "surrogateescape")

  def _check_end(self) -> None:
    while not self._text.strip():
      if not self._more():
        return
    self._end("text follows the list; write one list, or JSON Lines")

  def _end(self, fault: str) -> None:
    self.fault = fault
    self.fault_line = self._given(self._text)[0]
