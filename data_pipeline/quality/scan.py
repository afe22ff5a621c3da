"""The flags of a whole file, scene by scene, in memory that does not grow with it."""

from collections.abc import Iterable, Iterator
import dataclasses
import os
import pickle
import tempfile
from typing import IO

from data_pipeline import quality
from data_pipeline.quality import future
from data_pipeline.quality.flags import NAMES, Flag
from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.jsonl import DataError
from her_jax.roleplay.schema import Trajectory


@dataclasses.dataclass(frozen=True)
class Scanned:
  """A scene with its flags; `line` counts from 1."""

  line: int
  scene: Trajectory
  flags: list[Flag]


def scan(
  path: str | os.PathLike[str], only: Iterable[str] = NAMES
) -> Iterator[Scanned | DataError]:
  """Checks each scene of a JSON Lines file.

  Scenes without a passage come as they are read. Those with one wait on disk until the file is
  read, for what a later chapter tells is known only then; they come book by book. So the
  largest book has to fit into memory, and eight bytes for each scene.

  Yields:
    a scene with its flags, or for a line that is no scene the fault with its place.

  Raises:
    DataError: there is no such file.
    ValueError: `only` names a flag that there is not.
  """
  only = tuple(only)
  with tempfile.TemporaryFile() as spool:
    waiting: dict[str, list[int]] = {}
    for number, scene in jsonl.each_line(path, schema.trajectory_from_dict, unique=False):
      if isinstance(scene, DataError):
        yield DataError(f"{path}:{number}{scene}")
        continue
      passage = future.passage_of(scene) if "future_knowledge" in only else None
      if scene.source and passage:
        waiting.setdefault(scene.source, []).append(spool.tell())
        pickle.dump(passage, spool)
        pickle.dump((number, scene), spool)
      else:
        yield Scanned(number, scene, quality.check(scene, None, only))
    for places in waiting.values():
      # A passage that several scenes share is held once.
      book = quality.Book(dict.fromkeys(_passage(spool, at) for at in places))
      for at in places:
        _passage(spool, at)  # The scene is behind it.
        number, scene = pickle.load(spool)
        yield Scanned(number, scene, quality.check(scene, book, only))


def _passage(spool: IO[bytes], place: int) -> future.Passage:
  spool.seek(place)
  found = pickle.load(spool)  # Of this process's own file, which nobody else can open.
  assert isinstance(found, future.Passage)
  return found
