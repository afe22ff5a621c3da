"""Several processes train as one, and end as one."""

import pathlib
import shutil
import signal
import time

import numpy as np
import pytest

from her_jax import peers
from her_jax.training import checkpoint, metrics, preemption
from tests.training import short_runs
from tests.training.short_runs import Stop

_STEPS = 8
# Three replies of random weights, the first two of which two hosts sample at a time.
_SAMPLED = {"eval_samples": 3, "sampling.max_new_tokens": 5, "sampling.prompt_length": 1000}
_LIMIT_S = 10  # Without a sign of life; 30 s where nothing else is said.


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  fields = short_runs.prepare(tmp_path_factory.mktemp("data"))
  return fields | {"steps": _STEPS, "cpu_devices": 1, "checkpoint.every": 2}


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory):
  """Workdirs of runs that were not ended, by their number of processes."""
  folder, done = tmp_path_factory.mktemp("unbroken"), {}

  def run(hosts: int) -> pathlib.Path:
    if hosts not in done:
      done[hosts] = folder / str(hosts)
      _finish(done[hosts], settings | _SAMPLED, hosts)
    return done[hosts]

  return run


def _start(workdir: pathlib.Path, settings, hosts: int, stop: Stop | None = None, at: int = 0):
  return short_runs.start_hosts(
    workdir, settings, hosts, stop, at, [f"--peer_timeout={_LIMIT_S}"]
  )


def _finish(workdir: pathlib.Path, settings, hosts: int) -> None:
  if hosts == 1:
    codes = [short_runs.finish(workdir, settings)]
  else:
    codes = short_runs.join(_start(workdir, settings, hosts))
  assert codes == [0] * hosts, short_runs.log(workdir)


def _assert_same_steps(one: pathlib.Path, two: pathlib.Path) -> None:
  """But for rounding: sums over devices are added in another order."""
  rows = [metrics.read(path / "metrics.jsonl") for path in (one, two)]
  assert [row["step"] for row in rows[1]] == list(range(1, _STEPS + 1))
  for name in ("loss", "targets", "tokens"):
    values = [[row[name] for row in part] for part in rows]
    np.testing.assert_allclose(*values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
  "hosts, devices",
  [
    pytest.param(2, 1, marks=pytest.mark.slow),
    pytest.param(4, 1, marks=pytest.mark.exhaustive),
    pytest.param(2, 2, marks=pytest.mark.exhaustive),
  ],
)
def test_the_loss_is_that_of_one_process(settings, unbroken, tmp_path, hosts, devices):
  """And so is the number of targets: each row of the global batch is fed by one host."""
  if devices == 1:
    workdir = unbroken(hosts)
  else:
    workdir = tmp_path / "run"
    _finish(workdir, settings | _SAMPLED | {"cpu_devices": devices}, hosts)
  assert f"{hosts * devices} cpu device(s) of {hosts} host(s)" in short_runs.log(workdir)
  _assert_same_steps(unbroken(1), workdir)
  samples = [(path / "samples/before.json").read_text() for path in (unbroken(1), workdir)]
  assert samples[0] == samples[1] and samples[0].count('"reply"') == 3


def _lose(workdir: pathlib.Path, settings, stop: Stop, at: int) -> int:
  """Takes process `at` of two out; returns the step that the other says it will go on from."""
  processes = _start(workdir, settings, 2, stop, at)
  lost, other = processes[at], processes[1 - at]
  frozen = stop.signal == signal.SIGSTOP
  begun = time.monotonic()
  while lost.is_alive() and not frozen:
    lost.join(1)
    assert time.monotonic() < begun + 300
  since = time.monotonic()
  (code,) = short_runs.join([other], 120)
  took = time.monotonic() - since
  short_runs.join([lost], 0.0)
  printed = short_runs.log(workdir, 1 - at)
  assert code == peers.EXIT_CODE, printed
  assert frozen or took < _LIMIT_S + 20
  print(f"process {at}: the other ended {took:.1f} s later")
  last = printed.splitlines()[-1]
  what = f"process {at} of 2 has failed" if not stop.signal else f"process {at} of 2 is gone"
  assert ("process 0 is gone" if at == 0 else what) in last
  step = checkpoint.steps(str(workdir))[-1]
  assert f"start the same command again on every host: it continues after step {step}" in last
  return step


