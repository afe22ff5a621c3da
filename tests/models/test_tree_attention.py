"""The TPU kernel, run step by step on the CPU, against the jnp reference."""

import functools
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from data_pipeline import trees
from her_jax.models import block_pairs as block_pairs_lib
from her_jax.models.attention import attention, attention_mask
from her_jax.models.block_pairs import (
  FIRST,
  FULL,
  LAST,
  MASKED,
  block_pairs,
  block_sizes,
  column,
  padded_length,
  row,
)
from her_jax.models.tree_attention import SAVED_NAMES, tree_attention
from her_jax.sharding import make_mesh

# Blocks of 8 slots are computed by the same kernel as those of 128, and fast.
_SLOTS, _BLOCK = 40, 8


@st.composite
def layouts(draw, slots: int = _SLOTS) -> np.ndarray:
  """visible_until [slots] of trees laid out depth-first, padding at the end.

  Runs of slots follow one another. Before each, the path from the root is cut to some of its
  tokens: all (the run goes on), a part (a branch leaves there), none (a document begins).
  """
  used = draw(st.integers(1, slots))
  visible_until = np.arange(1, slots + 1, dtype=np.int32)
  path: list[int] = []
  start = 0
  while start < used:
    stop = start + draw(st.integers(1, used - start))
    keep = draw(st.sampled_from([0, len(path)]) | st.integers(0, len(path)))
    visible_until[path[keep:]] = start
    path = [*path[:keep], *range(start, stop)]
    start = stop
  visible_until[path] = used
  return visible_until


def _layout(name: str, slots: int) -> np.ndarray:
  """visible_until [slots] of a row that has a name."""
  own = np.arange(1, slots + 1, dtype=np.int32)
  third, half = slots // 3, slots // 2
  match name:
    case "causal":
      return np.full(slots, slots, np.int32)
    case "packed":
      return np.where(own <= third, third, slots).astype(np.int32)
    case "padded":
      return np.maximum(own, half + 5)
    case "branches":  # A trunk, a branch, a longer branch that forks itself, padding.
      tree = [(0, third, slots - 9), (third, half, half), (half, slots - 60, slots - 9)]
      tree += [(slots - 60, slots - 30, slots - 30), (slots - 30, slots - 9, slots - 9)]
      for start, stop, end in tree:
        own[start:stop] = end
      return own
  raise ValueError(name)


def _qkv(seed: int, batch: int, slots: int, heads: int, kv_heads: int, head_dim: int):
  rng = np.random.default_rng(seed)
  shapes = [(batch, slots, n, head_dim) for n in (heads, kv_heads, kv_heads)]
  return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@functools.partial(jax.jit, static_argnames="blocks")
def _kernel(qkv, visible_until, d_out, blocks=None):
  """out, (dq, dk, dv)."""
  pairs = None if blocks is None else block_pairs(visible_until, *blocks)
  call = lambda *qkv: tree_attention(*qkv, visible_until, pairs, interpret=True)
  out, vjp = jax.vjp(call, *qkv)
  return out, vjp(d_out)


@jax.jit
def _reference(qkv, visible_until, d_out):
  out, vjp = jax.vjp(lambda *qkv: attention(*qkv, None, visible_until), *qkv)
  return out, vjp(d_out)


def _scaled_error(found, expected) -> float:
  """The greatest difference, in units of the greatest value (or of 1, if that is more)."""
  found, expected = (np.asarray(x, np.float64) for x in (found, expected))
  return np.abs(found - expected).max() / max(1.0, np.abs(expected).max())


def _assert_equal(found, expected, out_bound=2e-6, gradient_bound=1e-5):
  assert np.abs(np.asarray(found[0]) - np.asarray(expected[0])).max() <= out_bound
  for name, a, b in zip(("dq", "dk", "dv"), found[1], expected[1], strict=True):
    assert _scaled_error(a, b) <= gradient_bound, name


