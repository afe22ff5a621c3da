"""Texts that say nearly the same, found by MinHash and locality-sensitive hashing.

Two nets are cast, because a book can come twice in two ways:

- A conversation copied with edits: its shingles (runs of words, or of signs in Chinese) give a
  MinHash signature; conversations that agree in one of several bands of it are compared.
- A book cut into other conversations: the smallest hashes of all its shingles are its sketch;
  the share of the smaller sketch that the larger holds tells how much text they share.

Characters' names are masked before, so that renaming them hides nothing. Signatures lie in a
temporary file and bands are sorted in turn: datasketch's own index (`MinHashLSH`) would take
about 20 kB of memory a conversation.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
import dataclasses
import hashlib
import heapq
import os
import re
import tempfile
import unicodedata
import zlib

import datasketch
import numpy as np

from her_jax.roleplay.schema import Trajectory

_SIGNS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+")
_TAG = re.compile(r"</?\w+>")
_NO_NAMES = {"the", "and", "von", "van", "der", "mrs", "his", "her"}
_NAME = 1  # The token that stands for every name.
_CHUNK = 8192  # Signatures read at once.
_BANDS_AT_ONCE = 8
_BUCKET = 8  # Of a bucket's members each is compared with so many before it.
_KEPT = 1000  # Pairs below the threshold that are remembered.
_SHARED = 20  # A shingle in more books than this is a stock phrase and tells nothing.


@dataclasses.dataclass(frozen=True)
class Settings:
  """What counts as nearly the same.

  With a tenth of the words replaced, 0.9^3 of the shingles of three words survive, which is a
  Jaccard similarity of 0.57, and down to 0.43 for single conversations; scenes of one author and
  world stay below 0.02. Two signatures of 64 bands of 3 meet in one band with probability 0.995
  at 0.43, 0.83 at 0.3 and 0.0005 at 0.02.

  Attributes:
    words, signs: length of a shingle, in words, or in signs for Chinese.
    bands, rows: of the signature, which has bands x rows values of 32 bits.
    threshold: estimated Jaccard similarity from which two conversations are near-duplicates.
    least: shingles that a conversation must have to be compared at all.
    book_words, book_signs: length of a shingle for whole books, longer since they have many.
    book_sketch: smallest hashes kept of a book.
    book_threshold: share of the smaller book's sketch found in the larger one's.
    book_least: shingles that two books must have in common within their sketches.
  """

  words: int = 3
  signs: int = 3
  bands: int = 64
  rows: int = 3
  threshold: float = 0.3
  least: int = 20
  book_words: int = 5
  book_signs: int = 8
  book_sketch: int = 512
  book_threshold: float = 0.2
  book_least: int = 8


@dataclasses.dataclass(frozen=True)
class Match:
  """Two conversations (or books) by number, with their similarity from 0 to 1."""

  first: int
  second: int
  similarity: float


def tokens(text: str) -> np.ndarray:
  """Hashes of a text's words and Chinese signs, uint32 [count]; case and form do not matter."""
  plain = unicodedata.normalize("NFKC", _TAG.sub(" ", text)).casefold()
  found = _TOKEN.findall(plain)
  return np.fromiter((zlib.crc32(t.encode()) for t in found), np.uint32, len(found))


def masked_tokens(scene: Trajectory) -> np.ndarray:
  """Tokens of all replies, uint32 [count], each run of names as one token.

  "Una Marrack nods to Ben." → NAME nods to NAME
  """
  text = "\n".join(turn.reply for turn in scene.turns)
  parts: set[str] = set()
  names = {c.name for c in scene.characters} | {t.speaker for t in scene.turns}
  names.discard(scene.environment)
  for name in sorted(names, key=len, reverse=True):
    if scene.language == "zh":
      # A name of three signs is also called by its last two.
      for form in (name, name[1:] if len(name) == 3 else name):
        if len(form) > 1:
          text = text.replace(form, " \x01 ")
    # Neither "of" nor "the" is a name of its own.
    parts.update(p for p in _TOKEN.findall(name.casefold()) if len(p) > 2)
  parts -= _NO_NAMES
  made = tokens(text.replace("\x01", "name1name"))
  masks = [zlib.crc32(p.encode()) for p in parts] + [zlib.crc32(b"name1name")]
  is_name = np.isin(made, np.array(masks, np.uint32))
  made[is_name] = _NAME
  repeated = np.zeros(len(made), bool)
  repeated[1:] = is_name[1:] & is_name[:-1]
  return made[~repeated]