@pytest.mark.parametrize(
  "stop, at",
  [
    pytest.param(Stop(signal.SIGKILL, 5), 0, marks=pytest.mark.slow),
    pytest.param(Stop(signal.SIGKILL, 5), 1, marks=pytest.mark.exhaustive),
    *(
      pytest.param(*case, marks=pytest.mark.exhaustive)
      for case in (
        # Within a save: see `test_killed`.
        (Stop(signal.SIGKILL, 2, event=("open", "/train/_METADATA")), 0),
        (Stop(signal.SIGKILL, 3, event=("open", "/array_metadatas/process_1")), 1),
        (Stop(signal.SIGKILL, 2, event=("os.rename", ".orbax-checkpoint-tmp")), 0),
        (Stop(signal.SIGKILL, 5, guard=True), 1),
        # It neither answers nor ends: the other hangs in a collective.
        (Stop(signal.SIGSTOP, 5), 0),
        (Stop(signal.SIGSTOP, 5), 1),
      )
    ),
  ],
  ids=lambda value: (
    str(value) if isinstance(value, int) else f"{value.signal}-{value.event and value.event[1]}"
  ),
)
def test_a_lost_process_ends_the_run_which_goes_on(settings, unbroken, tmp_path, stop, at):
  """The other says who is lost, and two that begin again end as if nothing had been."""
  step = _lose(tmp_path / "run", settings, stop, at)
  assert 2 <= step < _STEPS
  _finish(tmp_path / "run", settings, 2)
  assert f"continued after step {step} of {_STEPS}" in short_runs.log(tmp_path / "run")
  short_runs.assert_equal(unbroken(2), tmp_path / "run")


@pytest.mark.exhaustive
def test_an_error_in_one_process_ends_the_others(settings, tmp_path):
  """It tells its own error, and does not wait for them."""
  assert _lose(tmp_path / "run", settings, Stop(0, 5), 1) >= 2
  assert "RuntimeError: made to fail" in short_runs.log(tmp_path / "run", 1)


@pytest.mark.slow
def test_two_save_together_and_any_number_goes_on(settings, unbroken, tmp_path):
  """SIGTERM to one of them: both save the same step and exit alike."""
  settings = settings | {"checkpoint.every": 0}
  stop = Stop(signal.SIGTERM, 2, guard=True)
  processes = _start(tmp_path / "two", settings, 2, stop, at=1)
  codes = short_runs.join(processes)
  logs = [short_runs.log(tmp_path / "two", host) for host in range(2)]
  assert codes == [preemption.EXIT_CODE] * 2, logs[0]
  (step,) = checkpoint.steps(str(tmp_path / "two"))
  for printed in logs:
    assert f"ended by SIGTERM after step {step} of {_STEPS}" in printed
    assert "Traceback" not in printed
  shutil.copytree(tmp_path / "two", tmp_path / "one")
  _finish(tmp_path / "two", settings, 2)
  short_runs.assert_equal(unbroken(2), tmp_path / "two")
  _finish(tmp_path / "one", settings, 1)
  _assert_same_steps(unbroken(1), tmp_path / "one")


@pytest.mark.exhaustive
@pytest.mark.parametrize("before, after", [(2, 4), (1, 2), (4, 1)])
def test_another_number_of_processes_goes_on(settings, unbroken, tmp_path, before, after):
  workdir = tmp_path / "run"
  stop = Stop(signal.SIGTERM, 2, guard=before > 1)
  if before == 1:
    codes = [short_runs.finish(workdir, settings, stop)]
  else:
    codes = short_runs.join(_start(workdir, settings, before, stop))
  assert codes == [preemption.EXIT_CODE] * before, short_runs.log(workdir)
  _finish(workdir, settings, after)
  _assert_same_steps(unbroken(1), workdir)
