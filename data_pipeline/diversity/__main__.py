"""Measures how varied the replies of a JSON Lines file of scenes are.

    python -m data_pipeline.diversity scenes.jsonl --json=diversity.json --sample=500

Ends with exit code 2 if a line can't be read; with --lenient such lines are counted and left
out.
"""

from collections.abc import Sequence
import json
import sys

from absl import app, flags

from data_pipeline import diversity
from data_pipeline.diversity import text
from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.jsonl import DataError

_JSON = flags.DEFINE_string("json", None, "File for the report as JSON")
_SAMPLE = flags.DEFINE_integer(
  "sample", diversity.SAMPLE, "Replies of a language that are held against each other", 2
)
_LENIENT = flags.DEFINE_bool("lenient", False, "Count lines that can't be read and go on")


def main(argv: Sequence[str]) -> int:
  if len(argv) != 2:
    raise app.UsageError("pass one JSON Lines file of scenes")
  gathered, unreadable = diversity.Diversity(_SAMPLE.value), 0
  try:
    for number, scene in jsonl.each_line(argv[1], schema.trajectory_from_dict, unique=False):
      if isinstance(scene, DataError):
        if not _LENIENT.value:
          raise DataError(f"{argv[1]}:{number}{scene}")
        unreadable += 1
      else:
        gathered.add(scene)
    report = {**gathered.as_dict(), "unreadable": unreadable}
    if _JSON.value:
      with open(_JSON.value, "w", encoding="utf-8") as file:
        json.dump(report, file, ensure_ascii=False, indent=2)
  except (DataError, OSError) as error:
    print(f"diversity: {error}", file=sys.stderr)
    return 2
  print(text.text_of(report, argv[1]))
  if unreadable:
    print(f"\n{unreadable} lines are no scenes; without --lenient the first of them is named")
  return 0


if __name__ == "__main__":
  sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
  app.run(main)
