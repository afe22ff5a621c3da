"""The proof that no book and no conversation stands in two splits, and its check.

`data_pipeline.splits` writes it as `splits_proof.json` beside the files of the purposes; the
builders copy it into each data set that they build, with the checksums of its shards. Whatever
reads such data for training or evaluation calls `require_proof` first.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from data_pipeline.conversations import (
  PURPOSES,
  Conversations,
  content_digest,
  same,
)
from data_pipeline.files import write_whole
from data_pipeline.titles import normal_title
from her_jax.roleplay.fields import NOTES
from her_jax.roleplay.schema import DataError

PROOF, CHECKSUMS = "splits_proof.json", "checksums.json"
FORMAT = 1
_MOD = 1 << 256
_MEND = "run `python -m data_pipeline.splits` again"


@dataclasses.dataclass
class BookTally:
  """What was read of a book. The digest is the sum of its conversations', in any order."""

  conversations: int = 0
  turns: int = 0
  digest: int = 0

  def add(self, digest: int, turns: int) -> None:
    self.conversations += 1
    self.turns += turns
    self.digest = (self.digest + digest) % _MOD

  def as_dict(self) -> dict[str, Any]:
    return {
      "conversations": self.conversations,
      "turns": self.turns,
      "digest": f"{self.digest:064x}",
    }


@dataclasses.dataclass(frozen=True)
class Proof:
  """The content of a proof file; see `splits` for how it is made.

  Attributes:
    row: `format, verdict, seed, shares, method, files, purposes, books, links, nearest, …`.
    path: where it was read, for messages.
  """

  row: Mapping[str, Any]
  path: pathlib.Path

  @property
  def books(self) -> Mapping[str, Mapping[str, Any]]:
    return self.row["books"]

  @property
  def seal(self) -> str:
    return self.row["seal"]

  def purpose(self, book: str) -> str:
    """Raises DataError for a book that the proof does not know."""
    if book not in self.books:
      raise DataError(f"source: the book {book!r} is not in {self.path}; {_MEND}")
    return self.books[book]["purpose"]

  def file_of(self, sha256: str) -> Mapping[str, Any] | None:
    return next((f for f in self.row["files"] if f["sha256"] == sha256), None)


