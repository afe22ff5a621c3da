"""Splits trajectories by book and purpose, and proves that nothing stands on both sides.

    python -m data_pipeline.splits --trajectories=a.jsonl,b.jsonl --out=out/splits

Writes one file a purpose (`sft.jsonl`, `rl.jsonl`, `judge_sft.jsonl`, `judge_rl.jsonl`,
`test.jsonl`) and `splits_proof.json`. Flags: `--purposes` (sizes, of which only the ratio
counts: `sft=3,test=1`), `--seed`, `--duplicates=join|raise`, `--previous=PROOF` (books keep the
purpose they had there), `--lenient`, `--threshold`, `--processes`, `--nowrite_files` for the proof alone.

The unit is the book. Books that share a near-duplicate conversation, a passage, much of their
text or their title are one unit (or an error, by flag). Units stand on a line in the order of a hash of
seed and title; the line is cut where the turns before the cut reach the shares. So a book that
is added moves at most the few that stand at a cut, and with `--previous` none.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import sys
from typing import Any

from absl import app, flags

from data_pipeline import near_duplicates, own_inputs
from data_pipeline import proof as proofs
from data_pipeline.assignment import Groups, Link, assign
from data_pipeline.conversations import (
  PURPOSES,
  Conversations,
  FileFacts,
  IdTable,
  content_digest,
  line_at,
  with_purpose,
)
from data_pipeline.near_duplicates import Match, Settings
from data_pipeline.proof import PROOF, Proof, read_proof, require_proof, verify
from data_pipeline.titles import normal_title
from her_jax.errors import ConfigError
from her_jax.roleplay.schema import DataError, Trajectory

__all__ = ["DEFAULT", "Proof", "assign", "read_proof", "require_proof", "split", "verify"]

# Single-turn samples by purpose in HER, arXiv 2601.21459; the ratio is what counts.
DEFAULT = {"sft": 107_800, "rl": 26_800, "judge_sft": 108_800, "judge_rl": 80_000, "test": 200}
_SEEDS = 2**32 - 1  # datasketch takes those of 32 bits, of which 0 is left out.
_SHOWN = 20  # Repeated conversations that the proof names.


@dataclasses.dataclass(frozen=True)
class _Summary:
  """What one conversation tells the split."""

  book: str
  turns: int
  digest: int
  sketch: near_duplicates.Sketch


@dataclasses.dataclass(frozen=True)
class _Summarise:
  """The work on each conversation, which another process may do."""

  sketcher: near_duplicates.Sketcher

  def __call__(self, scene: Trajectory) -> _Summary:
    digest = content_digest(scene)
    return _Summary(scene.source, len(scene.turns), digest, self.sketcher(scene))


@dataclasses.dataclass
class _Scan:
  """What one pass over the input leaves: some numbers a conversation, a tally a book."""

  source: Conversations[_Summary]
  tallies: list[proofs.BookTally] = dataclasses.field(default_factory=list)
  titles: dict[str, int] = dataclasses.field(default_factory=dict)  # → number of the book
  files: array = dataclasses.field(default_factory=lambda: array("B"))
  offsets: array = dataclasses.field(default_factory=lambda: array("Q"))
  lengths: array = dataclasses.field(default_factory=lambda: array("L"))
  books: array = dataclasses.field(default_factory=lambda: array("L"))
  texts: IdTable = dataclasses.field(default_factory=IdTable)  # hash → conversation
  repeats: int = 0
  repeated: list[tuple[int, int]] = dataclasses.field(default_factory=list)

  def run(self, finder: near_duplicates.Finder) -> None:
    for place, summary in self.source:
      book = self.titles.setdefault(summary.book, len(self.titles))
      if book == len(self.tallies):
        self.tallies.append(proofs.BookTally())
      self.tallies[book].add(summary.digest, summary.turns)
      number = len(self.books)
      self.files.append(place.file)
      self.offsets.append(place.offset)
      self.lengths.append(place.length)
      self.books.append(book)
      finder.add(summary.sketch, book)
      first = self.texts.add(summary.sketch.text, number)
      if first is not None:
        self.repeats += 1
        if len(self.repeated) < _SHOWN:
          self.repeated.append((first, number))

  def row(self, number: int) -> dict[str, Any]:
    """Reads a conversation's line anew."""
    with self.source.paths[self.files[number]].open("rb") as file:
      return line_at(file, self.offsets[number], self.lengths[number])