# Against the reference.


@settings(max_examples=30)
@given(layouts(), layouts(), st.integers(0, 2**16), st.sampled_from([(8, 8), (8, 16), (20, 8)]))
def test_equals_the_reference_on_any_tree(one, two, seed, blocks):
  """Two rows whose lists differ in length, two heads to a group, unequal blocks too."""
  qkv = _qkv(seed, batch=2, slots=_SLOTS, heads=4, kv_heads=2, head_dim=16)
  visible_until = jnp.asarray([one, two])
  d_out = _qkv(seed + 1, 2, _SLOTS, 4, 4, 16)[0]
  found = _kernel(qkv, visible_until, d_out, blocks)
  _assert_equal(found, _reference(qkv, visible_until, d_out))


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
  qkv = _qkv(0, 1, slots, heads, kv_heads, head_dim)
  visible_until = jnp.asarray(_layout(layout, slots))[None]
  d_out = _qkv(1, 1, slots, heads, heads, head_dim)[0]
  found = _kernel(qkv, visible_until, d_out, blocks)
  _assert_equal(found, _reference(qkv, visible_until, d_out))


@pytest.mark.parametrize("layout", ["causal", "branches"])
def test_bfloat16_is_as_near_to_float32_as_its_rounding_allows(layout):
  """Weights, their gradients and the results are each rounded to 8 bits, by up to 2^-9.

  Measured: at most 5e-3 of the greatest value, as much as the reference in bfloat16 has.
  """
  qkv = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _qkv(2, 1, 384, 4, 2, 64))
  d_out = _qkv(3, 1, 384, 4, 4, 64)[0].astype(jnp.bfloat16)
  visible_until = jnp.asarray(_layout(layout, 384))[None]
  out, gradients = _kernel(qkv, visible_until, d_out, (128, 128))
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), (qkv, d_out))
  expected = _reference(wide[0], visible_until, wide[1])
  assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(jnp.bfloat16)}
  for found, exact in zip((out, *gradients), (expected[0], *expected[1]), strict=True):
    assert _scaled_error(found, exact) <= 2**-7


def test_a_tree_equals_its_expanded_rows():
  trunk = list(range(1, 16))
  branches = [trees.Branch(4, [101, 102, 103]), trees.Branch(9, [104, 105])]
  branches += [trees.Branch(9, [106, 107, 108, 109]), trees.Branch(15, [110, 111])]
  tree = trees.pad(trees.lay_out(trunk, branches), _SLOTS, pad_id=0)
  rng = np.random.default_rng(0)
  tables = [rng.normal(size=(112, heads, 16)).astype(np.float32) for heads in (4, 2, 2)]
  bends = rng.normal(size=(_SLOTS, 1, 16)).astype(np.float32)

  def run(tokens, positions, visible_until):
    qkv = tuple(jnp.asarray(table[tokens] + bends[positions])[None] for table in tables)
    return _kernel(qkv, jnp.asarray(visible_until)[None], qkv[0], (_BLOCK, _BLOCK))[0][0]

  whole = run(tree["tokens"], tree["positions"], tree["visible_until"])
  for branch in branches:
    tokens = np.array([*trunk[: branch.at], *branch.ids])
    alone = run(tokens, np.arange(len(tokens)), np.full(len(tokens), len(tokens), np.int32))
    leaf = np.flatnonzero(tree["tokens"] == branch.ids[-1])[0]
    path = np.flatnonzero(tree["visible_until"][: leaf + 1] > leaf)
    np.testing.assert_array_equal(tree["tokens"][path], tokens)
    np.testing.assert_allclose(whole[path], alone, atol=2e-6)


# Who reaches whom.


