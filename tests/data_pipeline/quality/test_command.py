"""The report over a file, its command, and that memory does not grow with the input."""

import dataclasses
import json
import subprocess
import sys

import pytest

from data_pipeline import quality, samples
from data_pipeline.quality import report, scan
from her_jax.roleplay import schema
from her_jax.roleplay.jsonl import DataError

SCENES = schema.read_trajectories(samples.SCENES)


def _spoilt(scene, i, **fields):
  turns = list(scene.turns)
  turns[i] = dataclasses.replace(turns[i], **fields)
  return dataclasses.replace(scene, turns=tuple(turns))


def _run(*arguments):
  command = [sys.executable, "-m", "data_pipeline.quality", *map(str, arguments)]
  return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def faulty(tmp_path):
  """Three scenes: a plan in the first person, one clean, an assistant's words."""
  turn = SCENES[0].trained_turns()[0]
  scenes = [
    _spoilt(SCENES[0], turn, plan="I should refuse him here."),
    SCENES[1],
    _spoilt(SCENES[2], 0, reply="As an AI language model, I have no feelings."),
  ]
  path = tmp_path / "scenes.jsonl"
  schema.write_jsonl(path, scenes)
  return path, turn


def test_the_command_reports_places_and_fails(faulty, tmp_path):
  path, turn = faulty
  done = _run(path, f"--json={tmp_path}/q.json", f"--flags={tmp_path}/f.jsonl")
  assert done.returncode == 1 and not done.stderr
  rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
  assert [(r["line"], r["turn"], r["name"], r["field"], r["evidence"]) for r in rows] == [
    (1, turn, "plan_first_person", "plan", "I"),
    (3, 0, "prompt_words", "reply", "As an AI language model"),
  ]
  told = json.loads((tmp_path / "q.json").read_text())
  assert told["scenes"] == 3 and told["clean_scenes"] == 1
  mine = told["flags"]["plan_first_person"]
  assert mine["turns"] == mine["scenes"] == 1 and mine["of"] == "plans"
  assert mine["share"] == pytest.approx(1 / told["plans"])
  (shown,) = mine["examples"]
  assert shown["scene"] == SCENES[0].id and shown["evidence"] == "I"
  assert "»As an AI language model«" in done.stdout


def test_the_exit_code_goes_by_flags_and_shares(faulty):
  path, _ = faulty
  assert _run(path, "--fail=repetition").returncode == 0
  assert _run(path, "--fail=repetition,prompt_words").returncode == 1
  assert _run(path, "--fail=").returncode == 0
  assert _run(path, "--most=0.5").returncode == 0
  assert _run(path, "--only=repetition").returncode == 0
  wrong = _run(path, "--only=repetitions")
  assert (
    wrong.returncode == 1 and "no flag 'repetitions'; known are" in wrong.stdout + wrong.stderr
  )
  assert _run(samples.SCENES).returncode == 0


def test_bad_input_is_named_or_counted(faulty):
  path, _ = faulty
  with path.open("a", encoding="utf-8") as file:
    file.write('{"id": "x", "scenario": "y"}\n')
  strict = _run(path)
  assert strict.returncode == 2
  assert strict.stderr.startswith(f"quality: {path}:4 (id 'x'): characters: missing or empty")
  assert len(strict.stderr.strip().splitlines()) == 1
  lenient = _run(path, "--lenient")
  assert lenient.returncode == 1 and "1 lines are no scenes" in lenient.stdout
  gone = _run(path.with_name("none.jsonl"))
  assert gone.returncode == 2 and "no such file" in gone.stderr


def _with_passage(scene, chapter, passage, id=None):
  extra = {"her": {"chapter": chapter, "passage": passage}}
  return dataclasses.replace(scene, id=id or scene.id, source="A Book", extra=extra)


def test_books_are_gathered_across_the_file(tmp_path):
  """What a later line's chapter tells is future for an earlier line, in any order of the file."""
  early = _with_passage(
    _spoilt(SCENES[0], 0, reply="Ask Wilmot. <role_action>shrugs</role_action>"),
    "Chapter 2", "They spoke of books.",
  )  # fmt: skip
  late = _with_passage(
    SCENES[1], "Chapter 10", "A clerk, named Wilmot, came; and Wilmot drank."
  )
  other = dataclasses.replace(late, source="Another Book", id="other")
  for order in ([early, other, late], [late, other, early]):
    path = tmp_path / "scenes.jsonl"
    schema.write_jsonl(path, order)
    found = [(s.line, f.name, f.evidence) for s in scan.scan(path) for f in s.flags]
    assert found == [(order.index(early) + 1, "future_knowledge", "Wilmot")]
  schema.write_jsonl(path, [early, other])
  assert not [f for s in scan.scan(path) for f in s.flags]


def test_examples_are_drawn_evenly_and_the_same_each_time(tmp_path):
  flag = quality.Flag("repetition", 0, "reply", 0, 3, "abc", "why")
  reports = [report.Report(examples=2) for _ in range(2)]
  for gathered in reports:
    for line in range(1, 101):
      gathered.add(scan.Scanned(line, SCENES[0], [flag]))
  lines = [e.line for e in reports[0].examples["repetition"]]
  assert lines == [e.line for e in reports[1].examples["repetition"]] != [1, 2]
  assert len(lines) == 2 and reports[0].turns["repetition"] == 100


_PEAK = """
import resource, sys
from data_pipeline import diversity
from data_pipeline.quality import report, scan
gathered, variety = report.Report(), diversity.Diversity(100)
for scanned in scan.scan(sys.argv[1]):
  gathered.add(scanned)
  variety.add(scanned.scene)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
  """Eight times the scenes, also with passages of many books: at most 6 MB more."""

  def peak(times):
    path = tmp_path / f"{times}.jsonl"
    with path.open("w", encoding="utf-8") as file:
      for k in range(times):
        for scene in SCENES[::4]:
          made = _with_passage(scene, str(k % 7), f"{scene.scenario} {k}", f"{scene.id}-{k}")
          made = dataclasses.replace(made, source=f"{scene.source} {k}")
          file.write(json.dumps(schema.to_dict(made), ensure_ascii=False) + "\n")
    done = subprocess.run(
      [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024

  few, many = peak(3), peak(24)
  assert many - few < 6, (few, many)


def test_a_line_that_is_no_scene_comes_as_its_fault(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text("[]\n", encoding="utf-8")
  (fault,) = scan.scan(path)
  assert isinstance(fault, DataError) and str(fault).startswith(f"{path}:1: expected one JSON")


def test_the_tools_load_no_jax():
  code = (
    "import sys, data_pipeline.quality.scan, data_pipeline.diversity, data_pipeline.page\n"
    "print(sorted({'jax', 'flax', 'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"
