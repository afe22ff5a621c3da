"""Plain books as files: a text, a folder of texts, or JSON rows with the text in `content`.

Of a folder all texts and rows are read, those of its subfolders too. Texts of one title and author
are volumes of one book, in the order of the files.
"""

from collections.abc import Iterable
import dataclasses
import os
import pathlib

from data_pipeline.sources import book_text, documents, folders
from data_pipeline.sources import encoding as enc
from her_jax.roleplay.schema import DataError

_ROWS = (".json", ".jsonl", ".ndjson")
ENDINGS = (".txt", ".text", ".md", *_ROWS)


def files_of(source: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Raises DataError where there is none."""
  path = pathlib.Path(source)
  files = folders.parted(path, ENDINGS)[0] if path.is_dir() else [path]
  if not files or not all(file.is_file() for file in files):
    raise DataError(f"{path}: no such file, or a folder without {', '.join(ENDINGS)}")
  return files


def left_of(source: str | os.PathLike[str]) -> tuple[int, str]:
  """How many files of a folder are not read, and a line that names the first of them."""
  path = pathlib.Path(source)
  left = folders.parted(path, ENDINGS)[1] if path.is_dir() else []
  return len(left), folders.told(left, ENDINGS) if left else ""


def encodings_of(source: str | os.PathLike[str]) -> dict[str, str]:
  """The encodings of those files that are not UTF-8, as their bytes tell them."""
  found = {str(file): enc.detect(file) for file in files_of(source)}
  return {file: name for file, name in found.items() if name not in ("utf-8", "utf-8-sig")}


def read_books(
  source: str | os.PathLike[str], encoding: str = "", title: str = ""
) -> list[book_text.Book]:
  """The books of a source: text files, or rows of `title`, `author` and `content`.

  Args:
    title: of a text file; by default its first lines say it.

  Raises:
    DataError: a file is missing or no book, or two books can't be told apart.
  """
  found: list[tuple[str, book_text.Book]] = []  # each with its place
  for file in files_of(source):
    if file.suffix.casefold() not in _ROWS:
      found.append((str(file), book_text.read_book(file, encoding, title)))
      continue
    for record in documents.records(file, encoding or None):
      row = record.row
      if isinstance(row, DataError) or not isinstance(row, dict):
        raise DataError(f"{record.place}: {row if isinstance(row, DataError) else 'no object'}")
      text, name, author = (row.get(f) or "" for f in ("content", "title", "author"))
      if not all(isinstance(t, str) for t in (text, name, author)):
        raise DataError(f"{record.place}: title, author and content must be texts")
      try:
        found.append((record.place, book_text.make_book(text, name.strip(), author, stem="")))
      except DataError as error:
        raise DataError(f"{record.place}: {error}") from None
  return _joined(found)


def _joined(found: Iterable[tuple[str, book_text.Book]]) -> list[book_text.Book]:
  """Puts volumes together: scenes and calls are known by their book's title."""
  volumes: dict[str, list[tuple[str, book_text.Book]]] = {}
  for place, book in found:
    for other_place, other in volumes.get(book.title, []):
      what = f"{place}: has the title {book.title!r} of {other_place}"
      if book.chapters == other.chapters:
        raise DataError(f"{what}, and its text; remove one of them")
      if (book.author, book.language) != (other.author, other.language):
        raise DataError(
          f"{what}, but not its author and language; begin one with a line 'Title: …'"
        )
    volumes.setdefault(book.title, []).append((place, book))
  return [_book([book for _, book in parts]) for parts in volumes.values()]


def _book(parts: list[book_text.Book]) -> book_text.Book:
  chapters: list[book_text.Chapter] = []
  for part in parts:
    first = chapters[-1].first + len(chapters[-1].paragraphs) if chapters else 0
    chapters += [dataclasses.replace(c, first=first + c.first) for c in part.chapters]
  return dataclasses.replace(parts[0], chapters=tuple(chapters))
