"""Sampled replies and result tables for a person at a terminal."""

from collections.abc import Iterable, Sequence
import dataclasses
import json
import math
import numbers
import os
import pathlib
import re
import typing
from typing import TypeGuard

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from her_jax.roleplay import grammar

NOT_MEASURED = "not measured"
# The layers' names for readers, in the order of a legend.
LAYERS = {
  grammar.PLAN: "plan",
  grammar.THINKING: "thinking",
  grammar.ACTION: "action",
  grammar.SPEECH: "speech",
}
# Readable on dark and on light backgrounds alike; bright variants would vanish on white.
STYLES = {
  grammar.PLAN: "dim italic",
  grammar.THINKING: "magenta",
  grammar.ACTION: "dark_cyan",
  grammar.SPEECH: "bold green",
}
# Escape sequences in a model's text could repaint the terminal; C0 without tab and newline,
# DEL and C1 are shown as a replacement character instead.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclasses.dataclass(frozen=True)
class Sample:
  """One sampled reply and what it answers.

  Attributes:
    scene: id of the scene.
    turn: index of the turn that the reply stands for.
    speaker: the character who replies.
    heard: what was last said to the character; empty if the character opens the scene.
    reply: the completion as sampled, with plan, name prefix and tags.
    finished: False if it was cut off at the length limit.
    valid: whether it is a whole turn (`grammar.is_valid_turn`).
  """

  scene: str
  turn: int
  speaker: str
  heard: str
  reply: str
  finished: bool
  valid: bool


@dataclasses.dataclass(frozen=True)
class JudgedPair:
  """A pair of replies whose winner is known, and what a judge wrote of it.

  Attributes:
    scene: id of the scene.
    turn: index of the turn that both replies stand for.
    speaker: the character who replies.
    candidate_1: the first reply, as the judge reads it; `candidate_2` likewise.
    label: who should win: "cand_1", "cand_2" or "tie".
    winner: who wins by the judgement; None where it could not be read.
    judgement: the judge's words.
  """

  scene: str
  turn: int
  speaker: str
  candidate_1: str
  candidate_2: str
  label: str
  winner: str | None
  judgement: str