def split(
  paths: Sequence[str | os.PathLike[str]],
  out: str | os.PathLike[str],
  *,
  purposes: Mapping[str, float] = DEFAULT,
  seed: int = 0,
  settings: Settings | None = None,
  duplicates: str = "join",
  previous: Proof | None = None,
  lenient: bool = False,
  write_files: bool = True,
  processes: int = 0,
) -> Proof:
  """Splits files of trajectories; see the module for how.

  Args:
    paths: JSON Lines files of trajectories, each of which names its book in `source`.
    out: folder for the proof and the purposes' files.
    purposes: name → size, of which the ratio counts.
    duplicates: "join" keeps books that share text together, "raise" refuses them.
    previous: a proof whose books keep their purpose.
    lenient: whether faulty lines are counted and left out.
    write_files: whether to write the purposes' files, or the proof alone.
    processes: how many read the lines; 0 for this one alone. The result is the same.

  Raises:
    ConfigError: the purposes, `duplicates`, seed or settings are none.
    DataError: the data cannot be split, or are faulty.
  """
  check_purposes(purposes)
  if duplicates not in ("join", "raise"):
    raise ConfigError(f"duplicates: {duplicates!r} is neither 'join' nor 'raise'")
  if not 0 <= seed < _SEEDS:
    raise ConfigError(f"seed: {seed} is not within 0 and {_SEEDS - 1}; choose another")
  settings = settings or Settings()
  work = _Summarise(near_duplicates.Sketcher(settings, seed))
  names = [PROOF, *(f"{purpose}.jsonl" for purpose in PURPOSES)]
  own_inputs.refuse([pathlib.Path(out) / name for name in names], paths)
  scan = _Scan(Conversations(paths, work, lenient, processes=processes))
  stamps = [path.stat() for path in scan.source.paths]
  with near_duplicates.Finder(settings) as finder:
    scan.run(finder)
    titles = list(scan.titles)
    groups, links, nearest = _linked(scan, finder, settings)
  if duplicates == "raise" and links:
    raise DataError(
      f"{len(links)} pairs of books share text: {'; '.join(link.line() for link in links[:3])};"
      f" remove one of each, or pass --duplicates=join to keep them in one split"
    )
  turns = {title: scan.tallies[i].turns for title, i in scan.titles.items()}
  known = {
    normal_title(t): b["purpose"] for t, b in (previous.books if previous else {}).items()
  }
  pinned = {t: known[normal_title(t)] for t in turns if normal_title(t) in known}
  if gone := set(pinned.values()) - purposes.keys():
    raise ConfigError(
      f"purposes: {', '.join(sorted(gone))} have books in {previous and previous.path}; name"
      f" them too"
    )
  chosen = assign(groups.members(), turns, purposes, seed, pinned)
  by_book = [chosen[title] for title in titles]
  folder = pathlib.Path(out)
  folder.mkdir(parents=True, exist_ok=True)
  if write_files:
    _remove_others(folder, purposes)
  files = [{"role": "input", **dataclasses.asdict(facts)} for facts in scan.source.files]
  if write_files:
    written = _write(scan, by_book, list(purposes), folder)
    files += [{"role": p, **dataclasses.asdict(facts)} for p, facts in written.items()]
  for path, stamp in zip(scan.source.paths, stamps, strict=True):
    if (path.stat().st_size, path.stat().st_mtime_ns) != (stamp.st_size, stamp.st_mtime_ns):
      raise DataError(f"{path}: changed while it was being split; split it again")
  row = {
    "format": proofs.FORMAT,
    "verdict": "clean",
    "seed": seed,
    "method": {
      "unit": "book (source), joined where books share text or title",
      "near_duplicates": dataclasses.asdict(settings),
      "datasketch": importlib.metadata.version("datasketch"),
      "duplicates": duplicates,
      "previous": previous.seal if previous else None,
    },
    "files": files,
    "purposes": _counts(scan, by_book, purposes),
    "links": [dataclasses.asdict(link) for link in links],
    "nearest": _nearest(scan, by_book, titles, nearest),
    "too_short": finder.too_short,
    "buckets_capped": finder.capped,
    "repeats": {
      "conversations": scan.repeats,
      "ids": [[scan.row(i)["id"] for i in pair] for pair in scan.repeated],
    },
    "rejected": dict(scan.source.rejected),
    "rejected_lines": scan.source.rejected_lines,
    "books": {
      title: {"purpose": by_book[i], **scan.tallies[i].as_dict()}
      for title, i in sorted(scan.titles.items())
    },
  }
  return proofs.write_proof(folder / PROOF, row)


