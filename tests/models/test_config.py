"""Presets have the published sizes, and a config that means nothing is refused."""

import dataclasses
import json
import math

import jax
import pytest

from her_jax.errors import ConfigError
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.models.qwen3 import abstract_model
from tests.models.variants import VARIANTS

_PUBLISHED = {
  "qwen3-0.6b": 596_049_920,
  "qwen3-1.7b": 1_720_574_976,
  "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360,
  "qwen3-14b": 14_768_307_200,
  "qwen3-32b": 32_762_123_264,
}


@pytest.mark.parametrize("name", PRESETS)
def test_num_params_counts_every_parameter(name):
  config = PRESETS[name]
  _, params = abstract_model(config)
  assert config.num_params() == sum(math.prod(p.shape) for p in jax.tree.leaves(params))
  assert config.num_params() == _PUBLISHED.get(name, config.num_params())


@pytest.mark.parametrize("name", ["llama", "yarn"])
def test_num_params_counts_every_parameter_of_variants(name):
  _, params = abstract_model(VARIANTS[name])
  counted = sum(math.prod(p.shape) for p in jax.tree.leaves(params))
  assert VARIANTS[name].num_params() == counted


@pytest.mark.parametrize("name", VARIANTS)
def test_config_survives_the_metadata_of_a_checkpoint(name):
  meta = json.loads(json.dumps(dataclasses.asdict(VARIANTS[name])))
  assert ModelConfig(**meta) == VARIANTS[name]
  hash(ModelConfig(**meta))


@pytest.mark.parametrize(
  "change",
  [
    {"head_dim": 31},
    {"num_layers": 0},
    {"num_layers": True},
    {"hidden_size": 32.0},
    {"vocab_multiple": "4"},
    {"rope_theta": math.nan},
    {"rope_theta": math.inf},
    {"rope_theta": 1.0},
    {"rms_norm_eps": 0.0},
    {"rms_norm_eps": math.nan},
    {"tie_embeddings": "false"},
    {"qk_norm": 1},
    {"dtype": "int8"},
    {"remat": "some"},
  ],
  ids=str,
)
def test_nonsense_is_refused(change):
  with pytest.raises(ConfigError, match=next(iter(change))):
    dataclasses.replace(PRESETS["tiny"], **change)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1, 10**400, True, "2"])
@pytest.mark.parametrize(
  ("name", "field"),
  [
    ("linear", "factor"),
    ("yarn", "factor"),
    ("yarn", "beta_slow"),
    ("yarn", "mscale"),
    ("llama3", "factor"),
    ("llama3", "low_freq_factor"),
    ("llama3", "high_freq_factor"),
  ],
)
def test_a_rotary_scaling_is_made_of_finite_numbers(name, field, value):
  with pytest.raises(ConfigError, match=f"rope_scaling: {field} must be a finite number"):
    dataclasses.replace(VARIANTS[name].rope_scaling, **{field: value})
