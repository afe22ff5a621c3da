"""A plain book → chapters of paragraphs, without what e-books put around and between them.

Taken away are a library's header and licence, page numbers and running heads, captions of
illustrations, marks of italics, tables of contents. Mended are hard line breaks (also where a
blank line follows every line), words cut at a line's end, and paragraphs cut by a page.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
import os
import pathlib
import re

from data_pipeline.sources import encoding as enc
from data_pipeline.sources.book_headings import is_heading
from her_jax.roleplay.rows import language_of
from her_jax.roleplay.schema import DataError

_BEGINS = re.compile(
  r"\*{3}\s*START OF (?:THE|THIS) PROJECT GUTENBERG[^\n]*?\*{3}"
  r"|\*END\*?\s*THE SMALL PRINT[^\n]*",
  re.IGNORECASE,
)
_ENDS = re.compile(
  r"\*{3}\s*END OF (?:THE|THIS) PROJECT GUTENBERG|^\s*End of (?:the |this )?Project Gutenberg",
  re.IGNORECASE | re.MULTILINE,
)
_HEADER = {
  "title": re.compile(r"(?m)^(?:Title|书名)\s*[:：]\s*(\S.*)$"),
  "author": re.compile(r"(?m)^(?:Author|作者)\s*[:：]\s*(\S.*)$"),
}
# With brackets in them, as captions of two lines have; what is never closed ends with its
# paragraph.
_MARKERS = re.compile(
  r"\[(?:Illustrations?|Illus\.|Frontispiece|Footnote|Transcriber['’]s Note|Blank Page|Pg|Page|"
  r"插图|插圖|脚注|注释)\b(?:[^\[\]]|\[[^\[\]]*\])*\]"
  r"|\[(?:Illustration|插图)\b(?:(?!\n\s*\n)[^\]])*|[【（]插[图圖][^】）\n]{0,60}[】）]"
  r"|\[_?Copyright[^\]]*\]|\[(?:\d{1,3}|[*†‡])\]|\{\d{1,4}\}",
  re.IGNORECASE,
)
_ITALICS = re.compile(r"(?<![\w_])_(?!_)((?:[^_\n]|\n(?!\s*\n))+?)_(?![\w_])")
_SIGNS = str.maketrans(
  {
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff"),
    "\f": "\n",
    "\v": "\n",
    "\u2028": "\n",
  }
  | {"\u2029": "\n\n", "\u00a0": " ", "ﬁ": "fi", "ﬂ": "fl", "ﬀ": "ff", "ﬃ": "ffi", "ﬄ": "ffl"}
)
_SPACED_OUT = re.compile(r"(?:\S ){5,}\S|\S(?: \S){2,}")  # E - B o o k s
_PAGE = re.compile(r"\W*(?:p(?:age|g)?[.\- ]*)?(?:\d{1,4}|[ivxlc]{1,6})\W*", re.IGNORECASE)
_ONLY_NUMBER = re.compile(r"\W*\d{1,4}\W*")
_STOPS = ".!?…。！？"
_SHORTENED = re.compile(
  r"\b(?:Mr|Mrs|Ms|Dr|St|Rev|Col|Capt|Gen|Lt|Hon|Messrs|Mme|Mlle|Prof)\.$"
)
_BY = re.compile(r"(?i)by\s+(\S.{1,60})|(?:作者[:：]?)?\s*(\S{1,20}?)\s*[著撰]")
_PART = re.compile(r"(?i)(?:book|part|volume|vol\.|act)\b|第\S{1,7}[卷部集篇]|卷")
_CONTENTS = re.compile(r"(?i)\W*(?:table of contents|contents|目\s*录|目\s*錄)\W*")
_CLOSERS = "\"”’'」』)）]_"
_OPENERS = '"“‘「『—'


@dataclasses.dataclass(frozen=True)
class Chapter:
  """A chapter; `first` is the number of its first paragraph within the book."""

  title: str
  paragraphs: tuple[str, ...]
  first: int


@dataclasses.dataclass(frozen=True)
class Book:
  """A book's text. Paragraphs are numbered through all chapters, from 0."""

  title: str
  author: str
  language: str
  chapters: tuple[Chapter, ...]


def read_book(
  path: str | os.PathLike[str], encoding: str = "", title: str = "", author: str = ""
) -> Book:
  """A plain text file as a book; see `make_book`.

  Raises:
    DataError: the file cannot be read, or holds no text of a book.
  """
  text, _ = enc.read_text(path, encoding or None)
  try:
    return make_book(text, title, author, stem=pathlib.Path(path).stem)
  except DataError as error:
    raise DataError(f"{path}:1: {error}") from None


