"""Measures every so many steps, and the best model apart, through a kill as without one."""

import json
import signal

import numpy as np
import pytest

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.tasks.heldout import Intervals
from her_jax.training import checkpoint, metrics
from tests.training import short_runs

_LAYERS = ("plan", "thought", "action", "speech")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  settings = short_runs.prepare(tmp_path_factory.mktemp("data"))
  scenes = settings["data.scenes"]
  rows = [json.loads(line) for line in scenes.read_text().splitlines()]
  rows[-1]["split"] = "heldout"
  scenes.write_text("".join(json.dumps(row) + "\n" for row in rows))
  # So fast that the loss rises again.
  return settings | {
    "steps": 12, "eval_every": 4, "checkpoint.every": 5, "data.eval_length": 512,
    "optimizer.learning_rate": 0.3, "profile.step": 2, "profile.steps": 1,
    "optimizer.ema": 0.5,
  }  # fmt: skip


@pytest.mark.slow
def test_the_best_is_kept_and_a_kill_changes_nothing(settings, tmp_path):
  one, two = tmp_path / "one", tmp_path / "two"
  assert short_runs.finish(one, settings) == 0, short_runs.log(one)
  short_runs.finish(two, settings, short_runs.Stop(signal.SIGKILL, 9))
  assert short_runs.finish(two, settings) == 0, short_runs.log(two)
  assert "continued after step 5 of 12" in short_runs.log(two)
  short_runs.assert_equal(one, two)
  rows = metrics.read(one / "metrics.jsonl")
  measured = {r["step"]: r["heldout_loss"] for r in rows if "heldout_loss" in r}
  assert sorted(measured) == [4, 8, 12]
  best = min(measured, key=measured.get)
  for workdir in (one, two):
    told = json.loads((workdir / "best" / "best.json").read_text())
    assert told == {"step": best, "heldout_loss": measured[best]}
    assert checkpoint.steps(str(workdir / "best")) == [best]
  assert any((one / "profile").rglob("*.xplane.pb"))
  assert all(row["loss_plan"] > 0 and row["loss_speech"] > 0 for row in rows)
  assert all(f"heldout_loss_{layer}" in rows[3] for layer in _LAYERS)
  # Both are workdirs that another run starts from.
  mesh = sharding.make_mesh()
  last, mean = (checkpoint.load(str(place), mesh, "init_from") for place in (one, one / "ema"))
  assert last.step == mean.step == 12
  tables = [np.asarray(m.params["embedding"].get_value()) for m in (last, mean)]
  assert 0 < np.abs(tables[0] - tables[1]).max() < 1
  loaded = checkpoint.load(str(one / "best"), mesh, "init_from")
  assert loaded.step == best
  assert np.isfinite(np.asarray(loaded.params["embedding"].get_value())).all()


@pytest.mark.parametrize("text", ["", '{"step": 2, "hel', "3", '{"step": 2}', '{"step": "x"}'])
def test_a_damaged_note_of_the_best_is_named(tmp_path, text):
  (tmp_path / "best").mkdir()
  (tmp_path / "best" / "best.json").write_text(text)
  with pytest.raises(ConfigError, match="best/best.json is damaged.*delete it.*from step 3 on"):
    Intervals(2, None, None, None, str(tmp_path), 3)
  assert Intervals(2, None, None, None, str(tmp_path), 0)._best is None  # A new run.
