"""Files of plain books: which of them are one book, and which can't be told apart."""

import json

import pytest

from data_pipeline.sources import book_files
from her_jax.roleplay.schema import DataError

_TEXT = "{title}\n\nby {author}\n\n{chapters}"


def _write(folder, name, *chapters, title="The Dyke", author="A. Nobody"):
  body = "\n\n".join(
    f"CHAPTER {n}\n\nThe water stood at {n} feet.\n\nIt fell." for n in chapters
  )
  path = folder / name
  path.write_text(_TEXT.format(title=title, author=author, chapters=body), encoding="utf-8")
  return path


def test_volumes_of_one_title_are_one_book_with_paragraphs_numbered_through(tmp_path):
  _write(tmp_path, "2.txt", 3, 4)
  _write(tmp_path, "1.txt", 1, 2)
  _write(tmp_path, "3.txt", 1, title="The Gate")
  dyke, gate = book_files.read_books(tmp_path)
  assert (dyke.title, gate.title) == ("The Dyke", "The Gate")
  assert [c.title for c in dyke.chapters] == [f"CHAPTER {n}" for n in (1, 2, 3, 4)]
  assert [c.first for c in dyke.chapters] == [0, 2, 4, 6]
  whole = book_files.read_books(_write(tmp_path, "whole.txt", 1, 2, 3, 4))
  assert whole == [dyke]


def test_one_book_twice_and_two_of_one_title_are_told(tmp_path):
  _write(tmp_path, "a.txt", 1, 2)
  copy = _write(tmp_path, "b.txt", 1, 2)
  with pytest.raises(
    DataError, match=r"b\.txt: .*'The Dyke' of .*a\.txt, and its text; remove"
  ):
    book_files.read_books(tmp_path)
  copy.unlink()
  _write(tmp_path, "b.txt", 7, author="B. Other")
  with pytest.raises(DataError, match=r"not its author and language; begin one with a line"):
    book_files.read_books(tmp_path)
  other = tmp_path / "b.txt"
  other.write_text(f"Title: The Dyke of Other\n\n{other.read_text()}")
  assert [b.title for b in book_files.read_books(tmp_path)] == ["The Dyke", "The Dyke of Other"]


def test_rows_of_one_title_are_volumes_too(tmp_path):
  text = _write(tmp_path, "1.txt", 1).read_text()
  rows = [{"title": "D", "content": text}, {"title": "D", "content": text.replace("1", "2")}]
  path = tmp_path / "rows.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  (book,) = book_files.read_books(path)
  assert [c.title for c in book.chapters] == ["CHAPTER 1", "CHAPTER 2"]


def test_a_row_whose_book_has_no_title_is_told(tmp_path):
  """Two of them would be volumes of one book."""
  path = tmp_path / "rows.jsonl"
  text = "The water stood at the third mark, and nobody in the lower town had gone to bed.\n\n"
  rows = [
    {"title": "D", "content": text},
    {"content": text * 2},
    {"title": " ", "content": text},
  ]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  with pytest.raises(DataError, match=r"rows\.jsonl:2: has no title, .*; give it one"):
    book_files.read_books(path)


def test_a_folder_is_read_whole_and_what_is_left_is_told(tmp_path):
  (tmp_path / "more" / ".git").mkdir(parents=True)
  text = _write(tmp_path, "a.TXT", 1, title="A").read_text()
  _write(tmp_path / "more", "b.md", 1, title="B")
  row = {"title": "C", "content": text}
  (tmp_path / "c.JSONL").write_text(json.dumps(row) + "\n")
  assert [b.title for b in book_files.read_books(tmp_path)] == ["A", "C", "B"]
  assert book_files.left_of(tmp_path) == (0, "")
  for name in ("README.md", "x.epub", "z.pdf", "more/.hidden.txt", "more/.git/a.txt"):
    (tmp_path / name).write_text("about")
  assert len(book_files.read_books(tmp_path)) == 3
  number, told = book_files.left_of(tmp_path)
  assert number == 5
  assert told == (
    "file left out, as none of .json, .jsonl, .md, .ndjson, .text, .txt: README.md, a.txt,"
    " .hidden.txt, …"
  )


def test_a_folder_without_a_book_is_told(tmp_path):
  (tmp_path / "x.epub").write_text("about")
  with pytest.raises(DataError, match=r"a folder without \.txt, \.text, \.md"):
    book_files.read_books(tmp_path)