def check_purposes(purposes: Mapping[str, float]) -> None:
  """Raises ConfigError where they are no purposes with a size."""
  if not purposes:
    raise ConfigError("purposes: none given; name at least one, e.g. sft=3,test=1")
  for purpose, size in purposes.items():
    if purpose not in PURPOSES:
      raise ConfigError(f"purposes: {purpose!r} is not one of {', '.join(PURPOSES)}")
    if not 0 < size < float("inf"):
      raise ConfigError(f"purposes: the size of {purpose} is {size}; give one above 0")


def _linked(
  scan: _Scan, finder: near_duplicates.Finder, settings: Settings
) -> tuple[Groups, list[Link], near_duplicates.Nearest]:
  """Joins what must not be parted; of each two groups the first reason is kept."""
  groups, links, nearest = Groups(), [], near_duplicates.Nearest()
  titles = list(scan.titles)
  first: dict[str, str] = {}
  for title in titles:
    groups.find(title)
    other = first.setdefault(normal_title(title), title)
    if groups.join(other, title):
      links.append(Link((other, title), "title", 1.0))
  for match in finder.conversations():
    one, two = (titles[scan.books[i]] for i in (match.first, match.second))
    if match.similarity < settings.threshold:
      nearest.add(match)
    elif groups.join(one, two):
      ids = tuple(scan.row(i)["id"] for i in (match.first, match.second))
      links.append(Link((one, two), "conversation", round(match.similarity, 4), ids))
  for shared in finder.shared():
    one, two = titles[shared.book], titles[shared.other]
    if groups.join(one, two):
      number = shared.conversation
      ids = () if number is None else (scan.row(number)["id"],)
      links.append(Link((one, two), "text", round(shared.share, 4), ids))
  return groups, links, nearest


def _nearest(
  scan: _Scan, by_book: Sequence[str], titles: Sequence[str], pairs: Iterable[Match]
) -> dict[str, Any] | None:
  """The most similar conversations in two splits; null if no two met in any band."""
  for match in pairs:
    numbers = (match.first, match.second)
    books = [scan.books[i] for i in numbers]
    if by_book[books[0]] != by_book[books[1]]:
      return {
        "similarity": round(match.similarity, 4),
        "ids": [scan.row(i)["id"] for i in numbers],
        "books": [titles[book] for book in books],
        "purposes": [by_book[book] for book in books],
      }
  return None


