"""Trees as one row: a trunk read once, with the branches that leave it.

A conversation with its trained replies, a prompt with its group of completions, a judge's
context with both orders of the candidates: each is computed once instead of once a branch.
Token `i` sees token `j` exactly when `j <= i < visible_until[j]`; positions count along the
path from the root.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Branch:
  """Ids that follow `trunk[:at]` without being part of the trunk.

  Attributes:
    at: trunk position that the branch leaves before; at least 1.
    ids: its tokens.
    weights: loss weight of each id as a target, of the same length; None for 1 each.
    columns: further float32 values that belong to each id as a target, by name, such as
      RL's `advantages`; slots without one hold 0.
  """

  at: int
  ids: Sequence[int]
  weights: Sequence[float] | None = None
  columns: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


def lay_out(
  trunk: Sequence[int],
  branches: Sequence[Branch],
  trunk_weight: float | Sequence[float] = 0.0,
) -> dict[str, np.ndarray]:
  """Writes a tree depth-first into one row.

  A slot has one target, but the token before a fork is followed by several ids. So each
  branch begins with its own copy of that token, and the trunk's copy comes after the
  branches, which therefore do not see it. A trunk that ends in a fork needs none.

      trunk = [7, 8, 9], branches = [Branch(2, [5, 6]), Branch(3, [4])]

      tokens          7 | 8 5 6 | 8 | 9 4
      targets         0 | 5 6 0 | 0 | 4 0
      loss_weights    0 | 1 1 0 | 0 | 1 0
      visible_until   7 | 4 4 4 | 7 | 7 7
      positions       0 | 1 2 3 | 1 | 2 3

  Args:
    trunk: ids of the shared path.
    branches: in any order; several may leave at one place.
    trunk_weight: loss weight of the trunk's own ids as targets, but for those after a fork; one
      for all or one for each.

  Returns:
    int32 `tokens, targets, visible_until, positions` and float32 `loss_weights` (and the
    branches' columns), all [length].

  Raises:
    ValueError: a branch leaves outside the trunk, or its values do not fit its ids.
  """
  extra = sorted({name for branch in branches for name in branch.columns})
  parts: dict[str, list[np.ndarray]] = {
    name: []
    for name in ("tokens", "targets", "loss_weights", "visible_until", "positions", *extra)
  }
  forks = {branch.at for branch in branches}
  weights = (
    [trunk_weight] * len(trunk) if isinstance(trunk_weight, float | int) else trunk_weight
  )
  if len(weights) != len(trunk):
    raise ValueError(f"{len(weights)} weights for a trunk of {len(trunk)} ids")
  written = 0

  def write(position: int, tokens: Sequence[int], branch: Branch | None) -> None:
    """Appends the trunk's tokens, or a fork's copy and its branch."""
    nonlocal written
    n = len(tokens)
    parts["tokens"].append(np.asarray(tokens, np.int32))
    parts["positions"].append(np.arange(position, position + n, dtype=np.int32))
    # -1 stands for the end of the row, which is not known yet.
    parts["visible_until"].append(np.full(n, -1 if branch is None else written + n, np.int32))
    targets, values = np.zeros(n, np.int32), {"loss_weights": np.zeros(n, np.float32)}
    if branch is None:
      for i, following in enumerate(trunk[position + 1 : position + n + 1]):
        # After a fork the branches say what comes next.
        if weights[position + i + 1] and position + i + 1 not in forks:
          targets[i], values["loss_weights"][i] = following, weights[position + i + 1]
    values |= {name: np.zeros(n, np.float32) for name in extra}
    if branch is not None:
      targets[:-1] = branch.ids
      given = {"loss_weights": branch.weights, **branch.columns}
      for name, per_id in given.items():
        if per_id is not None and len(per_id) != len(branch.ids):
          raise ValueError(f"{len(per_id)} {name} for a branch of {len(branch.ids)} ids")
        values[name][:-1] = 1.0 if per_id is None else per_id
    parts["targets"].append(targets)
    for name, column in values.items():
      parts[name].append(column)
    written += n

  done = 0
  for branch in sorted(branches, key=lambda b: b.at):
    if not 1 <= branch.at <= len(trunk):
      raise ValueError(f"a branch leaves at {branch.at} of a trunk of {len(trunk)} tokens")
    if branch.at - 1 > done:
      write(done, trunk[done : branch.at - 1], None)
      done = branch.at - 1
    write(done, [trunk[done], *branch.ids], branch)
  if not branches or done < len(trunk) - 1:
    write(done, trunk[done:], None)
  row = {name: np.concatenate(columns) for name, columns in parts.items()}
  row["visible_until"][row["visible_until"] < 0] = written
  return row


def pad(row: Mapping[str, np.ndarray], length: int, pad_id: int) -> dict[str, np.ndarray]:
  """Fills a row up to `length`; padding sees itself alone and weighs nothing.

  Raises:
    ValueError: the row is longer; nothing is cut.
  """
  n = len(row["tokens"])
  if n > length:
    raise ValueError(f"a row of {n} tokens does not fit into {length}; raise the row's length")
  fill = {
    "tokens": np.full(length - n, pad_id, np.int32),
    "visible_until": np.arange(n + 1, length + 1, dtype=np.int32),
  }
  return {
    name: np.concatenate([values, fill.get(name, np.zeros(length - n, values.dtype))])
    for name, values in row.items()
  }
