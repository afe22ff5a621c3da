"""The TPU kernel, run step by step on the CPU, against the jnp reference."""

import dataclasses
import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipeline import trees
from her_jax.models.block_pairs import FULL, MASKED, block_pairs
from her_jax.models.tree_attention import tree_attention
from tests.models.tree_rows import (
  BLOCK,
  QUICK_COMPILE,
  SLOTS,
  assert_equal,
  kernel,
  layouts,
  named_row,
  qkv_of,
  reference,
  scaled_error,
)

_block_pairs = jax.jit(block_pairs, static_argnums=(1, 2))

# Against the reference.


@settings(max_examples=30)
@given(layouts(), layouts(), st.integers(0, 2**16), st.sampled_from([(8, 8), (8, 16), (20, 8)]))
def test_equals_the_reference_on_any_tree(one, two, seed, blocks):
  """Two rows whose lists differ in length, two heads to a group, unequal blocks too."""
  qkv = qkv_of(seed, batch=2, slots=SLOTS, heads=4, kv_heads=2, head_dim=16)
  visible_until = jnp.asarray([one, two])
  d_out = qkv_of(seed + 1, 2, SLOTS, 4, 4, 16)[0]
  found = kernel(qkv, visible_until, d_out, blocks)
  assert_equal(found, reference(qkv, visible_until, d_out))


@pytest.mark.parametrize(
  "layout, slots, heads, kv_heads, head_dim, blocks",
  [
    ("causal", 256, 2, 2, 64, (128, 128)),
    ("packed", 384, 4, 1, 64, (128, 128)),
    ("padded", 384, 4, 2, 128, None),
    ("branches", 512, 4, 2, 64, (256, 128)),
    ("branches", 300, 4, 2, 128, (128, 128)),  # not divided by the blocks
    ("causal", 100, 2, 1, 64, None),  # shorter than a block
  ],
)
def test_equals_the_reference_in_blocks_as_on_a_chip(
  layout, slots, heads, kv_heads, head_dim, blocks
):
  qkv = qkv_of(0, 1, slots, heads, kv_heads, head_dim)
  visible_until = jnp.asarray(named_row(layout, slots))[None]
  d_out = qkv_of(1, 1, slots, heads, heads, head_dim)[0]
  found = kernel(qkv, visible_until, d_out, blocks)
  assert_equal(found, reference(qkv, visible_until, d_out))


@pytest.mark.parametrize("layout", ["causal", "branches"])
def test_bfloat16_is_as_near_to_float32_as_its_rounding_allows(layout):
  """Weights, their gradients and the results are each rounded to 8 bits, by up to 2^-9.

  Measured: at most 5e-3 of the greatest value, as much as the reference in bfloat16 has.
  """
  qkv = jax.tree.map(lambda x: x.astype(jnp.bfloat16), qkv_of(2, 1, 384, 4, 2, 64))
  d_out = qkv_of(3, 1, 384, 4, 4, 64)[0].astype(jnp.bfloat16)
  visible_until = jnp.asarray(named_row(layout, 384))[None]
  out, gradients = kernel(qkv, visible_until, d_out, (128, 128))
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), (qkv, d_out))
  expected = reference(wide[0], visible_until, wide[1])
  assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(jnp.bfloat16)}
  for found, exact in zip((out, *gradients), (expected[0], *expected[1]), strict=True):
    assert scaled_error(found, exact) <= 2**-7


def test_a_tree_equals_its_expanded_rows():
  trunk = list(range(1, 16))
  branches = [trees.Branch(4, [101, 102, 103]), trees.Branch(9, [104, 105])]
  branches += [trees.Branch(9, [106, 107, 108, 109]), trees.Branch(15, [110, 111])]
  tree = trees.pad(trees.lay_out(trunk, branches), SLOTS, pad_id=0)
  rng = np.random.default_rng(0)
  tables = [rng.normal(size=(112, heads, 16)).astype(np.float32) for heads in (4, 2, 2)]
  bends = rng.normal(size=(SLOTS, 1, 16)).astype(np.float32)

  def run(row):
    qkv = tuple(
      jnp.asarray(table[row["tokens"]] + bends[row["positions"]])[None] for table in tables
    )
    return kernel(qkv, jnp.asarray(row["visible_until"])[None], qkv[0])[0][0]

  whole = run(tree)
  for branch in branches:
    tokens = np.array([*trunk[: branch.at], *branch.ids])
    # In a row as long as the tree, so that one program serves all.
    alone = run(trees.pad(trees.lay_out(tokens, []), SLOTS, pad_id=0))[: len(tokens)]
    leaf = np.flatnonzero(tree["tokens"] == branch.ids[-1])[0]
    path = np.flatnonzero(tree["visible_until"][: leaf + 1] > leaf)
    np.testing.assert_array_equal(tree["tokens"][path], tokens)
    np.testing.assert_allclose(whole[path], alone, atol=2e-6)


# Who reaches whom.


