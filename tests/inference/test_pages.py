"""Attention through pages equals the reference on every path written out."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from her_jax.inference import batches
from her_jax.inference.batches import Limits, Request
from her_jax.inference.cache import Prefixes
from her_jax.inference.pages import PagedCache, Pool
from her_jax.inference.sampling import Sampling
from her_jax.models.attention import attention

_HEADS, _KV_HEADS, _HEAD = 4, 2, 8
_LIMITS = Limits(
  rows=8, pages=120, page_size=4, context=32, chunk=12, steps=3, shared=2, query_block=8
)


@jax.jit
def _attend(cache: PagedCache, q, k, v):
  return cache.attend(jnp.int32(0), q, k, v)


def _numbers(token: int, position: int, what: int, heads: int) -> np.ndarray:
  """The same for the same token and position, as a first layer's would be."""
  rng = np.random.default_rng((token, position, what))
  return rng.normal(size=(heads, _HEAD)).astype(np.float32)


def _qkv(tokens, positions) -> list[jnp.ndarray]:
  return [
    jnp.asarray([_numbers(t, p, i, n) for t, p in zip(tokens, positions, strict=True)])[None]
    for i, n in enumerate((_HEADS, _KV_HEADS, _KV_HEADS))
  ]


def _wanted(ids: list[int]) -> np.ndarray:
  """The reference for the last of ids."""
  q, k, v = _qkv(ids, range(len(ids)))
  ends = jnp.full((1, len(ids)), len(ids))
  return np.asarray(attention(q, k, v, None, ends)[0, -1])


@example(prompts=[[0, 0, 0], [0, 1, 0]], steps=1)  # Four short runs in a chunk.
@given(
  st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=8),
  st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_every_query_sees_its_path_and_nothing_else(prompts, steps):
  prefixes = Prefixes(_LIMITS.pages, _LIMITS.page_size)
  rng = np.random.default_rng(0)
  # What nobody has written is no number of anybody's: it must not be read.
  junk = lambda *shape: jnp.asarray(1e3 * rng.normal(size=shape).astype(np.float32))
  shape = (1, _LIMITS.pages, _LIMITS.page_size, _KV_HEADS, _HEAD)
  pool = Pool(keys=junk(*shape), values=junk(*shape))
  active = []
  for i, ids in enumerate(prompts):
    request = Request(i, list(ids), Sampling(), room=10)
    request.run, _ = prefixes.admit(ids[:-1])
    active.append(request)

  while reading := batches.chunk(active, prefixes, _LIMITS):
    arrays = reading.arrays
    cache = PagedCache(pool, arrays.slots, arrays.positions, arrays.lists, arrays.places)
    mixed, cache = _attend(cache, *_qkv(arrays.tokens, arrays.positions))
    pool = cache.pool
    at = 0
    for run, count in reading.read:
      path = sum((part.tokens for part in run.path()), [])
      for end in range(run.start + run.computed, run.start + run.computed + count):
        np.testing.assert_allclose(mixed[0, at], _wanted(path[: end + 1]), atol=1e-5)
        at += 1
      run.computed += count

  for request in active:
    request.pages = prefixes.take(request.missing_pages(steps, _LIMITS.page_size))
  rows = batches.rows(active, prefixes, _LIMITS, steps)
  filled = np.array(rows.token)
  for t in range(steps):
    filled[: len(active)] = [request.ids[-1] for request in active]
    positions = np.asarray(rows.position) + t
    cache = PagedCache(pool, rows.slots[:, t], positions, rows.lists, rows.places)
    mixed, cache = _attend(cache, *_qkv(filled, positions))
    pool = cache.pool
    for i, request in enumerate(active):
      np.testing.assert_allclose(mixed[0, i], _wanted(request.ids), atol=1e-5)
      request.ids.append((request.number + t) % 3)
