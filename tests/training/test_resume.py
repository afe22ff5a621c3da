"""A run that is stopped and continued ends as one that was not, bit for bit."""

import signal

import pytest

from her_jax.training import checkpoint, preemption
from tests.training import short_runs


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  return short_runs.prepare(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
  "workers, packing, micro_batches",
  [
    (0, True, 1),
    *(
      pytest.param(workers, packing, micro, marks=pytest.mark.slow)
      for workers in (0, 1, 2) for packing in (True, False) for micro in (1, 4)
      if (workers, packing, micro) != (0, True, 1)
    ),
  ],
)  # fmt: skip
def test_ten_steps_and_ten_are_twenty(settings, tmp_path, workers, packing, micro_batches):
  """Parameters, moments and all metrics. The first ten end by SIGTERM, at an odd moment."""
  settings = settings | {
    "data.workers": workers, "data.packing": packing, "micro_batches": micro_batches
  }  # fmt: skip
  # The step under way when the signal comes, two later than the one whose metrics are written.
  code = short_runs.finish(tmp_path / "two", settings, short_runs.Stop(signal.SIGTERM, 8))
  assert code == preemption.EXIT_CODE, short_runs.log(tmp_path / "two")
  printed = short_runs.log(tmp_path / "two")
  assert "Traceback" not in printed and printed.count("her_jax: ") == 1
  assert "ended by SIGTERM after step" in printed and "the same command continues" in printed
  (step,) = checkpoint.steps(str(tmp_path / "two"))
  assert 8 <= step <= 10
  assert short_runs.finish(tmp_path / "two", settings) == 0, short_runs.log(tmp_path / "two")
  assert f"continued behind step {step} of 20" in short_runs.log(tmp_path / "two")
  assert short_runs.finish(tmp_path / "one", settings) == 0, short_runs.log(tmp_path / "one")
  short_runs.assert_equal(tmp_path / "one", tmp_path / "two")
