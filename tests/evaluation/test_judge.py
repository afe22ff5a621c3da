"""Measures of a judge, against judges whose faults are known."""

import pytest

from her_jax.evaluation.judge import evaluate_judge
from her_jax.roleplay.judging import Verdict
from her_jax.roleplay.schema import Character, PreferencePair, Trajectory, Turn

SCENE = Trajectory("s", "A room.", (Character("Una"),), turns=(Turn("Una", "Yes."),))
PAIRS = [
  PreferencePair(f"p{i}", "s", 0, "good" + "!" * i, "bad" + "?" * (9 - i), winner, kind="k")
  for i, winner in enumerate(["cand_1", "cand_2", "cand_1", "tie"])
]


class _Judge:
  def __init__(self, decide):
    self._decide = decide

  def compare(self, comparisons):
    winners = [self._decide(c) for c in comparisons]
    return [Verdict(w, "ok" if w else "unparsed") for w in winners]


def _measure(decide) -> dict:
  return evaluate_judge(_Judge(decide), PAIRS, {"s": SCENE})


def test_p27_a_judge_that_always_says_first_is_right_half_of_the_time():
  found = _measure(lambda c: "cand_1")
  assert (found["accuracy"], found["first_share"], found["flip_rate"]) == (0.5, 1.0, 1.0)
  assert found["length_correlation"] is None  # Its verdicts are all alike.


def test_p27_a_judge_that_prefers_the_longer_reply_is_told_by_the_correlation():
  longer = lambda c: "cand_1" if len(c.candidate_1) > len(c.candidate_2) else "cand_2"
  found = _measure(longer)
  assert found["length_correlation"] > 0.8 and found["flip_rate"] == 0
  assert _measure(lambda c: {"cand_1": "cand_2", "cand_2": "cand_1"}[longer(c)])[
    "length_correlation"
  ] == pytest.approx(-found["length_correlation"])


def test_p28_unread_verdicts_are_counted_and_enter_no_other_measure():
  found = _measure(lambda c: None)
  assert found["unparsed"] == 1.0 and found["accuracy"] == 0.0
  assert found["flip_rate"] is None and found["length_correlation"] is None


def test_a_judge_that_knows_the_labels():
  def decide(c):
    pair = next(
      p for p in PAIRS if {p.candidate_1, p.candidate_2} == {c.candidate_1, c.candidate_2}
    )
    straight = c.candidate_1 == pair.candidate_1
    swapped = {"cand_1": "cand_2", "cand_2": "cand_1", "tie": "tie"}
    return pair.winner if straight else swapped[pair.winner]

  found = _measure(decide)
  assert (found["accuracy"], found["tie_accuracy"], found["flip_rate"]) == (1.0, 1.0, 0.0)
  assert (found["pairs"], found["tie_pairs"]) == (3, 1)
