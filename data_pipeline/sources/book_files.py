"""Plain books as files: a text, a folder of texts, or JSON rows with the text in `content`."""

import os
import pathlib

from data_pipeline.sources import book_text, documents
from her_jax.roleplay.schema import DataError


def files_of(source: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Raises DataError where there is none."""
  path = pathlib.Path(source)
  files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
  if not files or not all(file.is_file() for file in files):
    raise DataError(f"{path}: no such file, or a folder without .txt")
  return files


def read_books(
  source: str | os.PathLike[str], encoding: str = "", title: str = ""
) -> list[book_text.Book]:
  """The books of a source: text files, or rows of `title`, `author` and `content`.

  Args:
    title: of a text file; by default its first lines say it.

  Raises:
    DataError: a file is missing, or is no book.
  """
  found = []
  for file in files_of(source):
    if file.suffix not in (".json", ".jsonl"):
      found.append(book_text.read_book(file, encoding, title))
      continue
    for record in documents.records(file, encoding or None):
      row = record.row
      if isinstance(row, DataError) or not isinstance(row, dict):
        raise DataError(f"{record.place}: {row if isinstance(row, DataError) else 'no object'}")
      text, name, author = (row.get(f) or "" for f in ("content", "title", "author"))
      if not all(isinstance(t, str) for t in (text, name, author)):
        raise DataError(f"{record.place}: title, author and content must be texts")
      try:
        found.append(book_text.make_book(text, name, author))
      except DataError as error:
        raise DataError(f"{record.place}: content: {error}") from None
  return found
