"""`read`: conversations of any source as `schema.Trajectory`, one after another.

    format        holds
    coser_book    CoSER's books, one JSON object each: plots → conversations
    coser_test    cases of CoSER's test set
    her_full      HER-Dataset, configurations full_info and clean
    her_sft       HER-Dataset, configurations sft_multi_turn and sft_single_turn
    sharegpt      conversations of from/value or messages of role/content, two people
    cards         character cards in PNG or JSON; seed scenarios
    seeds         seeds of the role-play bench, each with its character
    trajectories  this project's own, as `schema.write_jsonl` and `book` write them
    auto          row by row, by the row's fields

Strict, the first fault ends the reading with `file:line`. Lenient, faulty rows are put aside
and counted, and the rest is read. Either way ids are unique over all files, and what is given
keeps the contract of `schema.check_trajectory`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

from data_pipeline.sources import cards as card_scenes
from data_pipeline.sources import coser, documents, folders, her_dataset, sharegpt
from data_pipeline.sources.report import Quarantine, Report, at
from her_jax.roleplay import cards, formats, jsonl, prompts, schema
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory

FORMATS = (
  *("auto", "coser_book", "coser_test", "her_full", "her_sft", "sharegpt", "cards", "seeds"),
  "trajectories",
)
_ENDINGS = {".jsonl", ".json", ".parquet", ".arrow", ".png", ".ndjson"}


@dataclasses.dataclass(frozen=True)
class Options:
  """What a source cannot say of itself.

  Attributes:
    encoding: of text files; "" looks at their bytes.
    config: of a data set in a folder with a card or on the Hub; `split` likewise.
    min_speakers: how many must speak in a conversation, the environment among them. What is
      held out is not measured by it (CoSER's own test has monologues), nor are openings of
      cards and seeds and HER's chats up to one reply.
    character: whom the model plays in ShareGPT rows that do not say it; `user` likewise, and of
      cards the user's name.
    books: the book's name by trace id, for HER's SFT rows; see `her_dataset.books_of`.
    seeds: scenarios for character cards.
  """

  encoding: str = ""
  config: str = ""
  split: str = "train"
  min_speakers: int = 2
  character: str = ""
  user: str = ""
  books: Mapping[str, str] = dataclasses.field(default_factory=dict)
  seeds: Sequence[Row] = ()


def read(
  path: str | os.PathLike[str],
  format: str = "auto",
  strict: bool = True,
  *,
  report: Report | None = None,
  rejected: str | os.PathLike[str] | None = None,
  options: Options | None = None,
) -> Iterator[Trajectory]:
  """The conversations of a file, a folder of files, or a data set on the Hub.

  Args:
    format: one of FORMATS.
    strict: whether the first fault ends the reading.
    report: takes the counts.
    rejected: JSON Lines file for what a lenient reading puts aside; see `report.Quarantine`.

  Raises:
    DataError: strict: the first fault, with `file:line`, field and mend. Either way: there is
      no such source, or nothing in it can be read.
  """
  if format not in FORMATS:
    raise DataError(f"format: {format!r} is not one of {', '.join(FORMATS)}")
  reading = _Reading(format, strict, report or Report(), rejected, options or Options())
  try:
    yield from reading.of(path)
  finally:
    reading.close()


class _Reading:
  """One call of `read`."""

  def __init__(
    self,
    format: str,
    strict: bool,
    report: Report,
    rejected: str | os.PathLike[str] | None,
    options: Options,
  ):
    self._format, self._strict, self._report = format, strict, report
    self._aside = Quarantine(rejected) if rejected and not strict else None
    self._options = options
    # Of each id eight bytes and where it stood first: 100 bytes a conversation.
    self._ids: dict[bytes, str] = {}

  def close(self) -> None:
    if self._aside is not None:
      self._aside.close()

  def of(self, path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    before = self._report.rows
    for record in self._records(path):
      self._report.rows += 1
      yield from self._of_record(record)
    if self._report.rows == before:
      raise DataError(f"{path}: holds nothing; give it a row")

  def _records(self, path: str | os.PathLike[str]) -> Iterator[documents.Record]:
    source = pathlib.Path(path)
    for file in self._sources(source):
      if isinstance(file, str):
        yield from documents.hub_rows(
          file, config=self._options.config or None, split=self._options.split
        )
      elif self._is_card(file):
        yield documents.Record(str(file), file)
      else:
        if not self._options.encoding and file.suffix.casefold() not in (".parquet", ".arrow"):
          self._note_encoding(file)
        try:
          yield from documents.records(file, self._options.encoding or None)
        except DataError as error:
          if file == source:
            raise
          yield documents.Record(str(file), error)

  def _sources(self, source: pathlib.Path) -> list[pathlib.Path | str]:
    """Files, or the name under which the `datasets` library finds the source."""
    if source.is_file():
      if source.suffix.casefold() == ".txt":
        raise DataError(f"{source}: a plain text; a book is read with --format=book")
      return [source]
    saved = ("state.json", "dataset_dict.json", "README.md")
    if not source.exists():
      hub = len(source.parts) == 2 and not source.is_absolute() and not source.suffix
      if not hub or not self._options.config:
        raise DataError(
          f"{source}: no such file or folder; for a data set on the Hub pass its name and"
          f" --config"
        )
      return [str(source)]
    if self._options.config or any((source / name).is_file() for name in saved[:2]):
      return [str(source)]
    found, left = folders.parted(source, _ENDINGS)
    if left:
      self._report.skipped[folders.told(left, _ENDINGS)] += len(left)
    if not found:
      raise DataError(f"{source}: no file that ends in {', '.join(sorted(_ENDINGS))}")
    return list(found)

  def _is_card(self, file: pathlib.Path) -> bool:
    if self._format == "cards":
      return file.suffix.casefold() in (".png", ".json")
    return self._format == "auto" and card_scenes.is_card(file)

  def _note_encoding(self, file: pathlib.Path) -> None:
    name = documents.enc.detect(file)
    if name not in ("utf-8", "utf-8-sig"):
      self._report.encodings[str(file)] = name

  def _of_record(self, record: documents.Record) -> Iterator[Trajectory]:
    row = record.row
    if isinstance(row, DataError):
      self._reject(record.place, row, record.raw)
      return
    for where, part in self._parts(record):
      place = f"{record.place}: {where}" if where else record.place
      found = self._made(place, part, record)
      if isinstance(found, DataError):
        self._reject(place, found, part if isinstance(part, Mapping) else record.raw)
        continue
      for made in found:
        self._report.keep(made)
        yield made

  def _parts(self, record: documents.Record) -> Iterator[tuple[str, Any]]:
    """A row's conversations, each with its place; a trajectory or a fault stays as it is."""
    row = record.row
    try:
      if isinstance(row, pathlib.Path):
        yield from card_scenes.scenes(cards.read(row), self._options.seeds, self._options.user)
      elif isinstance(row, Mapping) and self._is_book(row):
        yield from coser.book_cases(row, record.place, self._report.skipped)
      elif isinstance(row, list) and self._format in ("auto", "sharegpt"):
        yield "", {"conversations": row}
      elif isinstance(row, Mapping):
        yield "", row
      else:
        raise DataError(f"expected one JSON object, got {type(row).__name__}")
    except DataError as error:
      yield "", error
    except RecursionError:
      yield "", DataError("nested too deeply; write it more simply")

  def _is_book(self, row: Row) -> bool:
    return self._format == "coser_book" or (self._format == "auto" and coser.is_book(row))

  def _made(
    self, place: str, part: Any, record: documents.Record
  ) -> list[Trajectory] | DataError:
    """The trajectories of one part, held to the contract, or the first fault."""
    try:
      if isinstance(part, DataError):
        return part
      found = [part] if isinstance(part, Trajectory) else self._reader(part)(part)
      if any(not made.id for made in found):
        number = record.place.rpartition(":")[2].rpartition(" ")[2]
        stem = pathlib.Path(record.place.rpartition(":")[0]).stem
        found = [dataclasses.replace(made, id=f"{stem}/{number}") for made in found]
      for made in found:
        schema.check_trajectory(made)
        jsonl.refuse_odd_numbers(schema.to_dict(made))
        self._check_speakers(made)
      marks = [hashlib.blake2b(made.id.encode(), digest_size=8).digest() for made in found]
      for mark, made in zip(marks, found, strict=True):
        if mark in self._ids or marks.count(mark) > 1:
          raise DataError(
            f"id: {made.id!r} stands twice; it is in {self._ids.get(mark, place)} too"
          )
      self._ids.update(dict.fromkeys(marks, place))
      return found
    except DataError as error:
      return error
    except RecursionError:
      return DataError("nested too deeply; write it more simply")
    except UnicodeEncodeError:
      return DataError("half of a surrogate pair (\\ud800–\\udfff); write the whole one")

  def _reader(self, row: Row) -> Callable[[Row], list[Trajectory]]:
    format = self._format if self._format != "auto" else format_of(row)
    chat = lambda r: sharegpt.from_row(r, self._options.character, self._options.user)
    readers: dict[str, Callable[[Row], list[Trajectory]]] = {
      "coser_book": coser.from_case,
      "coser_test": coser.from_case,
      "her_full": her_dataset.from_row,
      "her_sft": lambda r: her_dataset.from_sft(r, self._options.books),
      "sharegpt": chat,
      "cards": formats.trajectories,
      "seeds": lambda r: [formats.from_minimax_seed(r)],
      "trajectories": lambda r: [schema.trajectory_from_dict(r)],
    }
    return readers[format]

  def _check_speakers(self, made: Trajectory) -> None:
    if made.split == "heldout":
      return
    talk = "coser" in made.extra or "sharegpt" in made.extra or len(made.turns) > 1
    speakers = {turn.speaker for turn in made.turns}
    if talk and len(speakers) < self._options.min_speakers:
      raise DataError(
        f"turns: only {', '.join(map(repr, sorted(speakers)))} speaks; leave the scene out, or"
        f" pass --min_speakers=1"
      )

  def _reject(self, place: str, problem: DataError, row: Any) -> None:
    fault = at(place, problem)
    if self._strict:
      raise fault
    self._report.reject(place, str(problem))
    if self._aside is not None:
      self._aside.put(place, str(problem), row)


def format_of(row: Row) -> str:
  """The format of a row, by its fields.

  Raises:
    DataError: none of the known ones.
  """
  if "turns" in row:
    return "trajectories"
  if "dialogues" in row:
    return "coser_test"
  if "ai_setting" in row:
    return "seeds"
  if "conversation" in row and not _is_talk(row["conversation"]):
    return "her_full"
  if "messages" in row and _is_her_chat(row):
    return "her_sft"
  if row.keys() & {"conversations", "messages", "conversation"}:
    return "sharegpt"
  raise DataError(
    f"no known format: found {', '.join(sorted(map(str, row))[:20]) or 'nothing'}; expected a"
    f" row of {', '.join(FORMATS[1:])}"
  )


def _is_talk(value: Any) -> bool:
  """Whether a list holds messages and no conversations."""
  first = value[0] if isinstance(value, list) and value else None
  return isinstance(first, Mapping) and bool(first.keys() & {"from", "role"})


def _is_her_chat(row: Row) -> bool:
  """HER's chats name their trace, or open with the marker of its conversations."""
  if row.keys() & {"trace_id", "source_id", "turn_index"}:
    return True
  messages: Iterable[Any] = row["messages"] if isinstance(row["messages"], list) else ()
  return any(
    isinstance(m, Mapping)
    and isinstance(m.get("content"), str)
    and prompts.MARKER in m["content"]
    for m in messages
  )
