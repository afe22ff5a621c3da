"""config.json is read and written without guessing."""

import dataclasses
import json
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest
from transformers import AutoConfig

from her_jax.errors import ConfigError
from her_jax.hf.config import from_hf, to_hf
from her_jax.models.config import PRESETS, RopeScaling
from tests.models.variants import VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_config_survives_the_round_trip_through_transformers(name, tmp_path):
  config = VARIANTS[name]
  hf = to_hf(config)
  AutoConfig.for_model(**hf).save_pretrained(tmp_path)
  written = json.loads((tmp_path / "config.json").read_text())
  assert written["model_type"] == hf["model_type"] == ("qwen3" if config.qk_norm else "llama")
  assert from_hf(written, dtype=config.dtype, remat=config.remat) == config
  assert from_hf(hf, dtype=config.dtype, remat=config.remat) == config


@pytest.mark.parametrize("name", VARIANTS)
def test_either_spelling_alone_says_everything(name):
  config = VARIANTS[name]
  hf = to_hf(config)
  new = ("rope_parameters", "dtype")
  old = ("rope_theta", "rope_scaling", "torch_dtype")
  for left_out in (new, old):
    alone = {field: value for field, value in hf.items() if field not in left_out}
    assert from_hf(alone, dtype=config.dtype, remat=config.remat) == config


def test_published_qwen3_config_is_read():
  """Qwen3-32B's own file, as the hub has it, and with the YaRN its card recommends."""
  published = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 25600,
    "max_position_embeddings": 40960, "max_window_layers": 64, "model_type": "qwen3",
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
  }  # fmt: skip
  assert from_hf(published) == PRESETS["qwen3-32b"]
  yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
  assert from_hf({**published, "rope_scaling": yarn}).rope_scaling == RopeScaling(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=32768
  )


def test_llama_file_without_derived_fields_is_read_as_transformers_does():
  hf = to_hf(VARIANTS["llama"])
  for name in ("head_dim", "num_key_value_heads", "rope_theta", "rope_parameters"):
    del hf[name]
  theirs = AutoConfig.for_model(**hf)
  ours = from_hf(hf)
  assert (ours.head_dim, ours.num_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
  assert ours.rope_theta == theirs.rope_parameters["rope_theta"] == 1e4


def test_context_before_yarn_is_found_where_transformers_looks():
  """At the top of the file first; where it is nowhere, it is the context now."""
  hf = to_hf(PRESETS["tiny"])
  del hf["rope_parameters"]
  yarn = {"rope_type": "yarn", "factor": 2.0}
  scaling = lambda **change: from_hf({**hf, **change}).rope_scaling
  assert scaling(rope_scaling=yarn).original_max_position_embeddings == 4096
  named = {**yarn, "original_max_position_embeddings": 64}
  assert scaling(rope_scaling=named).original_max_position_embeddings == 64
  top = {"rope_scaling": named, "original_max_position_embeddings": 32}
  assert scaling(**top).original_max_position_embeddings == 32
  assert scaling(rope_scaling={**named, "factor": None}).factor == 4096 / 64


def test_rope_theta_is_read_in_both_spellings():
  hf = to_hf(dataclasses.replace(PRESETS["tiny"], rope_theta=12345.0))
  with pytest.raises(ValueError, match="one rope_theta"):
    from_hf({**hf, "rope_theta": 10000.0})
  del hf["rope_parameters"]
  assert from_hf(hf).rope_theta == 12345.0
  del hf["rope_theta"]
  with pytest.raises(ValueError, match="found none"):
    from_hf(hf)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' is not"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "Take rope_scaling out"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' lacks factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
    (
      {"rope_scaling": {"rope_type": "linear", "factor": "4"}},
      "a finite number above 0, got '4'",
    ),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 3}}, "not read beta"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "short": 3}}, "not read short"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 0.5}}, "beta_slow=1"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, "different scalings"),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}}, "type='linear'"),
    ({"rope_scaling": {"type": "yarn", "rope_type": "default"}}, "two names of one setting"),
    ({"rope_scaling": {"rope_type": "default", "factor": 2}}, "rope_scaling has factor, which"),
    ({"rope_parameters": {"rope_theta": 1e4, "beta_fast": 3}}, "rope_parameters has beta_fast"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "has full_attention"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    ({"model_type": "qwen3_moe"}, "qwen3_moe.*only qwen3 and llama"),
    ({"model_type": "llama", "mlp_bias": True}, "mlp_bias"),
    ({"attention_bias": True}, "attention_bias"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"num_key_value_heads": 3}, "not a multiple"),
  ],
)
def test_unsupported_config_is_refused_in_words(change, message):
  with pytest.raises(ValueError, match=message):
    from_hf({**to_hf(PRESETS["tiny"]), **change})


