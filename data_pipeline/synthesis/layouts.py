"""Which orders of thought (T), action (A) and speech (S) a run has used, and which it should.

The paper's runs without variety ended with one layout in nearly every reply, so each request
names layouts that have been rare so far. What is rare is decided from whole blocks of finished
conversations in the order of the input: a run that is taken up again asks the same.
"""

from collections import Counter
from collections.abc import Mapping
import itertools
import math

# Orders of at most five layers with speech in them, no layer twice in a row: what fits a turn.
PALETTE = tuple(
  "".join(order)
  for length in (2, 3, 4, 5)
  for order in itertools.product("TAS", repeat=length)
  if "S" in order and "T" in order and all(a != b for a, b in itertools.pairwise(order))
)
LONGEST_RUN = 2
LEAST = 5
_OFTEN = 0.12  # of all turns: more is too much


def targets(used: Mapping[str, int], number: int, place: int = 0) -> tuple[str, ...]:
  """The `number` layouts to prefer now: the least used, short ones first.

  Args:
    used: how often each layout occurred so far.
    place: of the conversation in its block; it turns the choice, so that neighbours differ.
  """
  most = sorted(PALETTE, key=lambda layout: (used.get(layout, 0), len(layout), layout))
  # Twice as many as are asked for, so that there is something to turn.
  pool = most[: 3 * number]
  start = (place * number) % len(pool)
  return tuple((pool + pool)[start : start + number])


def too_often(used: Mapping[str, int]) -> tuple[str, ...]:
  """Layouts with more than their share, the most frequent first."""
  total = sum(used.values())
  return tuple(
    layout
    for layout, count in Counter(used).most_common(5)
    if total >= 25 and count > _OFTEN * total
  )


def least_different(turns: int) -> int:
  """How many layouts that many turns must show: five, of few turns rather fewer.

  Example:
    [least_different(n) for n in (1, 2, 5, 9, 30)] == [1, 1, 3, 5, 5]
  """
  return min(LEAST, math.ceil(turns / 2))
