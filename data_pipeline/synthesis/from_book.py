"""A plain book as the source of a run: its scenes, found and attributed by the teacher.

    workdir/book/trajectories.jsonl    the scenes; what stage 0 reads
    workdir/book/report.json           what was dropped and why, and calls that gave nothing
    workdir/book/again.json            how often each of those was asked anew

They are written when every call has been made. Until then a run that was stopped begins the book
again, with the answers that the journal has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from absl import logging

from data_pipeline.files import whole_path, write_whole
from data_pipeline.sources import book, book_files
from data_pipeline.sources.book_ask import Counts
from data_pipeline.sources.book_find import Options
from data_pipeline.synthesis import ask
from data_pipeline.titles import normal_title
from her_jax.llm.client import Failure, Reply, Request
from her_jax.llm.guarded import TRANSPORT, Completes, Guarded, Stopped
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError, Trajectory

FOLDER, SCENES, REPORT = "book", "trajectories.jsonl", "report.json"
_AGAIN = "again.json"


def find_scenes(
  source: str | os.PathLike[str],
  workdir: pathlib.Path,
  client: Callable[[], Completes],
  options: Options = Options(),  # noqa: B008
  give_up_after: int = 20,
  again: bool = False,
  encoding: str = "",
) -> pathlib.Path:
  """The file of a book's scenes, made unless it is there.

  Once it has asked anew it does so no more until `end_round`: a run that is killed behind it and
  started again goes on with the same scenes.

  Args:
    source: a text, a folder of texts, or JSON rows; see `book_files`.
    client: called only if there is something to ask.
    again: whether to ask anew what gave nothing.
    encoding: of the text; by default told by its bytes.

  Raises:
    DataError: the source is no book, or no scene is left of it.
    Stopped: the budget is spent or the endpoint down; the same command goes on.
  """
  folder = workdir / FOLDER
  settings = {"source": _identity(source), **dataclasses.asdict(options)}
  told = json.loads(json.dumps(settings | ({"encoding": encoding} if encoding else {})))
  report, rounds = _read(folder / REPORT), _Rounds(**_read(folder / _AGAIN))
  if (report.get("settings"), report.get("round")) == (told, rounds.number):
    if not again or rounds.under_way or not report["failed"]:
      return folder / SCENES
    rounds = rounds.next(report["failed"])
    rounds.save(folder)
  folder.mkdir(parents=True, exist_ok=True)
  counts = Counts()
  asked = _Again(Guarded(client(), give_up_after), rounds.calls)
  kept = [
    scene
    for one in book_files.read_books(source, encoding)
    for scene in book.from_book(one, asked, counts, options)
  ]
  if down := sorted({cause for _, cause in counts.failures if cause in TRANSPORT}):
    raise Stopped(
      f"calls about the book failed ({', '.join(down)}), and what follows depends on them; start"
      f" the same command again: what was paid for is kept"
    )
  if not kept:
    raise DataError(f"{source}: no scene is left of it: {_why(counts)}")
  with whole_path(folder / SCENES) as part:
    schema.write_jsonl(part, kept)
  row = {"settings": told, "round": rounds.number, **_told(kept), **counts.as_dict()}
  if not encoding and (read_as := book_files.encodings_of(source)):
    row["encodings"] = read_as
    logging.info("book: read as %s", read_as)
  number, left = book_files.left_of(source)
  if number:
    row["files_left_out"] = {"count": number, "first": left}
    logging.warning("book: %d x %s", number, left)
  text = json.dumps(row, ensure_ascii=False, indent=2)
  write_whole(folder / REPORT, text + "\n")
  logging.info(
    "book: %s; scenes: %s; lines: %s", _told(kept), dict(counts.scenes), dict(counts.lines)
  )
  if counts.failed:
    logging.warning(
      "%d calls about the book gave nothing (%s); --config.retry_failed asks them anew",
      len(counts.failed),
      _causes(counts),
    )
  return folder / SCENES


def end_round(workdir: pathlib.Path) -> None:
  """The run has ended: what gave nothing in it may be asked for anew by the next."""
  folder = workdir / FOLDER
  rounds = _Rounds(**_read(folder / _AGAIN))
  if rounds.under_way:
    dataclasses.replace(rounds, under_way=False).save(folder)


def count_books(source: str | os.PathLike[str], encoding: str = "") -> int:
  """How many books of a source splits can tell apart.

  Raises:
    DataError: it is no book.
  """
  return len({normal_title(one.title) for one in book_files.read_books(source, encoding)})


@dataclasses.dataclass(frozen=True)
class _Rounds:
  """How often calls that gave nothing have been asked anew.

  Attributes:
    number: of the round; a report of an earlier one does not count.
    under_way: whether the run that began it has not ended.
    calls: id → rounds it was in.
  """

  number: int = 0
  under_way: bool = False
  calls: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def next(self, failed: Iterable[str]) -> "_Rounds":
    more = {id: self.calls.get(id, 0) + 1 for id in failed}
    return _Rounds(self.number + 1, True, {**self.calls, **more})

  def save(self, folder: pathlib.Path) -> None:
    text = json.dumps(dataclasses.asdict(self), ensure_ascii=False)
    write_whole(folder / _AGAIN, text)


class _Again:
  """A client in which what gave nothing before is another request than it was."""

  def __init__(self, client: Completes, rounds: Mapping[str, int]):
    self._client, self._rounds = client, rounds

  def complete(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply | Failure]]:
    given: dict[str, Request] = {}

    def renamed() -> Iterator[Request]:
      for request in requests:
        times = self._rounds.get(request.id.removesuffix("/retry1"), 0)
        other = dataclasses.replace(request, id=f"{request.id}{ask.again_suffix(times)}")
        given[other.id] = request
        yield other

    for request, result in self._client.complete(renamed()):
      yield given.pop(request.id), result


def _identity(source: str | os.PathLike[str]) -> str:
  """A hash of all that the source holds."""
  digest = hashlib.sha256()
  for file in book_files.files_of(source):
    name = file.relative_to(source).as_posix() if os.path.isdir(source) else file.name
    digest.update(f"{name}\0".encode())
    with file.open("rb") as f:
      digest.update(hashlib.file_digest(f, "sha256").digest())
  return digest.hexdigest()


def _read(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _causes(counts: Counts) -> str:
  return ", ".join(f"{stage}: {cause} {n}" for (stage, cause), n in counts.failures.items())


def _why(counts: Counts) -> str:
  parts = [f"{n} {kind}" for kind, n in counts.scenes.items()] or ["none was found"]
  if counts.failed:
    parts.append(f"{len(counts.failed)} calls gave nothing ({_causes(counts)})")
  return ", ".join(parts)


def _told(scenes: list[Trajectory]) -> dict[str, int]:
  return {"conversations": len(scenes), "turns": sum(len(scene.turns) for scene in scenes)}
