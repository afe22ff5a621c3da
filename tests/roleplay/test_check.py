"""`python -m her_jax.roleplay.check`: run as people run it, on good files and on each fault."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from her_jax.roleplay import check

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = ROOT / "data_pipeline" / "samples"
LIBRARY = ROOT / "her_jax" / "roleplay" / "principles.jsonl"
SCENE = {
  "id": "quay",
  "scenario": "A quay at night.",
  "characters": [{"name": "Una", "profile": "A widow."}, {"name": "Joost"}],
  "turns": [
    {"speaker": "Environment", "reply": "Rain."},
    {"speaker": "Una", "plan": "Una stays cool.", "reply": "Sit."},
  ],
}
PAIR = {
  "id": "quay/1",
  "scene": "quay",
  "turn": 1,
  "candidate_1": "Sit.",
  "candidate_2": "Okay.",
  "winner": "cand_1",
  "violates_2": ["vivid"],
}
JUDGEMENT = {"id": "j", "pair": "quay/1", "winner": "cand_1", "findings": []}
PRINCIPLE = {
  "id": "own",
  "dimension": "overall quality",
  "level": "sentence",
  "polarity": "positive",
  "en": {"name": "Is ours", "definition": "The reply is ours."},
  "zh": {"name": "属于我们", "definition": "回应属于我们。"},
}
CASE = {
  "scenario": "A parlour.",
  "dialogues": [{"character": "Anne", "message": "[Hm.] Nothing."}],
}


def _run(*paths, **env) -> subprocess.CompletedProcess:
  command = [sys.executable, "-m", "her_jax.roleplay.check", *map(str, paths)]
  done = subprocess.run(
    command, cwd=ROOT, capture_output=True, env={**os.environ, **env}, timeout=120
  )
  done.stdout = done.stdout.decode(errors="replace")
  done.stderr = done.stderr.decode(errors="replace")
  assert "Traceback" not in done.stdout + done.stderr
  return done


def _lines(*rows) -> str:
  texts = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows]
  return "\n".join(texts) + "\n"


def _without(row, *path, **change) -> dict:
  """A copy of `row` with the object at `path` changed."""
  row = json.loads(json.dumps(row))
  place = row
  for key in path:
    place = place[key]
  place.update(change)
  return row


def test_what_the_package_ships_is_in_order():
  pairs, scenes = SAMPLES / "pairs.jsonl", SAMPLES / "scenes.jsonl"
  done = _run(pairs, scenes, LIBRARY)
  assert (done.returncode, done.stderr) == (0, "")
  rows = {path: len(path.read_bytes().splitlines()) for path in (pairs, scenes, LIBRARY)}
  assert done.stdout.splitlines() == [
    f"{pairs}: {rows[pairs]} pair; 0 with problems",
    f"{scenes}: {rows[scenes]} dialogue; 0 with problems",
    f"{LIBRARY}: {rows[LIBRARY]} principle; 0 with problems",
  ]


def test_real_cases_are_in_order(real_data):
  cases = real_data("coser_public_domain_cases.json")
  done = _run(cases, real_data("minimax_seeds_en.json"))
  assert done.returncode == 0
  assert f"{cases}: 43 dialogue; 0 with problems" in done.stdout


def test_without_files_the_use_is_shown():
  for arguments in ((), ("--help",)):
    done = _run(*arguments)
    assert done.returncode == 2 and "her_jax.roleplay.check scenes.jsonl" in done.stderr


# What is in the file → how often, which kind, and an example with its place.
FAULTS = {
  "cut": (_lines(SCENE, json.dumps(SCENE)[:70]), 1, "not valid JSON at column N", ":2: not"),
  "list": (json.dumps([SCENE]), 1, "no JSON Lines", ": no JSON Lines; write one whole object"),
  "cut list": (json.dumps([CASE], indent=1)[:-5], 1, "not valid JSON at line N, column N", ""),
  "numbers": (
    _lines("7", SCENE),
    1,
    "expected one JSON object a line, got int",
    ":1: expected",
  ),
  "list of numbers": ("[1, 2]", 2, "expected an object, got int", ": entry 2: expected"),
  "speakers": (
    _lines(
      SCENE,
      _without(SCENE, "turns", 0, speaker="Bo") | {"id": "b"},
      _without(SCENE, "turns", 1, speaker="It's; Jo", plan="") | {"id": "c"},
    ),
    2,
    "turns[].speaker: '…' is not among the characters",
    ':3: turns[1].speaker: "It\'s; Jo"',
  ),
  "turn": (
    _lines(PAIR | {"turn": 7}, SCENE),
    1,
    "turn: N, but scene '…' has N turns",
    ":1: turn: 7, but scene 'quay' has 2",
  ),
  "principle": (_lines(PAIR | {"violates_1": ["vivd"]}), 1, "'…' is no principle", ":1: viol"),
  "judgement": (_lines(JUDGEMENT | {"winner": "me"}), 1, "winner: '…' is not one of", ":1: wi"),
  "twice": (_lines(SCENE, "", SCENE), 1, "id: '…' stands twice", ":3: id: 'quay' stands"),
  "made id twice": (_lines(CASE, CASE), 1, "id: '…', made of", ":2: id: 'coser/0/0', made"),
  "name twice": (
    _lines(PRINCIPLE, _without(PRINCIPLE, "en", name="is Ours") | {"id": "b", "zh": None}),
    1,
    "en.name: '…' stands twice",
    ":2: en.name: 'is Ours' stands twice",
  ),
  "dimension": (_lines(PRINCIPLE | {"dimension": "x"}), 1, "dimension: '…' is not", ":1: dim"),
  "empty": ("", 1, "holds nothing", ": holds nothing"),
  "blank": ("\n \n", 1, "holds nothing", ": holds nothing"),
  "empty list": ("[]", 1, "holds nothing", ": holds nothing"),
  "binary": (b"\x00\xff\n" * 99, 1, "no text in UTF-8", ": no text in UTF-8; pass JSON Lines"),
  "latin": ("[é]".encode("latin-1"), 1, "not UTF-8", ": not UTF-8; save the file"),
  "unknown": (_lines({"a": 1}), 1, "no kind of row that is known here", ":1: no kind"),
  "half": (
    json.dumps([_without(CASE, "dialogues", 0, character="\ud800")]),
    1,
    "half of a surrogate pair",
    ": half of a surrogate pair",
  ),
  "deep": (_lines('{"a": ' * 5000 + "1" + "}" * 5000), 1, "not usable JSON", ":1: not usable"),
  "deep case": (
    _lines(json.dumps(CASE)[:-1] + ', "x": ' + '{"a": ' * 900 + "1" + "}" * 901),
    0,
    "",
    "",
  ),
  "untold": (
    _lines(_without(SCENE, "characters", 0, profile="")),
    1,
    "'…' is trained without profile or description",
    ":1: characters: 'Una' is trained",
  ),
  "long": (
    _lines(_without(CASE, "dialogues", 0, message=["x" * 99_999])),
    1,
    "dialogues[].message: expected a text, got",
    ":1: dialogues[0].message: expected",
  ),
  "types": (
    _lines(CASE | {"plot": [1]}, CASE | {"character_profiles": 7}),
    1,
    "plot: expected an object",
    ":1: plot: expected an object, got [1]",
  ),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
  """Every broken file, checked in one run each by `check` itself; name → (path, report)."""
  folder = tmp_path_factory.mktemp("broken")
  found = {}
  for name, (content, *_) in FAULTS.items():
    path = folder / f"{name.replace(' ', '_')}.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found[name] = (path, check.check([str(path)])[0])
  return found


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_counted_by_kind_with_its_place(broken, name):
  path, report = broken[name]
  _, count, kind, shown = FAULTS[name]
  of_kind = [
    f"{place}: {text.strip(' :')}"
    for place, text in report.problems
    if kind in check.kind_of_problem(text)
  ]
  assert len(of_kind) == count
  assert len({check.kind_of_problem(text) for _, text in report.problems if kind in text}) <= 1
  if count:
    assert any(line.startswith(f"{path}{shown}") for line in of_kind), of_kind


def test_the_table_counts_faults_of_all_files_and_tells_where(broken, tmp_path):
  """One run over everything: exit code 1, no traceback, each kind with place and example."""
  missing = tmp_path / "nowhere.jsonl"
  paths = [path for path, _ in broken.values()]
  # Also where the terminal knows no sign beyond ASCII.
  done = _run(*paths, missing, tmp_path, PYTHONIOENCODING="ascii")
  assert (done.returncode, done.stderr) == (1, "")
  assert "count" in done.stdout and "for example" in done.stdout
  assert f"{missing}: cannot be read (No such file or directory); check" in done.stdout
  assert f"{tmp_path}: cannot be read (Is a directory)" in done.stdout
  for name, (path, report) in broken.items():
    told = next(line for line in done.stdout.splitlines() if line.startswith(f"{path}: "))
    assert told.endswith(f"; {report.bad} with problems"), name
  table = done.stdout[done.stdout.index("count ") :].splitlines()
  two = next(line for line in table if "is not among the characters" in line)
  assert two.split()[0] == "2" and f"{broken['speakers'][0]}:2" in two
  assert max(map(len, done.stdout.splitlines())) < 1000


@pytest.mark.parametrize("name", ["cut", "list", "speakers", "turn", "empty", "binary", "half"])
def test_each_broken_file_alone_ends_with_one(broken, name):
  path, _ = broken[name]
  done = _run(path)
  assert (done.returncode, done.stderr) == (1, "")
  _, count, _, shown = FAULTS[name]
  table = done.stdout[done.stdout.index("count ") :]
  assert f"{path}{shown}" in table
  assert any(line.split()[0] == str(count) for line in table.splitlines()[1:])


def test_pairs_are_held_to_the_scenes_and_principles_of_the_same_command(tmp_path):
  own = PAIR | {"violates_2": ["own"]}
  for name, row in (("pairs", own), ("scenes", SCENE), ("library", PRINCIPLE)):
    (tmp_path / name).write_text(_lines(row), encoding="utf-8")
  paths = [str(tmp_path / name) for name in ("pairs", "scenes", "library")]
  assert [report.problems for report in check.check(paths)] == [[], [], []]
  (problems,) = [report.problems for report in check.check(paths[:1])]
  assert ["'own' is no principle" in text for _, text in problems] == [True]
  other = _lines(SCENE | {"id": "other"})
  (tmp_path / "scenes").write_text(other, encoding="utf-8")
  problems = check.check(paths)[0].problems
  assert ["'quay' is not among the scenes" in text for _, text in problems] == [True]


def test_a_plan_without_its_turn_is_told(tmp_path):
  rows = json.loads(pathlib.Path(__file__).with_name("foreign_rows.json").read_text("utf-8"))
  her = rows["her"]
  path = tmp_path / "her.jsonl"
  path.write_text(_lines(her), encoding="utf-8")
  assert not check.check([str(path)])[0].problems
  her["training_samples"]["Una"][2]["origin_id"] = 77
  path.write_text(_lines(her), encoding="utf-8")
  ((place, text),) = check.check([str(path)])[0].problems
  assert place == f"{path}:1" and "a plan of 'Una' belongs to no turn" in text


def test_messages_that_were_read_with_a_repair_are_counted_but_no_fault(tmp_path):
  path = tmp_path / "cases.json"
  messages = ["1) So.", "2) Well.", "[Hm.] Good."]
  case = {
    **CASE,
    "character_profiles": {"Anne": "x"},
    "dialogues": [{"character": "Anne", "message": m} for m in messages],
  }
  path.write_text(json.dumps([case], indent=2), encoding="utf-8")
  done = _run(path)
  assert done.returncode == 0
  assert "read with a repair, 2 x: ')' has no partner, kept as speech" in done.stdout
