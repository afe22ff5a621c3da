"""Rows of trees for tests, and the tree kernel beside the reference."""

import functools

from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from her_jax.models.attention import attention
from her_jax.models.block_pairs import block_pairs
from her_jax.models.tree_attention import tree_attention

# Blocks of 8 slots are computed by the same kernel as those of 128, and fast. One that the
# row's end cuts is among them.
SLOTS, BLOCK = 39, 8
# Most programs of tests run once: LLVM's optimisations would take half of the time.
QUICK_COMPILE = {"xla_backend_optimization_level": 0}


@st.composite
def layouts(draw, slots: int = SLOTS) -> np.ndarray:
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


def named_row(name: str, slots: int) -> np.ndarray:
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


def qkv_of(seed: int, batch: int, slots: int, heads: int, kv_heads: int, head_dim: int):
  rng = np.random.default_rng(seed)
  shapes = [(batch, slots, n, head_dim) for n in (heads, kv_heads, kv_heads)]
  return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@functools.partial(jax.jit, static_argnames="blocks", compiler_options=QUICK_COMPILE)
def kernel(qkv, visible_until, d_out, blocks=(BLOCK, BLOCK)):
  """out, (dq, dk, dv); the blocks are those of `block_sizes` when None."""
  pairs = None if blocks is None else block_pairs(visible_until, *blocks)
  call = lambda *qkv: tree_attention(*qkv, visible_until, pairs, interpret=True)
  out, vjp = jax.vjp(call, *qkv)
  return out, vjp(d_out)


@functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
def reference(qkv, visible_until, d_out):
  """As `kernel`."""
  out, vjp = jax.vjp(lambda *qkv: attention(*qkv, None, visible_until), *qkv)
  return out, vjp(d_out)


def scaled_error(found, expected) -> float:
  """The greatest difference, in units of the greatest value (or of 1, if that is more)."""
  found, expected = (np.asarray(x, np.float64) for x in (found, expected))
  return np.abs(found - expected).max() / max(1.0, np.abs(expected).max())


def assert_equal(found, expected, out_bound=2e-6, gradient_bound=1e-5):
  assert np.abs(np.asarray(found[0]) - np.asarray(expected[0])).max() <= out_bound
  for name, a, b in zip(("dq", "dk", "dv"), found[1], expected[1], strict=True):
    assert scaled_error(a, b) <= gradient_bound, name
