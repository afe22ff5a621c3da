"""From verdicts to rewards: positions cancel, and what is missing stays missing."""

import itertools

import pytest

from her_jax.rl import rewards
from her_jax.rl.rollout import PLACES

BOTH = list(PLACES)


@pytest.mark.parametrize(
  "verdicts, outcome",
  [
    (["cand_1", "cand_2"], "win"),
    (["cand_2", "cand_1"], "lose"),
    (["cand_1", "cand_1"], "tie"),  # A judge that always names the first.
    (["cand_2", "cand_2"], "tie"),
    (["tie", "tie"], "tie"),
    (["cand_1", "tie"], "tie"),
    (["cand_1", None], "win"),
    ([None, "cand_1"], "lose"),
    (["tie", None], "tie"),
    ([None, None], None),
  ],
)
def test_outcome_of_both_orders(verdicts, outcome):
  assert rewards.outcome(verdicts, BOTH) == outcome
  # Which order is judged first does not matter.
  assert rewards.outcome(verdicts[::-1], BOTH[::-1]) == outcome


@pytest.mark.parametrize("verdict", ["cand_1", "cand_2", "tie"])
def test_a_judge_that_does_not_look_gives_ties_alone(verdict):
  assert rewards.outcome([verdict, verdict], BOTH) == "tie"


def test_one_order():
  expected = {("cand_1", "cand_1"): "win", ("cand_2", "cand_1"): "lose"}
  expected |= {("cand_1", "cand_2"): "lose", ("cand_2", "cand_2"): "win"}
  for verdict, place in itertools.product(PLACES, PLACES):
    assert rewards.outcome([verdict], [place]) == expected[verdict, place]
  assert rewards.outcome([None], ["cand_1"]) is None


def test_verdicts_without_a_place_are_refused():
  with pytest.raises(ValueError):
    rewards.outcome(["cand_1", "cand_2"], ["cand_1"])


def test_rewards():
  found = [rewards.reward(outcome) for outcome in ("win", "tie", "lose", None)]
  assert found == [1.0, 0.0, -1.0, 0.0]
