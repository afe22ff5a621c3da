"""CoSER: a book's file (plots → conversations), and the conversations of the test set.

    {"book": …, "plots": [{"text": …, "summary": …, "chapter": …, "i_p": 0,
      "key_characters": […], "conversation": [{"scenario": …, "topic": …,
        "key_characters": […], "dialogues": […]}]}],
     "character_datasets": {NAME: {"profile": …}}, "split_plot_index": 27}

Each conversation becomes a case in the form of the test set, which `formats.from_coser_case`
reads. What plots a book keeps for the test is `heldout`: training on them would show the model
the benchmark's own scenes.
"""

from collections import Counter
from collections.abc import Iterator
import dataclasses
import pathlib
import re
from typing import Any

from data_pipeline.sources.names import Spellings, environment
from her_jax.roleplay import formats, rows
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory

Place = tuple[str | int, ...]

# What `character_datasets` repeats of the plots and conversations themselves.
_COPIES = {"plots", "conversations", "utterances"}
_TITLES = ("book", "book_name", "title")


def is_book(row: Row) -> bool:
  return "plots" in row


def book_cases(
  row: Row, place: str, skipped: Counter[str]
) -> Iterator[tuple[str, Row | DataError]]:
  """The conversations of a book, each with its place in the file, in the test set's form.

  Args:
    place: of the book's file, whose name is the book's where no field says it.
    skipped: counts what holds no conversation, as many plots do.

  Raises:
    DataError: the book itself cannot be used.
  """
  title = next((t for f in _TITLES if (t := rows.text_of(row, f).strip())), "")
  title = title or pathlib.PurePath(re.sub(r":\d+$", "", place)).stem
  people = rows.object_of(row.get("character_datasets") or {}, "character_datasets")
  profiles = {name: _profile(entry, name) for name, entry in people.items()}
  held = row.get("split_plot_index")
  if held is not None and type(held) is not int:
    raise DataError(f"split_plot_index: expected a number, got {held!r}")
  shared = rows.rest_of(row, {"plots", "character_datasets", *_TITLES})
  found = 0
  for i, plot in enumerate(rows.objects_of(row, "plots")):
    conversations = plot.get("conversation") or []
    if not isinstance(conversations, list):
      yield f"plots[{i}].conversation", DataError("expected a list of objects")
      continue
    if not conversations:
      skipped["plot without a conversation"] += 1
    told = rows.rest_of(plot, {"conversation", "text", "chapter"})
    for k, conversation in enumerate(conversations):
      found += 1
      where = f"plots[{i}].conversation[{k}]"
      if not isinstance(conversation, dict):
        yield where, DataError("expected an object; write one conversation")
        continue
      yield (
        where,
        {
          "i_p": plot.get("i_p", i),
          "i_c": k,
          **shared,
          **conversation,
          "book": title,
          "plot": told,
          "character_profiles": profiles,
          "passage": plot.get("text") or "",
          "chapter": plot.get("chapter") or "",
          "split": "heldout" if held is not None and i >= held else "train",
        },
      )
  if not found:
    raise DataError("plots: no plot has a conversation; leave the book out")


def from_case(row: Row) -> list[Trajectory]:
  """A conversation, of a book or of the test set, with names in one spelling.

  `extra["her"]` holds the book, the chapter and the passage that it was taken from, where the
  row has them; `extra["coser"]["renamed"]` the names that were spelt in another way.

  Raises:
    DataError: names the field and the mend.
  """
  lines = rows.objects_of(row, "dialogues")
  plot = rows.object_of(row.get("plot") or {}, "plot")
  described = [
    entry["name"]
    for entries in (row.get("key_characters"), plot.get("key_characters"))
    for entry in (entries if isinstance(entries, list) else ())
    if isinstance(entry, dict) and isinstance(entry.get("name"), str)
  ]
  described = [name for name in described if not environment(name)]
  profiles = rows.object_of(row.get("character_profiles") or {}, "character_profiles")
  spelt = Spellings([*described, *(n for n in profiles if not environment(n))])
  spoken = [_named(line, f"dialogues[{i}]", spelt) for i, line in enumerate(lines)]
  here = {line.get("character") for line in spoken} | {spelt(name) for name in described}
  case: dict[str, Any] = {
    **row,
    "dialogues": spoken,
    "key_characters": _all_named(row.get("key_characters"), spelt),
    "plot": {**plot, "key_characters": _all_named(plot.get("key_characters"), spelt)},
    # A book's profiles are of everybody in it.
    "character_profiles": {spelt(n): p for n, p in profiles.items() if spelt(n) in here},
  }
  own = {"passage": row.get("passage"), "chapter": row.get("chapter")}
  split = case.pop("split", "heldout")
  case = rows.rest_of(case, own)
  made = formats.from_coser_case(case)
  if spelt.changed:
    made.extra["coser"]["renamed"] = dict(spelt.changed)
  told = {"book": made.source, **{f: t for f, t in own.items() if t}}
  extra = {**made.extra, "her": told}
  return [dataclasses.replace(made, split=split, extra=extra)]


def _profile(entry: Any, name: str) -> str:
  at = f"character_datasets.{name}"
  entry = rows.object_of(entry, at)
  return rows.text_of(entry, "profile", f"{at}.")


def _named(line: Row, where: str, spelt: Spellings) -> Row:
  field = "character" if line.get("character") else "speaker"
  name = line.get(field)
  if not isinstance(name, str) or not name.strip():
    return line  # The reader of cases names the fault.
  return {**rows.rest_of(line, {field}), "character": spelt(name)}


def _all_named(entries: Any, spelt: Spellings) -> Any:
  if not isinstance(entries, list):
    return entries
  return [
    {**entry, "name": spelt(entry["name"])}
    if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    else entry
    for entry in entries
  ]