def _counts(
  scan: _Scan, by_book: Sequence[str], purposes: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
  total, size = sum(tally.turns for tally in scan.tallies), sum(purposes.values())
  counts = {}
  for purpose in purposes:
    mine = [t for t, p in zip(scan.tallies, by_book, strict=True) if p == purpose]
    turns = sum(tally.turns for tally in mine)
    counts[purpose] = {
      "books": len(mine),
      "conversations": sum(tally.conversations for tally in mine),
      "turns": turns,
      "share": round(turns / total, 6),
      "wanted": round(purposes[purpose] / size, 6),
    }
  return counts


def _remove_others(folder: pathlib.Path, purposes: Iterable[str]) -> None:
  """Takes away files of purposes that there no longer are, if an earlier split has written them."""
  try:
    earlier = read_proof(folder)
  except DataError:
    return
  for entry in earlier.row["files"]:
    path = folder / f"{entry['role']}.jsonl"
    gone = entry["role"] in set(PURPOSES) - set(purposes)
    if gone and path.is_file() and proofs.sha256_of(path) == entry["sha256"]:
      path.unlink()


def _write(
  scan: _Scan, by_book: Sequence[str], purposes: Sequence[str], folder: pathlib.Path
) -> dict[str, FileFacts]:
  """Writes the purposes' files, each row with what it is for."""
  parts = {purpose: folder / f"{purpose}.jsonl.part" for purpose in purposes}
  counts: Counter[str] = Counter()
  turns: Counter[str] = Counter()
  with contextlib.ExitStack() as stack:
    sources = [stack.enter_context(path.open("rb")) for path in scan.source.paths]
    targets = {p: stack.enter_context(part.open("wb")) for p, part in parts.items()}
    for number, book in enumerate(scan.books):
      purpose = by_book[book]
      row = line_at(sources[scan.files[number]], scan.offsets[number], scan.lengths[number])
      with_purpose(row, purpose)
      targets[purpose].write((json.dumps(row, ensure_ascii=False) + "\n").encode())
      counts[purpose] += 1
      turns[purpose] += len(row["turns"])
  written = {}
  for purpose, part in parts.items():
    name, sha256, size = f"{purpose}.jsonl", proofs.sha256_of(part), part.stat().st_size
    os.replace(part, folder / name)
    written[purpose] = FileFacts(name, sha256, size, counts[purpose], turns[purpose])
  return written


def table(proof: Proof) -> str:
  """The counts of a proof, for people."""
  lines = [
    f"{'purpose':<10}{'books':>7}{'conversations':>15}{'turns':>10}{'share':>9}{'wanted':>9}"
  ]
  for purpose, c in proof.row["purposes"].items():
    lines.append(
      f"{purpose:<10}{c['books']:>7}{c['conversations']:>15}{c['turns']:>10}"
      f"{c['share']:>9.2%}{c['wanted']:>9.2%}"
    )
  links = Counter(link["why"] for link in proof.row["links"])
  told = ", ".join(f"{count} by {why}" for why, count in sorted(links.items())) or "none"
  near = proof.row["nearest"]
  lines.append(f"books joined: {told}")
  lines.append(
    f"nearest across splits: {near['similarity']:.2f} ({near['ids'][0]!r}, {near['ids'][1]!r})"
    if near
    else "nearest across splits: no two conversations meet in any band"
  )
  for reason, count in proof.row["rejected"].items():
    lines.append(f"left out: {count} x {reason}")
  return "\n".join(lines)


def parse_purposes(text: str) -> dict[str, float]:
  """`sft=3,test=1` as a dict.

  Raises:
    ConfigError: it is written otherwise.
  """
  purposes: dict[str, float] = {}
  for entry in text.split(","):
    name, _, size = entry.partition("=")
    try:
      value = float(size)
    except ValueError:
      raise ConfigError(f"purposes: {entry!r}; write NAME=SIZE,NAME=SIZE") from None
    if name.strip() in purposes:
      raise ConfigError(f"purposes: {name.strip()} stands twice; give each one size")
    purposes[name.strip()] = value
  return purposes


if __name__ == "__main__":
  _TRAJECTORIES = flags.DEFINE_list("trajectories", None, "JSON Lines files", required=True)
  _OUT = flags.DEFINE_string("out", None, "Folder for the files and the proof", required=True)
  _PURPOSES = flags.DEFINE_string(
    "purposes", ",".join(f"{p}={n}" for p, n in DEFAULT.items()), "Sizes; the ratio counts"
  )
  _SEED = flags.DEFINE_integer("seed", 0, "Of the order of books and of the signatures")
  _DUPLICATES = flags.DEFINE_enum(
    "duplicates", "join", ["join", "raise"], "What to do with books that share text"
  )
  _PREVIOUS = flags.DEFINE_string("previous", None, "Proof whose books keep their purpose")
  _LENIENT = flags.DEFINE_bool("lenient", False, "Count faulty lines and leave them out")
  _THRESHOLD = flags.DEFINE_float(
    "threshold", Settings.threshold, "Similarity of near-duplicates", 0.05, 1
  )
  _PROCESSES = flags.DEFINE_integer(
    "processes", os.cpu_count() or 1, "That read lines; 0 for none but this one", 0
  )
  _FILES = flags.DEFINE_bool("write_files", True, "Write the purposes' files too")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Pass --trajectories=FILE and --out=FOLDER.")
  try:
    proof = split(
      _TRAJECTORIES.value,
      _OUT.value,
      purposes=parse_purposes(_PURPOSES.value),
      seed=_SEED.value,
      settings=Settings(threshold=_THRESHOLD.value),
      duplicates=_DUPLICATES.value,
      previous=read_proof(_PREVIOUS.value) if _PREVIOUS.value else None,
      lenient=_LENIENT.value,
      write_files=_FILES.value,
      processes=_PROCESSES.value,
    )
  except (DataError, ConfigError, OSError) as error:
    sys.exit(f"splits: {error}")
  print(f"{table(proof)}\n{proof.path}")


if __name__ == "__main__":
  app.run(main)