def seal_of(row: Mapping[str, Any]) -> str:
  """SHA-256 of all of a proof but the seal itself."""
  rest = {name: value for name, value in row.items() if name != "seal"}
  text = json.dumps(rest, ensure_ascii=False, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def sha256_of(path: str | os.PathLike[str]) -> str:
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def read_proof(path: str | os.PathLike[str]) -> Proof:
  """Reads a proof and checks it against itself.

  Raises:
    DataError: it is missing, was changed by hand, or puts a book into two splits.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    path = path / PROOF
  if not path.is_file():
    raise DataError(f"{path}: no proof of the splits; {_MEND}")

  def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
      twice = next(n for n, _ in pairs if sum(n == other for other, _ in pairs) > 1)
      raise DataError(f"{path}: {twice!r} stands in it twice, so in two splits; {_MEND}")
    return made

  try:
    row = json.loads(path.read_text("utf-8"), object_pairs_hook=once)
  except DataError:
    raise
  except (ValueError, RecursionError) as error:
    raise DataError(f"{path}: not readable as JSON ({error}); {_MEND}") from None
  if not isinstance(row, dict) or row.get("format") != FORMAT:
    raise DataError(f"{path}: not a proof of format {FORMAT}; {_MEND}")
  missing = {"seal", "verdict", "seed", "files", "books", "purposes"} - row.keys()
  if missing:
    raise DataError(f"{path}: {', '.join(sorted(missing))} missing; {_MEND}")
  if row["seal"] != seal_of(row):
    raise DataError(f"{path}: changed after it was written (its seal does not fit); {_MEND}")
  if row["verdict"] != "clean":
    raise DataError(f"{path}: its verdict is {row['verdict']!r}, not 'clean'; {_MEND}")
  _check_titles(row["books"], path)
  return Proof(row, path)


def _check_titles(books: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> None:
  seen: dict[str, str] = {}
  for title, book in books.items():
    first = seen.setdefault(normal_title(title), title)
    if books[first]["purpose"] != book["purpose"]:
      raise DataError(
        f"{path}: one book under two titles, {first!r} for {books[first]['purpose']} and"
        f" {title!r} for {book['purpose']}; {_MEND}"
      )


def verify(
  proof: Proof | str | os.PathLike[str], files: Iterable[str | os.PathLike[str]]
) -> Proof:
  """Reads files anew and holds them to their proof: hashes, rows, books, purposes.

  The files of the purposes are also held to each other: no conversation in two of them, no
  book in two of them, and each book whole.

  Args:
    files: those that were split, or those of the purposes, or both.

  Raises:
    DataError: names the file, and the line or book, that does not fit.
  """
  proof = proof if isinstance(proof, Proof) else read_proof(proof)
  paths = [pathlib.Path(file) for file in files]
  entries = [check_file(proof, path) for path in paths]
  inputs = [p for p, e in zip(paths, entries, strict=True) if e["role"] == "input"]
  outputs = [(p, e) for p, e in zip(paths, entries, strict=True) if e["role"] != "input"]
  lenient = bool(proof.row.get("rejected"))
  if inputs:
    all_ = len(inputs) == sum(f["role"] == "input" for f in proof.row["files"])
    _check_rows(proof, inputs, [""] * len(inputs), all_, lenient)
  if outputs:
    purposes = [entry["role"] for _, entry in outputs]
    _check_rows(proof, [path for path, _ in outputs], purposes, True, False)
  return proof


def check_file(proof: Proof, path: pathlib.Path) -> Mapping[str, Any]:
  """The proof's entry of a file.

  Raises:
    DataError: there is none with this content.
  """
  if not path.is_file():
    raise DataError(f"{path}: no such file, but {proof.path} is to vouch for it; {_MEND}")
  entry = proof.file_of(sha256_of(path))
  if entry is None:
    known = any(f["name"] == path.name for f in proof.row["files"])
    what = "changed since it was split" if known else "not among the files that were split"
    raise DataError(f"{path}: {what}, so {proof.path} does not hold for it; {_MEND}")
  return entry


def _check_rows(
  proof: Proof,
  paths: Sequence[pathlib.Path],
  purposes: Sequence[str],
  whole: bool,
  lenient: bool,
) -> None:
  """Holds the rows of files to the proof; `whole` if each book must be there completely."""
  tallies: dict[str, BookTally] = {}
  for place, scene in Conversations(paths, same, lenient, checked=not lenient):
    at = f"{paths[place.file]}:{place.line} (id {scene.id!r})"
    purpose = proof.purpose(scene.source)
    wanted = purposes[place.file]
    if wanted and purpose != wanted:
      raise DataError(
        f"{at}: a conversation of {scene.source!r}, which is for {purpose}, among those for"
        f" {wanted}; {_MEND}"
      )
    mine = scene.extra.get(NOTES)
    if wanted and (not isinstance(mine, Mapping) or mine.get("purpose") != wanted):
      raise DataError(f"{at}: {NOTES}.purpose is not {wanted!r}; {_MEND}")
    tally = tallies.setdefault(scene.source, BookTally())
    tally.add(content_digest(scene), len(scene.turns))
  for title, book in proof.books.items():
    if title not in tallies and (
      not whole or (purposes[0] and book["purpose"] not in purposes)
    ):
      continue
    read = tallies.get(title, BookTally()).as_dict()
    if whole and any(read[name] != book[name] for name in read):
      raise DataError(
        f"{', '.join(map(str, paths))}: the book {title!r} has {read['conversations']}"
        f" conversations, {read['turns']} turns, of which some moved or changed: the proof knows"
        f" {book['conversations']} and {book['turns']}; {_MEND}"
      )


def require_proof(path: str | os.PathLike[str], purpose: str | None = None) -> Proof:
  """The proof of data that are about to be used, held to their hashes.

  Args:
    path: a file that `splits` has read or written, the folder of them, or the folder of a
      built data set. The proof is looked for in it, else beside it.
    purpose: what the data are wanted for; a file for another purpose is refused.

  Raises:
    DataError: there is no proof, or the data are no longer what it speaks of.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise DataError(f"{path}: no such file or folder; pass data with their {PROOF}")
  folder = path if path.is_dir() else path.parent
  proof = read_proof(folder / PROOF)
  if (folder / CHECKSUMS).is_file():
    check_sums(folder, proof)
  else:
    wanted = [path] if path.is_file() else sorted(folder.glob("*.jsonl"))
    if not wanted:
      raise DataError(f"{folder}: holds neither split files nor {CHECKSUMS}; pass their folder")
    for file in wanted:
      role = check_file(proof, file)["role"]
      if purpose is not None and path.is_file() and role != purpose:
        raise DataError(f"{file}: is for {role}, not {purpose}; pass {purpose}.jsonl")
      if path.is_dir() and file.stem in PURPOSES and role != file.stem:
        raise DataError(f"{file}: is for {role}, as {proof.path} knows it; {_MEND}")
  if purpose is not None and purpose not in proof.row["purposes"]:
    raise DataError(
      f"{proof.path}: has no split for {purpose}; choose one of"
      f" {', '.join(proof.row['purposes'])} or give it a share"
    )
  return proof


def check_sums(folder: pathlib.Path, proof: Proof) -> None:
  """Holds the shards of a built data set to their checksums, and these to the proof.

  Raises:
    DataError: names the file that is missing or changed.
  """
  mend = "build the data set again with `python -m data_pipeline.builders.build`"
  try:
    sums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
    seal, files = sums["proof"], sums["files"].items()
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
    raise DataError(f"{folder / CHECKSUMS}: not a list of checksums; {mend}") from None
  if seal != proof.seal:
    raise DataError(f"{folder}: was built by another proof than {proof.path}; {mend}")
  listed = {name for name, _ in files}
  shards = sorted(p.name for p in folder.iterdir() if ".array_record" in p.name)
  if more := [name for name in shards if name not in listed]:
    raise DataError(f"{folder / more[0]}: is not among the checksums; {mend}")
  for name, sha256 in files:
    if not (folder / name).is_file():
      raise DataError(f"{folder / name}: missing; {mend}")
    if sha256_of(folder / name) != sha256:
      raise DataError(f"{folder / name}: changed since it was built; {mend}")


def write_proof(path: pathlib.Path, row: dict[str, Any]) -> Proof:
  """Seals and writes a proof; a reader sees all of it or none."""
  row = {**row, "seal": seal_of(row)}
  write_whole(path, json.dumps(row, ensure_ascii=False, indent=1) + "\n")
  return Proof(row, path)
