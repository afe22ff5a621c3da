"""A tree in one row: who sees whom, by the mask and by hand."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from data_pipeline import trees


@st.composite
def _trees(draw):
  """A trunk and branches; every id is distinct, so that a token is known by its id."""
  trunk = list(range(1, 1 + draw(st.integers(1, 8))))
  following = 100
  branches = []
  for _ in range(draw(st.integers(0, 5))):
    size = draw(st.integers(1, 4))
    branches.append(
      trees.Branch(draw(st.integers(1, len(trunk))), list(range(following, following + size)))
    )
    following += size
  return trunk, branches


def _sees(row, i: int) -> list[int]:
  """Slots that slot i sees."""
  return [j for j in range(i + 1) if i < row["visible_until"][j]]


@given(_trees())
def test_the_mask_shows_each_token_its_ancestors(tree):
  trunk, branches = tree
  row = trees.lay_out(trunk, branches)
  path_of = {token: trunk[: i + 1] for i, token in enumerate(trunk)}
  for branch in branches:
    for i, token in enumerate(branch.ids):
      path_of[token] = [*trunk[: branch.at], *branch.ids[: i + 1]]
  for slot, token in enumerate(row["tokens"]):
    seen = [int(row["tokens"][j]) for j in _sees(row, slot)]
    assert seen == path_of[int(token)]
    assert row["positions"][slot] == len(seen) - 1
  # Nothing of trunk or branches is missing.
  assert set(row["tokens"].tolist()) == set(path_of)


@given(_trees())
def test_each_branch_is_predicted_once_from_its_own_path(tree):
  trunk, branches = tree
  row = trees.lay_out(trunk, branches)
  predicted = []
  for slot in np.flatnonzero(row["loss_weights"]):
    context = [int(row["tokens"][j]) for j in _sees(row, slot)]
    predicted.append((context, int(row["targets"][slot])))
  expected = [
    ([*trunk[: b.at], *b.ids[:i]], token) for b in branches for i, token in enumerate(b.ids)
  ]
  assert sorted(predicted) == sorted(expected)


@given(_trees(), st.floats(0.125, 2.0, width=32))
def test_the_trunk_is_trained_but_for_the_tokens_after_a_fork(tree, weight):
  trunk, branches = tree
  row = trees.lay_out(trunk, branches, trunk_weight=weight)
  branch_targets = {token for b in branches for token in b.ids}
  found = []
  for slot in np.flatnonzero(row["loss_weights"]):
    if int(row["targets"][slot]) in branch_targets:
      assert row["loss_weights"][slot] == 1.0
      continue
    assert row["loss_weights"][slot] == np.float32(weight)
    context = [int(row["tokens"][j]) for j in _sees(row, slot)]
    found.append((context, int(row["targets"][slot])))
  forks = {b.at for b in branches}
  expected = [(trunk[:i], trunk[i]) for i in range(1, len(trunk)) if i not in forks]
  assert sorted(found) == sorted(expected)


def test_the_worked_example():
  row = trees.lay_out([7, 8, 9], [trees.Branch(2, [5, 6]), trees.Branch(3, [4])])
  assert {name: values.tolist() for name, values in row.items()} == {
    "tokens": [7, 8, 5, 6, 8, 9, 4],
    "targets": [0, 5, 6, 0, 0, 4, 0],
    "loss_weights": [0, 1, 1, 0, 0, 1, 0],
    "visible_until": [7, 4, 4, 4, 7, 7, 7],
    "positions": [0, 1, 2, 3, 1, 2, 3],
  }
  dtypes = {name: str(values.dtype) for name, values in row.items()}
  assert dtypes.pop("loss_weights") == "float32"
  assert set(dtypes.values()) == {"int32"}


def test_the_order_of_branches_does_not_matter():
  one, two = trees.Branch(3, [4]), trees.Branch(2, [5, 6])
  for name, values in trees.lay_out([7, 8, 9], [one, two]).items():
    np.testing.assert_array_equal(values, trees.lay_out([7, 8, 9], [two, one])[name])


def test_columns_belong_to_the_ids_as_targets():
  branch = trees.Branch(2, [5, 6], weights=[0.5, 0.0], columns={"advantages": [1.5, -2.0]})
  row = trees.lay_out([7, 8, 9], [branch, trees.Branch(3, [4])])
  assert row["targets"].tolist() == [0, 5, 6, 0, 0, 4, 0]
  assert row["loss_weights"].tolist() == [0, 0.5, 0, 0, 0, 1, 0]
  assert row["advantages"].tolist() == [0, 1.5, -2.0, 0, 0, 0, 0]


def test_a_trunk_alone():
  row = trees.lay_out([7, 8, 9], [], trunk_weight=1.0)
  assert row["tokens"].tolist() == [7, 8, 9]
  assert row["targets"].tolist() == [8, 9, 0]
  assert row["loss_weights"].tolist() == [1, 1, 0]
  assert row["visible_until"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("at", [0, 4, -1])
def test_a_branch_outside_the_trunk_is_refused(at):
  with pytest.raises(ValueError, match=f"leaves at {at} of a trunk of 3 tokens"):
    trees.lay_out([7, 8, 9], [trees.Branch(at, [5])])


@pytest.mark.parametrize(
  "branch, name",
  [
    (trees.Branch(1, [5, 6], weights=[1.0]), "1 loss_weights for a branch of 2 ids"),
    (
      trees.Branch(1, [5], columns={"advantages": [1.0, 2.0]}),
      "2 advantages for a branch of 1",
    ),
  ],
)
def test_values_that_do_not_fit_the_ids_are_refused(branch, name):
  with pytest.raises(ValueError, match=name):
    trees.lay_out([7, 8], [branch])


@given(_trees(), st.integers(0, 5))
def test_padding_sees_itself_alone_and_weighs_nothing(tree, extra):
  row = trees.lay_out(*tree)
  n = len(row["tokens"])
  padded = trees.pad(row, n + extra, pad_id=99)
  for slot in range(n, n + extra):
    assert _sees(padded, slot) == [slot]
  assert padded["tokens"][n:].tolist() == [99] * extra
  assert not padded["loss_weights"][n:].any()
  for name, values in row.items():
    np.testing.assert_array_equal(padded[name][:n], values)
    assert padded[name].dtype == values.dtype


def test_a_row_that_is_too_long_is_refused_and_not_cut():
  row = trees.lay_out([7, 8, 9], [])
  with pytest.raises(ValueError, match="a row of 3 tokens does not fit into 2; raise"):
    trees.pad(row, 2, pad_id=0)
