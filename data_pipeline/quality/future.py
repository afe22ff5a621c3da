"""What a scene can't know yet: words of its later turns, names and events of later chapters.

Chapters are compared by the numbers in their headings where both have as many ("Chapter XII",
"第十二章"), otherwise by the order in which the file brings them. Something is known that stands in
the scene before the turn, in the scene's own passage or in that of an earlier chapter. A book
of which only some passages are given may name people in the others: so only what the scene's
own passage lacks is looked at, and scenes without a passage are held to their turns alone.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import re

from data_pipeline.quality import flags, wordings
from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import (
  HAN,
  SceneView,
  TurnView,
  Word,
  name_forms,
  plain_words,
  runs,
)
from her_jax.roleplay.schema import Trajectory

QUOTE = {"en": 8, "zh": 14}  # words in a row that are a quotation
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_DIGITS_ZH = {sign: i for i, sign in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_NUMBER = re.compile(
  r"\d+|\b[ivxlc]+\b|(?<=[第卷])[零〇一二两三四五六七八九十百]+", re.IGNORECASE
)
_NAME = re.compile(r"(?<![.!?…:;“\"'‘(—–\n-])(?<=[\w,;] )[A-Z][a-z’']*[a-z]{2,}\b")


@dataclasses.dataclass(frozen=True)
class Passage:
  """A passage of a book: its chapter's heading, its text and the names of its characters."""

  chapter: str
  text: str
  names: tuple[str, ...] = ()
  language: str = "en"


def passage_of(trajectory: Trajectory) -> Passage | None:
  """The passage that a scene was taken from, if it is kept with it."""
  notes = flags.notes(trajectory)
  text, chapter = notes.get("passage"), notes.get("chapter")
  if not isinstance(text, str) or not text.strip():
    return None
  names = tuple(c.name for c in trajectory.characters)
  return Passage(str(chapter or ""), text, names, trajectory.language)


class Book:
  """In which of its chapters a book first has each name and each run of words."""

  def __init__(self, passages: Iterable[Passage]):
    passages = list(passages)
    self._chapters = _in_order(passages)
    self._place = {chapter: i for i, chapter in enumerate(self._chapters)}
    self._names: dict[str, int] = {}
    self._runs: dict[int, int] = {}
    people = sorted({name for passage in passages for name in passage.names})
    forms = [form for own in name_forms(people).values() for form in own]
    # From the last to the first, so that of one name or run the earliest place stays.
    for passage in sorted(passages, key=self.place, reverse=True):
      place = self.place(passage)
      found = {form for form in forms if form in passage.text}
      if passage.language == "en":
        found |= {m[0] for m in _NAME.finditer(passage.text)} - _COMMON
      self._names.update(dict.fromkeys(found, place))
      words = plain_words(passage.text)
      self._runs.update(dict.fromkeys(_hashes(words, QUOTE[passage.language]), place))

  def place(self, passage: Passage) -> int:
    """The place of its chapter in the book.

    Raises:
      KeyError: it is none of the book's.
    """
    return self._place[_key(passage)]

  def chapter(self, place: int) -> str:
    return self._chapters[place].splitlines()[0][:60]

  def names_after(self, place: int) -> Iterator[str]:
    """Names that no chapter up to this one has."""
    return (name for name, first in self._names.items() if first > place)

  def name_first(self, name: str) -> int:
    return self._names[name]

  def quote_after(self, place: int, words: Sequence[str], size: int) -> tuple[int, int] | None:
    """The first run of `size` words that no chapter up to `place` has and a later one does.

    Returns:
      where the run begins in `words`, and the chapter's place.
    """
    for i, key in enumerate(_hashes(words, size)):
      if (first := self._runs.get(key, -1)) > place:
        return i, first
    return None


def _hashes(words: Sequence[str], size: int) -> Iterator[int]:
  """Hashes of all runs: of 64 bits, so that those of a book's some hundred thousand differ."""
  return map(hash, zip(*(words[i:] for i in range(size)), strict=False))


def _key(passage: Passage) -> str:
  """The heading; a passage without one is a chapter of its own, known by its beginning."""
  return passage.chapter or passage.text[:200]


def _in_order(passages: Iterable[Passage]) -> list[str]:
  chapters = list(dict.fromkeys(map(_key, passages)))
  numbers = {chapter: _numbers(chapter) for chapter in chapters}
  if len({len(found) for found in numbers.values()}) == 1 and all(numbers.values()):
    chapters.sort(key=numbers.__getitem__)
  return chapters


