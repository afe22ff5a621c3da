"""Checks the scenes of a JSON Lines file and prints what is wrong with them.

    python -m data_pipeline.quality scenes.jsonl --json=quality.json --flags=flags.jsonl

Ends with exit code 1 if one of the flags of --fail fires on more than --most of the turns (or
of the plans) that can have it, with 2 if a line can't be read. With --lenient such lines are
counted and left out. `data_pipeline.page` shows the flags in their scenes.
"""

from collections.abc import Sequence
import contextlib
import json
import sys
from typing import Any

from absl import app, flags

from data_pipeline.quality import MEANINGS, NAMES, report, scan
from her_jax.roleplay.jsonl import DataError

_JSON = flags.DEFINE_string("json", None, "File for the report as JSON")
_FLAGS = flags.DEFINE_string("flags", None, "JSON Lines file for every flag with its place")
_ONLY = flags.DEFINE_list("only", list(NAMES), "Flags to look for")
_FAIL = flags.DEFINE_list(
  "fail", list(NAMES), "Flags that make the exit code 1; empty for none"
)
_MOST = flags.DEFINE_float("most", 0.0, "Share up to which a flag is put up with", 0.0, 1.0)
_LENIENT = flags.DEFINE_bool("lenient", False, "Count lines that can't be read and go on")
_EXAMPLES = flags.DEFINE_integer("examples", 3, "Examples of each flag in the report", 0)

BAD_INPUT = 2


def main(argv: Sequence[str]) -> int:
  if len(argv) != 2:
    raise app.UsageError("pass one JSON Lines file of scenes")
  for name in {*_ONLY.value, *_FAIL.value} - set(MEANINGS):
    raise app.UsageError(f"no flag {name!r}; known are {', '.join(NAMES)}")
  gathered = report.Report(_EXAMPLES.value)
  try:
    with contextlib.ExitStack() as stack:
      out = (
        stack.enter_context(open(_FLAGS.value, "w", encoding="utf-8")) if _FLAGS.value else None
      )
      _gather(argv[1], gathered, out)
    if _JSON.value:
      with open(_JSON.value, "w", encoding="utf-8") as file:
        json.dump(gathered.as_dict(), file, ensure_ascii=False, indent=2)
  except (DataError, OSError) as error:
    print(f"quality: {error}", file=sys.stderr)
    return BAD_INPUT
  print(report.text_of(gathered, argv[1]))
  fails = [n for n in _FAIL.value if (gathered.share(n) or 0.0) > _MOST.value]
  return 1 if fails else 0


def _gather(path: str, gathered: report.Report, out: Any) -> None:
  for scanned in scan.scan(path, _ONLY.value):
    if isinstance(scanned, DataError):
      if not _LENIENT.value:
        raise scanned
      gathered.reject(str(scanned))
      continue
    gathered.add(scanned)
    for flag in scanned.flags if out else ():
      row = {"line": scanned.line, "id": scanned.scene.id, **flag.as_dict()}
      out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
  sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
  app.run(main)
