"""An append-only file of calls and their answers: a run that is killed pays for none twice.

A line a record. `begin` says that a call is about to be sent, `reply` and `failed` how it
ended. A call that began and never ended is in doubt: the endpoint may have been paid for it.
"""

from collections.abc import Iterator
import dataclasses
import fcntl
import json
import os
import pathlib
import threading
from typing import Any

from her_jax.errors import ConfigError
from her_jax.llm.messages import Failure, Reply, Request, Usage


class Journal:
  """Of one process at a time. In memory are keys and offsets alone, 100 bytes an answer.

  Attributes:
    spent: Tokens of all that the file holds, failed calls too.
    in_doubt: Calls that were sent and whose answer no earlier run wrote down.
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
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      self._file.close()
      raise ConfigError(
        f"{self.path} is in use by another process: wait for it, or choose another workdir"
      ) from None
    self.spent, self.in_doubt, self.torn = Usage(), 0, 0
    self._offsets: dict[bytes, int] = {}
    self._read()
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
    """Notes that a call is about to be sent. Survives the process, not the machine."""
    self._append({"kind": "begin", "key": key, "id": request.id})

  def end(self, key: str, request: Request, answer: Reply | Failure) -> None:
    """Keeps an answer; returns once it is on disk."""
    kind = "reply" if isinstance(answer, Reply) else "failed"
    fields = dataclasses.asdict(answer)
    fields.pop("cached", None)
    row = {"kind": kind, "key": key, "id": request.id, "tag": request.tag, kind: fields}
    offset, count = self._append(row)
    self._sync(count)
    if kind == "reply":
      self._offsets[bytes.fromhex(key)] = offset

  def _append(self, row: dict[str, Any]) -> tuple[int, int]:
    line = json.dumps(row, ensure_ascii=True).encode() + b"\n"
    with self._lock:
      offset = self._end
      view = memoryview(line)
      while view:
        view = view[self._file.write(view) :]
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
        self.in_doubt += name in begun
        begun.add(name)
        continue
      begun.discard(name)
      self.spent = self.spent + Usage(**row[row["kind"]]["usage"])
      if row["kind"] == "reply":
        self._offsets[name] = offset
    self.in_doubt += len(begun)

  def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
    offset = 0
    with self.path.open("rb") as file:
      for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
          self._cut(offset, line)
          return
        try:
          row = json.loads(line)
          if row["kind"] not in ("begin", "reply", "failed"):
            raise ValueError(row["kind"])
          bytes.fromhex(row["key"])
          if row["kind"] != "begin":
            Usage(**row[row["kind"]]["usage"])
        except (ValueError, KeyError, TypeError) as error:
          raise ConfigError(
            f"{self.path}:{number}: damaged ({type(error).__name__}: {error}); delete this line"
            " to pay for its call once more, or bring the file back from a copy"
          ) from None
        yield offset, row
        offset += len(line)

  def _cut(self, offset: int, line: bytes) -> None:
    """Takes an unfinished last line out of the file, and keeps it beside it."""
    with self.path.with_name(f"{self.path.name}.torn").open("ab") as torn:
      torn.write(line + b"\n")
    os.truncate(self.path, offset)
    self.torn += len(line)


def _reply(row: dict[str, Any]) -> Reply:
  return Reply(**{**row, "usage": Usage(**row["usage"])})


def replies(path: str | os.PathLike[str]) -> Iterator[tuple[str, Reply]]:
  """The id and reply of every answer of a journal, in the order in which they came.

  Raises:
    ConfigError: A line is damaged.
  """
  with open(path, "rb") as file:
    for number, line in enumerate(file, 1):
      if not line.endswith(b"\n"):
        return
      try:
        row = json.loads(line)
        if row["kind"] == "reply":
          yield row["id"], _reply(row["reply"])
      except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}:{number}: damaged; delete this line") from None
