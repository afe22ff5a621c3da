"""Rows whose queries are dealt out over the devices of the mesh axis `context`.

A row of length L lives in c equal runs of slots, one a device. Were each device's attention
to compute the queries of its own run, the last would have (2c - 1) / c times the work of the
mean in a causal row: 1.5 times with c = 2, 1.75 times with 4. So inside attention the halves
of the runs change places, once for q and once back for the output, and every device has an
early and a late chunk:

    c = 2    home    0 1 | 2 3          dealt    0 3 | 2 1
    c = 4    home    0 1 | 2 3 | 4 5 | 6 7    dealt    0 7 | 2 5 | 4 3 | 6 1

A causal row's work is then the same on all. What moves is half of q and of the output, small
beside what is computed: 0.5 GiB each in a row of 131,072 slots of Qwen3-32B with c = 2,
against 141 TFLOP. Keys and values are gathered whole: they are the smaller part (8 heads of
64), and the transpose of the gather sums their gradients straight back into the runs.

All functions run inside `jax.shard_map`.
"""

import jax
from jax import lax
import jax.numpy as jnp

from her_jax.models.block_pairs import round_up

# Of a permutation of the devices: (from, to).
Way = list[tuple[int, int]]


def gather(x: jax.Array, axis: str) -> jax.Array:
  """Whole rows [batch, length, ...] of the devices' runs [batch, length / c, ...]."""
  return lax.all_gather(x, axis, axis=1, tiled=True)


def deal(x: jax.Array, axis: str, block: int) -> jax.Array:
  """A device's two chunks, in the order of `block_pairs.first_queries`.

  Args:
    x: [batch, length / c, ...], a device's run of slots; of an even length.
    axis: of the mesh, c devices.
    block: each chunk is filled up with zeros until it is a multiple.

  Returns:
    [batch, 2 · chunk, ...].
  """
  there, _ = _ways(lax.axis_size(axis))
  chunk = x.shape[1] // 2
  width = [(0, 0)] * x.ndim
  width[1] = (0, round_up(chunk, block) - chunk)
  moved = _move((x[:, :chunk], x[:, chunk:]), axis, there)
  return jnp.concatenate([jnp.pad(half, width) for half in moved], axis=1)


def collect(x: jax.Array, axis: str, length: int) -> jax.Array:
  """The inverse of `deal`: a device's run [batch, length, ...]."""
  _, back = _ways(lax.axis_size(axis))
  chunk, padded = length // 2, x.shape[1] // 2
  return jnp.concatenate(_move((x[:, :chunk], x[:, padded : padded + chunk]), axis, back), 1)


def _move(halves: tuple[jax.Array, jax.Array], axis: str, ways: list[Way]) -> list[jax.Array]:
  """Both halves where their ways lead; with c = 2 the first ones stay where they are."""
  return [
    x if all(start == end for start, end in way) else lax.ppermute(x, axis, way)
    for x, way in zip(halves, ways, strict=True)
  ]


def _ways(shards: int) -> tuple[list[Way], list[Way]]:
  """(from, to) of the first and of the second halves: out, and back.

  Chunk j goes to device min(j, 2c - 1 - j). Of the two that meet there one is even, and so a
  first half, and one is odd: each half moves by a permutation.
  """
  home = lambda j: min(j, 2 * shards - 1 - j)
  out = [[(shard, home(2 * shard + half)) for shard in range(shards)] for half in (0, 1)]
  return out, [[(b, a) for a, b in way] for way in out]