def shingles(made: np.ndarray, length: int) -> np.ndarray:
  """Sorted hashes of all runs of `length` tokens, uint64 [count], each once."""
  count = len(made) - length + 1
  if count <= 0:
    return np.zeros(0, np.uint64)
  mixed = np.zeros(count, np.uint64)
  for j in range(length):
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + made[j : j + count].astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
  mixed *= np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser: low and high bits alike.
  mixed ^= mixed >> np.uint64(32)
  return np.unique(mixed)


@dataclasses.dataclass(frozen=True)
class Sketch:
  """What is kept of a conversation's text.

  Attributes:
    signature: MinHash, bands x rows values uint32 as bytes; empty if the text is too short.
    text: hash of the normal text.
    smallest: the smallest hashes of its long shingles, uint64 [at most book_sketch], sorted.
  """

  signature: bytes
  text: int
  smallest: np.ndarray


class Sketcher:
  """Makes sketches; those of equal settings and seed can be compared."""

  def __init__(self, settings: Settings, seed: int = 0):
    self._settings = settings
    # Hashes come ready; the seed of datasketch must be positive.
    width = settings.bands * settings.rows
    self._empty = datasketch.MinHash(num_perm=width, seed=seed + 1, hashfunc=_ready)

  def __call__(self, scene: Trajectory) -> Sketch:
    settings, chinese = self._settings, scene.language == "zh"
    made = masked_tokens(scene)
    found = shingles(made, settings.signs if chinese else settings.words)
    signature = b""
    if len(found) >= settings.least:
      minhash = self._empty.copy()
      minhash.update_batch((found >> np.uint64(32)).tolist())
      signature = minhash.hashvalues.astype(np.uint32).tobytes()
    digest = hashlib.blake2b(made.tobytes(), digest_size=8).digest()
    long = shingles(made, settings.book_signs if chinese else settings.book_words)
    smallest = long[: settings.book_sketch].copy()
    return Sketch(signature, int.from_bytes(digest, "little") or 1, smallest)


def _ready(value: int) -> int:
  return value


