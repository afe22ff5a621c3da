"""Writes one self-contained HTML page of a JSON Lines file of scenes.

    python -m data_pipeline.page scenes.jsonl --out=page.html

Of a large file the page shows --scenes drawn evenly and --per_flag more for each flag, up to
--megabytes; counts and plots are of the whole. Ends with exit code 2 if a line can't be read;
with --lenient such lines are counted and left out.
"""

from collections.abc import Sequence
import sys

from absl import app, flags

from data_pipeline import page
from her_jax.errors import ConfigError
from her_jax.roleplay.jsonl import DataError

_OUT = flags.DEFINE_string("out", None, "File to write", required=True)
_SCENES = flags.DEFINE_integer("scenes", page.SCENES, "Scenes to show, drawn evenly", 1)
_PER_FLAG = flags.DEFINE_integer("per_flag", page.PER_FLAG, "Further scenes for each flag", 0)
_MEGABYTES = flags.DEFINE_float("megabytes", page.MEGABYTES, "Size of the scenes together", 0.1)
_TITLE = flags.DEFINE_string("title", "", "Title; the file's name if empty")
_LENIENT = flags.DEFINE_bool("lenient", False, "Count lines that can't be read and go on")


def main(argv: Sequence[str]) -> int:
  if len(argv) != 2:
    raise app.UsageError("pass one JSON Lines file of scenes")
  try:
    written = page.write(
      argv[1],
      _OUT.value,
      most=_SCENES.value,
      per_flag=_PER_FLAG.value,
      megabytes=_MEGABYTES.value,
      title=_TITLE.value,
      lenient=_LENIENT.value,
    )
  except (ConfigError, DataError, OSError) as error:
    print(f"page: {error}", file=sys.stderr)
    return 2
  left = f"; {written.unreadable} lines are no scenes" if written.unreadable else ""
  size = f"{written.size / 1e6:.1f} MB"
  print(f"{_OUT.value}: {written.shown} of {written.scenes} scenes, {size}{left}")
  return 0


if __name__ == "__main__":
  app.run(main)
