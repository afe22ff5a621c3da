"""What follows synthesis: reports, the page, splits with their proof, and data sets.

    folder/quality.json, diversity.json, page.html    see quality, diversity, page
    folder/splits/     a file a purpose, and splits_proof.json
    folder/built/      ArrayRecord data sets and DATA_CARD.md

All of it follows from the trajectories. It is made in `folder/finish.part` and takes the place of
what an earlier run left when it is whole, so that a run that fails or is killed loses nothing.
"""

from collections.abc import Mapping
import json
import os
import pathlib
import shutil
from typing import Any

from data_pipeline import page, splits
from data_pipeline.builders import build, card
from data_pipeline.builders.source import Source
from data_pipeline.conversations import Conversations, same
from data_pipeline.titles import normal_title
from her_jax.errors import ConfigError

_PART = "finish.part"


def finish(
  trajectories: str | os.PathLike[str],
  folder: str | os.PathLike[str],
  purposes: Mapping[str, float] = splits.DEFAULT,
  seed: int = 0,
  about: card.About | None = None,
) -> dict[str, Any]:
  """Writes everything; returns the turns' flags, layouts, books and records by kind and split.

  Args:
    purposes: name → size, of which the ratio counts; each needs a book of its own.

  Raises:
    DataError: there are fewer books than purposes, or a line is no trajectory.
  """
  folder = pathlib.Path(folder)
  part = folder / _PART
  shutil.rmtree(part, ignore_errors=True)
  proof = splits.split([trajectories], part / "splits", purposes=purposes, seed=seed)
  source = Source([trajectories], proof)
  build.build(source, part / "built", about=about)
  name = (about or card.About()).name
  written = page.write(trajectories, part / "page.html", title=name)
  quality, variety = written.quality.as_dict(), written.variety.as_dict()
  for file, report in (("quality.json", quality), ("diversity.json", variety)):
    text = json.dumps(report, ensure_ascii=False, indent=2)
    (part / file).write_text(text + "\n", encoding="utf-8")
  for made in sorted(part.iterdir()):
    _replace(folder / made.name, made)
  shutil.rmtree(part)
  return {
    "books": {purpose: len(source.books[purpose]) for purpose in source.purposes},
    "records": card.counts(source),
    "flags": {flag: n for flag, n in sorted(written.quality.turns.items()) if n},
  }


def check_books(trajectories: pathlib.Path, purposes: Mapping[str, float]) -> None:
  """Says of trajectories that are not yet finished whether they could be split.

  Raises:
    ConfigError: there are fewer books than purposes.
    DataError: a conversation names no book.
  """
  titles = {normal_title(scene.source) for _, scene in Conversations([trajectories], same)}
  check_count(len(titles), purposes)


def check_count(books: int, purposes: Mapping[str, float]) -> None:
  """Raises ConfigError where there are fewer books than purposes."""
  if books < len(purposes):
    raise ConfigError(
      f"config.purposes names {len(purposes)} purposes for {books} books; no book may be in two,"
      f" so name at most {books}, as in --config.purposes=sft=1"
    )


def _replace(path: pathlib.Path, made: pathlib.Path) -> None:
  """Puts a file or folder in the place of another; of two folders none is ever half there."""
  if path.is_dir():
    os.replace(path, made.with_name(f"{made.name}.old"))
  os.replace(made, path)
