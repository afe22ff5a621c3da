"""The command: what it writes, what it says, how it ends."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from data_pipeline.sources import reader
from her_jax.roleplay import schema
from tests.data_pipeline.sources import rows_of_others as rows

_ROOT = pathlib.Path(__file__).parents[3]


def _command(*arguments):
  return [sys.executable, "-m", "data_pipeline.sources.convert", *map(str, arguments)]


def _run(*arguments):
  return subprocess.run(
    _command(*arguments), capture_output=True, text=True, timeout=120, cwd=_ROOT
  )


@pytest.fixture
def book(tmp_path):
  def write(bad=()):
    row = rows.coser_book(5)
    for i in bad:
      row["plots"][i]["conversation"][0]["scenario"] = ""
    path = tmp_path / "ferry.json"
    path.write_text(json.dumps(row, indent=1), encoding="utf-8")
    return path

  return write


def test_it_writes_trajectories_and_a_report(book, tmp_path):
  out = tmp_path / "new" / "trajectories.jsonl"
  done = _run(f"--source={book()}", "--format=coser_book", f"--out={out}")
  assert done.returncode == 0, done.stderr
  assert schema.read_trajectories(out) == list(reader.read(tmp_path / "ferry.json"))
  told = json.loads((out.parent / "trajectories.jsonl.report.json").read_text())
  assert (told["rows"], told["kept"], told["turns"], told["rejected"]) == (1, 5, 20, {})
  assert "5 trajectories, 20 turns" in done.stdout
  assert sorted(p.name for p in out.parent.iterdir()) == [
    "trajectories.jsonl", "trajectories.jsonl.report.json"
  ]  # fmt: skip


def test_strict_ends_with_one_line_and_leaves_what_was_there(book, tmp_path):
  out = tmp_path / "out.jsonl"
  out.write_text("before")
  path = book(bad=[3])
  done = _run(f"--source={path}", f"--out={out}")
  assert done.returncode == 1
  assert done.stderr.splitlines() == [
    f"error: {path}:1: plots[3].conversation[0]: scenario: missing or empty; describe the scene"
  ]
  assert out.read_text() == "before" and not (tmp_path / "out.jsonl.part").exists()


def test_lenient_counts_puts_aside_and_names_the_first_of_each_kind(book, tmp_path):
  out = tmp_path / "out.jsonl"
  path = book(bad=[1, 3])
  done = _run(f"--source={path}", f"--out={out}", "--lenient")
  assert done.returncode == 0, done.stderr
  assert len(schema.read_trajectories(out)) == 3
  told = json.loads((tmp_path / "out.jsonl.report.json").read_text())
  ((kind, counted),) = told["rejected"].items()
  assert kind.startswith("scenario: missing") and counted["count"] == 2
  assert counted["first"].startswith(f"{path}:1: plots[1].conversation[0]: ")
  assert "rejected 2 x" in done.stdout and f"{path}:1" in done.stdout
  assert len((tmp_path / "rejected.jsonl").read_text().splitlines()) == 2
  # A second run without faults leaves no old quarantine behind.
  assert _run(f"--source={book()}", f"--out={out}", "--lenient").returncode == 0
  assert not (tmp_path / "rejected.jsonl").exists()


def test_nothing_to_write_is_a_fault_with_its_reasons(book, tmp_path):
  out = tmp_path / "out.jsonl"
  done = _run(f"--source={book(bad=range(5))}", f"--out={out}", "--lenient")
  assert done.returncode == 1 and "no trajectory to write" in done.stderr
  assert "scenario: missing" in done.stderr and not out.exists()
  assert json.loads((tmp_path / "out.jsonl.report.json").read_text())["kept"] == 0


@pytest.mark.parametrize(
  ("arguments", "told"),
  [
    (["--source={folder}/none.jsonl"], "no such file or folder"),
    (["--source={folder}/cp1252.jsonl", "--encoding=utf-8"], "cp1252.jsonl:1: not UTF-8"),
    (["--source={folder}/novel.txt", "--format=book"], "pass --endpoint and --model"),
    (["--source={folder}/cp1252.jsonl", "--encoding=latin-99"], "'latin-99' is unknown"),
    (["--source={folder}/novel.txt"], "read with --format=book"),
    (["--source={folder}"], "within the source"),
    (["--source={folder}/ok.jsonl", "--seeds={folder}/none"], "no such file"),
  ],
)
def test_what_a_user_can_mend_is_one_line(tmp_path, arguments, told):
  row = json.dumps(rows.sharegpt_row(note="café “now”"), ensure_ascii=False)
  (tmp_path / "cp1252.jsonl").write_bytes(row.encode("cp1252"))
  (tmp_path / "ok.jsonl").write_text(row, encoding="utf-8")
  (tmp_path / "novel.txt").write_text("Chapter 1\n\nShe spoke.\n")
  given = [argument.format(folder=tmp_path) for argument in arguments]
  done = _run(*given, f"--out={tmp_path / 'out.jsonl'}")
  assert done.returncode == 1 and told in done.stderr
  assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr


def test_an_encoding_that_was_told_by_its_bytes_is_reported(tmp_path):
  row = json.dumps(rows.sharegpt_row(note="café “now” – it’s"), ensure_ascii=False)
  path = tmp_path / "a.jsonl"
  path.write_bytes(row.encode("cp1252"))
  out = tmp_path / "out.jsonl"
  done = _run(f"--source={path}", f"--out={out}")
  assert done.returncode == 0 and f"read as cp1252: {path}" in done.stdout
  assert schema.read_trajectories(out)[0].extra["sharegpt"]["note"] == "café “now” – it’s"


def test_chats_take_their_books_and_cards_their_seeds_from_files(tmp_path):
  (tmp_path / "sft.jsonl").write_text(json.dumps(rows.sft_row()))
  (tmp_path / "full.jsonl").write_text(json.dumps(rows.her_row()))
  out = tmp_path / "out.jsonl"
  done = _run(
    f"--source={tmp_path}/sft.jsonl", f"--books={tmp_path}/full.jsonl", f"--out={out}"
  )
  assert done.returncode == 0, done.stderr
  assert schema.read_trajectories(out)[0].source == "The Ferry"
  card = {
    "name": "Una",
    "description": "",
    "personality": "",
    "scenario": "",
    "mes_example": "",
  }
  (tmp_path / "una.json").write_text(json.dumps({**card, "first_mes": "Row."}))
  (tmp_path / "seeds.jsonl").write_text('{"id": "ford", "scenario": "At the ford."}\n')
  done = _run(
    f"--source={tmp_path}/una.json",
    "--format=cards",
    f"--seeds={tmp_path}/seeds.jsonl",
    f"--out={out}",
  )
  assert done.returncode == 0, done.stderr
  assert schema.read_trajectories(out)[0].scenario == "At the ford."


def test_killed_it_leaves_no_half_file(tmp_path):
  path = tmp_path / "big.jsonl"
  with path.open("w") as file:
    for i in range(20_000):
      file.write(json.dumps(rows.her_row(i)) + "\n")
  out = tmp_path / "out.jsonl"
  process = subprocess.Popen(_command(f"--source={path}", f"--out={out}"), cwd=_ROOT)
  part = tmp_path / "out.jsonl.part"
  end = time.monotonic() + 60
  while not (part.exists() and part.stat().st_size) and time.monotonic() < end:
    time.sleep(0.02)
  os.kill(process.pid, signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert not out.exists() and part.exists()


def test_it_starts_without_jax_and_in_little_time():
  code = "import sys, data_pipeline.sources.convert; print([m for m in sys.modules if m in %r])"
  heavy = ["jax", "flax", "datasets", "torch", "transformers", "grain", "openai"]
  done = subprocess.run(
    [sys.executable, "-c", code % heavy], capture_output=True, text=True, cwd=_ROOT, check=True
  )
  assert done.stdout.strip() == "[]"
