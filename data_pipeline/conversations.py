"""Streams files of trajectories line by line, with the place, hash and counts of what is read.

What is kept of a conversation is a few numbers, so that memory does not grow with the texts.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import re
from typing import Any, BinaryIO, Generic, TypeVar

from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.fields import NOTES
from her_jax.roleplay.schema import DataError, Trajectory

T = TypeVar("T")
PURPOSES = ("sft", "rl", "judge_sft", "judge_rl", "test")
_BATCH = 32  # Lines sent to a process at once.
_SHOWN = 100  # So many refused lines are named; all are counted.


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a conversation stands: file number, line (from 1), byte offset and length."""

  file: int
  line: int
  offset: int
  length: int


@dataclasses.dataclass(frozen=True)
class FileFacts:
  """What a whole file holds, with its SHA-256."""

  name: str
  sha256: str
  bytes: int
  conversations: int
  turns: int


class IdTable:
  """A map of 64-bit hashes to whole numbers in two flat arrays, about 32 bytes an entry.

  Open addressing with linear probing; at most half of the slots are taken. A dict takes four
  times as much.

      >>> table = IdTable()
      >>> table.add(hash_of("a"), 7), table.add(hash_of("a"), 9)
      (None, 7)
  """

  def __init__(self) -> None:
    self._keys, self._values, self._taken = array("Q", [0] * 1024), array("Q", [0] * 1024), 0

  def __len__(self) -> int:
    return self._taken

  def add(self, key: int, value: int) -> int | None:
    """Enters `value` under `key`, or gives what already stands there and changes nothing."""
    if 2 * self._taken >= len(self._keys):
      self._grow()
    slot = self._slot(key)
    if self._keys[slot]:
      return self._values[slot]
    self._keys[slot], self._values[slot] = key, value
    self._taken += 1
    return None

  def get(self, key: int) -> int | None:
    slot = self._slot(key)
    return self._values[slot] if self._keys[slot] else None

  def _slot(self, key: int) -> int:
    mask = len(self._keys) - 1
    slot = key & mask
    while self._keys[slot] not in (0, key):
      slot = (slot + 1) & mask
    return slot

  def _grow(self) -> None:
    old = zip(self._keys, self._values, strict=True)
    size = 2 * len(self._keys)
    self._keys, self._values = array("Q", bytes(8 * size)), array("Q", bytes(8 * size))
    for key, value in old:
      if key:
        slot = self._slot(key)
        self._keys[slot], self._values[slot] = key, value


def hash_of(text: str) -> int:
  """64 bits of BLAKE2b, the same on every machine; never 0."""
  digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little") or 1


def content_digest(scene: Trajectory) -> int:
  """SHA-256 over what a conversation says, as a number: equal before and after splitting."""
  said = [[t.speaker, t.reply, t.plan] for t in scene.turns]
  text = json.dumps([scene.id, scene.source, scene.scenario, said], ensure_ascii=False)
  return int.from_bytes(hashlib.sha256(text.encode()).digest(), "little")


@dataclasses.dataclass(frozen=True)
class _Made(Generic[T]):
  """What was made of a line, with what its reader has to know itself."""

  id: str
  turns: int
  value: T


def same(scene: Trajectory) -> Trajectory:
  """The work that keeps the trajectory."""
  return scene


def _read(
  lines: Sequence[bytes], work: Callable[[Trajectory], T], checked: bool
) -> list[_Made[T] | DataError | None]:
  """What is made of each line: None of a blank one, the error of a faulty one."""
  made: list[_Made[T] | DataError | None] = []
  for raw in lines:
    try:
      scene = _scene(raw, checked)
      done = None if scene is None else _Made(scene.id, len(scene.turns), work(scene))
      made.append(done)
    except DataError as error:
      made.append(error)
  return made


def _scene(raw: bytes, checked: bool) -> Trajectory | None:
  row = jsonl.parse_json(raw)
  if row is None:
    return None
  if not isinstance(row, dict):
    raise DataError(f"expected one JSON object a line, got {type(row).__name__}")
  make = schema.build_trajectory if checked else schema.trajectory_from_dict
  scene = make(row)
  if not scene.source.strip():
    raise DataError(f"source: {scene.id!r} names no book; the split is by book, so name it")
  return scene


