"""Shared passages are counted exactly, in however many parts they are sorted."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from data_pipeline import passages
from data_pipeline.passages import Passages, Shared

_CONVERSATIONS = st.lists(
  st.tuples(st.integers(0, 3), st.sets(st.integers(0, 30), max_size=12)), max_size=12
)


def _spread(values):
  """Small numbers as hashes over all of 64 bits."""
  return np.sort(np.array([v * 0x9E3779B97F4A7C15 % 2**64 for v in values], np.uint64))


@given(_CONVERSATIONS, st.integers(1, 3), st.floats(0.01, 1), st.sampled_from([1, 3, 1000]))
def test_what_is_found_is_what_a_plain_count_finds(made, least, threshold, at_once):
  whole = defaultdict(set)
  for book, held in made:
    whole[book] |= held
  expected, sums, totals = set(), defaultdict(int), defaultdict(int)
  for number, (book, held) in enumerate(made):
    totals[book] += len(held)
    for other in whole.keys() - {book}:
      common = len(held & whole[other])
      sums[book, other] += common
      if common >= least and common / len(held) >= threshold:
        expected.add(Shared(book, other, common / len(held), number))
  expected |= {
    Shared(*pair, common / totals[pair[0]])
    for pair, common in sums.items()
    if common >= least and common / totals[pair[0]] >= threshold
  }
  with pytest.MonkeyPatch.context() as patch, Passages() as found:
    patch.setattr(passages, "_AT_ONCE", at_once)
    patch.setattr(passages, "_CHUNK", min(at_once, 7))
    for book, held in made:
      found.add(_spread(held), book)
    given_ = [*found.conversations(least, threshold), *found.books(least, threshold)]
  assert len(given_) == len(set(given_))
  assert set(given_) == expected


def test_a_stock_phrase_joins_nothing():
  with Passages() as found:
    for book in range(passages._SHARED + 1):
      found.add(_spread([1, 2, 100 + book]), book)
    assert not list(found.conversations(1, 0.0))


def test_the_sample_is_of_the_text_and_not_of_its_place():
  every = _spread(range(4000))
  kept = passages.sample(every, 8)
  assert np.array_equal(
    passages.sample(every[1000:3000], 8), np.intersect1d(kept, every[1000:3000])
  )
  assert 400 < len(kept) < 600
