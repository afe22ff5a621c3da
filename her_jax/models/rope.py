"""Rotary position embeddings (Su et al., arXiv:2104.09864), split-half layout."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from her_jax.models.config import RopeScaling


def rope_angles(
  positions: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of every rotation, computed once for all layers.

  Pair `p` of a head turns by `position · theta^(-2p / head_dim)`, less where it is scaled.
  Angles stay float32: bfloat16 rounds position 257 to 256, and the two are a whole radian
  apart for pair 0.

  Args:
    positions: int32 [batch, length], counted along the path from the root.
    head_dim: Width of one head.
    theta: Base of the frequencies.
    scaling: For a longer context than the weights were first trained for.

  Returns:
    cos, sin: float32 [batch, length, 1, head_dim / 2]; the 1 stands for the heads. Both are
    multiplied by YaRN's attention factor, so that queries and keys are.
  """
  exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
  frequencies = theta**-exponents
  if scaling is None:
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)
  factors, attention = scaling_factors(scaling, head_dim, theta)
  angles = positions[..., None, None].astype(jnp.float32) * (frequencies * factors)
  return attention * jnp.cos(angles), attention * jnp.sin(angles)


def scaling_factors(
  scaling: RopeScaling, head_dim: int, theta: float
) -> tuple[np.ndarray, float]:
  """What every rotary frequency is multiplied by, and the attention factor.

  With factor `s`, original context `L`, and `turns = L · frequency / 2π` the rotations of a
  pair over that context, each pair is multiplied by `(1 - kept) / s + kept`, where `kept` is

  - linear: 0.
  - yarn (Peng et al., arXiv:2309.00071, section 3.2): 1 where the pair turns more than
    `beta_fast` times, 0 where it turns less than `beta_slow` times; between them it falls
    linearly with the pair's number, whose ends are rounded outwards unless `truncate` is
    False. Queries and keys grow by `0.1 · ln s + 1` (section 3.3), or by the quotient of two
    such numbers, ln s weighted with `mscale` and `mscale_all_dim`.
  - llama3 (Grattafiori et al., arXiv:2407.21783; the formula is that of the published
    models): the same between `low_freq_factor` and `high_freq_factor` turns, linear in turns.

  For head_dim 8, theta 10,000, L = 64 and s = 4 the pairs turn 10.2, 1.0, 0.1 and 0.01 times:
  yarn multiplies them by 1, 0.625, 0.25, 0.25 and attention by 1.139.

  Returns:
    float32 [head_dim / 2], and a number.
  """
  pairs = np.arange(head_dim // 2)
  context = scaling.original_max_position_embeddings or 1
  attention = 1.0
  if scaling.rope_type == "linear":
    kept = np.zeros(len(pairs))
  elif scaling.rope_type == "llama3":
    low, high = scaling.low_freq_factor or 0.0, scaling.high_freq_factor or 0.0
    turns = context * theta ** (-2 * pairs / head_dim) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
  else:

    def pair_that_turns(times: float) -> float:
      return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_that_turns(scaling.beta_fast or 32)
    last = pair_that_turns(scaling.beta_slow or 1)
    if scaling.truncate is not False:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    kept = 1 - np.clip((pairs - first) / (last - first or 0.001), 0, 1)
    attention = _attention_factor(scaling)
  return ((1 - kept) / scaling.factor + kept).astype(np.float32), attention


def _attention_factor(scaling: RopeScaling) -> float:
  if scaling.attention_factor is not None:
    return float(scaling.attention_factor)
  grown = lambda weight: 0.1 * weight * math.log(scaling.factor) + 1
  if scaling.mscale and scaling.mscale_all_dim:
    return grown(scaling.mscale) / grown(scaling.mscale_all_dim)
  return grown(1)


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
