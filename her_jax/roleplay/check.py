"""Checks files of dialogues, pairs, judgements, principles and character cards.

    python -m her_jax.roleplay.check scenes.jsonl pairs.jsonl card.png

Prints what each file holds and a table of its problems by kind, and ends with exit code 1 if
there are any. Pairs are held to the scenes of the same command. Nothing is changed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import io
import pathlib
import re
import sys
from typing import Any

from her_jax.roleplay import cards, formats, jsonl, notations, principles, schema
from her_jax.roleplay.schema import DataError, Trajectory

_EXAMPLES = 3  # shown of one kind
_LONGEST = 300  # of a message


@dataclasses.dataclass
class Report:
  """What one file holds. `problems` are (place, message), `notes` what was read with a repair."""

  path: str
  kinds: Counter[str] = dataclasses.field(default_factory=Counter)
  bad: int = 0
  problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  notes: Counter[str] = dataclasses.field(default_factory=Counter)
  made: set[str] = dataclasses.field(default_factory=set)  # ids of dialogues so far

  @property
  def rows(self) -> int:
    return sum(self.kinds.values())


def check(paths: Sequence[str]) -> list[Report]:
  """Reads every row of every file; no fault ends it."""
  scenes: dict[str, Trajectory] = {}
  later: list[tuple[Report, str, Mapping[str, Any], list[str]]] = []
  library = set(principles.library())
  reports = []
  for path in paths:
    report = Report(path)
    reports.append(report)
    seen: dict[tuple[str, str], str] = {}
    for place, row in _rows(report):
      if isinstance(row, DataError):
        _add(report, "unreadable", place, [str(row)])
        continue
      kind = kind_of(row)
      faults = [
        f"{what} stands twice; it is in {seen[mark]} too"
        for mark, what in _marks(kind, row)
        if seen.setdefault(mark, place) != place
      ]
      if kind == "pair":
        later.append((report, place, row, faults))
      else:
        _add(report, kind, place, faults + _faults(kind, row, report, scenes, library))
  for report, place, row, faults in later:
    _add(report, "pair", place, faults + _pair_faults(row, scenes, library))
  for report in reports:
    if not report.rows:
      _add(report, "unreadable", report.path, ["holds nothing; give it a row"])
  return reports


def kind_of(row: Mapping[str, Any]) -> str:
  """What a JSON object is, by its fields: "dialogue", "pair", "card" and so on."""
  for kind, fields in _KINDS.items():
    if any(field <= row.keys() for field in fields):
      return kind
  return "unknown"


_KINDS: dict[str, tuple[set[str], ...]] = {
  "pair": ({"candidate_1"}, {"candidate_2"}),
  "judgement": ({"findings"}, {"pair", "winner"}),
  "principle": ({"dimension"}, {"polarity"}),
  "card": ({"spec"}, {"first_mes"}),
  "dialogue": tuple(
    {field} for field in ("turns", "conversation", "messages", "dialogues", "ai_setting")
  ),
}


def kind_of_problem(message: str) -> str:
  """A message without what differs from row to row, so that equal faults are counted together.

  Example:
    kind_of_problem("turns[3].speaker: 'Jo' is not among the characters ['A'];…") ==
      "turns[].speaker: '…' is not among the characters"
  """
  text = re.sub(r"^( \(id .*?\))?: ", "", message)
  text = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "'…'", text)
  text = re.sub(r"\[\d+\]", "[]", text.split(";")[0])
  text = re.sub(r"\s*\[['…, ]*\]$", "", text)
  return re.sub(r"(?<![\w-])\d+\b", "N", text)


def _marks(kind: str, row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
  """What must not stand twice in a file: key and wording."""
  if isinstance(own := row.get("id"), str):
    yield (kind, own), f"id: {own!r}"
  if kind == "principle":
    for language in principles.LANGUAGES:
      texts = row.get(language)
      name = texts.get("name") if isinstance(texts, Mapping) else None
      if isinstance(name, str):
        yield (language, name.casefold()), f"{language}.name: {name!r}"


def _faults(
  kind: str,
  row: Mapping[str, Any],
  report: Report,
  scenes: dict[str, Trajectory],
  library: set[str],
) -> list[str]:
  try:
    if kind == "judgement":
      schema.judgement_from_dict(row)
    elif kind == "principle":
      library.add(principles.principle_from_dict(row).id)
    elif kind == "card":
      cards.from_dict(row)
    elif kind == "dialogue":
      return _dialogue_faults(row, report, scenes)
    else:
      return ["no kind of row that is known here, by its fields"]
  except DataError as error:
    return [str(error)]
  except RecursionError:  # Where a message repeats what it found.
    return ["nested too deeply; write it more simply"]
  return []


def _dialogue_faults(
  row: Mapping[str, Any], report: Report, scenes: dict[str, Trajectory]
) -> list[str]:
  if "turns" in row:
    made = [schema.build_trajectory(row)]
  else:
    made = formats.trajectories(row)
    _note_repairs(row, report)
  found = []
  for trajectory in made:
    if "id" not in row and trajectory.id in report.made:
      found.append(
        f"id: {trajectory.id!r}, made of the row's other fields, stands twice; change them"
      )
    report.made.add(trajectory.id)
    scenes[trajectory.id] = trajectory
    found += [str(problem) for problem in schema.problems(trajectory)]
    found += [f"{where}: {what}" for where, what in _odd(trajectory)]
  return found


def _odd(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
  """What can be trained on but is hardly meant."""
  described = {c.name for c in trajectory.characters if c.profile or c.description}
  for name in trajectory.trained_characters():
    if name not in described:
      yield "characters", f"{name!r} is trained without profile or description"
  her = trajectory.extra.get("her")
  left = her.get("plans_without_turn") if isinstance(her, Mapping) else None
  for plan in left if isinstance(left, list) else []:
    whose = plan.get("character") if isinstance(plan, Mapping) else None
    yield "training_samples", f"a plan of {whose!r} belongs to no turn; correct its origin_id"


def _note_repairs(row: Any, report: Report) -> None:
  """Counts what the notation of foreign messages needed, wherever they stand in a row."""
  left = [row]
  while left:
    value = left.pop()
    if isinstance(value, Mapping):
      if isinstance(value.get("message"), str):
        report.notes.update(notations.from_coser(value["message"]).problems)
      left += value.values()
    elif isinstance(value, list):
      left += value


def _pair_faults(
  row: Mapping[str, Any], scenes: Mapping[str, Trajectory], library: set[str]
) -> list[str]:
  try:
    pair = schema.pair_from_dict(row)
    if scenes:
      schema.check_pair(pair, scenes, library)
    for broken in (*pair.violates_1, *pair.violates_2):
      if broken not in library:
        raise DataError(f"violates: {broken!r} is no principle of the library; correct the id")
  except DataError as error:
    return [str(error)]
  return []


def _add(report: Report, kind: str, place: str, faults: list[str]) -> None:
  report.kinds[kind] += 1
  report.bad += bool(faults)
  report.problems += [(place, fault) for fault in faults]


def _rows(report: Report) -> Iterator[tuple[str, Mapping[str, Any] | DataError]]:
  """The objects of a file, whatever its form, each with its place."""
  path = pathlib.Path(report.path)
  try:
    raw = path.read_bytes()
  except OSError as error:
    yield report.path, DataError(f"cannot be read ({error.strerror}); check the path")
    return
  if raw.startswith(b"\x89PNG"):
    try:
      cards.read(path)
      report.kinds["card"] += 1
    except DataError as error:
      yield report.path, error
    return
  if b"\0" in raw:
    yield report.path, DataError("no text in UTF-8; pass JSON Lines, JSON or a card's PNG")
    return
  text = raw.decode("utf-8-sig", "replace").strip()
  whole = None
  if "\n" in text or text.startswith("["):
    try:
      whole = jsonl.parse_json(raw)
    except DataError as error:
      # Lines are told of one by one below, but not those of one broken list or object.
      if text.startswith("[") or text.partition("\n")[0].strip() == "{":
        yield report.path, error
        return
  if whole is None:
    for number, row in jsonl.each_line(path, dict, unique=False):
      yield f"{path}:{number}", row
    return
  if isinstance(whole, list) and not whole:
    return
  entries = whole if isinstance(whole, list) else [whole]
  for i, entry in enumerate(entries, 1):
    place = report.path if whole is entry else f"{path}: entry {i}"
    if not isinstance(entry, Mapping):
      yield place, DataError(f"expected an object, got {type(entry).__name__}")
    elif _own(entry):
      yield report.path, DataError("no JSON Lines; write one whole object a line, in no list")
      return
    else:
      yield place, entry


def _own(row: Mapping[str, Any]) -> bool:
  """Whether a row is read as JSON Lines alone when a run starts."""
  return "turns" in row or kind_of(row) in ("pair", "judgement", "principle")


def _shortened(text: str) -> str:
  """A message on one line; some repeat what was found, which may be a whole book."""
  text = " ".join(text.split())
  return (
    text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
  )


def main(paths: Sequence[str]) -> int:
  """Prints the report; returns the exit code."""
  from rich.console import Console
  from rich.markup import escape
  from rich.table import Table

  if not paths or any(path.startswith("-") for path in paths):
    print(__doc__, file=sys.stderr)
    return 2
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")  # Some terminals cannot show what a file holds.
  # Elsewhere than in a terminal nothing is broken at the edge of one: places stay whole.
  width = None if sys.stdout.isatty() else 10_000
  out = Console(soft_wrap=True, highlight=False, width=width)
  reports = check(paths)
  for report in reports:
    held = ", ".join(f"{n} {kind}" for kind, n in report.kinds.items()) or "nothing"
    out.print(f"{escape(report.path)}: {held}; {report.bad} with problems")
    for note, count in report.notes.most_common():
      out.print(f"  read with a repair, {count} x: {escape(note)}")
  kinds = Counter(kind_of_problem(text) for r in reports for _, text in r.problems)
  if kinds:
    table = Table("count", "problem", "for example", box=None, pad_edge=False)
    examples: dict[str, list[str]] = {kind: [] for kind in kinds}
    for report in reports:
      for place, text in report.problems:
        examples[kind_of_problem(text)].append(f"{place}: {_shortened(text.strip(' :'))}")
    for kind, count in kinds.most_common():
      shown = "\n".join(examples[kind][:_EXAMPLES])
      table.add_row(str(count), escape(kind.strip(" :")), escape(shown))
    out.print(table)
  return 1 if kinds else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
