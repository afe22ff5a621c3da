"""A small corpus that was split and built."""

import pytest

from data_pipeline import splits
from data_pipeline.builders import build
from data_pipeline.builders.source import Source
from tests.data_pipeline.builders.corpora import EVEN, pairs_of


@pytest.fixture
def built(corpus, written, tmp_path):
  """Rows, pairs, source and folder of a small corpus that was split and built."""
  rows = corpus(20)
  pairs = pairs_of(rows)
  path, pair_path = written(rows), written(pairs, "pairs.jsonl")
  made = splits.split([path], tmp_path / "splits", purposes=EVEN)
  source = Source([path], made, [pair_path])
  build.build(source, tmp_path / "built")
  return rows, pairs, source, tmp_path / "built"