def make_book(text: str, title: str = "", author: str = "", stem: str = "book") -> Book:
  """A book out of its text with `\\n` as line break.

  Args:
    title: where it is empty the header says it, or the first line, or `stem`.

  Raises:
    DataError: there is no text left, or no title is known: scenes are known by it.
  """
  head = text[:5000]
  told = {f: m[1].strip() for f, pattern in _HEADER.items() if (m := pattern.search(head))}
  text = _within(text).translate(_SIGNS)
  text = _ITALICS.sub(r"\1", _MARKERS.sub("", text))
  lines = [line.rstrip() for line in text.split("\n")]
  own_title, own_author = _on_title_page(lines)
  title = title or told.get("title", "") or own_title or stem
  if not title.strip():
    raise DataError("has no title, neither in a field nor in its first lines; give it one")
  author = author or told.get("author", "") or own_author
  lines = _without_page_marks(lines, (title, author))
  chapters = tuple(_chapters(lines))
  if not chapters:
    raise DataError("holds no text of a book; pass a plain text file")
  language = language_of("".join(chapters[0].paragraphs)[:20_000])
  return Book(title, author, language, chapters)


def _within(text: str) -> str:
  """What stands between a library's header and its licence."""
  begins = list(_BEGINS.finditer(text[: len(text) // 2 + 20_000]))
  start = begins[-1].end() if begins else 0
  end = _ENDS.search(text, max(start, len(text) // 3))
  return text[start : end.start() if end else len(text)]


def _on_title_page(lines: Sequence[str]) -> tuple[str, str]:
  """Title and author, where the lines before the first heading are few and say them."""
  first = [" ".join(line.split()) for line in lines if line.strip()][:6]
  by = next((m for line in first[1:3] if (m := _BY.fullmatch(line))), None)
  head = next((i for i, line in enumerate(first) if is_heading(line)), 0)
  is_title = first and len(first[0]) <= 120 and first[0][-1] not in _STOPS
  if not is_title or not (by or head):
    return "", ""
  return first[0].strip("《》"), (by[1] or by[2]) if by else ""


def _without_page_marks(lines: Sequence[str], names: Sequence[str]) -> list[str]:
  """Lines without page numbers, running heads and lines of letters spaced out."""
  numbers = [i for i, line in enumerate(lines) if line and _ONLY_NUMBER.fullmatch(line)]
  # Few numbers far apart are headings of chapters.
  between = sum(map(len, lines)) / (len(numbers) + 1)
  pages = len(numbers) >= 5 and between < 5000
  shapes = Counter(_shape(line) for line in lines if 0 < len(line) <= 80)
  titles = {_shape(name) for name in names if name}
  kept = []
  for line in lines:
    stripped = line.strip()
    shape = _shape(line)
    repeated = shapes[shape] >= 5 and stripped[-1:] not in _STOPS + _CLOSERS + ",;:"
    numbered = "#" in shape and len(shape) > 1 and not is_heading(stripped)
    head = repeated and (numbered or shape.strip("# ") in titles or _shouted(stripped))
    mark = bool(stripped) and (
      head
      or (pages and _ONLY_NUMBER.fullmatch(line) is not None)
      or (re.search(r"(?i)\bp(?:age|g)\b", line) and _PAGE.fullmatch(stripped) is not None)
      or (len(stripped) >= 5 and _SPACED_OUT.fullmatch(stripped) and stripped[0].isalpha())
    )
    if not mark:
      kept.append(line)
  return kept


def _shape(line: str) -> str:
  return " ".join(re.sub(r"\d+", "#", line.casefold()).split())


def _shouted(line: str) -> bool:
  return line.isupper() and len(line.split()) >= 2 and not is_heading(line)


def _chapters(lines: Sequence[str]) -> Iterator[Chapter]:
  """Splits at headings; what stands before the first is a title page and is left out."""
  parts: list[tuple[str, list[str]]] = [("", [])]
  before = ""
  for i, line in enumerate(lines):
    alone = (i == 0 or not lines[i - 1].strip()) or line.startswith(("　", "第"))
    before, above_it = line.strip() or before, before
    if alone and is_heading(line.strip(), above_it):
      parts.append((" ".join(line.strip().lstrip("#").split()), []))
    else:
      parts[-1][1].append(line)
  spaced = _is_double_spaced(lines)
  width = _width(lines)
  joined = _Joiner(lines)
  front = len(parts) > 1
  first, above = 0, ""
  for number, (title, within) in enumerate(parts):
    paragraphs = _paragraphs(within, spaced, width, joined)
    if (front and number == 0) or _CONTENTS.fullmatch(title):
      continue
    # A table of contents and the head of a part have little below each of their lines.
    little = sum(map(len, paragraphs)) < 40 and not any(p[-1] in _STOPS for p in paragraphs)
    if front and little and number + 1 < len(parts):
      above = title if _PART.match(title) else ""
      continue
    if not any(map(_has_letters, paragraphs)):
      continue
    name = f"{above}, {title}" if above else title
    above = ""
    yield Chapter(name, tuple(paragraphs), first)
    first += len(paragraphs)


def _has_letters(text: str) -> bool:
  return any(sign.isalpha() for sign in text)


def _is_double_spaced(lines: Sequence[str]) -> bool:
  """Whether a blank line follows each line, so that it says nothing of paragraphs."""
  pairs = broken = within = 0
  for i, line in enumerate(lines[:-1]):
    if line.strip():
      pairs += 1
      broken += not lines[i + 1].strip()
      within += line.strip()[-1] not in _STOPS + _CLOSERS + ":"
  return pairs > 20 and broken > 0.8 * pairs and within > 0.3 * pairs


def _width(lines: Sequence[str]) -> int:
  """The length that full lines have, in characters."""
  lengths = sorted(len(line) for line in lines if line.strip())
  return lengths[int(0.9 * len(lengths))] if lengths else 0


def _paragraphs(lines: Sequence[str], spaced: bool, width: int, joined: "_Joiner") -> list[str]:
  filled = [line for line in lines if line.strip()]
  blank = len(lines) - len(filled)
  if spaced:
    groups = _by_stops([line.strip() for line in filled], width)
  elif blank < 0.1 * len(filled) or width > 200:
    # No blank lines: each line is a paragraph, or an indented one begins it.
    indented = sum(line[0] in " \t　" for line in filled)
    by_indent = 0.1 * len(filled) < indented < 0.8 * len(filled)
    groups = _by_indent(filled) if by_indent else [[line.strip()] for line in filled]
    if not by_indent and indented < 0.1 * len(filled) and width < 100:
      groups = _by_stops([line.strip() for line in filled], width)
  else:
    groups = _by_blanks(lines)
  found: list[str] = []
  for group in groups:
    text = joined(group)
    if not text:
      continue
    # A page's end between them: the sentence goes on.
    if found and found[-1][-1] not in _STOPS + _CLOSERS + ":" and text[0].islower():
      found[-1] = joined([found[-1], text])
    else:
      found.append(text)
  return found


def _by_blanks(lines: Sequence[str]) -> list[list[str]]:
  groups: list[list[str]] = [[]]
  for line in lines:
    if line.strip():
      groups[-1].append(line.strip())
    elif groups[-1]:
      groups.append([])
  return groups


def _by_indent(lines: Sequence[str]) -> list[list[str]]:
  groups: list[list[str]] = []
  for line in lines:
    if line[0] in " \t　" or not groups:
      groups.append([])
    groups[-1].append(line.strip())
  return groups


def _by_stops(lines: Sequence[str], width: int) -> list[list[str]]:
  """A paragraph ends in a full stop on a line that is short or before one that opens speech.

  Within open quotation marks it goes on until they close or open anew.
  """
  groups: list[list[str]] = []
  quotes = 0
  for line in lines:
    opens = line[0] in _OPENERS
    if groups:
      before = groups[-1][-1]
      stopped = before[-1] in _STOPS + _CLOSERS + ":" and not _SHORTENED.search(before)
      if not (stopped and (opens or (len(before) < 0.75 * width and quotes % 2 == 0))):
        groups[-1].append(line)
        quotes += line.count('"')
        continue
    groups.append([line])
    quotes = line.count('"')
  return groups


class _Joiner:
  """Puts lines together; a word cut at a line's end is one where the book has it elsewhere."""

  def __init__(self, lines: Sequence[str]):
    self._words = {w.casefold() for line in lines for w in re.findall(r"[^\W\d_]+", line)}

  def __call__(self, lines: Sequence[str]) -> str:
    text = ""
    for line in lines:
      cut = re.search(r"([^\W\d_]+)-$", text)
      goes_on = re.match(r"[^\W\d_]+", line)
      if cut and goes_on and line[0].islower():
        whole = (cut[1] + goes_on[0]).casefold() in self._words
        text = (text[:-1] if whole else text) + line
      elif text and _is_han(text[-1]) and _is_han(line[0]):
        text += line
      else:
        text = f"{text} {line}" if text else line
    # Taken out italics leave a blank before the stop.
    return re.sub(r"(?<=\w) ([,;!?]|\.(?![.\w]|\s\.))", r"\1", " ".join(text.split()))


def _is_han(sign: str) -> bool:
  return (
    "\u3000" <= sign <= "\u303f" or "\u4e00" <= sign <= "\u9fff" or "\uff00" <= sign <= "\uffef"
  )
