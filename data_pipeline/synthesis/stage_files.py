"""A stage's files, written block by block so that a run killed at any instant goes on.

`conversations.jsonl` and `failures.jsonl` only grow. `stage.json` says how much of them counts
and is replaced in one step when a block is on the disk; what lies behind is cut off at the
next start. It also keeps what each block was told, so that a block done again asks the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from data_pipeline.files import write_whole
from data_pipeline.synthesis.ask import Fault
from her_jax.errors import ConfigError
from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.schema import Trajectory

CONVERSATIONS, FAILURES, MANIFEST = "conversations.jsonl", "failures.jsonl", "stage.json"


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a stage has come: of its input and of its two files, in lines and bytes.

  Attributes:
    digest: of all input lines so far.
    used: layouts of the turns so far.
  """

  inputs: int = 0
  digest: str = ""
  conversations: int = 0
  failures: int = 0
  counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
  used: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class _Manifest:
  fingerprint: dict[str, Any]
  round: int = 0
  # After the last whole block, and after the shorter one that ends the input, if it is done.
  whole: Progress = dataclasses.field(default_factory=Progress)
  end: Progress | None = None
  complete: bool = False
  guides: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class StageFiles:
  """The folder of a stage, opened where the last run left it."""

  def __init__(self, folder: pathlib.Path, fingerprint: Mapping[str, Any], round: int = 0):
    """Opens or makes the folder.

    Args:
      round: of retries; what an earlier one left is done again.

    Raises:
      ConfigError: what lies there was made with other settings.
    """
    self.folder = folder
    # As JSON gives it back: tuples are lists there.
    wanted = json.loads(json.dumps(fingerprint))
    folder.mkdir(parents=True, exist_ok=True)
    self._manifest = self._load() or _Manifest(wanted, round)
    if self._manifest.fingerprint != wanted:
      changed = _changed(self._manifest.fingerprint, wanted)
      raise ConfigError(
        f"{folder} was made with other settings ({', '.join(changed)}); pass another --workdir,"
        f" or delete that folder and those of the stages behind it to do them again"
      )
    if self._manifest.round < round:
      self._manifest.round = round
      self._rewind(Progress())
      self._save()

  @property
  def progress(self) -> Progress:
    return self._manifest.end or self._manifest.whole

  @property
  def complete(self) -> bool:
    return self._manifest.complete

  @property
  def round(self) -> int:
    return self._manifest.round

  def start(self, lines: Iterator[bytes]) -> None:
    """Passes over the input lines that are done; if they have changed, all is done again."""
    done = self._manifest.whole
    digest = hashlib.sha256()
    for _ in range(done.inputs):
      line = next(lines, None)
      if line is None:
        break
      digest.update(line)
    if done.inputs and digest.hexdigest() != done.digest:
      raise InputChanged(f"{self.folder} was made of other conversations")
    self._digest = digest

  def restart(self) -> None:
    """Forgets the results, of which the input has changed; what blocks were told is kept."""
    self._rewind(Progress())
    self._save()

  def is_done(self, block: list[bytes]) -> bool:
    """Whether this is the last, shorter block, and done."""
    end = self._manifest.end
    if end is None:
      return False
    digest = self._digest.copy()
    for line in block:
      digest.update(line)
    return (end.inputs, end.digest) == (
      self._manifest.whole.inputs + len(block), digest.hexdigest()
    )  # fmt: skip

  def rewind(self) -> None:
    """Cuts both files back to the last whole block."""
    self._rewind(self._manifest.whole)
    self._save()

  def end_whole(self) -> None:
    """The input ends with a whole block: a shorter one that an earlier run had behind it goes."""
    if self._manifest.end is not None:
      self.rewind()

  def guide(self, number: int, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """What block `number` was told when it was first done, or else `fresh`, which is kept."""
    guides = self._manifest.guides
    if number == len(guides):
      guides.append(json.loads(json.dumps(fresh)))
      self._save()
    return guides[number]

  def commit(
    self,
    block: list[bytes],
    scenes: Iterable[Trajectory],
    faults: Iterable[Fault],
    counts: Mapping[str, int],
    used: Mapping[str, int],
    whole: bool,
  ) -> None:
    """Adds a block's results; afterwards they are on the disk."""
    before = self._manifest.whole
    for line in block:
      self._digest.update(line)
    made = Progress(
      before.inputs + len(block),
      self._digest.hexdigest(),
      _append(self.folder / CONVERSATIONS, map(schema.to_dict, scenes)),
      _append(self.folder / FAILURES, map(dataclasses.asdict, faults)),
      dict(Counter(before.counts) + Counter(counts)),
      dict(Counter(before.used) + Counter(used)),
    )
    if whole:
      self._manifest.whole = made
    else:
      self._manifest.end = made
    self._save()

  def finish(self) -> None:
    """All of the input is done."""
    self._manifest.complete = True
    self._save()

  def _rewind(self, to: Progress) -> None:
    self._manifest.whole, self._manifest.end, self._manifest.complete = to, None, False
    for name, size in ((CONVERSATIONS, to.conversations), (FAILURES, to.failures)):
      path = self.folder / name
      path.touch()
      os.truncate(path, size)

  def _load(self) -> _Manifest | None:
    path = self.folder / MANIFEST
    if not path.exists():
      return None
    row = json.loads(path.read_text(encoding="utf-8"))
    end = row.pop("end")
    return _Manifest(
      whole=Progress(**row.pop("whole")), end=Progress(**end) if end else None, **row
    )

  def _save(self) -> None:
    write_whole(self.folder / MANIFEST, json.dumps(dataclasses.asdict(self._manifest)))


class InputChanged(ValueError):
  """The conversations that a stage has done are no longer what it would be given."""


def lines_of(path: pathlib.Path, size: int) -> Iterator[bytes]:
  """The lines of a file's first `size` bytes."""
  with path.open("rb") as f:
    while f.tell() < size and (line := f.readline()):
      yield line


def scene_of(line: bytes) -> Trajectory:
  """A conversation as a stage wrote it, checked then."""
  return schema.build_trajectory(json.loads(line))


def faults_of(folder: pathlib.Path) -> Iterator[Fault]:
  """The failures of a stage, as far as they count."""
  path = folder / MANIFEST
  if not path.exists():
    return
  row = json.loads(path.read_text(encoding="utf-8"))
  for line in lines_of(folder / FAILURES, (row["end"] or row["whole"])["failures"]):
    yield Fault(**json.loads(line))


def _append(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> int:
  """Writes rows behind a file's end and onto the disk; returns its size in bytes."""
  with path.open("ab") as f:
    for row in rows:
      f.write(jsonl.written(row).encode() + b"\n")
    f.flush()
    os.fsync(f.fileno())
    return f.tell()


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  return sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
