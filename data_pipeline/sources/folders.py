"""Which files of a folder a reader takes, and what to say of the others."""

from collections.abc import Collection
import os
import pathlib

_SHOWN = 3  # So many names of files that are left out; all are counted.


def parted(
  folder: str | os.PathLike[str], endings: Collection[str]
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
  """The files to read, in the order of their paths, and those left out; of subfolders too.

  Endings count in any case. Left out are hidden files and what an archive of a Mac adds, whatever
  their ending, and a README, which is about the others.
  """
  folder = pathlib.Path(folder)
  taken: list[pathlib.Path] = []
  left: list[pathlib.Path] = []
  for path in sorted(p for p in folder.rglob("*") if p.is_file()):
    parts = path.relative_to(folder).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    about = path.stem.casefold() == "readme"
    takes = path.suffix.casefold() in endings and not hidden and not about
    (taken if takes else left).append(path)
  return taken, left


def told(left: Collection[pathlib.Path], endings: Collection[str]) -> str:
  """Names the first of the files that are left out, in a line.

  Example:
    told([Path("a/b.pdf")], [".txt"]) == "file left out, as none of .txt: b.pdf"
  """
  names = [path.name for path in left]
  shown = ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])
  return f"file left out, as none of {', '.join(sorted(endings))}: {shown}"
