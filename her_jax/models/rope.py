"""Rotary position embeddings (Su et al., arXiv:2104.09864), split-half layout."""

import jax
import jax.numpy as jnp


def rope_angles(
  positions: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of every rotation, computed once for all layers.

  Pair `p` of a head turns by `position · theta^(-2p / head_dim)`. Angles stay float32:
  bfloat16 rounds position 257 to 256, and the two are a whole radian apart for pair 0.

  Args:
    positions: int32 [batch, length], counted along the path from the root.
    head_dim: Width of one head.
    theta: Base of the frequencies.

  Returns:
    cos, sin: float32 [batch, length, 1, head_dim / 2]; the 1 stands for the heads.
  """
  exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
  angles = positions[..., None, None].astype(jnp.float32) * theta**-exponents
  return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates pair (x[p], x[p + head_dim / 2]) of every head.

  A quarter turn (cos 0, sin 1) takes the pair (3, 4) to (-4, 3).

  Args:
    x: [batch, length, heads, head_dim].
    cos: float32 [batch, length, 1, head_dim / 2].
    sin: The same shape.

  Returns:
    [batch, length, heads, head_dim], in x's dtype.
  """
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  return turned.astype(x.dtype)