def test_a_packed_document_leaves_the_other_as_it_is():
  visible_until = jnp.asarray(_layout("packed", 39))[None]
  one, two = slice(0, 13), slice(13, 39)
  qkv = _qkv(4, 1, 39, 4, 2, 16)
  d_out = _qkv(5, 1, 39, 4, 4, 16)[0]
  before = _kernel(qkv, visible_until, d_out, (_BLOCK, _BLOCK))
  for changed, kept in ((one, two), (two, one)):
    other = tuple(x.at[:, changed].multiply(-3.0) for x in qkv)
    after = _kernel(other, visible_until, d_out.at[:, changed].add(1.0), (_BLOCK, _BLOCK))
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
      np.testing.assert_array_equal(x[:, kept], y[:, kept])
      assert not np.array_equal(x[:, changed], y[:, changed])


def test_padding_attends_to_nothing_else_and_gives_no_gradient():
  real, slots = 25, 39
  visible_until = jnp.asarray(
    trees.pad(trees.lay_out(range(real), []), slots, 0)["visible_until"]
  )
  qkv = _qkv(6, 1, slots, 4, 2, 16)
  d_out = _qkv(7, 1, slots, 4, 4, 16)[0].at[:, real:].set(0.0)
  out, gradients = _kernel(qkv, visible_until[None], d_out, (_BLOCK, _BLOCK))
  own_values = jnp.repeat(qkv[2], 2, axis=2)
  np.testing.assert_allclose(out[:, real:], own_values[:, real:], atol=1e-6)
  for gradient in gradients:
    assert not np.any(gradient[:, real:])
  # 1e30 in a padding slot would show through any weight but zero.
  loud = tuple(x.at[:, real:].set(1e30) for x in qkv[1:])
  again, again_gradients = _kernel(
    (qkv[0], *loud), visible_until[None], d_out, (_BLOCK, _BLOCK)
  )
  for a, b in zip((out, *gradients), (again, *again_gradients), strict=True):
    np.testing.assert_array_equal(a[:, :real], b[:, :real])


# The pairs of blocks.


def _listed(lists: jax.Array, count: int) -> list[tuple[int, int, int]]:
  """(row, column, flags) of the entries that stand for a pair."""
  return [(int(row(x)), int(column(x)), int(x) & 15) for x in lists[:count]]