class Finder:
  """Takes sketches one by one and then tells which are near-duplicates.

  Numbers are in the order of `add`, from 0. Use as a context manager: the signatures are a
  temporary file. Memory is some numbers a conversation and `book_sketch` numbers a book.
  """

  def __init__(self, settings: Settings):
    self._settings = settings
    self._file = tempfile.TemporaryFile(prefix="signatures")
    self._width = settings.bands * settings.rows
    self._row_bytes = 4 * self._width
    self._rows = array("L")  # Conversations that have a signature.
    self._books = array("L")  # Their books.
    self._sketches: dict[int, np.ndarray] = {}
    self._added = 0
    self.too_short = 0
    self.capped = 0  # Buckets of which not all pairs were compared.

  def __enter__(self) -> "Finder":
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()

  def add(self, sketch: Sketch, book: int) -> None:
    """Takes a conversation of the book with this number."""
    if sketch.signature:
      self._file.write(sketch.signature)
      self._rows.append(self._added)
      self._books.append(book)
    else:
      self.too_short += 1
    self._add_to_book(book, sketch.smallest)
    self._added += 1

  def _add_to_book(self, book: int, new: np.ndarray) -> None:
    most = self._settings.book_sketch
    known = self._sketches.get(book)
    if known is not None:
      if len(known) == most:
        new = new[new < known[-1]]
      new = np.unique(np.concatenate([known, new]))[:most]
    self._sketches[book] = new

  def conversations(self) -> Iterator[Match]:
    """Pairs of conversations of different books that meet in a band, with their similarity.

    A pair may come more than once; pairs far below the threshold come by chance only.
    """
    books = np.array(self._books, np.int64)
    for bands in self._keys():
      for key in bands:
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(key[order][1:] == key[order][:-1])
        if not len(same):
          continue
        # Runs of one key: `same` holds consecutive indices within a run.
        breaks = np.flatnonzero(np.diff(same) > 1) + 1
        for run in np.split(same, breaks):
          members = order[run[0] : run[-1] + 2]
          yield from self._bucket(members, books)

  def _bucket(self, members: np.ndarray, books: np.ndarray) -> Iterator[Match]:
    self.capped += len(members) > _BUCKET + 1
    for i in range(1, len(members)):
      for other in members[max(0, i - _BUCKET) : i]:
        if books[other] != books[members[i]]:
          first, second = sorted((int(other), int(members[i])))
          similarity = float(np.mean(self._signature(first) == self._signature(second)))
          yield Match(self._rows[first], self._rows[second], similarity)

  def _keys(self) -> Iterator[list[np.ndarray]]:
    """Hashes of some bands at once, each uint64 [signatures]."""
    settings, count = self._settings, len(self._rows)
    for begin in range(0, settings.bands, _BANDS_AT_ONCE):
      bands = range(begin, min(begin + _BANDS_AT_ONCE, settings.bands))
      keys = [np.empty(count, np.uint64) for _ in bands]
      self._file.flush()
      for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        raw = os.pread(self._file.fileno(), size * self._row_bytes, start * self._row_bytes)
        rows = np.frombuffer(raw, np.uint32).reshape(size, self._width)
        for key, band in zip(keys, bands, strict=True):
          made = np.zeros(size, np.uint64)
          for column in range(band * settings.rows, (band + 1) * settings.rows):
            made = (made ^ rows[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            made ^= made >> np.uint64(32)
          key[start : start + size] = made
      yield keys

  def _signature(self, row: int) -> np.ndarray:
    raw = os.pread(self._file.fileno(), self._row_bytes, row * self._row_bytes)
    return np.frombuffer(raw, np.uint32)

  def books(self) -> Iterator[Match]:
    """Pairs of books that share at least `book_threshold` of the smaller one's sketch."""
    if not self._sketches:
      return
    numbers = sorted(self._sketches)
    hashes = np.concatenate([self._sketches[n] for n in numbers])
    owners = np.repeat(numbers, [len(self._sketches[n]) for n in numbers])
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], owners[order]
    edges = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1], [True]]))
    shared: Counter[tuple[int, int]] = Counter()
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
      if 1 < end - begin <= _SHARED:
        held = sorted(owners[begin:end].tolist())
        shared.update((a, b) for i, a in enumerate(held) for b in held[i + 1 :])
    for (a, b), common in sorted(shared.items()):
      if common >= self._settings.book_least:
        similarity = self._containment(a, b)
        if similarity >= self._settings.book_threshold:
          yield Match(a, b, similarity)

  def _containment(self, a: int, b: int) -> float:
    """Share of the smaller book's shingles in the larger, from where both sketches are whole."""
    one, two, most = self._sketches[a], self._sketches[b], self._settings.book_sketch
    for sketch in (one, two):
      if len(sketch) == most:  # Beyond its last hash a full sketch knows nothing.
        one, two = one[one <= sketch[-1]], two[two <= sketch[-1]]
    common = len(np.intersect1d(one, two, assume_unique=True))
    return common / max(min(len(one), len(two)), 1)


class Nearest:
  """The most similar pairs of what it is shown, a bounded number of them."""

  def __init__(self, kept: int = _KEPT):
    self._kept = kept
    self._heap: list[tuple[float, int, int]] = []
    self._known: set[tuple[int, int]] = set()

  def add(self, match: Match) -> None:
    entry = (match.similarity, -match.first, -match.second)
    full = len(self._heap) == self._kept
    if (full and entry <= self._heap[0]) or entry[1:] in self._known:
      return
    self._known.add(entry[1:])
    if full:
      self._known.discard(heapq.heapreplace(self._heap, entry)[1:])
    else:
      heapq.heappush(self._heap, entry)

  def __iter__(self) -> Iterator[Match]:
    """From the most similar down."""
    for similarity, first, second in sorted(self._heap, reverse=True):
      yield Match(-first, -second, similarity)
