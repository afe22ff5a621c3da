"""How fast sources are read, on one core: turns a second and peak memory, by format.

    python -m benchmarks.generate_conversations --out=out/generated.jsonl --conversations=3000
    python -m benchmarks.read_sources --trajectories=out/generated.jsonl

The conversations are written in each other project's form first (CoSER's books and cases, HER's
rows and chats, ShareGPT), into --folder; the generator of any trajectories will do. Each format
is read in a process of its own, so that its peak memory is its own too.
"""

from collections.abc import Callable, Iterable, Iterator
import itertools
import json
import multiprocessing
import pathlib
import resource
import time
from typing import Any

from absl import app, flags

from data_pipeline.sources import reader
from data_pipeline.sources.report import Report
from her_jax.roleplay import grammar, jsonl, notations, schema
from her_jax.roleplay.schema import Trajectory

_TRAJECTORIES = flags.DEFINE_string("trajectories", None, "JSON Lines.", required=True)
_FOLDER = flags.DEFINE_string("folder", "out/sources", "For the files in other forms.")

Row = dict[str, Any]


def _lines(one: Trajectory) -> list[Row]:
  return [
    {"character": t.speaker, "message": notations.to_coser(grammar.parse(t.reply))}
    for t in one.turns
  ]


def _people(one: Trajectory) -> list[Row]:
  return [
    {"name": c.name, "description": c.description, "experience": c.experience}
    for c in one.characters
  ]


def coser_book(title: str, several: Iterable[Trajectory]) -> Row:
  """One book's file: each conversation in a plot of its own."""
  profiles: Row = {}
  plots = []
  for i, one in enumerate(several):
    profiles |= {c.name: {"profile": c.profile} for c in one.characters}
    plots.append(
      {
        "text": one.scenario,
        "summary": one.summary,
        "chapter": f"Chapter {i + 1}",
        "i_p": i,
        "key_characters": _people(one),
        "conversation": [
          {
            "scenario": one.scenario,
            "topic": one.topic,
            "key_characters": [
              {"name": c.name, "motivation": c.motivation} for c in one.characters
            ],
            "dialogues": _lines(one),
          }
        ],
      }
    )
  return {"book": title, "plots": plots, "character_datasets": profiles}


def her_row(one: Trajectory, i: int) -> Row:
  """A row of `full_info`: plans under the origin ids of their turns."""
  samples: dict[str, list[Row]] = {}
  dialogues = []
  for k, turn in enumerate(one.turns):
    dialogues.append(
      {
        "character": turn.speaker,
        "message": turn.reply,
        "enhanced_speech": turn.reply,
        "origin_id": [k],
      }
    )
    if turn.plan:
      sample = {"role": "assistant", "origin_id": [k], "sys_thinking_revised": turn.plan}
      samples.setdefault(turn.speaker, []).append(sample)
  return {
    "trace_id_book_chapter": f"trace_{i}",
    "book_name": one.source,
    "plot_index": i,
    "conv_index": 0,
    "text": one.scenario,
    "summary": one.summary,
    "key_characters": _people(one),
    "conversation": [{"scenario": one.scenario, "topic": one.topic, "dialogues": dialogues}],
    "character_datasets": {c.name: {"character_profile": c.profile} for c in one.characters},
    "training_samples": samples,
  }


def sft_row(one: Trajectory, i: int) -> Row:
  """A row of `sft_multi_turn`: the chat of the first character."""
  own = one.characters[0].name
  messages: list[Row] = [{"role": "system", "content": one.characters[0].profile}]
  for turn in one.turns:
    if turn.speaker == own:
      plan = f"<system_thinking>{turn.plan}</system_thinking>" if turn.plan else ""
      messages.append({"role": "assistant", "content": f"{plan}{own}: {turn.reply}"})
    else:
      heard = grammar.parse(turn.reply).view_for("other")
      messages.append({"role": "user", "content": f"{turn.speaker}: {heard}"})
  return {"messages": messages, "trace_id": f"trace_{i}", "character": own}


def sharegpt_row(one: Trajectory, i: int) -> Row:
  own = one.characters[0].name
  talk = [{"from": "system", "value": one.characters[0].profile}]
  for turn in one.turns:
    who = "gpt" if turn.speaker == own else "human"
    talk.append({"from": who, "value": grammar.parse(turn.reply).view_for("other")})
  return {"id": str(i), "conversations": talk, "character": own}


def _read() -> Iterator[Trajectory]:
  for _, made in jsonl.each_line(_TRAJECTORIES.value, schema.build_trajectory):
    if isinstance(made, Trajectory):
      yield made


def write(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The files of every format."""
  books, rows = folder / "coser_book", folder / "rows"
  for path in (books, rows):
    path.mkdir(parents=True, exist_ok=True)
  by_book = itertools.groupby(_read(), key=lambda one: one.source)
  for number, (title, several) in enumerate(by_book):
    text = json.dumps(coser_book(f"{title} {number}", several), ensure_ascii=False, indent=1)
    (books / f"{number}.json").write_text(text, encoding="utf-8")
  makers: dict[str, Callable[[Trajectory, int], Row]] = {
    "coser_test": lambda one, i: {
      "book": one.source, "i_p": i, "scenario": one.scenario, "dialogues": _lines(one),
      "character_profiles": {c.name: c.profile for c in one.characters},
    },
    "her_full": her_row,
    "her_sft": sft_row,
    "sharegpt": sharegpt_row,
  }  # fmt: skip
  found = {"coser_book": books}
  for name, make in makers.items():
    found[name] = rows / f"{name}.jsonl"
    with found[name].open("w", encoding="utf-8") as file:
      for i, one in enumerate(_read()):
        file.write(json.dumps(make(one, i), ensure_ascii=False) + "\n")
  return found | {"trajectories": pathlib.Path(_TRAJECTORIES.value)}


def measure(name: str, path: pathlib.Path) -> tuple[Report, float, float, float]:
  """The report, and what it took: seconds of the clock, of this core, and peak MiB."""
  report = Report()
  clock, core = time.perf_counter(), time.process_time()
  for _ in reader.read(path, name, strict=False, report=report):
    pass
  clock, core = time.perf_counter() - clock, time.process_time() - core
  return report, clock, core, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: list[str]) -> None:
  del argv
  files = write(pathlib.Path(_FOLDER.value))
  context = multiprocessing.get_context("spawn")
  heads = ("format", "MiB", "turns", "rejected", "turns/s", "turns/core-s", "peak MiB")
  print("".join(f"{head:>14}" for head in heads))
  for name, path in files.items():
    size = sum(p.stat().st_size for p in ([path] if path.is_file() else path.iterdir()))
    with context.Pool(1) as pool:
      report, clock, core, peak = pool.apply(measure, (name, path))
    figures = (size >> 20, report.turns, sum(report.rejected.values()))
    speeds = (report.turns / clock, report.turns / core, peak)
    print(
      f"{name:>14}"
      + "".join(f"{f:>14,}" for f in figures)
      + "".join(f"{s:>14,.0f}" for s in speeds)
    )
    for reason, first in report.first.items():
      print(f"  {report.rejected[reason]} x {first}")


if __name__ == "__main__":
  app.run(main)
