"""What follows synthesis: reports, the page, splits with their proof, and data sets.

    folder/quality.json, diversity.json, page.html    see quality, diversity, page
    folder/splits/     a file a purpose, and splits_proof.json
    folder/built/      ArrayRecord data sets and DATA_CARD.md

All of it follows from the trajectories and takes the place of what an earlier run left.
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
  shutil.rmtree(folder / "built", ignore_errors=True)
  proof = splits.split([trajectories], folder / "splits", purposes=purposes, seed=seed)
  source = Source([trajectories], proof)
  build.build(source, folder / "built", about=about)
  name = (about or card.About()).name
  written = page.write(trajectories, folder / "page.html", title=name)
  quality, variety = written.quality.as_dict(), written.variety.as_dict()
  for file, report in (("quality.json", quality), ("diversity.json", variety)):
    text = json.dumps(report, ensure_ascii=False, indent=2)
    (folder / file).write_text(text + "\n", encoding="utf-8")
  return {
    "books": {purpose: len(source.books[purpose]) for purpose in source.purposes},
    "records": card.counts(source),
    "flags": {flag: n for flag, n in sorted(written.quality.turns.items()) if n},
  }
