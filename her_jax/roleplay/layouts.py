"""How varied layouts are: the orders of a reply's layers, as "TAS" for thought, action, speech."""

from collections.abc import Iterable, Mapping
import itertools
import math


def entropy_bits(counts: Mapping[str, int]) -> float | None:
  """Shannon entropy of the shares, in bits; None where nothing was counted.

  Example:
    entropy_bits({"TS": 2, "AS": 2}) == 1.0
  """
  total = sum(counts.values())
  return sum(-n / total * math.log2(n / total) for n in counts.values() if n) if total else None


def longest_run(layouts: Iterable[str]) -> tuple[str, int]:
  """The layout that is repeated in most consecutive turns, and in how many."""
  runs = ((layout, sum(1 for _ in run)) for layout, run in itertools.groupby(layouts))
  return max(runs, key=lambda run: run[1], default=("", 0))
