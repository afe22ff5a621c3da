"""An append-only file of calls and their answers: a run that is killed pays for none twice.

A line a record. `begin` says that a call is about to be sent, `reply` and `failed` how it
ended. A call that began and never ended is in doubt: the endpoint may have been paid for it.
"""

from collections.abc import Iterator
import dataclasses
import json
import os
import pathlib
import threading
from typing import Any

from her_jax import locks
from her_jax.errors import ConfigError
from her_jax.llm.messages import Failure, Reply, Request, Usage

_KINDS = ("begin", "reply", "failed")


class Journal:
  """Of one process at a time. In memory are keys and offsets alone, about 200 bytes an answer.

  Attributes:
    spent: Tokens of all that the file holds, failed calls too, up to now.
    told: Number of calls whose tokens are known.
    in_doubt: Calls that were sent and whose answer no earlier run wrote down.
    lost: Keys of calls that were or will have been sent more often than answered: those in
      doubt, and those with an attempt whose answer was lost on its way. No other call can have
      been paid for twice.
    torn: Bytes of an unfinished last line that a crash left; they are moved to `<path>.torn`.
  """

  def __init__(self, path: str | os.PathLike[str]):
    """Opens `path`, or begins it.

    Raises:
      ConfigError: Another process has it open, or a line that is not the last is damaged.
    """
    self.path = pathlib.Path(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._file = self.path.open("a+b", buffering=0)
    try:
      locks.take(self._file)
    except BlockingIOError:
      self._file.close()
      raise ConfigError(
        f"{self.path} is in use by another process: wait for it, or choose another workdir"
      ) from None
    self.spent, self.told, self.in_doubt, self.torn = Usage(), 0, 0, 0
    self.lost: set[str] = set()
    self._offsets: dict[bytes, int] = {}
    try:
      self._read()
    except ConfigError:
      self._file.close()
      raise
    _sync_folder(self.path.parent)  # Or a new file's name may be gone with the machine.
    self._written = self._synced = 0
    self._end = self._file.seek(0, os.SEEK_END)
    self._lock, self._sync_lock = threading.Lock(), threading.Lock()

  def __len__(self) -> int:
    """Number of answers."""
    return len(self._offsets)

  def __enter__(self) -> "Journal":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Gives the file free."""
    self._file.close()

  def get(self, key: str) -> Reply | None:
    """The answer to a call that was paid for."""
    offset = self._offsets.get(bytes.fromhex(key))
    if offset is None:
      return None
    with self.path.open("rb") as file:
      file.seek(offset)
      return _reply(json.loads(file.readline())["reply"])

  def begin(self, key: str, request: Request) -> None:
    """Notes that a call is about to be sent; returns once that is on disk."""
    _, count = self._append({"kind": "begin", "key": key, "id": request.id})
    self._sync(count)

  def end(self, key: str, request: Request, answer: Reply | Failure) -> None:
    """Keeps an answer; returns once it is on disk."""
    kind = "reply" if isinstance(answer, Reply) else "failed"
    fields = dataclasses.asdict(answer)
    fields.pop("cached", None)
    row = {"kind": kind, "key": key, "id": request.id, "tag": request.tag, kind: fields}
    offset, count = self._append(row)
    self._sync(count)
    with self._lock:
      self._count(key, kind, answer.usage, answer.attempts)
      if kind == "reply":
        self._offsets[bytes.fromhex(key)] = offset

  def _count(self, key: str, kind: str, usage: Usage, attempts: int) -> None:
    self.spent = self.spent + usage
    self.told += usage.told
    # A first attempt that was answered is not lost, though its tokens may not be told.
    if usage.unknown and not (kind == "reply" and attempts == 1):
      self.lost.add(key)

  def _append(self, row: dict[str, Any]) -> tuple[int, int]:
    """Writes a whole line or none; gives its offset and the number of lines written."""
    line = json.dumps(row, ensure_ascii=True).encode() + b"\n"
    with self._lock:
      offset = self._end
      view = memoryview(line)
      try:
        while view:
          view = view[self._file.write(view) :]
      except OSError:  # A full disk: the next line must not stand behind half of this one.
        os.ftruncate(self._file.fileno(), offset)
        raise
      self._end += len(line)
      self._written += 1
      return offset, self._written

  def _sync(self, count: int) -> None:
    """Waits until `count` records are on disk; those who wait together share one fsync."""
    with self._sync_lock:
      if self._synced < count:
        written = self._written
        os.fsync(self._file.fileno())
        self._synced = written

  def _read(self) -> None:
    begun: set[bytes] = set()
    for offset, row in self._rows():
      name = bytes.fromhex(row["key"])
      if row["kind"] == "begin":
        if name in begun:
          self.in_doubt += 1
          self.lost.add(row["key"])
        begun.add(name)
        continue
      begun.discard(name)
      ended = row[row["kind"]]
      self._count(row["key"], row["kind"], Usage(**ended["usage"]), ended.get("attempts", 1))
      if row["kind"] == "reply":
        self._offsets[name] = offset
    self.in_doubt += len(begun)
    self.lost |= {name.hex() for name in begun}

  def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
    offset = 0
    with self.path.open("rb") as file:
      for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
          self._cut(offset, line)
          return
        yield offset, _row(self.path, number, line)
        offset += len(line)

  def _cut(self, offset: int, line: bytes) -> None:
    """Takes an unfinished last line out of the file, and keeps it beside it."""
    with self.path.with_name(f"{self.path.name}.torn").open("ab") as torn:
      torn.write(line + b"\n")
    os.truncate(self.path, offset)
    self.torn += len(line)


def _row(path: str | os.PathLike[str], number: int, line: bytes) -> dict[str, Any]:
  """A record. Raises ConfigError, with the place, for what none is."""
  try:
    row = json.loads(line)
    if row["kind"] not in _KINDS:
      raise ValueError(f"kind {row['kind']!r}")
    bytes.fromhex(row["key"])
    if row["kind"] != "begin":
      usage = Usage(**row[row["kind"]]["usage"])
      if not all(type(count) is int for count in dataclasses.astuple(usage)):
        raise ValueError("usage is no numbers")
      if not all(0 <= count <= Usage.MOST for count in dataclasses.astuple(usage)):
        raise ValueError("usage can be no number of tokens")
    if row["kind"] == "reply":
      _reply(row["reply"])
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ConfigError(
      f"{path}:{number}: damaged ({type(error).__name__}: {error}); delete this line"
      " to pay for its call once more, or bring the file back from a copy"
    ) from None
  return row


def _reply(row: dict[str, Any]) -> Reply:
  reply = Reply(**{**row, "usage": Usage(**row["usage"])})
  for name in ("text", "reasoning", "finish_reason"):
    if not isinstance(getattr(reply, name), str):
      raise ValueError(f"{name} is no text")
  return reply


def _sync_folder(folder: pathlib.Path) -> None:
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def replies(path: str | os.PathLike[str]) -> Iterator[tuple[str, Reply]]:
  """The id and reply of every answer of a journal, in the order in which they came.

  An unfinished last line, which a crash leaves, is left out.

  Raises:
    ConfigError: A line is damaged.
  """
  with open(path, "rb") as file:
    for number, line in enumerate(file, 1):
      if not line.endswith(b"\n"):
        return
      row = _row(path, number, line)
      if row["kind"] == "reply":
        yield row["id"], _reply(row["reply"])