def _brute_force(visible_until: np.ndarray, block_q: int, block_k: int) -> dict:
  """(query block, key block) -> whether full, from the mask itself."""
  slots = padded_length(len(visible_until), block_q, block_k)
  padding = np.arange(len(visible_until), slots) + 1
  ends = np.concatenate([visible_until, padding])[None]
  mask = np.asarray(attention_mask(jnp.arange(slots), jnp.asarray(ends)))[0]
  blocks = mask.reshape(slots // block_q, block_q, slots // block_k, block_k)
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
  build = jax.jit(block_pairs, static_argnums=(1, 2))
  found = jax.tree.map(np.asarray, build(jnp.asarray([one, two]), *blocks))
  for r, layout in enumerate((one, two)):
    full = _brute_force(layout, *blocks)
    count = int(found.count[r])
    assert count == len(full)
    assert _listed(found.q_major[r], count) == _expected(sorted(full), full, swap=False)
    flipped = sorted((j, i) for i, j in full)
    assert _listed(found.k_major[r], count) == _expected(flipped, full, swap=True)
    for lists in (found.q_major[r], found.k_major[r]):
      # What is left over names the last pair and asks for nothing.
      assert set(lists[count:].tolist()) <= {int(lists[count - 1]) & ~15}


def test_the_documented_example_of_the_lists():
  pairs = block_pairs(jnp.array([[6, 6, 4, 4, 6, 6]], jnp.int32), 2, 2)
  assert pairs.count.tolist() == [5]
  assert _listed(pairs.q_major[0], 6) == [
    (0, 0, FIRST | LAST | MASKED),
    (1, 0, FIRST | FULL),
    (1, 1, LAST | MASKED),
    (2, 0, FIRST | FULL),
    (2, 2, LAST | MASKED),
    (2, 2, 0),
  ]
  assert _listed(pairs.k_major[0], 6) == [
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
  count = jax.jit(lambda layout: block_pairs(layout, 512, 512).count)
  assert count(jnp.asarray([causal, packed])).tolist() == [136, 24]


def test_a_hidden_pair_is_not_read():
  """A NaN in a value makes NaN of every query that its block is computed for."""
  visible_until = jnp.asarray(_layout("packed", 48))[None]  # Documents of 16 and 32 slots.
  q, k, v = _qkv(8, 1, 48, 2, 1, 16)
  d_out = _qkv(9, 1, 48, 2, 2, 16)[0]
  poisoned = v.at[:, :16].set(jnp.nan)
  out, gradients = _kernel((q, k, poisoned), visible_until, d_out, (_BLOCK, _BLOCK))
  assert np.isnan(out[:, :16]).all()
  for x in (out, *gradients):
    assert np.isfinite(x[:, 16:]).all()


def test_a_full_pair_skips_the_mask_and_loses_nothing():
  """Marked as masked, a full pair gives the same; a masked one marked full does not."""
  visible_until = jnp.asarray(_layout("causal", _SLOTS))[None]
  qkv = _qkv(10, 1, _SLOTS, 2, 1, 16)
  pairs = block_pairs(visible_until, _BLOCK, _BLOCK)
  plain = tree_attention(*qkv, visible_until, pairs, interpret=True)
  is_full = pairs.q_major & FULL != 0

  def with_flags(change):
    lists = jnp.where(change, pairs.q_major ^ (FULL | MASKED), pairs.q_major)
    other = block_pairs_lib.BlockPairs(lists, pairs.k_major, pairs.count, _BLOCK, _BLOCK)
    return tree_attention(*qkv, visible_until, other, interpret=True)

  assert int(is_full.sum()) == 10  # Of five blocks: all pairs but the diagonal.
  np.testing.assert_array_equal(with_flags(is_full), plain)
  assert not np.allclose(with_flags(~is_full), plain)


# Inside a model.


def _primitives(jaxpr, inside: str = "") -> list[tuple[str, str]]:
  """(enclosing primitives, primitive) of a program; a Pallas kernel by its own name.

  JAX leaves kernels in a program whose results nobody reads, and XLA drops them: so here.
  """
  read = {id(x) for eqn in jaxpr.eqns for x in eqn.invars} | {id(x) for x in jaxpr.outvars}
  found = []
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    if name == "pallas_call":
      if any(id(x) in read for x in eqn.outvars):
        found.append((inside, eqn.params["name"]))
      continue
    found.append((inside, name))
    for value in eqn.params.values():
      for inner in value if isinstance(value, (tuple, list)) else [value]:
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          found += _primitives(inner, f"{inside}/{name}")
  return found


_POLICIES = {
  "saving": jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES),
  "nothing": jax.checkpoint_policies.nothing_saveable,
}


def _layers_gradient(policy: str, blocks: tuple[int, int], **options):
  """The gradient of scanned layers by their weights [layers, heads, heads] and k and v."""

  def loss(weights, kv, x, visible_until):
    pairs = block_pairs(visible_until, *blocks)

    @functools.partial(jax.checkpoint, prevent_cse=False, policy=_POLICIES[policy])
    def layer(x, weight):
      q = jnp.einsum("blhd,hi->blid", x, weight)
      return x + tree_attention(q, *kv, visible_until, pairs, **options), None

    return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

  return jax.grad(loss, argnums=(0, 1))


def test_a_policy_that_saves_the_names_runs_the_forward_kernel_once():
  visible_until = jnp.asarray(_layout("packed", _SLOTS))[None]
  x, *kv = _qkv(11, 1, _SLOTS, 4, 2, 16)
  weights = np.random.default_rng(12).normal(size=(3, 4, 4)).astype(np.float32)
  arguments = (weights, tuple(kv), x, visible_until)
  counts, results = {}, {}
  for policy in _POLICIES:
    gradient = _layers_gradient(policy, (_BLOCK, _BLOCK), interpret=True)
    program = _primitives(jax.make_jaxpr(gradient)(*arguments).jaxpr)
    names = [name for _, name in program]
    counts[policy] = [names.count(f"tree_attention_{x}") for x in ("forward", "dq", "dkv")]
    # The lists are built before the layers, not in each.
    packing = [place for place, name in program if name == "shift_left"]
    assert packing and not any("scan" in place for place in packing)
    results[policy] = jax.jit(gradient)(*arguments)
  assert counts == {"saving": [1, 1, 1], "nothing": [2, 1, 1]}
  for a, b in zip(*map(jax.tree.leaves, results.values()), strict=True):
    assert _scaled_error(a, b) <= 1e-6


def test_the_gradient_keeps_no_matrix_of_scores():
  qkv = _qkv(13, 1, _SLOTS, 4, 2, 16)
  visible_until = jnp.asarray(_layout("causal", _SLOTS))[None]
  pairs = block_pairs(visible_until, _BLOCK, _BLOCK)
  run = lambda *qkv: tree_attention(*qkv, visible_until, pairs, interpret=True)
  _, vjp = jax.vjp(run, *qkv)
  kept = [x for x in jax.tree.leaves(vjp) if x.dtype == jnp.float32 and x.ndim]
  q, kv, lse = (1, 4, _SLOTS, 16), (1, 2, _SLOTS, 16), (1, 4, 1, _SLOTS)
  assert sorted(x.shape for x in kept) == sorted([q, kv, kv, q, lse])


def _split(mesh, **options):
  """The kernel over `mesh`: rows over data and fsdp, heads over tensor."""
  rows, heads = P(("data", "fsdp")), P(("data", "fsdp"), None, "tensor")
  call = functools.partial(tree_attention, **options)
  specs = (heads, heads, heads, rows, rows)
  # check_vma: Pallas does not say over which axes its outputs vary.
  return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)


