"""SIGTERM: heard while a run trains, and its end where there is nothing to save."""

import os
import signal

import pytest

from her_jax.training import preemption


def _terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def test_outside_training_it_ends_the_run_on_the_spot():
  usual = signal.getsignal(signal.SIGTERM)
  with pytest.raises(preemption.Preempted, match="SFT: ended by SIGTERM.*nothing is lost"):
    with preemption.at_once("SFT"):
      with preemption.Notice() as notice:
        _terminate()
        assert notice.given(1)
      _terminate()
      pytest.fail("it went on")
  assert signal.getsignal(signal.SIGTERM) == usual


def test_each_call_of_a_task_listens_anew():
  @preemption.at_once("SFT")
  def run(terminated: bool):
    if terminated:
      _terminate()
    return "measured"

  assert run(False) == "measured"
  with pytest.raises(preemption.Preempted):
    run(True)
  assert run(False) == "measured"
