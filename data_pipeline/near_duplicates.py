"""Texts that say nearly the same, found by MinHash and locality-sensitive hashing.

Two nets are cast, because text can come twice in two ways:

- A conversation copied with edits: its shingles (runs of words, or of signs in Chinese) give a
  MinHash signature; conversations that agree in one of several bands of it are compared.
- Text cut into other conversations, from an excerpt of some turns to a whole book: see
  `passages`.

Characters' names are masked before, so that renaming them hides nothing. Signatures lie in a
temporary file and bands are sorted in turn: datasketch's own index (`MinHashLSH`) would take
about 20 kB of memory a conversation.
"""

from array import array
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

from data_pipeline import passages
from her_jax.errors import ConfigError
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
    long_words, long_signs: length of a shingle for passages, longer since a book has many.
    one_in: of the long shingles one in so many is kept.
    excerpt_threshold, excerpt_least: share of a conversation's kept shingles, and their number,
      that another book must hold. The default number stands for 48 shingles: a passage of 50
      words is found as often as not, one of 100 always.
    book_threshold, book_least: the same of all of a book's.
  """

  words: int = 3
  signs: int = 3
  bands: int = 64
  rows: int = 3
  threshold: float = 0.3
  least: int = 20
  long_words: int = 5
  long_signs: int = 8
  one_in: int = 8
  excerpt_threshold: float = 0.1
  excerpt_least: int = 6
  book_threshold: float = 0.2
  book_least: int = 8

  def __post_init__(self) -> None:
    for name in ("threshold", "excerpt_threshold", "book_threshold"):
      if not 0 < (value := getattr(self, name)) <= 1:
        raise ConfigError(f"{name}: {value} is no share above 0 and at most 1; give one")


@dataclasses.dataclass(frozen=True)
class Match:
  """Two conversations by number, with their similarity from 0 to 1."""

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
    passages: a sample of its long shingles, uint64 [about one in `one_in`], sorted.
  """

  signature: bytes
  text: int
  passages: np.ndarray


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
    long = shingles(made, settings.long_signs if chinese else settings.long_words)
    kept = passages.sample(long, settings.one_in)
    return Sketch(signature, int.from_bytes(digest, "little") or 1, kept)


def _ready(value: int) -> int:
  return value


class Finder:
  """Takes sketches one by one and then tells which are near-duplicates.

  Numbers are in the order of `add`, from 0. Use as a context manager: the signatures are a
  temporary file, and so do the passages. Memory is some numbers a conversation.
  """

  def __init__(self, settings: Settings):
    self._settings = settings
    self._file = tempfile.TemporaryFile(prefix="signatures")
    self._width = settings.bands * settings.rows
    self._row_bytes = 4 * self._width
    self._rows = array("L")  # Conversations that have a signature.
    self._books = array("L")  # Their books.
    self._passages = passages.Passages()
    self._added = 0
    self.too_short = 0
    self.capped = 0  # Buckets of which not all pairs were compared.

  def __enter__(self) -> "Finder":
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()
    self._passages.__exit__()

  def add(self, sketch: Sketch, book: int) -> None:
    """Takes a conversation of the book with this number."""
    if sketch.signature:
      self._file.write(sketch.signature)
      self._rows.append(self._added)
      self._books.append(book)
    else:
      self.too_short += 1
    self._passages.add(sketch.passages, book)
    self._added += 1

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

  def shared(self) -> Iterator[passages.Shared]:
    """Text that stands in another book too, by conversations and then by books."""
    settings = self._settings
    yield from self._passages.conversations(settings.excerpt_least, settings.excerpt_threshold)
    yield from self._passages.books(settings.book_least, settings.book_threshold)


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
