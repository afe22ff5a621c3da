"""What follows synthesis, and that it takes the place of what was there, whole or not at all."""

import pytest

from data_pipeline import finish, records
from data_pipeline.proof import require_proof
from her_jax.roleplay.schema import DataError


def _files(folder):
  return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_other_purposes_leave_nothing_of_those_before(corpus, written, tmp_path):
  path, out = written(corpus(6)), tmp_path / "out"
  told = finish.finish(path, out, {"sft": 3, "test": 1})
  assert set(told["books"]) == {"sft", "test"} and sum(told["books"].values()) == 6
  assert {p.name for p in out.iterdir()} == {
    "splits", "built", "page.html", "quality.json", "diversity.json"
  }  # fmt: skip
  finish.finish(path, out, {"sft": 1})
  assert {p.name for p in (out / "splits").iterdir()} == {"sft.jsonl", "splits_proof.json"}
  require_proof(out / "splits")
  assert len(records.Trajectories(out / "built", "sft")) == 12
  with pytest.raises(DataError):
    records.Trajectories(out / "built", "test")


def test_what_cannot_be_split_leaves_what_was_there(corpus, written, tmp_path):
  path, out = written(corpus(1)), tmp_path / "out"
  finish.finish(path, out, {"sft": 1})
  before = _files(out)
  with pytest.raises(DataError, match="too few for the purposes"):
    finish.finish(path, out, {"sft": 1, "test": 1})
  assert before <= _files(out)
  assert len(records.Trajectories(out / "built", "sft")) == 2


def test_it_goes_on_over_what_a_killed_run_left(corpus, written, tmp_path):
  path, out = written(corpus(2)), tmp_path / "out"
  (out / "finish.part/built/her_trajectories/incomplete").mkdir(parents=True)
  (out / "finish.part/strange.txt").write_text("half of a line")
  finish.finish(path, out, {"sft": 1})
  assert not (out / "finish.part").exists() and not (out / "strange.txt").exists()
  assert len(list(records.SftTurns(out / "built", "sft"))) == 16
