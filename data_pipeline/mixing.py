"""Several sources of rows in one stream, each with its share of the tokens.

    mixture = Mixture([Part("coser", rows_a, 0.7), Part("own", rows_b, 0.3)])
    loaders.batches(mixture, …)

A weight is a share of the *tokens* that are trained on, not of the rows: a row may be a conversation
or a single reply. Weights of 0.7 and 0.3 over rows of 900 and 300 tokens in the mean draw
0.7 / 900 : 0.3 / 300 = 7 : 9 rows. Grain rounds this ratio to a hundredth. Each source is shuffled
afresh at each of its own epochs, a small one with a large weight being repeated more often.
"""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any, overload

import grain
import numpy as np

from data_pipeline.rendering import Row
from her_jax.errors import ConfigError

# Grain takes its turns in a fixed order (abab…), of which each of two workers would get one letter.
_WINDOW = 64


@dataclasses.dataclass(frozen=True)
class Part:
  """The rows of one source.

  Attributes:
    name: for people.
    weight: its share of the tokens, as a ratio to the weights of the others.
  """

  name: str
  rows: Sequence[Row]
  weight: float

  @property
  def tokens(self) -> int:
    return sum(len(row["tokens"]) for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Drawn:
  """What the first rows of a mixture hold of a part: shares from 0 to 1.

  Attributes:
    epochs: how often each of its rows was drawn.
  """

  tokens: float
  loss: float
  epochs: float


class Mixture(Sequence[Row]):
  """The rows of all parts, one part after the other, and how often each is drawn.

  Raises:
    ConfigError: a part has no rows.
  """

  def __init__(self, parts: Sequence[Part]):
    for part in parts:
      if not part.rows:
        raise ConfigError(f"{part.name}: nothing to mix, it has no rows to train")
    self.parts = tuple(parts)
    self._rows = list(itertools.chain.from_iterable(part.rows for part in parts))

  @overload
  def __getitem__(self, index: int) -> Row: ...
  @overload
  def __getitem__(self, index: slice) -> Sequence[Row]: ...
  def __getitem__(self, index: Any) -> Any:
    return self._rows[index]

  def __len__(self) -> int:
    return len(self._rows)

  def indices(self, seed: int) -> grain.MapDataset[int]:
    """Places of rows in the order in which they are drawn, for ever."""
    datasets, means, first = [], [], 0
    for number, part in enumerate(self.parts):
      own = grain.MapDataset.range(first, first + len(part.rows))
      # Two sources of one size would else be drawn in one order.
      datasets.append(own.seed(seed + number).shuffle().repeat())
      means.append(part.tokens / len(part.rows))
      first += len(part.rows)
    ratios = [part.weight / mean for part, mean in zip(self.parts, means, strict=True)]
    mixed = grain.MapDataset.mix(datasets, ratios)
    return grain.experimental.WindowShuffleMapDataset(mixed, window_size=_WINDOW, seed=seed)

  def drawn(self, seed: int, tokens: float, most: int) -> tuple[list[Drawn], int]:
    """What the first `tokens` tokens that are drawn hold of each part, and how many were looked at.

    Args:
      seed: of the stream.
      tokens: at least one row is looked at.
      most: rows that are.
    """
    sizes = np.array([len(row["tokens"]) for row in self._rows])
    loss = np.array([row["loss_weights"].sum() for row in self._rows])
    times, order, seen = np.zeros(len(self), int), self.indices(seed), 0
    for place in range(most):
      if seen >= max(tokens, 1):
        break
      index = order[place]
      times[index] += 1
      seen += int(sizes[index])
    found, first = [], 0
    for part in self.parts:
      own = slice(first, first + len(part.rows))
      shares = [(times[own] @ x[own]) / max(times @ x, 1e-9) for x in (sizes, loss)]
      found.append(Drawn(float(shares[0]), float(shares[1]), float(times[own].mean())))
      first = own.stop
    return found, seen


def join(parts: Sequence[Part]) -> Sequence[Row]:
  """The rows of one part alone, or a mixture of several."""
  return parts[0].rows if len(parts) == 1 else Mixture(parts)


def shuffled(rows: Sequence[Row], seed: int) -> grain.MapDataset[Row]:
  """The rows shuffled and repeated for ever; those of a mixture as their weights say."""
  if isinstance(rows, Mixture):
    return rows.indices(seed).seed(seed).map(rows.__getitem__)
  return grain.MapDataset.source(rows).seed(seed).shuffle().repeat()
