"""What the builders and the export read: trajectories with their proof, and preference pairs.

One pass over the files leaves some numbers a conversation: where its line begins, its purpose,
how many turns it has and how many are trained. Everything else is read anew when it is written,
so that memory does not grow with the texts.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any, BinaryIO

from data_pipeline.conversations import (
  Conversations,
  IdTable,
  hash_of,
  line_at,
  same,
  with_purpose,
)
from data_pipeline.proof import Proof, check_file, read_proof
from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.schema import DataError, PreferencePair, Trajectory

# The purposes whose conversations each kind of record is made of.
KINDS: Mapping[str, tuple[str, ...]] = {
  "trajectories": ("sft", "rl", "judge_sft", "judge_rl", "test"),
  "sft_turns": ("sft", "test"),
  "rl_prompts": ("rl", "test"),
  "preference_pairs": ("judge_sft", "judge_rl", "test"),
}
SHARD_BYTES = 32 << 20  # Of the input; a shard's records are in memory while it is written.


@dataclasses.dataclass(frozen=True)
class Entry:
  """A conversation as its line holds it, with its purpose and its place among that purpose's."""

  row: dict[str, Any]
  purpose: str
  record: int

  def scene(self) -> Trajectory:
    return schema.build_trajectory(self.row)


class Source:
  """Conversations by purpose, in the order of the files.

  Args:
    trajectories: files that the proof knows: what was split, or the purposes' files.
    proof: of the splits, or its path.
    pairs: JSON Lines files of preference pairs over these conversations.

  Raises:
    DataError: a file is not what the proof speaks of, or a row is faulty.
  """

  def __init__(
    self,
    trajectories: Sequence[str | os.PathLike[str]],
    proof: Proof | str | os.PathLike[str],
    pairs: Sequence[str | os.PathLike[str]] = (),
  ):
    self.proof = proof if isinstance(proof, Proof) else read_proof(proof)
    self.paths = [pathlib.Path(path) for path in trajectories]
    self.pair_paths = [pathlib.Path(path) for path in pairs]
    self.purposes = list(self.proof.row["purposes"])
    for path in self.paths:
      check_file(self.proof, path)
    self._files, self._offsets, self._lengths = array("B"), array("Q"), array("L")
    self._of: dict[str, array] = {purpose: array("L") for purpose in self.purposes}
    self._ids = IdTable()  # id → purpose << 40 | place among that purpose's
    self.turns: Counter[str] = Counter()
    self.trained: Counter[str] = Counter()
    self.languages: Counter[tuple[str, str]] = Counter()
    self.books: dict[str, set[str]] = {purpose: set() for purpose in self.purposes}
    self._index()
    self.pair_faults: Counter[str] = Counter()
    self._pairs: dict[str, array] = {purpose: array("Q") for purpose in self.purposes}
    self._index_pairs()

  def _index(self) -> None:
    lenient = bool(self.proof.row.get("rejected"))
    for place, scene in Conversations(self.paths, same, lenient, checked=not lenient):
      purpose = self.proof.purpose(scene.source)
      at = len(self._offsets)
      self._files.append(place.file)
      self._offsets.append(place.offset)
      self._lengths.append(place.length)
      number = self.purposes.index(purpose)
      self._ids.add(hash_of(scene.id), number << 40 | len(self._of[purpose]))
      self._of[purpose].append(at)
      self.turns[purpose] += len(scene.turns)
      self.trained[purpose] += len(scene.trained_turns())
      self.languages[purpose, scene.language] += 1
      self.books[purpose].add(scene.source)

  def _index_pairs(self) -> None:
    seen = IdTable()
    for file, path in enumerate(self.pair_paths):
      if not path.is_file():
        raise DataError(f"{path}: no such file; pass an existing JSON Lines file of pairs")
      offset = 0
      with path.open("rb") as f:
        for line, raw in enumerate(f, 1):
          try:
            self._index_pair(raw, file << 48 | offset, seen)
          except DataError as error:
            raise DataError(f"{path}:{line}: {error}") from None
          offset += len(raw)

  def _index_pair(self, raw: bytes, place: int, seen: IdTable) -> None:
    row = jsonl.parse_json(raw)
    if row is None:
      return
    if not isinstance(row, dict):
      raise DataError(f"expected one JSON object a line, got {type(row).__name__}")
    pair = schema.pair_from_dict(row)
    if seen.add(hash_of(pair.id), 1) is not None:
      raise DataError(f"id: {pair.id!r} stands twice; ids must be unique")
    found = self.find(pair.scene)
    if found is None:
      raise DataError(
        f"scene: {pair.scene!r} is not among the conversations; pass its file too"
      )
    purpose, record = found
    if purpose not in KINDS["preference_pairs"]:
      self.pair_faults[f"its conversation is for {purpose}"] += 1
      return
    with self.open() as reader:
      schema.check_pair(pair, {pair.scene: reader.entry(purpose, record).scene()})
    self._pairs[purpose].append(place)

  def find(self, identity: str) -> tuple[str, int] | None:
    """Purpose of a conversation and its place among that purpose's, by id."""
    found = self._ids.get(hash_of(identity))
    return None if found is None else (self.purposes[found >> 40], found & (1 << 40) - 1)

  def open(self) -> "Reader":
    return Reader(self)

  def conversations(self, purpose: str) -> int:
    return len(self._of[purpose])

  def pairs(self, purpose: str) -> int:
    return len(self._pairs[purpose])

  def splits(self, kind: str) -> list[str]:
    """The purposes of which this kind has records."""
    counts = {
      "sft_turns": lambda purpose: self.trained[purpose],
      "rl_prompts": lambda purpose: self.trained[purpose],
      "preference_pairs": self.pairs,
    }.get(kind, self.conversations)
    return [p for p in KINDS[kind] if p in self.purposes and counts(p)]

  def shards(self, kind: str, purpose: str, most: int = SHARD_BYTES) -> list[range]:
    """Ranges of conversations (of pairs for preference_pairs), each about `most` bytes long."""
    if kind == "preference_pairs":
      step = max(most >> 12, 1)
      return [
        range(a, min(a + step, self.pairs(purpose)))
        for a in range(0, self.pairs(purpose), step)
      ]
    ranges, begin, held = [], 0, 0
    for i, at in enumerate(self._of[purpose]):
      if held and held + self._lengths[at] > most:
        ranges.append(range(begin, i))
        begin, held = i, 0
      held += self._lengths[at]
    return [*ranges, range(begin, len(self._of[purpose]))] if self._of[purpose] else []


