"""How much the length of a reply tells about the label."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from her_jax.roleplay.schema import PreferencePair

_SIGN = {"cand_1": 1, "cand_2": -1, "tie": 0}


def log_ratio(length_1: int, length_2: int) -> float:
  """ln(length of candidate 1 / length of candidate 2), both counted from 1."""
  return math.log((length_1 + 1) / (length_2 + 1))


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
  """Pearson's; None for fewer than two points or where one of them never changes."""
  if len(x) < 2:
    return None
  mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
  dx, dy = [a - mean_x for a in x], [b - mean_y for b in y]
  spread = math.sqrt(math.fsum(a * a for a in dx) * math.fsum(b * b for b in dy))
  if spread == 0:
    return None
  return math.fsum(a * b for a, b in zip(dx, dy, strict=True)) / spread


@dataclasses.dataclass
class Lengths:
  """Gathers pairs; lengths are in characters of what the judge sees.

  The label is +1 for candidate 1, −1 for candidate 2 and 0 for a tie; the length is the log
  ratio of both, so that a pair counts the same whatever the size of its replies.
  """

  labels: list[float] = dataclasses.field(default_factory=list)
  ratios: list[float] = dataclasses.field(default_factory=list)

  def add(self, pair: PreferencePair) -> None:
    self.put(pair.winner, len(pair.candidate_1), len(pair.candidate_2))

  def put(self, winner: str, length_1: int, length_2: int) -> None:
    self.labels.append(_SIGN[winner])
    self.ratios.append(log_ratio(length_1, length_2))

  def as_dict(self) -> dict[str, Any]:
    decided = [(a, b) for a, b in zip(self.labels, self.ratios, strict=True) if a]
    found = correlation(self.labels, self.ratios)
    return {
      "longer_wins": sum(a * b > 0 for a, b in decided),
      "longer_loses": sum(a * b < 0 for a, b in decided),
      "length_correlation": None if found is None else round(found, 4),
    }
