"""The lists of block pairs, against the mask that they stand for."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax.errors import ConfigError
from her_jax.models.attention import attention_mask
from her_jax.models.block_pairs import (
  FIRST,
  FULL,
  LAST,
  MASKED,
  block_pairs,
  block_sizes,
  column,
  first_queries,
  round_up,
  row,
)
from her_jax.models.tree_attention import tree_attention
from tests.models.tree_rows import QUICK_COMPILE, layouts

_build = jax.jit(block_pairs, static_argnums=(1, 2, 3), compiler_options=QUICK_COMPILE)


def _listed(lists: jax.Array, count: int) -> list[tuple[int, int, int]]:
  """(row, column, flags) of the entries that stand for a pair."""
  return [(int(row(x)), int(column(x)), int(x) & 15) for x in lists[:count]]


def _brute_force(visible_until: np.ndarray, block_q: int, block_k: int) -> dict:
  """(query block, key block) -> whether full, from the mask itself."""
  queries, slots = (round_up(len(visible_until), block) for block in (block_q, block_k))
  padding = np.arange(len(visible_until), slots) + 1
  ends = np.concatenate([visible_until, padding])[None]
  mask = np.asarray(attention_mask(jnp.arange(queries), jnp.asarray(ends)))[0]
  blocks = mask.reshape(queries // block_q, block_q, slots // block_k, block_k)
  some, every = blocks.any((1, 3)), blocks.all((1, 3))
  return {(int(i), int(j)): bool(every[i, j]) for i, j in np.argwhere(some)}


def _expected(pairs: list[tuple[int, int]], full: dict, swap: bool) -> list:
  rows = [i for i, _ in pairs]
  flags = []
  for n, (i, j) in enumerate(pairs):
    flag = FULL if full[(j, i) if swap else (i, j)] else MASKED
    flag |= FIRST if n == 0 or rows[n - 1] != i else 0
    flag |= LAST if n == len(rows) - 1 or rows[n + 1] != i else 0
    flags.append((i, j, flag))
  return flags


@settings(max_examples=60)
@given(layouts(), layouts(), st.sampled_from([(8, 8), (8, 16), (20, 8), (12, 12)]))
def test_the_lists_hold_the_pairs_that_the_mask_shows_and_no_other(one, two, blocks):
  found = jax.tree.map(np.asarray, _build(jnp.asarray([one, two]), *blocks))
  for r, layout in enumerate((one, two)):
    full = _brute_force(layout, *blocks)
    count = len(full)
    assert found.q_count[r].tolist() == found.k_count[r].tolist() == [count]
    assert _listed(found.q_major[r, 0], count) == _expected(sorted(full), full, swap=False)
    flipped = sorted((j, i) for i, j in full)
    assert _listed(found.k_major[r, 0], count) == _expected(flipped, full, swap=True)
    for lists in (found.q_major[r, 0], found.k_major[r, 0]):
      # What is left over names the last pair and asks for nothing.
      assert set(lists[count:].tolist()) <= {int(lists[count - 1]) & ~15}


@settings(max_examples=25)
@given(layouts(40), st.sampled_from([(4, 8, 2), (8, 4, 4), (10, 10, 2)]))
def test_each_shard_lists_what_its_own_queries_see(layout, sizes):
  block_q, block_k, shards = sizes
  found = jax.tree.map(np.asarray, _build(jnp.asarray([layout]), block_q, block_k, shards))
  slot = np.arange(40)
  mask = (slot <= slot[:, None]) & (slot[:, None] < layout)
  chunk = 20 // shards
  for shard, starts in enumerate(first_queries(40, block_q, shards)):
    seen = {
      (i, j)
      for i, start in enumerate(starts)
      for j in range(40 // block_k)
      # Queries after a chunk's end only fill the block up.
      if mask[
        start : min(start + block_q, (start // chunk + 1) * chunk),
        j * block_k : (j + 1) * block_k,
      ].any()
    }
    count = int(found.q_count[0, shard])
    listed = _listed(found.q_major[0, shard], count)
    assert seen <= {(i, j) for i, j, _ in listed}
    rows = [i for i, *_ in listed]
    assert sorted(set(rows)) == [*range(len(starts))] and rows == sorted(rows)

    count = int(found.k_count[0, shard])
    flipped = _listed(found.k_major[0, shard], count)
    pairs = {(i, j) for i, j, _ in listed}
    assert {(i, j) for j, i, flags in flipped if flags & (FULL | MASKED)} == pairs
    # Every block of keys has a result: where no query sees it, one empty entry.
    assert {j for j, *_ in flipped} == {*range(40 // block_k)}
    empty = [(j, flags) for j, _, flags in flipped if not flags & (FULL | MASKED)]
    assert empty == [
      (j, FIRST | LAST) for j in range(40 // block_k) if j not in {j for _, j in pairs}
    ]


def test_the_documented_example_of_the_lists():
  pairs = _build(jnp.array([[6, 6, 4, 4, 6, 6]], jnp.int32), 2, 2)
  assert pairs.q_count.tolist() == pairs.k_count.tolist() == [[5]]
  assert _listed(np.asarray(pairs.q_major[0, 0]), 6) == [
    (0, 0, FIRST | LAST | MASKED),
    (1, 0, FIRST | FULL),
    (1, 1, LAST | MASKED),
    (2, 0, FIRST | FULL),
    (2, 2, LAST | MASKED),
    (2, 2, 0),
  ]
  assert _listed(np.asarray(pairs.k_major[0, 0]), 6) == [
    (0, 0, FIRST | MASKED),
    (0, 1, FULL),
    (0, 2, LAST | FULL),
    (1, 1, FIRST | LAST | MASKED),
    (2, 2, FIRST | LAST | MASKED),
    (2, 2, 0),
  ]


def test_the_counts_of_the_long_rows_that_the_module_names():
  slots = 8192
  causal = np.full(slots, slots, np.int32)
  packed = ((np.arange(slots) // 1024 + 1) * 1024).astype(np.int32)
  pairs = _build(jnp.asarray([causal, packed]), 512, 512)
  assert pairs.q_count.tolist() == [[136], [24]]


@pytest.mark.parametrize(
  "length, head_dim, block",
  [
    *((n, 128, b) for n, b in [(100, 128), (300, 384), (512, 512), (640, 384)]),
    *((n, 128, b) for n, b in [(4096, 512), (4224, 384)]),
    (4096, 256, 512),
    (4096, 512, 256),
  ],
)
def test_block_sizes(length, head_dim, block):
  assert block_sizes(length, head_dim) == (block, block)


def test_rows_too_long_for_an_entry_or_the_scalar_memory_are_refused():
  too_long = jax.ShapeDtypeStruct((1, 4096 * 128), jnp.int32)
  with pytest.raises(ConfigError, match="4096 blocks of 128 queries.*at most 4095"):
    jax.eval_shape(functools.partial(block_pairs, block_q=128, block_k=128), too_long)
  fits = jax.ShapeDtypeStruct((1, 4095 * 128), jnp.int32)
  jax.eval_shape(functools.partial(block_pairs, block_q=128, block_k=128), fits)
  with pytest.raises(ConfigError, match="8 rows of 131072 slots list 8 · 32896 block pairs"):
    heads = [jax.ShapeDtypeStruct((8, 2**17, n, 16), jnp.float32) for n in (4, 2, 2)]
    jax.eval_shape(tree_attention, *heads, jax.ShapeDtypeStruct((8, 2**17), jnp.int32))
  with pytest.raises(ValueError, match="float32.*int32"):
    block_pairs(jnp.ones((1, 8)), 8, 8)
