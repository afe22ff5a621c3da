"""Several sources in one stream: each has its share of the tokens, at every seed, also resumed."""

import itertools
import json

import grain
from grain.experimental import LimitIterDataset, assert_equal_output_after_checkpoint
import numpy as np
import pytest

from data_pipeline import loaders, mixing, trees
from her_jax.errors import ConfigError

_WORDS = tuple(range(100, 4000))


def _rows(count: int, size: int, first: int) -> list[loaders.Row]:
  """Rows of one size whose tokens tell which row they are."""
  return [trees.lay_out([first + i] * size, [], trunk_weight=0.5) for i in range(count)]


def _mixture(weights=(0.7, 0.3), counts=(400, 90), sizes=(20, 5)) -> mixing.Mixture:
  parts = [
    mixing.Part(f"part {i}", _rows(count, size, 1000 * (i + 1)), weight)
    for i, (weight, count, size) in enumerate(zip(weights, counts, sizes, strict=True))
  ]
  return mixing.Mixture(parts)


def _batches(mixture: mixing.Mixture | None = None, **settings) -> grain.IterDataset:
  defaults = {"length": 64, "batch_size": 2, "seed": 5, "pad_id": 0}
  defaults |= {"word_dropout": 0.3, "word_ids": _WORDS}
  return loaders.batches(mixture or _mixture(), **{**defaults, **settings})


def _share(batches, first: int) -> float:
  """Of the tokens that are no padding, which share is of the part whose rows begin at `first`."""
  tokens = np.concatenate([batch["tokens"].ravel() for batch in batches])
  tokens = tokens[tokens > 0]
  return float(np.mean((tokens >= first) & (tokens < first + 1000)))


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 1), (1, 9), (1, 2, 7)], ids=str)
@pytest.mark.parametrize("packing", [True, False])
def test_a_weight_is_a_share_of_the_tokens(weights, packing):
  """Whatever the sizes of the rows and of the sources are; but for the rounding of a short run."""
  mixture = _mixture(weights, (400, 90, 230)[: len(weights)], (20, 5, 11)[: len(weights)])
  stream = _batches(mixture, word_dropout=0.0, packing=packing)
  some = list(itertools.islice(stream, 200 if packing else 1000))
  for i, weight in enumerate(weights):
    found, asked = _share(some, 1000 * (i + 1)), weight / sum(weights)
    assert found == pytest.approx(asked, rel=0.04), (found, asked)


def test_what_is_told_is_what_is_drawn():
  mixture = _mixture((0.6, 0.4))
  for row in mixture.parts[1].rows:
    row["loss_weights"] *= 2
  drawn, seen = mixture.drawn(5, 3000, 10_000)
  assert 3000 <= seen < 3020
  assert sum(part.tokens for part in drawn) == pytest.approx(1)
  order = mixture.indices(5)
  taken, tokens = [], 0
  while tokens < 3000:
    taken.append(mixture[order[len(taken)]])
    tokens += len(taken[-1]["tokens"])
  share = sum(len(row["tokens"]) for row in taken if row["tokens"][0] >= 2000) / tokens
  assert drawn[1].tokens == pytest.approx(share) and share == pytest.approx(0.4, abs=0.02)
  weight = [float(row["loss_weights"].sum()) for row in taken]
  heavy = sum(w for w, row in zip(weight, taken, strict=True) if row["tokens"][0] >= 2000)
  assert drawn[1].loss == pytest.approx(heavy / sum(weight), rel=1e-5)
  assert drawn[1].epochs == pytest.approx(0.4 * 3000 / (90 * 5), rel=0.05)
  assert mixture.drawn(5, 3000, 1)[1] in (20, 5)


def test_each_source_goes_round_in_epochs_of_its_own():
  mixture = _mixture()
  order = [int(mixture.indices(5)[i]) for i in range(800)]
  for first, count in ((0, 400), (400, 90)):
    times = np.bincount([i - first for i in order if first <= i < first + count])
    assert len(times) == count and times.max() - times.min() <= 3  # A window is shuffled too.
  small = [i for i in order if i >= 400]
  assert len(small) > 270 and small[:90] != small[90:180]


def test_the_seed_gives_the_order():
  one, same, other = (list(itertools.islice(_batches(seed=s), 8)) for s in (3, 3, 4))
  np.testing.assert_equal(one, same)
  assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("host, hosts", [(0, 1), (1, 2)])
@pytest.mark.parametrize("packing", [True, False])
def test_a_mixture_goes_on_from_any_batch(packing, host, hosts):
  stream = _batches(packing=packing, host=host, hosts=hosts)
  assert_equal_output_after_checkpoint(LimitIterDataset(stream, 24))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_workers_mix_and_go_on(workers):
  """Each worker has both sources, though it takes every other row alone."""
  first = iter(
    _batches(_mixture((1, 1), (400, 400), (20, 20)), workers=workers, word_dropout=0)
  )
  states, expected = [], []
  for _ in range(40):
    states.append(json.dumps(first.get_state()))
    expected.append(next(first))
  first.close()
  for own in (expected[worker::workers] for worker in range(workers)):
    assert 0.35 < _share(own, 1000) < 0.65
  second = iter(
    _batches(_mixture((1, 1), (400, 400), (20, 20)), workers=workers, word_dropout=0)
  )
  second.set_state(json.loads(states[7]))
  for batch in expected[7:]:
    np.testing.assert_equal(next(second), batch)
  second.close()


def test_rows_are_packed_with_those_of_the_other_source():
  rows = [row for batch in itertools.islice(_batches(), 30) for row in batch["tokens"]]
  both = [row for row in rows if (row // 1000 == 1).any() and (row // 1000 == 2).any()]
  assert len(both) > len(rows) / 3


def test_a_mixture_is_all_its_rows_and_its_fingerprint_theirs():
  mixture = _mixture()
  assert len(mixture) == 490 and mixture[-1]["tokens"][0] == 2089
  assert loaders.fingerprint(mixture) == loaders.fingerprint([*mixture])


def test_a_part_without_rows_is_refused_by_name():
  with pytest.raises(ConfigError, match="part 1: nothing to mix"):
    _mixture(counts=(4, 0))
