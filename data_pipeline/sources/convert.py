"""Conversations of another form → a file of trajectories, with a report of what was left out.

    python -m data_pipeline.sources.convert --source=books/ --format=coser_book \
        --out=trajectories.jsonl [--lenient]
    python -m data_pipeline.sources.convert --source=cards/ --format=cards --seeds=seeds.jsonl \
        --out=openings.jsonl
    python -m data_pipeline.sources.convert --source=novel.txt --format=book --out=novel.jsonl \
        --endpoint=http://127.0.0.1:8000/v1 --model=NAME --journal=novel.calls.jsonl

Strict, the first fault ends it with `file:line` and nothing is written. With --lenient faulty
rows go to `rejected.jsonl` beside the output and are counted. The report stands in
`<out>.report.json`. Exit code 1: a fault, or nothing to write; 3: calls about a book failed,
and running it again with the same journal pays for those alone.
"""

from collections.abc import Iterator, Sequence
import json
import os
import pathlib
import sys
from typing import Any

from absl import app, flags

from data_pipeline import own_inputs
from data_pipeline.sources import book, book_files, documents, her_dataset, reader
from data_pipeline.sources.report import Report
from her_jax.errors import ConfigError
from her_jax.llm.client import Client
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError, Trajectory

_SOURCE = flags.DEFINE_string(
  "source", None, "File, folder, or a data set's name on the Hub.", required=True
)
_OUT = flags.DEFINE_string("out", None, "Trajectories, JSON Lines.", required=True)
_FORMAT = flags.DEFINE_enum(
  "format", "auto", (*reader.FORMATS, "book"), "What the source holds."
)
_LENIENT = flags.DEFINE_bool("lenient", False, "Put faulty rows aside and go on.")
_ENCODING = flags.DEFINE_string(
  "encoding", "", "Of text files; by default told by their bytes."
)
_CONFIG = flags.DEFINE_string("config", "", "Configuration of a data set with several.")
_SPLIT = flags.DEFINE_string("split", "train", "Of a data set in a folder or on the Hub.")
_MIN_SPEAKERS = flags.DEFINE_integer("min_speakers", 2, "Who must speak in a conversation.")
_CHARACTER = flags.DEFINE_string("character", "", "ShareGPT: whom the model plays.")
_USER = flags.DEFINE_string("user", "", "ShareGPT and cards: the user's name.")
_BOOKS = flags.DEFINE_string("books", "", "HER's full_info or clean, to name chats' books.")
_SEEDS = flags.DEFINE_string("seeds", "", "JSON Lines of scenarios for character cards.")
_TITLE = flags.DEFINE_string("title", "", "Of a plain book; by default its first lines say it.")
_ENDPOINT = flags.DEFINE_string("endpoint", "", "OpenAI-compatible address, for a plain book.")
_MODEL = flags.DEFINE_string("model", "", "The endpoint's model.")
_KEY = flags.DEFINE_string("api_key_env", "OPENAI_API_KEY", "Variable with the endpoint's key.")
_JOURNAL = flags.DEFINE_string("journal", "", "Keeps the calls, so that none is paid twice.")
_CONCURRENCY = flags.DEFINE_integer("concurrency", 8, "Calls under way at once.")
_PIECE = flags.DEFINE_integer("piece", 12_000, "Characters of a book in one request.")


def convert(found: Iterator[Trajectory], out: pathlib.Path, report: Report) -> None:
  """Writes trajectories as they come; the file appears when it is whole.

  Raises:
    DataError: a fault of the source, or nothing came.
  """
  out.parent.mkdir(parents=True, exist_ok=True)
  part = out.with_name(f"{out.name}.part")
  try:
    schema.write_jsonl(part, found)
    if not report.kept:
      reasons = "; ".join(report.first.values()) or "the source holds none"
      raise DataError(f"no trajectory to write: {reasons}")
    os.replace(part, out)
  finally:
    part.unlink(missing_ok=True)


def _counted(found: Iterator[Trajectory], report: Report) -> Iterator[Trajectory]:
  for made in found:
    report.keep(made)
    yield made


