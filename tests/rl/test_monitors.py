"""The reward's gain and its error, against figures worked by hand."""

import numpy as np
import pytest

from her_jax.rl import monitors


def _steps(*means: list[float], name=lambda step, place: place) -> list[list[tuple]]:
  return [[(name(i, j), m) for j, m in enumerate(step)] for i, step in enumerate(means)]


def test_the_same_prompts_are_compared_with_themselves():
  """Prompts of very different ease, each better by 0.2 ± 0.1."""
  steps = _steps([-1.0, 0.0, 1.0], *[[9.0] * 3] * 3, [-0.9, 0.2, 1.3])
  first, last, error = monitors.reward_gain(steps)
  assert (first, last) == pytest.approx((0.0, 0.2))
  assert error == pytest.approx(0.1 / np.sqrt(3))


def test_other_prompts_are_independent_samples():
  steps = _steps([-1.0, 0.0, 1.0], *[[9.0] * 3] * 3, [-0.9, 0.2, 1.3], name=lambda i, j: (i, j))
  first, last, error = monitors.reward_gain(steps)
  assert (first, last) == pytest.approx((0.0, 0.2))
  assert error == pytest.approx(np.sqrt((1.0 + 1.21) / 3))


def test_the_order_of_the_prompts_does_not_matter():
  steps = _steps([-1.0, 0.0, 1.0], *[[9.0] * 3] * 3, [-0.9, 0.2, 1.3])
  turned = [*steps[:-1], steps[-1][::-1]]
  assert monitors.reward_gain(turned) == pytest.approx(monitors.reward_gain(steps))


def test_a_prompt_that_comes_twice_counts_once():
  """Prompts 0 and 1 go from 0.5 to 1.0 and from 1.0 to 2.5: gains of 0.5 and 1.5."""
  steps = _steps(
    [0.0, 1.0, 1.0], [9.0], [9.0], [9.0], [0.5, 1.5, 2.5], name=lambda i, j: j // 2
  )
  first, last, error = monitors.reward_gain(steps)
  assert (first, last) == pytest.approx((2 / 3, 1.5))
  assert error == pytest.approx(np.sqrt(0.5 / 2))


def test_one_prompt_has_no_error():
  assert monitors.reward_gain(_steps([0.1], [9.0], [9.0], [9.0], [0.3])) == (0.1, 0.3, None)


def test_fifths_are_of_steps():
  steps = _steps(*[[float(i)] * 2 for i in range(11)], name=lambda i, j: (i, j))
  assert monitors.reward_gain(steps)[:2] == (0.5, 9.5)


def test_four_steps_have_no_fifth():
  with pytest.raises(ValueError, match="4 steps"):
    monitors.reward_gain(_steps([0.0], [0.0], [0.0], [0.0]))
