"""Files that are there whole or not at all."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
from typing import TextIO


@contextlib.contextmanager
def whole_path(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Where to write a file that takes its name once all is written.

  A run that ends early leaves `<path>.part` and whatever stood under the name before.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f"{path.name}.part")
  yield part
  os.replace(part, path)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
  """A text file that takes its name once all is written and on disk; see `whole_path`."""
  with whole_path(path) as part, part.open("w", encoding="utf-8") as f:
    yield f
    f.flush()
    os.fsync(f.fileno())


def write_whole(path: str | os.PathLike[str], text: str) -> None:
  """Replaces a file in one step, on the disk."""
  with whole_file(path) as f:
    f.write(text)