def test_a_packed_document_leaves_the_other_as_it_is():
  visible_until = jnp.asarray(named_row("packed", SLOTS))[None]
  one, two = slice(0, 13), slice(13, SLOTS)
  qkv = qkv_of(4, 1, SLOTS, 4, 2, 16)
  d_out = qkv_of(5, 1, SLOTS, 4, 4, 16)[0]
  before = kernel(qkv, visible_until, d_out)
  for changed, kept in ((one, two), (two, one)):
    other = tuple(x.at[:, changed].multiply(-3.0) for x in qkv)
    after = kernel(other, visible_until, d_out.at[:, changed].add(1.0))
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
      np.testing.assert_array_equal(x[:, kept], y[:, kept])
      assert not np.array_equal(x[:, changed], y[:, changed])


def test_padding_attends_to_nothing_else_and_gives_no_gradient():
  real = 25
  visible_until = jnp.asarray(
    trees.pad(trees.lay_out(range(real), []), SLOTS, 0)["visible_until"]
  )
  qkv = qkv_of(6, 1, SLOTS, 4, 2, 16)
  d_out = qkv_of(7, 1, SLOTS, 4, 4, 16)[0].at[:, real:].set(0.0)
  out, gradients = kernel(qkv, visible_until[None], d_out)
  own_values = jnp.repeat(qkv[2], 2, axis=2)
  np.testing.assert_allclose(out[:, real:], own_values[:, real:], atol=1e-6)
  for gradient in gradients:
    assert not np.any(gradient[:, real:])
  # 1e30 in a padding slot would show through any weight but zero.
  loud = tuple(x.at[:, real:].set(1e30) for x in qkv[1:])
  again, again_gradients = kernel((qkv[0], *loud), visible_until[None], d_out, (BLOCK, BLOCK))
  for a, b in zip((out, *gradients), (again, *again_gradients), strict=True):
    np.testing.assert_array_equal(a[:, :real], b[:, :real])


def test_a_hidden_pair_is_not_read():
  """A NaN in a value makes NaN of every query that its block is computed for."""
  first = 2 * BLOCK  # The first document ends where a block does.
  visible_until = jnp.full((1, SLOTS), SLOTS, jnp.int32).at[:, :first].set(first)
  q, k, v = qkv_of(8, 1, SLOTS, 4, 2, 16)
  d_out = qkv_of(9, 1, SLOTS, 4, 4, 16)[0]
  poisoned = v.at[:, :first].set(jnp.nan)
  out, gradients = kernel((q, k, poisoned), visible_until, d_out)
  assert np.isnan(out[:, :first]).all()
  for x in (out, *gradients):
    assert np.isfinite(x[:, first:]).all()


def test_a_full_pair_skips_the_mask_and_loses_nothing():
  """Marked as masked, a full pair gives the same; a masked one marked full does not."""
  visible_until = jnp.asarray(named_row("causal", SLOTS))[None]
  qkv = qkv_of(10, 1, SLOTS, 4, 2, 16)
  pairs = _block_pairs(visible_until, BLOCK, BLOCK)
  call = functools.partial(tree_attention, interpret=True)
  run = jax.jit(lambda pairs: call(*qkv, visible_until, pairs), compiler_options=QUICK_COMPILE)
  plain = run(pairs)
  is_full = pairs.q_major & FULL != 0

  def with_flags(change):
    lists = jnp.where(change, pairs.q_major ^ (FULL | MASKED), pairs.q_major)
    return run(dataclasses.replace(pairs, q_major=lists))

  # Of four whole blocks of queries, all pairs but the diagonal.
  assert int(is_full.sum()) == 6
  np.testing.assert_array_equal(with_flags(is_full), plain)
  assert not np.allclose(with_flags(~is_full), plain)


# Refusals.


def _abstract(heads=4, kv_heads=2, slots=SLOTS, batch=1, dtype=jnp.float32):
  shapes = [(batch, slots, n, 16) for n in (heads, kv_heads, kv_heads)]
  arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
  return [*arrays, jax.ShapeDtypeStruct((batch, slots), jnp.int32)]


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda q, k, v, u: (*_abstract(heads=5)[:3], u), "5 query heads cannot share 2"),
    (lambda q, k, v, u: (q, k, _abstract(slots=9)[1], u), "do not fit q"),
    (lambda q, k, v, u: (q, _abstract(dtype=jnp.bfloat16)[1], v, u), "all float32"),
    (lambda q, k, v, u: (q, k, v, jax.ShapeDtypeStruct(u.shape, jnp.int8)), "int8.*int32"),
    (lambda q, k, v, u: (q, k, v, _abstract(slots=9)[3]), r"\[1, 9\].*\[1, 39\]"),
  ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(tree_attention, *change(*_abstract()))


def test_pairs_of_other_rows_or_for_no_chip_are_refused():
  arguments = _abstract()
  pairs = lambda slots, shards=1: jax.eval_shape(
    functools.partial(block_pairs, block_q=BLOCK, block_k=BLOCK, shards=shards),
    jax.ShapeDtypeStruct((1, slots), jnp.int32),
  )
  with pytest.raises(ValueError, match="64 slots, 1 shards.*not those of 1 rows of 39 slots"):
    jax.eval_shape(tree_attention, *arguments, pairs(64))
  with pytest.raises(ValueError, match="40 slots, 2 shards of 4 blocks.*of which 40 query"):
    jax.eval_shape(tree_attention, *_abstract(slots=40), pairs(40, shards=2))
  own = pairs(SLOTS)
  with pytest.raises(ValueError, match="multiples of 128"):
    jax.eval_shape(tree_attention, *arguments, own)
