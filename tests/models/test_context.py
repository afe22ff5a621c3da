"""Rows split over devices: each computes its queries, and together what one device does."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from her_jax.errors import ConfigError
from her_jax.models import context, dispatch
from her_jax.models.block_pairs import MAX_LIST_BYTES, block_pairs, block_sizes, first_queries
from her_jax.sharding import make_mesh
from tests.models.tree_rows import (
  QUICK_COMPILE,
  assert_equal,
  layouts,
  named_row,
  qkv_of,
  reference,
)

# Two shards have chunks of 10 slots, four of 5: no block of 4 or 8 divides them.
_ROWS, _SLOTS = 2, 40
_BLOCKS = {2: (4, 8), 4: (8, 4)}
_MESHES = [{"context": 2}, {"context": 4}, {"fsdp": 2, "context": 2, "tensor": 2}]


def _mesh(sizes: dict[str, int]):
  devices = jax.devices()[: int(np.prod(list(sizes.values())))]
  return make_mesh(**{"fsdp": 1, **sizes}, devices=devices)


@functools.cache
def _program(**sizes: int):
  """As `tree_rows.kernel`, over a mesh."""
  shards = sizes["context"]

  def run(qkv, visible_until, d_out):
    pairs = block_pairs(visible_until, *_BLOCKS[shards], shards)
    plan = dispatch.Plan(pairs=pairs, interpret=True)
    call = lambda *qkv: dispatch.attend(plan, *qkv, visible_until)
    out, vjp = jax.vjp(call, *qkv)
    return out, vjp(d_out)

  shapes = [jax.ShapeDtypeStruct((_ROWS, _SLOTS, n, 16), jnp.float32) for n in (4, 2, 2)]
  ends = jax.ShapeDtypeStruct((_ROWS, _SLOTS), jnp.int32)
  with jax.set_mesh(_mesh(sizes)):
    lowered = jax.jit(run).lower(tuple(shapes), ends, shapes[0])
    return lowered.compile(compiler_options=QUICK_COMPILE)


@pytest.mark.parametrize("sizes", _MESHES, ids=str)
@settings(max_examples=8)
@given(layouts(_SLOTS), layouts(_SLOTS), st.integers(0, 2**16))
def test_equals_one_device_on_any_tree(sizes, one, two, seed):
  qkv = qkv_of(seed, _ROWS, _SLOTS, 4, 2, 16)
  d_out = qkv_of(seed + 1, _ROWS, _SLOTS, 4, 4, 16)[0]
  visible_until = jnp.asarray([one, two])
  found = _program(**sizes)(qkv, visible_until, d_out)
  assert_equal(found, reference(qkv, visible_until, d_out))


@pytest.mark.parametrize("sizes", _MESHES[:2], ids=str)
def test_documents_and_padding_stay_apart(sizes):
  """A document over both shards, another, and padding: each may be anything to the others."""
  parts = [slice(0, 23), slice(23, 33), slice(33, _SLOTS)]
  ends = np.arange(1, _SLOTS + 1, dtype=np.int32)
  ends[parts[0]], ends[parts[1]] = 23, 33
  visible_until = jnp.asarray([ends, ends])
  qkv = qkv_of(1, _ROWS, _SLOTS, 4, 2, 16)
  d_out = qkv_of(2, _ROWS, _SLOTS, 4, 4, 16)[0]
  run = _program(**sizes)
  before = run(qkv, visible_until, d_out)
  for changed in parts:
    other = tuple(x.at[:, changed].set(1e4) for x in qkv)
    after = run(other, visible_until, d_out.at[:, changed].add(1.0))
    for kept in parts:
      if kept != changed:
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
          np.testing.assert_array_equal(x[:, kept], y[:, kept])


def test_gradients_of_keys_go_back_where_the_keys_live():
  program = _program(context=2).as_text()
  assert "reduce-scatter" in program and "all-reduce" not in program


@pytest.mark.parametrize("shards, block", [(2, 4), (4, 5), (8, 8)])
def test_what_is_dealt_is_collected(shards, block):
  x = jnp.arange(1, 81).reshape(1, 80, 1) * jnp.ones((2, 1, 3), jnp.int32)
  mesh, rows = _mesh({"context": shards}), P(None, "context")
  split = functools.partial(
    jax.shard_map, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
  )
  dealt = jax.jit(split(lambda x: context.deal(x, "context", block)))(x)
  # Every block begins where the lists say, and a chunk ends in zeros.
  first = first_queries(80, block, shards).reshape(-1)
  assert dealt.shape == (2, first.size * block, 3)
  np.testing.assert_array_equal(dealt[0, ::block, 0], first + 1)
  assert sorted(np.asarray(dealt[1, :, 2])[np.asarray(dealt[1, :, 2]) > 0]) == [*range(1, 81)]
  collected = jax.jit(split(lambda x: context.collect(x, "context", 80 // shards)))(dealt)
  np.testing.assert_array_equal(collected, x)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_have_equal_work_and_short_lists_at_131072_slots(shards):
  slots = 2**17
  block, _ = block_sizes(slots // (2 * shards), 128)
  build = jax.jit(block_pairs, static_argnums=(1, 2, 3), compiler_options=QUICK_COMPILE)
  pairs = build(jnp.full((1, slots), slots, jnp.int32), block, 512, shards)
  counts = np.asarray(pairs.q_count)
  assert block == 512 and counts.max() == counts.min() == 256 * 257 // 2 // shards
  # What a shard cannot see of the row's end costs it an empty entry a block of keys.
  assert np.asarray(pairs.k_count).max() < 1.04 * counts.max()
  assert pairs.q_major.nbytes // shards + pairs.first.nbytes // shards < MAX_LIST_BYTES / 8


@pytest.mark.parametrize(
  ("slots", "shards", "mend"), [(42, 4, 48), (42, 2, 44), (6, 4, 8), (1001, 8, 1008)]
)
def test_rows_that_do_not_divide_into_chunks_are_refused(slots, shards, mend):
  message = (
    f"Rows of {slots} slots over context={shards}.*that {2 * shards} divides, as {mend},"
  )
  with pytest.raises(ConfigError, match=message):
    block_pairs(jnp.asarray(named_row("causal", slots))[None], 8, 8, shards=shards)


@pytest.mark.parametrize("kind", ["tree", "tree_interpret"])
def test_a_mesh_refuses_rows_that_it_cannot_deal_out(kind):
  """As a task meets it: the mesh splits 42 slots over context=2, and four chunks do not fit."""
  ends = jnp.asarray(named_row("causal", 42))[None]
  with jax.set_mesh(_mesh({"context": 2})):
    with pytest.raises(ConfigError, match="take a length that 4 divides, as 44, or another"):
      jax.jit(lambda ends: dispatch.prepare(kind, ends, 16, "float32"))(ends)
