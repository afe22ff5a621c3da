"""Tells weights from other weights, in a log line."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Odd, so that a product with one loses nothing modulo 2**32.
_ODD = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0xB5297A4D)
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def fingerprint(params: Any) -> str:
  """16 hexadecimal digits that are the same for the same numbers, however they are split.

  Two sums modulo 2**32 an array, of the numbers' bits times what comes of their places: so it
  takes one reading of the weights where they lie, 6 ms for Qwen3-32B on four chips of v5p by their
  peak, and eight bytes an array are sent. Paths, shapes and dtypes bear on it as well. Not against
  anyone who wants to deceive it.

  Args:
    params: A tree of arrays, of all hosts or of this one alone. Where they are of all hosts, all
      have to call it.
  """
  found = hashlib.sha256()
  leaves = jax.tree_util.tree_leaves_with_path(params)
  sums = jax.device_get(_sums([leaf for _, leaf in leaves]))
  for (path, leaf), (one, two) in zip(leaves, sums, strict=True):
    about = f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape} "
    found.update(about.encode() + int(one).to_bytes(4, "big") + int(two).to_bytes(4, "big"))
  return found.hexdigest()[:16]


@jax.jit
def _sums(leaves: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
  return [(_sum(leaf, 0), _sum(leaf, 1)) for leaf in leaves]


def _sum(x: jax.Array, which: int) -> jax.Array:
  """uint32 scalar. Sums that wrap around do not depend on their order."""
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  bits = jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)
  # Of the axes one by one: 64 · 5120 · 25,600 places would overflow a counter of 32 bits.
  place = jnp.full(x.shape, np.uint32(which + 1), jnp.uint32)
  for axis in range(x.ndim):
    place = (place ^ (place >> 15)) * np.uint32(_ODD[which])
    place += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * np.uint32(_ODD[2 + which])
  place = (place ^ (place >> 13)) * np.uint32(_ODD[4 + which])
  mixed = bits * np.uint32(_ODD[1 - which]) + np.uint32(1)
  mixed = (mixed ^ (mixed >> 16)) * (place ^ (place >> 16) | np.uint32(1))
  return jnp.sum(mixed, dtype=jnp.uint32)