def _from_books(counts: book.Counts, report: Report) -> Iterator[Trajectory]:
  from her_jax.llm.endpoint import Endpoint
  from her_jax.llm.journal import Journal

  if not (_ENDPOINT.value and _MODEL.value):
    raise ConfigError("a plain book is read by a model: pass --endpoint and --model")
  books = book_files.read_books(_SOURCE.value, _ENCODING.value, _TITLE.value)
  if not _ENCODING.value:
    report.encodings |= book_files.encodings_of(_SOURCE.value)
  number, told = book_files.left_of(_SOURCE.value)
  if number:
    report.skipped[told] += number
  journal = Journal(_JOURNAL.value) if _JOURNAL.value else None
  client = Client(
    Endpoint(_MODEL.value, _ENDPOINT.value, os.environ.get(_KEY.value, "")),
    journal=journal,
    concurrency=_CONCURRENCY.value,
  )
  for one in books:
    yield from book.from_book(one, client, counts, book.Options(piece=_PIECE.value))


def _options() -> reader.Options:
  seeds = list(_rows(_SEEDS.value)) if _SEEDS.value else []
  books = her_dataset.books_of(_rows(_BOOKS.value)) if _BOOKS.value else {}
  return reader.Options(
    encoding=_ENCODING.value,
    config=_CONFIG.value,
    split=_SPLIT.value,
    min_speakers=_MIN_SPEAKERS.value,
    character=_CHARACTER.value,
    user=_USER.value,
    books=books,
    seeds=seeds,
  )


def _rows(path: str) -> Iterator[Any]:
  """Rows of a file that is read beside the source, where each fault ends the run."""
  for record in documents.records(path, _ENCODING.value or None):
    if isinstance(record.row, DataError):
      raise DataError(f"{record.place}: {record.row}")
    yield record.row


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}; write --source=…")
  out, report, counts = pathlib.Path(_OUT.value), Report(), book.Counts()
  rejected = out.with_name("rejected.jsonl")
  of_book = _FORMAT.value == "book"
  try:
    own_inputs.refuse([out, rejected], [_SOURCE.value])
    if out.resolve().parent.is_relative_to(pathlib.Path(_SOURCE.value).resolve()):
      raise ConfigError(f"{out}: within the source, which reads all its files; choose another")
    if of_book:
      found = _counted(_from_books(counts, report), report)
    else:
      options = _options()
      found = reader.read(
        _SOURCE.value,
        _FORMAT.value,
        not _LENIENT.value,
        report=report,
        rejected=rejected,
        options=options,
      )
    convert(found, out, report)
  except (DataError, ConfigError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    if report.rejected or of_book:
      _write(report, counts if of_book else None, out)
    sys.exit(1)
  _write(report, counts if of_book else None, out)
  _print(report, counts if of_book else None, out)
  if counts.failed:
    print(f"{len(counts.failed)} calls failed; run it again to go on", file=sys.stderr)
    sys.exit(3)


def _write(report: Report, counts: book.Counts | None, out: pathlib.Path) -> None:
  told = report.as_dict() | ({"book": counts.as_dict()} if counts is not None else {})
  out.with_name(f"{out.name}.report.json").write_text(
    json.dumps(told, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
  )


def _print(report: Report, counts: book.Counts | None, out: pathlib.Path) -> None:
  print(
    f"{out}: {report.kept} trajectories, {report.turns} turns, of {report.rows or 'a book'}"
  )
  for kind, count in report.rejected.most_common():
    print(f"  rejected {count} x: {kind}\n    first: {report.first[kind]}")
  for what, counter in (("skipped", report.skipped), ("note", report.notes)):
    for kind, count in counter.most_common():
      print(f"  {what} {count} x: {kind}")
  for file, name in report.encodings.items():
    print(f"  read as {name}: {file}")
  if counts is not None:
    for what, counter in (
      ("scenes", counts.scenes), ("lines", counts.lines), ("names", counts.names)
    ):  # fmt: skip
      for kind, count in counter.most_common():
        if count:
          print(f"  {what} {count} x: {kind}")
    for (stage, cause), count in counts.failures.most_common():
      print(f"  failed {count} x: {stage}, {cause}")


if __name__ == "__main__":
  app.run(main)