def test_eight_devices_compute_what_one_does():
  mesh = make_mesh(data=2, fsdp=2, tensor=2)
  qkv = _qkv(14, 8, _SLOTS, 4, 2, 16)
  d_out = _qkv(15, 8, _SLOTS, 4, 4, 16)[0]
  names = ("causal", "packed", "padded", "packed")
  visible_until = jnp.asarray([_layout(name, _SLOTS) for name in names * 2])

  @jax.jit
  def run(qkv, visible_until, d_out):
    pairs = block_pairs(visible_until, _BLOCK, _BLOCK)
    sharded = _split(mesh, interpret=True)
    out, vjp = jax.vjp(lambda *qkv: sharded(*qkv, visible_until, pairs), *qkv)
    return out, vjp(d_out)

  rows = NamedSharding(mesh, P(("data", "fsdp")))
  heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor"))
  arguments = jax.device_put((qkv, visible_until, d_out), (heads, rows, heads))
  _assert_equal(run(*arguments), _reference(qkv, visible_until, d_out))
  assert "all-gather" not in run.lower(*arguments).compile().as_text()


@pytest.fixture
def chips(monkeypatch):
  """Four chips of v6e, which programs are compiled for though none is here."""
  pytest.importorskip("libtpu", reason="compiling for TPU needs libtpu: jax[tpu]")
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # Asks no cloud which machine this is.
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  return topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices


def _kernels(program: str) -> list[str]:
  """Names of the Pallas kernels that a compiled program calls."""
  calls = [x for x in program.splitlines() if 'custom_call_target="tpu_custom_call"' in x]
  return sorted(re.search("tree_attention_(forward|dq|dkv)", x)[1] for x in calls)