class Conversations(Generic[T]):
  """The trajectories of one or more files, checked, in order; each pass reads them anew.

  Args:
    paths: JSON Lines files of trajectories.
    work: what is made of each trajectory; the trajectory itself with `same`.
    lenient: whether a faulty line is counted in `rejected` and left out, where it otherwise
      stops the pass.
    checked: whether the files are known to hold to the contract, because their hashes are
      those of a proof: then only the fields' types are looked at, which takes a tenth.
    processes: how many read lines and do the work (which then must be picklable), at most a
      few batches ahead; 0 for this one alone. They are spawned, so a script that asks for
      them needs its `__main__` guard.
  """

  def __init__(
    self,
    paths: Sequence[str | os.PathLike[str]],
    work: Callable[[Trajectory], T],
    lenient: bool = False,
    checked: bool = False,
    processes: int = 0,
  ):
    if not paths:
      raise DataError("no files of trajectories; pass at least one")
    self.paths = [pathlib.Path(path) for path in paths]
    for path in self.paths:
      if not path.is_file():
        raise DataError(f"{path}: no such file; pass an existing JSON Lines file")
    self._read = functools.partial(_read, work=work, checked=checked)
    self._lenient, self._processes = lenient, processes
    self._clear()

  def _clear(self) -> None:
    self.files: list[FileFacts] = []  # Of the files that this pass has read to the end.
    self.rejected: Counter[str] = Counter()  # Reason → lines.
    self.rejected_lines: list[str] = []  # The first of them, each with its place.
    self.ids = IdTable()  # Id → (file << 40 | line).

  def __iter__(self) -> Iterator[tuple[Place, T]]:
    """Yields place and what was made of the trajectory.

    Raises:
      DataError: names file, line and mend; if lenient, only where no line is left.
    """
    self._clear()
    with contextlib.ExitStack() as stack:
      pool = None
      if self._processes:
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(
          futures.ProcessPoolExecutor(self._processes, mp_context=context)
        )
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
      for number, path in enumerate(self.paths):
        yield from self._file(number, path, pool)
    if not len(self.ids):
      names = ", ".join(map(str, self.paths))
      why = f" ({self.rejected.total()} lines refused)" if self.rejected else ""
      raise DataError(f"{names}: holds no conversation{why}; pass a file with some")

  def _file(
    self, number: int, path: pathlib.Path, pool: futures.Executor | None
  ) -> Iterator[tuple[Place, T]]:
    sha, offset, conversations, turns = hashlib.sha256(), 0, 0, 0
    with path.open("rb") as f:
      for line, (raw, made) in enumerate(self._lines(f, pool), 1):
        sha.update(raw)
        place = Place(number, line, offset, len(raw))
        offset += len(raw)
        if made is None:
          continue
        if not isinstance(made, DataError):
          first = self.ids.add(hash_of(made.id), number << 40 | line)
          if first is None:
            conversations, turns = conversations + 1, turns + made.turns
            yield place, made.value
            continue
          at = f"{self.paths[first >> 40]}:{first & (1 << 40) - 1}"
          made = DataError(f"id: {made.id!r} stands in {at} too; ids must be unique")
        self._reject(f"{path}:{line}", made)
    self.files.append(FileFacts(path.name, sha.hexdigest(), offset, conversations, turns))

  def _lines(
    self, file: BinaryIO, pool: futures.Executor | None
  ) -> Iterator[tuple[bytes, "_Made[T] | DataError | None"]]:
    """Each line with what was made of it, in order."""
    if pool is None:
      for raw in file:
        yield raw, self._read([raw])[0]
      return
    ahead: deque[tuple[list[bytes], futures.Future[list[Any]]]] = deque()
    batches = iter(lambda: list(itertools.islice(file, _BATCH)), [])
    for batch in batches:
      ahead.append((batch, pool.submit(self._read, batch)))
      if len(ahead) > 2 * self._processes:
        lines, future = ahead.popleft()
        yield from zip(lines, future.result(), strict=True)
    for lines, future in ahead:
      yield from zip(lines, future.result(), strict=True)

  def _reject(self, at: str, error: DataError) -> None:
    if not self._lenient:
      raise DataError(f"{at}: {error}") from None
    # Names and numbers taken out, so that faults of one kind count as one.
    what = str(error).split(";")[0]
    self.rejected[re.sub(r"'[^']*'|\"[^\"]*\"|(?<![\w-])\d+|\{.*\}", "…", what)[:200]] += 1
    if len(self.rejected_lines) < _SHOWN:
      self.rejected_lines.append(f"{at}: {error}")


def line_at(file: BinaryIO, offset: int, length: int) -> dict[str, Any]:
  """The JSON object of a line that a pass has found at `offset`."""
  file.seek(offset)
  row = jsonl.parse_json(file.read(length))
  assert isinstance(row, dict)
  return row


def with_purpose(row: dict[str, Any], purpose: str) -> dict[str, Any]:
  """A row that says what it is for, in place."""
  row[NOTES] = {**row.get(NOTES, {}), "purpose": purpose}
  return row
