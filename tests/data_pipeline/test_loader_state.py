"""A loader that is stopped anywhere goes on with the very next batch."""

import itertools
import json

import grain
from grain.experimental import LimitIterDataset, assert_equal_output_after_checkpoint
import numpy as np
import pytest

from data_pipeline import loaders, trees

_WORDS = tuple(range(100, 4000))


def _rows(count: int = 30) -> list[loaders.Row]:
  rng = np.random.default_rng(0)
  sizes = [int(rng.integers(8, 30)) for _ in range(count)]
  return [
    trees.lay_out(list(range(100 * (i + 1), 100 * (i + 1) + size)), [], trunk_weight=0.5)
    for i, size in enumerate(sizes)
  ]


def _batches(**settings) -> grain.IterDataset:
  defaults = {"length": 64, "batch_size": 2, "seed": 5, "pad_id": 0}
  defaults |= {"word_dropout": 0.3, "word_ids": _WORDS}
  return loaders.batches(_rows(), **{**defaults, **settings})


@pytest.mark.parametrize("host, hosts", [(0, 1), (1, 2)])
@pytest.mark.parametrize("packing", [True, False])
def test_trees_go_on_from_any_batch(packing, host, hosts):
  """Past the end of an epoch too: thirty trees are ten packed batches at most."""
  stream = _batches(packing=packing, host=host, hosts=hosts)
  assert_equal_output_after_checkpoint(LimitIterDataset(stream, 24))


def test_prompts_go_on_from_any_list():
  stream = loaders.prompt_stream("abcdefg", batch_size=3, seed=1)
  assert_equal_output_after_checkpoint(LimitIterDataset(stream, 12))


@pytest.mark.parametrize(
  "workers, packing",
  [(2, True), *(pytest.param(w, p, marks=pytest.mark.slow) for w, p in
                [(1, True), (1, False), (2, False)])],
)  # fmt: skip
def test_workers_go_on_from_any_batch(workers, packing):
  """The state goes through JSON, as it does on disk."""
  first = iter(_batches(workers=workers, packing=packing))
  states, expected = [], []
  for _ in range(8):
    states.append(json.dumps(first.get_state()))
    expected.append(next(first))
  first.close()
  for at in (3, 6):
    second = iter(_batches(workers=workers, packing=packing))
    second.set_state(json.loads(states[at]))
    for batch in expected[at:]:
      np.testing.assert_equal(next(second), batch)
    second.close()


def test_without_packing_each_tree_has_a_row():
  rows = _rows()
  seen = []
  for batch in itertools.islice(_batches(packing=False, word_dropout=0.0), 15):
    for i in range(2):
      (expected,) = (row for row in rows if row["tokens"][0] == batch["tokens"][i, 0])
      np.testing.assert_equal(
        {name: values[i] for name, values in batch.items()}, trees.pad(expected, 64, 0)
      )
      seen.append(int(batch["tokens"][i, 0]))
  assert sorted(seen) == [int(row["tokens"][0]) for row in rows]


def test_a_fingerprint_is_of_the_contents():
  rows = _rows()
  same = [{name: row[name].copy() for name in reversed(row)} for row in rows]
  assert loaders.fingerprint(rows) == loaders.fingerprint(same)
  changed = _rows()
  changed[3]["loss_weights"][2] += 0.5
  others = [changed, rows[::-1], rows[:-1]]
  prints = {loaders.fingerprint(r) for r in [rows, *others]} | {loaders.fingerprint(rows, [7])}
  assert len(prints) == 5