def write_samples(path: str | os.PathLike[str], samples: Iterable[Sample]) -> None:
  """Writes samples as a JSON list, making the folder if it is missing."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = [dataclasses.asdict(sample) for sample in samples]
  path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def read_samples(path: str | os.PathLike[str]) -> list[Sample]:
  """Reads what `write_samples` wrote.

  Raises:
    ValueError: not a list of samples; names the file, the entry and the field.
  """
  rows = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  if not isinstance(rows, list):
    raise ValueError(f"{path}: want a list of samples, got {type(rows).__name__}")
  types = typing.get_type_hints(Sample)
  for i, row in enumerate(rows):
    if not isinstance(row, dict) or set(row) != set(types):
      raise ValueError(f"{path}, entry {i}: want an object with {', '.join(types)}")
    for name, wanted in types.items():
      if type(row[name]) is not wanted:
        raise ValueError(f"{path}, entry {i}: {name} is no {wanted.__name__}: {row[name]!r}")
  return [Sample(**row) for row in rows]


def layers(text: str, speaker: str | None = None) -> list[grammar.Segment]:
  """The layers of `text` to show without their tags, and without the speaker's prefix.

  Blank edges go, and layers that touch get a blank between them, so that words of two layers
  never run together: `<role_action>nods</role_action>Go.` reads "nods Go.".
  """
  shown: list[grammar.Segment] = []
  gap = ""
  for segment in grammar.parse(text, speaker).segments:
    words = segment.text.strip()
    before, _, after = segment.text.partition(words) if words else (segment.text, "", "")
    gap += before
    if words:
      if shown and shown[-1].kind != grammar.PLAN:
        last = shown.pop()
        shown.append(grammar.Segment(last.kind, last.text + ("\n" if "\n" in gap else " ")))
      shown.append(grammar.Segment(segment.kind, words))
      gap = after
  return shown


def faults(sample: Sample) -> list[str]:
  """What is wrong with a reply, in words; empty for a whole turn."""
  reply = grammar.parse(sample.reply, sample.speaker)
  found = [] if sample.finished else ["unfinished: cut off at the length limit"]
  if reply.status != "ok":
    more = f" (and {len(reply.problems) - 1} more)" if len(reply.problems) > 1 else ""
    found.append(f"{reply.status}: {reply.problems[0]}{more}")
  if not sample.valid and not found:
    lacks = {
      "no plan": not (reply.plan or "").strip(),
      f"no “{sample.speaker}: ” in front": reply.speaker is None,
      "nothing that others perceive": reply.is_empty,
    }
    why = ", ".join(words for words, holds in lacks.items() if holds)
    found.append(f"not a whole turn{': ' if why else ''}{why}")
  return found


def print_samples(title: str, samples: Sequence[Sample]) -> None:
  """Prints replies to stdout, each layer in its colour; with the tags where there is none."""
  console = _console()
  coloured = _coloured(console)
  console.rule(Text(_printable(title, console)), style="dim")
  console.print(_legend() if coloured else Text("Layers are marked by their tags."))
  for sample in samples:
    console.print()
    console.print(_heading(sample, console))
    heard = Text("(nothing: the character opens the scene)")
    if sample.heard:
      heard = _layered(sample.heard, None, console)
    console.print(Padding(heard, (0, 0, 0, 2), style="dim"))
    console.print(Padding(_layered(sample.reply, sample.speaker, console), (0, 0, 0, 4)))
  if not samples:
    console.print(NOT_MEASURED)
  console.print()


def print_judgements(title: str, pairs: Sequence[JudgedPair]) -> None:
  """Prints both replies of each pair, the judgement, and whether it names the right winner."""
  console = _console()
  console.rule(Text(_printable(title, console)), style="dim")
  for pair in pairs:
    console.print()
    console.print(_place(pair, console))
    for name, reply in (("cand_1", pair.candidate_1), ("cand_2", pair.candidate_2)):
      shown = Text(f"{name}  ", style="dim").append(_layered(reply, None, console))
      console.print(Padding(shown, (0, 0, 0, 2)))
    console.print(Padding(Text(_printable(pair.judgement.strip(), console)), (0, 0, 0, 4)))
    verdict = f"[label {pair.label}, verdict {pair.winner or 'unreadable'}]"
    style = "green" if pair.winner == pair.label else "red"
    console.print(Padding(Text(verdict, style=style), (0, 0, 0, 4)))
  console.print()


def print_table(title: str, rows: Iterable[tuple[str, object, str]]) -> None:
  """Prints a table of name, value and note to stdout; None is shown as "not measured"."""
  console = _console()
  table = Table(
    title=Text(_printable(title, console), style="bold"), title_justify="left", box=None
  )
  table.add_column("measure", no_wrap=True)
  table.add_column("value", justify="right", no_wrap=True)
  table.add_column("note", style="dim")
  for name, value, note in rows:
    value = number(value, ".4g") if isinstance(value, float) else value
    cells = (name, NOT_MEASURED if value is None else str(value), note)
    table.add_row(*(Text(_printable(cell, console)) for cell in cells))
  console.print(table)


def is_measured(value: object) -> TypeGuard[float]:
  """Whether `value` is a finite number, of Python or NumPy."""
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    return False
  return math.isfinite(value)


def number(value: object, form: str = ",", unit: str = "") -> str:
  """A number by its format, such as `.2f`; "not measured" for None, NaN and the like."""
  if not is_measured(value):
    return NOT_MEASURED
  return f"{value:{form}}{unit}".replace("-", "\N{MINUS SIGN}")


def share(value: object) -> str:
  """0.125 as "12.5%"."""
  return number(value, ".1%")


def duration(seconds: object) -> str:
  """252.3 as "4 min 12 s"."""
  if not is_measured(seconds):
    return NOT_MEASURED
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _console() -> Console:
  # Model text is full of [brackets] and :colons:, which are markup and emoji to rich.
  return Console(highlight=False, markup=False, emoji=False)


def _coloured(console: Console) -> bool:
  return console.color_system is not None and not console.no_color


def _legend() -> Text:
  return Text("  ").join(Text(name, style=STYLES[kind]) for kind, name in LAYERS.items())


def _place(of: Sample | JudgedPair, console: Console) -> Text:
  text = Text(_printable(of.speaker, console), style="bold")
  return text.append(
    f"  turn {of.turn} of {_printable(of.scene, console)}", style="not bold dim"
  )


def _heading(sample: Sample, console: Console) -> Text:
  text = _place(sample, console)
  for fault in faults(sample):
    text.append(f"  [{_printable(fault, console)}]", style="not bold red")
  return text


def _layered(text: str, speaker: str | None, console: Console) -> Text:
  if not _coloured(console):
    return Text(_printable(text.strip(), console))
  shown = Text()
  for segment in layers(text, speaker):
    shown.append(_printable(segment.text, console), style=STYLES[segment.kind])
    if segment.kind == grammar.PLAN:
      shown.append("\n")
  return shown


def _printable(text: str, console: Console) -> str:
  text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
  return text.encode(console.encoding, "replace").decode(console.encoding)