_NUMBERS = [True, "131", "", "abc", [], [1], {}, 0, -1, -0.5]
_WRONG = {
  "size": [*_NUMBERS, 32.0, 1.5, 1e400, math.nan, 2**31, 10**400],
  "number": [*_NUMBERS, math.nan, math.inf, -math.inf, 10**400, 1e-400],
  "switch": ["false", "true", "", 0, 1, 0.0, [], {}],
}
_WORDS = {
  "size": "a whole number",
  "number": "a finite number above 0",
  "switch": "true or false",
}
_WANTED = {
  **{f"{field}": "size" for field in (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
  )},
  "tie_word_embeddings": "switch", "rms_norm_eps": "number", "rope_theta": "number",
  "rope_parameters.rope_theta": "number",
  "rope_scaling.factor": "number", "rope_scaling.beta_fast": "number",
  "rope_scaling.attention_factor": "number", "rope_scaling.truncate": "switch",
  "rope_scaling.original_max_position_embeddings": "size",
  "original_max_position_embeddings": "size",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("field", _WANTED)
def test_a_value_of_another_type_is_named_with_what_is_expected(field, kind):
  """Neither converted nor believed: "false" is true to Python, and true is 1."""
  section, _, name = field.rpartition(".")
  wanted = _WANTED[field]
  for value in _WRONG[wanted]:
    hf = to_hf(VARIANTS["yarn"]) | {"model_type": kind}
    del hf["rope_parameters"]
    if section == "rope_parameters":
      del hf["rope_theta"], hf["rope_scaling"]
    (hf.setdefault(section, {}) if section else hf)[name] = value
    with pytest.raises(ConfigError) as error:
      from_hf(hf)
    message = str(error.value)
    assert name in message and f"must be {_WORDS[wanted]}" in message, (value, message)
    assert "got " in message and len(message) < 200


@pytest.mark.parametrize("value", [0, False, 3, "yarn", [], [{"rope_type": "yarn"}], True])
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rotary_settings_are_an_object(field, value):
  with pytest.raises(ConfigError, match=f"{field} must be an object or null"):
    from_hf({**to_hf(PRESETS["tiny"]), field: value})


@pytest.mark.parametrize("value", [[], {}, 3, None, True, ["qwen3"]])
@pytest.mark.parametrize("field", ["model_type", "rope_type", "type", "hidden_act"])
def test_a_kind_is_a_word(field, value):
  hf = to_hf(PRESETS["tiny"])
  if "type" in field[-5:] and field != "model_type":
    if value is None:  # As if it were absent.
      return
    hf |= {"rope_parameters": None, "rope_scaling": {field: value, "factor": 2.0}}
  else:
    hf[field] = value
  with pytest.raises(ConfigError, match="(rope_|model_)?type=|hidden_act="):
    from_hf(hf)


@pytest.mark.parametrize("value", [5, "full_attention", {}, True, [["full_attention"]], [None]])
def test_the_kinds_of_layers_are_a_list_of_words(value):
  with pytest.raises(ConfigError, match="layer_types"):
    from_hf({**to_hf(PRESETS["tiny"]), "layer_types": value})


@pytest.mark.parametrize("field", ["attention_bias", "use_sliding_window"])
@pytest.mark.parametrize("value", [0, "false", None, [], 0.0])
def test_a_switch_that_must_be_off_is_off_and_nothing_like_it(field, value):
  with pytest.raises(ConfigError, match=f"{field}=.*is unsupported, only False is"):
    from_hf({**to_hf(PRESETS["tiny"]), field: value})


@given(
  field=st.sampled_from([*to_hf(VARIANTS["llama3"]), "layer_types", "quantization_config"]),
  value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
  ),
  name=st.sampled_from(["tiny", "yarn", "llama3"]),
)
def test_no_value_raises_anything_else(field, value, name):
  try:
    from_hf({**to_hf(VARIANTS[name]), field: value})
  except ConfigError:
    pass


@pytest.mark.parametrize("field", ["head_dim", "num_key_value_heads", "rms_norm_eps"])
def test_absent_field_is_named_not_defaulted(field):
  hf = to_hf(PRESETS["tiny"])
  del hf[field]
  with pytest.raises(ValueError, match=f"lacks {field}"):
    from_hf(hf)


def test_llama_that_transformers_refuses_is_not_written():
  config = dataclasses.replace(PRESETS["tiny"], qk_norm=False, num_heads=6, num_kv_heads=2)
  with pytest.raises(ValueError, match="not a multiple of num_heads=6"):
    to_hf(config)