class Reader:
  """Reads lines anew at the places that a `Source` knows; a context manager."""

  def __init__(self, source: Source):
    self._source = source
    self._files: dict[pathlib.Path, BinaryIO] = {}

  def __enter__(self) -> "Reader":
    return self

  def __exit__(self, *exception: object) -> None:
    for file in self._files.values():
      file.close()

  def _file(self, path: pathlib.Path) -> BinaryIO:
    if path not in self._files:
      self._files[path] = path.open("rb")
    return self._files[path]

  def entry(self, purpose: str, record: int) -> Entry:
    """The conversation at this place among those of a purpose."""
    source = self._source
    at = source._of[purpose][record]
    file = self._file(source.paths[source._files[at]])
    row = line_at(file, source._offsets[at], source._lengths[at])
    return Entry(with_purpose(row, purpose), purpose, record)

  def pair(self, purpose: str, number: int) -> tuple[PreferencePair, dict[str, Any], int]:
    """A pair, its row, and the place of its conversation among those of the purpose."""
    place = self._source._pairs[purpose][number]
    file = self._file(self._source.pair_paths[place >> 48])
    file.seek(place & (1 << 48) - 1)
    row = jsonl.parse_json(file.readline())
    pair = schema.pair_from_dict(row)
    found = self._source.find(pair.scene)
    assert found is not None
    return pair, row, found[1]

  def entries(self, purpose: str, records: range) -> Iterator[Entry]:
    for record in records:
      yield self.entry(purpose, record)
