"""Presets have the published sizes; config.json is read and written without guessing."""

import dataclasses
import json
import math

import jax
import pytest
from transformers import Qwen3Config

from her_jax.models.config import PRESETS, from_hf, to_hf
from her_jax.models.qwen3 import abstract_model

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


@pytest.mark.parametrize("name", PRESETS)
def test_config_survives_the_round_trip_through_transformers(name, tmp_path):
  config = PRESETS[name]
  Qwen3Config(**to_hf(config)).save_pretrained(tmp_path)
  written = json.loads((tmp_path / "config.json").read_text())
  again = from_hf(written, dtype=config.dtype, remat=config.remat)
  assert again == config


def test_rope_theta_is_read_in_both_spellings():
  hf = to_hf(dataclasses.replace(PRESETS["tiny"], rope_theta=12345.0))
  old = {k: v for k, v in hf.items() if k != "rope_parameters"}
  new = {k: v for k, v in hf.items() if k not in ("rope_theta", "rope_scaling")}
  assert from_hf(old).rope_theta == from_hf(new).rope_theta == 12345.0
  with pytest.raises(ValueError, match="one rope_theta"):
    from_hf({**hf, "rope_theta": 10000.0})
  del old["rope_theta"]
  with pytest.raises(ValueError, match="found none"):
    from_hf(old)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' rotary scaling"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}}, "'linear' rotary"),
    ({"model_type": "qwen3_moe"}, "qwen3_moe"),
    ({"attention_bias": True}, "attention_bias"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"num_key_value_heads": 3}, "not a multiple"),
  ],
)
def test_unsupported_config_is_refused_in_words(change, message):
  with pytest.raises(ValueError, match=message):
    from_hf({**to_hf(PRESETS["tiny"]), **change})


def test_absent_field_is_named_not_defaulted():
  hf = to_hf(PRESETS["tiny"])
  del hf["head_dim"]
  with pytest.raises(ValueError, match="lacks head_dim"):
    from_hf(hf)


@pytest.mark.parametrize(
  "change", [{"head_dim": 31}, {"num_layers": 0}, {"dtype": "int8"}, {"remat": "some"}]
)
def test_nonsense_is_refused(change):
  with pytest.raises(ValueError, match=next(iter(change))):
    dataclasses.replace(PRESETS["tiny"], **change)
