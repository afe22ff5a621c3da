"""Advantages stay of order 1, and are exactly 0 where there is nothing to learn."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from her_jax.rl.advantages import group_relative

_ALL = np.ones((1, 8), bool)


@pytest.mark.parametrize("value", [0.35, 0.0, -1.0, 1.0, 0.1 + 0.2])
def test_equal_rewards_give_exactly_zero(value):
  assert not group_relative(np.full((1, 8), value), _ALL).any()


def test_rewards_that_differ_by_rounding_are_equal():
  rewards = np.full((1, 8), 0.35)
  rewards[0, 3] = np.nextafter(0.35, 1)
  rewards[0, 5] = np.float32(0.35)  # 1.3e-8 away.
  assert not group_relative(rewards, _ALL).any()


def test_one_outlier_of_eight_gives_advantages_of_order_one():
  """Seven rewards of 0.35 and one of 0: (0 - mean) / deviation = -7 / sqrt(7)."""
  rewards = np.asarray([[0.35] * 7 + [0.0]])
  found = group_relative(rewards, _ALL)[0]
  np.testing.assert_allclose(found, [1 / 7**0.5] * 7 + [-(7**0.5)], rtol=2e-3)


def test_wins_and_losses():
  found = group_relative(np.asarray([[1.0, -1.0, 1.0, -1.0]]), np.ones((1, 4), bool))
  np.testing.assert_allclose(found, [[1, -1, 1, -1]], rtol=2e-4)


def test_what_does_not_count_changes_nothing_and_gets_nothing():
  counted = np.asarray([[True, True, False, True]])
  found = group_relative(np.asarray([[1.0, -1.0, 99.0, 0.0]]), counted)
  alone = group_relative(np.asarray([[1.0, -1.0, 0.0]]), np.ones((1, 3), bool))
  assert found[0, 2] == 0
  np.testing.assert_array_equal(found[0, [0, 1, 3]], alone[0])


@pytest.mark.parametrize("counted", [[True, False, False], [False, False, False]])
def test_a_group_of_one_or_none_has_no_advantage(counted):
  assert not group_relative(np.asarray([[1.0, -1.0, 0.0]]), np.asarray([counted])).any()


def test_groups_do_not_mix():
  rewards = np.asarray([[1.0, -1.0], [100.0, 100.0]])
  found = group_relative(rewards, np.ones((2, 2), bool))
  np.testing.assert_allclose(found[0], [1, -1], rtol=2e-4)
  assert not found[1].any()


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=16))
def test_advantages_are_centred_and_bounded(rewards):
  """A group of n: no value lies more than sqrt(n - 1) deviations from the mean."""
  found = group_relative(np.asarray([rewards]), np.ones((1, len(rewards)), bool))[0]
  assert abs(found.sum()) < 1e-6
  assert np.abs(found).max() <= np.sqrt(len(rewards) - 1) + 1e-6
  # The better reward never gets the smaller advantage.
  order = np.argsort(rewards)
  assert (np.diff(found[order]) >= 0).all()