def _numbers(heading: str) -> tuple[int, ...]:
  """The numbers of a heading.

  Example:
    _numbers("Volume II, Chapter 3") == (2, 3) and _numbers("第十二章") == (12,)
  """
  return tuple(map(_number, _NUMBER.findall(heading[:80])))


def _number(text: str) -> int:
  if text.isdigit():
    return int(text)
  if text[0] in _DIGITS_ZH or text[0] in "十百":
    total, digit = 0, 0
    for sign in text:
      if sign in "十百":
        total, digit = total + max(digit, 1) * (10 if sign == "十" else 100), 0
      else:
        digit = _DIGITS_ZH[sign]
    return total + digit
  values = [_ROMAN[sign] for sign in text.lower()]
  return sum(-v if v < max(values[i:]) else v for i, v in enumerate(values))


def future_knowledge(view: SceneView, book: Book | None = None) -> Iterator[Flag]:
  """Plans that quote a later turn; and with a book, what only a later chapter has."""
  passage = passage_of(view.trajectory) if book else None
  later = None
  if book and passage:
    place, known = book.place(passage), "\n".join((view.setting, view.passage))
    names = [name for name in book.names_after(place) if name not in known]
    names.sort(key=lambda name: (-len(name), name))  # Whole names before parts of them.
    later = _Later(book, place, names)
  size = QUOTE[view.language]
  first_said = _first_said(view, size)
  for turn in view.turns:
    flag = _quotes_later_turn(turn, first_said, size)
    if flag is None and later and not turn.is_environment:
      flag = later.flag(turn, view, size)
    if flag:
      yield flag


def _first_said(view: SceneView, size: int) -> dict[tuple[str, ...], int]:
  """The turn that first has a run; -1 for the setting."""
  first = dict.fromkeys(runs(view.setting_words, size), -1)
  if any(turn.turn.plan for turn in view.turns):
    for turn in view.turns:
      for run in runs(turn.plain, size):
        first.setdefault(run, turn.index)
  return first


def _quotes_later_turn(
  turn: TurnView, first: dict[tuple[str, ...], int], size: int
) -> Flag | None:
  words = turn.plan_words
  plain = tuple(word for _, _, word in words)
  for i in range(len(words) - size + 1):
    run = plain[i : i + size]
    if first.get(run, -1) > turn.index and run not in runs(turn.plain, size):
      end = i + size
      while end < len(words) and first.get(plain[end - size + 1 : end + 1], -1) > turn.index:
        end += 1
      why = f"stands in turn {first[run]}, which is still to come"
      return turn.flag("future_knowledge", "plan", words[i][0], words[end - 1][1], why)
  return None


@dataclasses.dataclass(frozen=True)
class _Later:
  """What a book has after a chapter and the scene does not know."""

  book: Book
  place: int
  names: list[str]

  def flag(self, turn: TurnView, view: SceneView, size: int) -> Flag | None:
    for field, text in (("reply", turn.turn.reply), ("plan", turn.turn.plan)):
      for name in self.names:
        at = text.find(name)
        if at < 0 or view.named_before(name.lower(), turn.index):
          continue
        if match := re.compile(_whole(name)).search(text):
          chapter = self.book.chapter(self.book.name_first(name))
          why = f"the name is first in {chapter!r}"
          return turn.flag("future_knowledge", field, match.start(), match.end(), why)
      words = turn.words if field == "reply" else turn.plan_words
      if flag := self._quote(turn, field, words, size):
        return flag
    return None

  def _quote(
    self, turn: TurnView, field: str, words: tuple[Word, ...], size: int
  ) -> Flag | None:
    plain = [word for _, _, word in words]
    if (found := self.book.quote_after(self.place, plain, size)) is None:
      return None
    i, chapter = found
    why = f"these words are first in {self.book.chapter(chapter)!r}"
    return turn.flag("future_knowledge", field, words[i][0], words[i + size - 1][1], why)


def _whole(name: str) -> str:
  """A pattern of the name as a word of its own, where its script has words."""
  return re.escape(name) if re.search(f"[{HAN}]", name) else rf"\b{re.escape(name)}\b"


# Capitalised words that books are full of and that are no facts of one.
_COMMON = frozenset(word.capitalize() for word in wordings.NO_PERSON) | {"Mr", "Mrs", "Lady"}
