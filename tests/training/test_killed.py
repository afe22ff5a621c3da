"""A run that is killed at any instant loses what it did since its last checkpoint, and no more."""

import pathlib
import random
import signal
import time

import jax
import numpy as np
import psutil
import pytest

from her_jax import sharding
from her_jax.training import checkpoint
from tests.training import short_runs

# What Python reports just before, in the run's fourth save or its first removal.
_MOMENTS = {
  "with an empty folder": (("os.mkdir", "/params"), 4),
  "with the moments and no list of them": (("open", "/train/_METADATA"), 4),
  "with the place in the data not written": (("open", "/data/_METADATA"), 4),
  "with all written": (("os.rename", ".orbax-checkpoint-tmp"), 4),
  "while an old one is removed": (("os.rmdir", "-removed"), 1),
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  return short_runs.prepare(tmp_path_factory.mktemp("data")) | {"checkpoint.every": 2}


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory):
  """Workdirs of runs that were not killed, by their number of steps."""
  folder, done = tmp_path_factory.mktemp("unbroken"), {}

  def run(steps: int) -> pathlib.Path:
    if steps not in done:
      done[steps] = folder / str(steps)
      code = short_runs.finish(done[steps], settings | {"steps": steps})
      assert code == 0, short_runs.log(done[steps])
    return done[steps]

  return run


def _load_newest(workdir: pathlib.Path) -> int:
  """Reads the newest checkpoint, as export and the other stages do, and returns its step."""
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  loaded = checkpoint.load(str(workdir), mesh, "config.policy")
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded.params))
  return loaded.step


@pytest.mark.parametrize(
  "moments",
  [
    ["with the moments and no list of them"],
    pytest.param([m for m in _MOMENTS if "no list" not in m], marks=pytest.mark.exhaustive),
  ],
  ids=["one", "others"],
)
def test_killed_within_a_save(settings, unbroken, tmp_path, moments):
  settings = settings | {"steps": 12}
  for moment in moments:
    workdir = tmp_path / moment.replace(" ", "_")
    event, times = _MOMENTS[moment]
    stop = short_runs.Stop(signal.SIGKILL, times, event=event)
    code = short_runs.finish(workdir, settings, stop)
    assert code == -signal.SIGKILL, (moment, short_runs.log(workdir))
    assert list(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")), moment
    step = _load_newest(workdir)
    assert step in (6, 8), moment
    assert short_runs.finish(workdir, settings) == 0, short_runs.log(workdir)
    assert f"continued after step {step} of 12" in short_runs.log(workdir)
    names = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    assert names == ["10", "12"], moment
    short_runs.assert_equal(unbroken(12), workdir)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kills, steps", [(3, 20), (20, 60)])
def test_kills_at_random_moments(settings, unbroken, tmp_path, kills, steps):
  """Each within the next few steps of a run that saves every other step."""
  settings = settings | {"steps": steps}
  workdir, chance = tmp_path / "broken", random.Random(0)
  within_a_save, newest = 0, 0
  for _ in range(kills):
    begun = newest
    stop = short_runs.Stop(signal.SIGKILL, chance.randint(1, 4), chance.uniform(0.001, 0.4))
    code = short_runs.finish(workdir, settings, stop)
    assert code == -signal.SIGKILL, short_runs.log(workdir)
    within_a_save += bool(list(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*")))
    if checkpoint.steps(str(workdir)):
      newest = _load_newest(workdir)
    assert newest >= begun
  assert short_runs.finish(workdir, settings) == 0, short_runs.log(workdir)
  print(f"{kills} kills, {within_a_save} within a save; the last at step {newest} of {steps}")
  assert newest and (kills < 20 or (within_a_save and newest >= 20))
  short_runs.assert_equal(unbroken(steps), workdir)


@pytest.mark.slow
def test_workers_end_with_a_run_that_is_killed(settings, tmp_path):
  """They would hold the data in memory for ever."""
  stop = short_runs.Stop(signal.SIGKILL, 3)
  process = short_runs.start(tmp_path / "run", settings | {"data.workers": 2}, stop)
  main = psutil.Process(process.pid)
  workers: set[psutil.Process] = set()
  while process.is_alive():
    try:
      workers |= {p for p in main.children(True) if "spawn_main" in " ".join(p.cmdline())}
    except psutil.Error:  # Gone between the question and the answer.
      pass
    time.sleep(0.05)
  assert process.exitcode == -signal.SIGKILL, short_runs.log(tmp_path / "run")
  assert len(workers) >= 2
  gone, alive = psutil.wait_procs(workers, timeout=20)
  assert not alive
