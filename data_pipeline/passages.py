"""Text that one book shares with another, however it is cut into conversations.

MinHash finds conversations that are nearly the same as a whole. This finds a scene of a long
novel in a small book, an excerpt of some turns, or a whole book cut otherwise: of a
conversation's long shingles (runs of words, or of signs in Chinese) those are kept whose hash
divides by a number (a scaled MinHash, as in Irber et al., doi:10.1101/2022.01.11.475838). The
same ones are kept wherever a text stands, so that their share that another book holds is the
share of the text that stands there too.

The hashes lie in a temporary file and are sorted part by part; what is in memory is a number a
conversation and the hits.
"""

from array import array
from collections.abc import Iterator
import dataclasses
import tempfile

import numpy as np

_AT_ONCE = 1 << 21  # Hashes sorted at once.
_CHUNK = 1 << 18  # Hashes read at once.
_SHARED = 20  # A shingle in more books than this is a stock phrase and tells nothing.


@dataclasses.dataclass(frozen=True)
class Shared:
  """Text of `book` that stands in `other` too, both by number.

  Attributes:
    share: of the conversation's text, or of the book's where there is none.
    conversation: number of the conversation of `book` that holds it; None for a whole book.
  """

  book: int
  other: int
  share: float
  conversation: int | None = None


def sample(shingles: np.ndarray, one_in: int) -> np.ndarray:
  """Those of some hashes that are kept: uint64 [count] -> uint64 [about count / one_in]."""
  return shingles[shingles % np.uint64(one_in) == 0]


class Passages:
  """Takes the sampled shingles of conversations one by one, then tells what books share.

  Conversations are numbered in the order of `add`, from 0. Use as a context manager.
  """

  def __init__(self) -> None:
    self._file = tempfile.TemporaryFile(prefix="passages")
    self._counts = array("L")  # Hashes of each conversation.
    self._books = array("L")

  def __enter__(self) -> "Passages":
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()

  def add(self, hashes: np.ndarray, book: int) -> None:
    """Takes the next conversation: uint64 [count], each once."""
    self._file.write(hashes.tobytes())
    self._counts.append(len(hashes))
    self._books.append(book)

  def conversations(self, least: int, threshold: float) -> Iterator[Shared]:
    """Conversations of which another book holds `least` hashes and a share of `threshold`."""
    keys, hits = self._hits()
    for key, count in zip(keys.tolist(), hits.tolist(), strict=True):
      number, other = key >> 32, key & 0xFFFFFFFF
      share = count / self._counts[number]
      if count >= least and share >= threshold:
        yield Shared(self._books[number], other, share, number)

  def books(self, least: int, threshold: float) -> Iterator[Shared]:
    """Books of which another one holds `least` hashes and a share of `threshold`."""
    keys, hits = self._hits()
    books = np.array(self._books, np.uint64)
    pairs = books[(keys >> np.uint64(32)).astype(np.int64)] << np.uint64(32)
    pairs |= keys & np.uint64(0xFFFFFFFF)
    pairs, inverse = np.unique(pairs, return_inverse=True)
    totals = np.bincount(books.astype(np.int64), weights=np.array(self._counts, float))
    for pair, count in zip(
      pairs.tolist(), np.bincount(inverse, weights=hits).tolist(), strict=True
    ):
      share = count / totals[pair >> 32]
      if count >= least and share >= threshold:
        yield Shared(pair >> 32, pair & 0xFFFFFFFF, share)

  def _hits(self) -> tuple[np.ndarray, np.ndarray]:
    """conversation << 32 | other book, uint64 [pairs], and how many hashes they share."""
    total = sum(self._counts)
    parts = total // _AT_ONCE + 1
    # 32 bits are enough for either; np.unique of them is what is left in memory.
    keys, hits = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for part in range(parts):
      found = np.frombuffer(self._part(part, parts), np.uint64)
      new, counts = np.unique(found, return_counts=True)
      both, inverse = np.unique(np.concatenate([keys, new]), return_inverse=True)
      hits = np.bincount(inverse, weights=np.concatenate([hits, counts])).astype(np.int64)
      keys = both
    return keys, hits

  def _part(self, part: int, parts: int) -> array:
    """Each hit of one part of the hashes, as `_hits` gives them."""
    hashes, owners = self._read(part, parts)
    books = np.array(self._books, np.int64)[owners]
    order = np.lexsort((owners, books, hashes))
    hashes, owners, books = hashes[order], owners[order], books[order]
    found = array("Q")
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    same = same[np.isin(hashes[same], hashes[1:][books[1:] != books[:-1]])]
    if not len(same):
      return found
    breaks = np.flatnonzero(np.diff(same) > 1) + 1
    for run in np.split(same, breaks):
      here = slice(run[0], run[-1] + 2)
      held = np.unique(books[here]).tolist()
      if not 1 < len(held) <= _SHARED:
        continue
      for number, book in zip(owners[here].tolist(), books[here].tolist(), strict=True):
        found.extend(number << 32 | other for other in held if other != book)
    return found

  def _read(self, part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of a part, uint64 [count], and their conversations, int64 [count]."""
    self._file.seek(0)
    ends = np.cumsum(np.array(self._counts, np.int64))
    hashes, owners, start = [], [], 0
    while raw := self._file.read(8 * _CHUNK):
      read = np.frombuffer(raw, np.uint64)
      mine = np.flatnonzero((read >> np.uint64(40)) % np.uint64(parts) == part)
      hashes.append(read[mine])
      owners.append(np.searchsorted(ends, start + mine, side="right"))
      start += len(read)
    empty = [np.zeros(0, np.int64)]
    return np.concatenate(hashes or [np.zeros(0, np.uint64)]), np.concatenate(owners or empty)
