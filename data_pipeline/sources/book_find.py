"""The scenes of a book: asked for piece by piece, joined at the borders, none too long."""

from collections.abc import Iterator, Sequence
import dataclasses

from data_pipeline.sources import book_prompts, book_replies, book_scenes
from data_pipeline.sources.book_ask import Asker, Counts, Question
from data_pipeline.sources.book_replies import Person, Stretch
from data_pipeline.sources.book_text import Book, Chapter
from her_jax.llm.client import Sampling


@dataclasses.dataclass(frozen=True)
class Options:
  """How a book is asked about.

  Attributes:
    piece: characters of the text in a request for scenes; `overlap` is repeated of the piece
      before. A scene longer than `piece` is split.
    sampling: of every call; a cut answer is asked for again with twice the tokens.
    chapters: read no more than so many; 0 reads all.
  """

  piece: int = 12_000
  overlap: int = 1_500
  sampling: Sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=8192)
  chapters: int = 0


@dataclasses.dataclass(frozen=True)
class _Piece:
  """Paragraphs `first` to `last` of a chapter, as a request shows them."""

  chapter: int
  first: int
  last: int


@dataclasses.dataclass(frozen=True)
class Scene:
  """A stretch of a chapter with the list of those who are noted there."""

  id: str
  chapter: Chapter
  stretch: Stretch
  local: tuple[Person, ...]

  @property
  def paragraphs(self) -> Sequence[str]:
    first = self.chapter.first
    return self.chapter.paragraphs[self.stretch.first - first : self.stretch.last + 1 - first]


class Finder:
  """Finds the scenes of one book."""

  def __init__(self, book: Book, asker: Asker, counts: Counts, options: Options):
    self._book, self._asker = book, asker
    self._counts, self._options = counts, options
    self._chapters = book.chapters[: options.chapters or None]

  def find(self) -> list[Scene]:
    asked: dict[str, _Piece] = {}
    questions = []
    for number, chapter in enumerate(self._chapters):
      sizes = [len(p) for p in chapter.paragraphs]
      cuts = book_scenes.pieces(sizes, self._options.piece, self._options.overlap)
      for i, (a, b) in enumerate(cuts):
        piece = _Piece(number, chapter.first + a, chapter.first + b)
        questions.append(self._about_scenes(f"{number}/{i}", piece))
        asked[questions[-1].id] = piece
    lists: list[tuple[_Piece, list[Person]]] = []
    found: dict[int, list[Stretch]] = {}
    answers = self._asker.ask("scenes", questions)
    for id, piece in asked.items():
      if id in answers:
        people, stretches = answers[id]
        lists.append((piece, people))
        found.setdefault(piece.chapter, []).extend(stretches)
    joined = {number: book_scenes.join(stretches) for number, stretches in found.items()}
    self._mend_cuts(joined, lists)
    return [
      scene for number in sorted(joined) for scene in self._made(number, joined[number], lists)
    ]

  def _about_scenes(self, name: str, piece: _Piece) -> Question:
    chapter = self._chapters[piece.chapter]
    numbered = {
      n: chapter.paragraphs[n - chapter.first] for n in range(piece.first, piece.last + 1)
    }
    text = book_prompts.scenes(
      self._book.title, chapter.title or self._book.title, numbered, self._book.language
    )
    return Question(
      f"{self._book.title}/scenes/{name}",
      text,
      lambda answer: book_replies.scenes(answer, piece.first, piece.last),
    )

  def _mend_cuts(
    self, joined: dict[int, list[Stretch]], lists: list[tuple[_Piece, list[Person]]]
  ) -> None:
    """Asks again about scenes that were cut and that no other piece goes on with."""
    cut: dict[str, tuple[_Piece, int]] = {}
    questions = []
    for number, stretches in joined.items():
      chapter = self._chapters[number]
      first, last = chapter.first, chapter.first + len(chapter.paragraphs) - 1
      sizes = [len(p) for p in chapter.paragraphs]
      for i, scene in enumerate(book_scenes.within(stretches, first, last)):
        a, b = book_scenes.window(scene, first, last, sizes, self._options.piece)
        if (a, b) != (scene.first, scene.last):
          piece = _Piece(number, a, b)
          questions.append(self._about_scenes(f"{number}/again/{i}", piece))
          cut[questions[-1].id] = (piece, i)
    for id, (people, stretches) in self._asker.ask("scenes", questions).items():
      piece, i = cut[id]
      joined[piece.chapter][i] = book_scenes.mended(joined[piece.chapter][i], stretches)
      lists.append((piece, people))
      self._counts.scenes["asked about again"] += 1

  def _made(
    self,
    number: int,
    stretches: Sequence[Stretch],
    lists: Sequence[tuple[_Piece, list[Person]]],
  ) -> Iterator[Scene]:
    """A chapter's scenes, none too long, each with who was noted in the pieces it lies in."""
    chapter = self._chapters[number]
    sizes = [len(p) for p in chapter.paragraphs]
    whole = book_scenes.join([Stretch(s.first, s.last) for s in stretches])
    count = 0
    for stretch in whole:
      parts = book_scenes.split(stretch, sizes, chapter.first, self._options.piece)
      self._counts.scenes["split by size"] += len(parts) > 1
      for part in parts:
        local = tuple(
          person
          for piece, people in lists
          if piece.chapter == number and piece.first <= part.last and part.first <= piece.last
          for person in people
        )
        self._counts.scenes["found"] += 1
        yield Scene(f"{self._book.title}/{number}/{count}", chapter, part, local)
        count += 1