@pytest.mark.slow
def test_compiles_for_a_pod_without_one(chips):
  """Forward and backward, 64/8 heads of 128 as in Qwen3-32B, over rows and heads."""
  mesh = make_mesh(fsdp=2, tensor=2, devices=chips)
  slots, head_dim = 4096, 128

  def run(q, k, v, visible_until, d_out):
    pairs = block_pairs(visible_until, *block_sizes(slots, head_dim))

    def call(*qkv):
      # Heads first outside too, so that the memory counted is the kernel's own.
      qkv = (x.swapaxes(1, 2) for x in qkv)
      return _split(mesh)(*qkv, visible_until, pairs).swapaxes(1, 2)

    out, vjp = jax.vjp(call, q, k, v)
    return out, vjp(d_out)

  heads, rows = (NamedSharding(mesh, P("fsdp", *axes)) for axes in (("tensor",), ()))
  q, kv = (
    jax.ShapeDtypeStruct((2, n, slots, head_dim), jnp.bfloat16, sharding=heads) for n in (64, 8)
  )
  visible_until = jax.ShapeDtypeStruct((2, slots), jnp.int32, sharding=rows)
  compiled = jax.jit(run).lower(q, kv, kv, visible_until, q).compile()
  program = compiled.as_text()
  assert _kernels(program) == ["dkv", "dq", "forward"]
  assert "all-gather" not in program and "all-reduce" not in program
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * 2**20


@pytest.mark.slow
def test_the_compiled_layers_run_the_forward_kernel_once(chips):
  chip = SingleDeviceSharding(chips[0])
  shapes = ((3, 4, 4), ((1, 256, 2, 128),) * 2, (1, 256, 4, 128))
  array = lambda shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=chip)
  is_shape = lambda x: isinstance(x[0], int)
  arguments = jax.tree.map(array, shapes, is_leaf=is_shape)
  found = {}
  for policy in _POLICIES:
    gradient = jax.jit(_layers_gradient(policy, (128, 128)))
    program = gradient.lower(*arguments, array((1, 256), jnp.int32)).compile().as_text()
    found[policy] = _kernels(program)
  once = ["dkv", "dq", "forward"]
  assert found == {"saving": once, "nothing": [*once, "forward"]}


# Sizes and refusals.


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


def _abstract(heads=4, kv_heads=2, slots=_SLOTS, batch=1, dtype=jnp.float32):
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
    (lambda q, k, v, u: (q, k, v, _abstract(slots=9)[3]), r"\[1, 9\].*\[1, 40\]"),
  ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(tree_attention, *change(*_abstract()))


def test_pairs_of_other_rows_or_for_no_chip_are_refused():
  arguments = _abstract()
  pairs = functools.partial(block_pairs, jnp.full((1, 64), 64, jnp.int32))
  with pytest.raises(ValueError, match="not those of 1 rows of 40 slots"):
    jax.eval_shape(tree_attention, *arguments, pairs(_BLOCK, _BLOCK))
  own = block_pairs(jnp.full((1, _SLOTS), _SLOTS, jnp.int32), _BLOCK, _BLOCK)
  with pytest.raises(ValueError, match="multiples of 128"):
    jax.eval_shape(tree_attention, *arguments, own)


def test_rows_too_long_for_an_entry_or_the_scalar_memory_are_refused():
  too_long = jax.ShapeDtypeStruct((1, 4096 * 128), jnp.int32)
  with pytest.raises(ValueError, match="4096 blocks of 128 queries.*at most 4095"):
    jax.eval_shape(functools.partial(block_pairs, block_q=128, block_k=128), too_long)
  fits = jax.ShapeDtypeStruct((1, 4095 * 128), jnp.int32)
  jax.eval_shape(functools.partial(block_pairs, block_q=128, block_k=128), fits)
  with pytest.raises(ValueError, match="8 rows of 131072 slots list 8 · 32896 block pairs"):
    jax.eval_shape(tree_attention, *_abstract(slots=2**17, batch=8))
  with pytest.raises(ValueError, match="float32.*int32"):
    block_pairs(jnp.ones((1, 8)), 8, 8)
