"""Scaled rotary frequencies against transformers' own, for any setting of them."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from her_jax.models.config import RopeScaling
from her_jax.models.rope import rope_angles, scaling_factors

_NUMBER = st.floats(0.1, 64.0)


@st.composite
def _scalings(draw) -> RopeScaling:
  kind = draw(st.sampled_from(["linear", "yarn", "llama3"]))
  fields = {"rope_type": kind, "factor": draw(st.floats(1.0, 64.0))}
  if kind != "linear":
    fields["original_max_position_embeddings"] = draw(st.integers(1, 200_000))
  if kind == "llama3":
    low = draw(st.floats(0.1, 8.0))
    fields |= {"low_freq_factor": low, "high_freq_factor": low * draw(st.floats(1.1, 8.0))}
  if kind == "yarn":
    fields |= {
      "beta_fast": draw(st.none() | st.floats(8.0, 64.0)),
      "beta_slow": draw(st.none() | st.floats(0.1, 4.0)),
      "attention_factor": draw(st.none() | _NUMBER),
      "mscale": draw(st.none() | _NUMBER),
      "mscale_all_dim": draw(st.none() | _NUMBER),
      "truncate": draw(st.none() | st.booleans()),
    }
  return RopeScaling(**fields)


@settings(max_examples=200)
@given(
  scaling=_scalings(),
  head_dim=st.sampled_from([2, 8, 64, 128]),
  theta=st.sampled_from([100.0, 1e4, 5e5, 1e6]),
)
def test_frequencies_and_attention_factor_are_those_of_transformers(scaling, head_dim, theta):
  config = LlamaConfig(
    hidden_size=2 * head_dim,
    num_attention_heads=2,
    max_position_embeddings=4096,
    rope_parameters={**scaling.to_hf(), "rope_theta": theta},
  )
  theirs, attention = ROPE_INIT_FUNCTIONS[scaling.rope_type](config)
  factors, ours = scaling_factors(scaling, head_dim, theta)
  frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
  # Where the ramp starts and ends at one place, float32 and float64 may differ about a pair.
  np.testing.assert_allclose(factors * frequencies, theirs.numpy(), rtol=1e-4)
  assert ours == pytest.approx(attention)


def test_worked_example_of_yarn():
  scaling = RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
  factors, attention = scaling_factors(scaling, 8, 1e4)
  np.testing.assert_allclose(factors, [1, 0.625, 0.25, 0.25])
  assert attention == pytest.approx(1.139, abs=1e-3)
  cos, sin = rope_angles(np.array([[0, 3]]), 8, 1e4, scaling)
  np.testing.assert_allclose(cos[0, 0, 0], attention)
  np.testing.assert_allclose(sin[0, 1, 0, 1], attention * np.sin(3 * 0.1 * 0.625), rtol=1e-6)


def test_linear_scaling_by_four_stands_at_a_quarter_of_the_position():
  scaled = rope_angles(np.array([[40]]), 8, 1e4, RopeScaling(rope_type="linear", factor=4.0))
  plain = rope_angles(np.array([[10]]), 8, 1e4)
  np.testing.assert_allclose(scaled, plain, rtol=1e-6)
