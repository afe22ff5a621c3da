"""Which book gets which purpose: units of linked books on a line, cut by turns."""

from collections.abc import Mapping, Sequence
import dataclasses

from data_pipeline.conversations import hash_of
from data_pipeline.titles import normal_title
from her_jax.roleplay.schema import DataError


@dataclasses.dataclass(frozen=True)
class Link:
  """Why two books must not be parted.

  Attributes:
    similarity: from 0 to 1; of "text" the share of a conversation or book that stands in the other.
    ids: of the two conversations that are alike, or of the one of which text stands in both.
  """

  books: tuple[str, str]
  why: str  # conversation | text | title
  similarity: float
  ids: tuple[str, ...] = ()

  def line(self) -> str:
    at = f" ({' and '.join(map(repr, self.ids))})" if self.ids else ""
    what = {"conversation": "a near-duplicate conversation", "text": "text", "title": "a title"}
    return (
      f"{self.books[0]!r} and {self.books[1]!r} share {what[self.why]}{at}, similarity"
      f" {self.similarity:.2f}"
    )


class Groups:
  """Books joined into units (union-find)."""

  def __init__(self) -> None:
    self._parent: dict[str, str] = {}

  def find(self, book: str) -> str:
    parent = self._parent.setdefault(book, book)
    while parent != self._parent[parent]:
      self._parent[parent] = self._parent[self._parent[parent]]
      parent = self._parent[parent]
    return parent

  def join(self, one: str, two: str) -> bool:
    """Whether they were apart before."""
    one, two = sorted((self.find(one), self.find(two)))
    self._parent[two] = one
    return one != two

  def members(self) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for book in self._parent:
      found.setdefault(self.find(book), []).append(book)
    return list(found.values())


def assign(
  groups: Sequence[Sequence[str]],
  turns: Mapping[str, int],
  purposes: Mapping[str, float],
  seed: int,
  pinned: Mapping[str, str] | None = None,
) -> dict[str, str]:
  """Gives each book a purpose.

      turns of units in hash order    5  3  4  8
      shares test .25, sft .75        |test |sft        cut at 5 of 20
      →                               test, sft, sft, sft

  Args:
    groups: books that go together.
    turns: of each book.
    purposes: name → size, of which the ratio counts.
    pinned: books whose purpose is fixed.

  Raises:
    DataError: there are fewer groups than purposes, or one group is pinned to two.
  """
  pinned, fixed, free = pinned or {}, {}, []
  total = sum(turns[book] for group in groups for book in group)
  scale = total / sum(purposes.values())
  need = {purpose: size * scale for purpose, size in purposes.items()}
  for group in groups:
    was = {pinned[book] for book in group if book in pinned}
    if len(was) > 1:
      told = ", ".join(f"{book!r} was {pinned[book]}" for book in group if book in pinned)
      raise DataError(
        f"books that share text were split apart before ({told}); remove one of them, or split"
        f" anew without the previous proof"
      )
    if was:
      (purpose,) = was
      fixed.update(dict.fromkeys(group, purpose))
      need[purpose] = need.get(purpose, 0) - sum(turns[book] for book in group)
    else:
      free.append(group)
  empty = [purpose for purpose in purposes if purpose not in fixed.values()]
  if len(free) < len(empty):
    raise DataError(
      f"{len(groups)} books or groups of books that share text are too few for the purposes"
      f" {', '.join(purposes)}: each needs one of its own; add books or name fewer purposes"
    )
  # The small purposes first: their place on the line is where a new book shifts least.
  order = sorted(purposes, key=lambda purpose: (purposes[purpose], purpose))
  order = [p for p in order if need[p] > 0 or p in empty] or order
  wanted = sum(max(need[p], 0) for p in order) or 1
  size = sum(turns[book] for group in free for book in group)
  line = sorted(free, key=lambda g: min((_place(book, seed), book) for book in g))
  at, cut, before = 0, 0.0, 0
  for i, purpose in enumerate(order):
    cut += size * max(need[purpose], 0) / wanted
    owed = sum(p in empty for p in order[i + 1 :])
    taken = 0
    while at < len(line) - owed:
      weight = sum(turns[book] for book in line[at])
      first = purpose in empty and not taken
      if not first and i + 1 < len(order) and before + weight / 2 > cut:
        break
      fixed.update(dict.fromkeys(line[at], purpose))
      at, before, taken = at + 1, before + weight, taken + 1
  return fixed


def _place(book: str, seed: int) -> int:
  return hash_of(f"{seed}|{normal_title(book)}")
