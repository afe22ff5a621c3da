"""Hugging Face's `config.json` of a dense Qwen3 or a Llama, both ways."""

from collections.abc import Mapping
from typing import Any

from her_jax.models.config import ModelConfig, RopeScaling

# Our field -> the field of Hugging Face's config.json.
_HF_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden_size": "hidden_size",
  "intermediate_size": "intermediate_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "num_kv_heads": "num_key_value_heads",
  "head_dim": "head_dim",
  "tie_embeddings": "tie_word_embeddings",
  "max_position_embeddings": "max_position_embeddings",
  "rms_norm_eps": "rms_norm_eps",
}

# By model_type: fields that change the forward pass, with the only value implemented here.
_HF_FIXED: Mapping[str, Mapping[str, Any]] = {
  "qwen3": {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
  "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
}
# The same, but never written.
_HF_UNSUPPORTED = {"partial_rotary_factor": 1.0, "quantization_config": None}
_ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


def from_hf(hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
  """Reads a Hugging Face `config.json` of a dense Qwen3 or a Llama.

  Args:
    hf: The parsed file, with `rope_theta` and `rope_scaling` (transformers 4), with
      `rope_parameters` (transformers 5), or with both where they agree.
    **overrides: Fields of `ModelConfig` that the file does not decide: `dtype`,
      `param_dtype`, `remat`.

  Raises:
    ValueError: A field is missing, or asks for something that is not implemented.
  """
  kind = hf.get("model_type", "qwen3")
  if kind not in _HF_FIXED:
    raise ValueError(
      f"config.json: model_type={kind!r} is unsupported, only {' and '.join(_HF_FIXED)} are."
    )
  for name, only in {**_HF_FIXED[kind], **_HF_UNSUPPORTED}.items():
    if hf.get(name, only) != only:
      raise ValueError(f"config.json: {name}={hf[name]!r} is unsupported, only {only!r} is.")
  if layers := set(hf.get("layer_types") or ()) - {"full_attention"}:
    raise ValueError(f"config.json: layer_types has {sorted(layers)}, which is unsupported.")
  if kind == "llama":
    hf = _with_llama_defaults(hf)
  missing = [name for name in _HF_FIELDS.values() if hf.get(name) is None]
  if missing:
    raise ValueError(f"config.json lacks {', '.join(missing)}; add them: none has a default.")
  fields = {ours: hf[theirs] for ours, theirs in _HF_FIELDS.items()}
  fields |= {"rope_theta": _rope_theta(hf), "rope_scaling": _rope_scaling(hf)}
  return ModelConfig(**{**fields, "qk_norm": kind == "qwen3", **overrides})


def _with_llama_defaults(hf: Mapping[str, Any]) -> dict[str, Any]:
  """Fills in what older Llama files leave out, which has one meaning only."""
  width, heads = hf.get("hidden_size"), hf.get("num_attention_heads")
  derived: dict[str, Any] = {"num_key_value_heads": heads}
  if width and heads:
    derived["head_dim"] = width // heads
  if not any("rope_theta" in rope for rope in _ropes(hf)):
    derived["rope_theta"] = 1e4
  return {**hf, **{name: value for name, value in derived.items() if hf.get(name) is None}}


def _ropes(hf: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """The rotary settings that are there, in either spelling, without those that are null."""
  kept = ("factor", "truncate")  # Null says something else than an absent one there.
  found = [hf[name] for name in ("rope_scaling", "rope_parameters") if hf.get(name)]
  return [{k: v for k, v in rope.items() if v is not None or k in kept} for rope in found]


def _rope_theta(hf: Mapping[str, Any]) -> float:
  """The rotary base in either spelling."""
  bases = [rope.get("rope_theta") for rope in (hf, *_ropes(hf))]
  thetas = {float(base) for base in bases if base is not None}
  if len(thetas) != 1:
    raise ValueError(
      "config.json needs one rope_theta, at the top or in rope_parameters; "
      f"found {sorted(thetas) or 'none'}."
    )
  return thetas.pop()


def _rope_scaling(hf: Mapping[str, Any]) -> RopeScaling | None:
  """The scaling in either spelling; raises where both are there and differ."""
  found = {_one_scaling(rope, hf) for rope in _ropes(hf)}
  if len(found) > 1:
    raise ValueError(
      "config.json: rope_scaling and rope_parameters ask for different scalings of the rotary "
      "frequencies; make them say the same, or take one out."
    )
  return found.pop() if found else None


def _one_scaling(rope: Mapping[str, Any], hf: Mapping[str, Any]) -> RopeScaling | None:
  kind = rope.get("rope_type", rope.get("type", "default"))
  fields = {k: v for k, v in rope.items() if k not in ("rope_type", "type", "rope_theta")}
  if fields.pop("partial_rotary_factor", 1.0) != 1.0:
    raise ValueError("config.json: partial_rotary_factor is unsupported, only 1.0 is.")
  if kind == "default":
    return None
  if kind in ("yarn", "llama3"):
    # A length at the top of the file goes first, and the context stands in for an absent one.
    context = hf["max_position_embeddings"]
    original = fields.get("original_max_position_embeddings", context)
    original = hf.get("original_max_position_embeddings") or original
    fields["original_max_position_embeddings"] = original
    if kind == "yarn" and fields.get("factor", 1) is None:
      fields["factor"] = context / original
    if "truncate" in fields:
      fields["truncate"] = bool(fields["truncate"])
  if unread := sorted(fields.keys() - RopeScaling.__dataclass_fields__.keys()):
    raise ValueError(f"config.json: rope_type {kind!r} does not read {', '.join(unread)}.")
  try:
    return RopeScaling(**{"factor": None, **fields, "rope_type": kind})
  except ValueError as error:
    raise ValueError(f"config.json: {error}") from None


def to_hf(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
  """The Hugging Face `config.json`, readable by transformers 4 and 5.

  A model with norms of queries and keys is written as a Qwen3, one without as a Llama.

  Args:
    config: The model.
    dtype: Of the weights beside the file.

  Raises:
    ValueError: The model is a Llama of a shape that transformers refuses.
  """
  kind = "qwen3" if config.qk_norm else "llama"
  if kind == "llama" and config.hidden_size % config.num_heads:
    raise ValueError(
      f"hidden_size={config.hidden_size} is not a multiple of num_heads={config.num_heads}: "
      "transformers loads no such Llama."
    )
  scaling = config.rope_scaling.to_hf() if config.rope_scaling else None
  # Absent, these two would be Llama's own <s> and </s>.
  ids = {"bos_token_id": None, "eos_token_id": None} if kind == "llama" else {}
  return {
    "architectures": [_ARCHITECTURES[kind]],
    "model_type": kind,
    **_HF_FIXED[kind],
    **{theirs: getattr(config, ours) for ours, theirs in _HF_FIELDS.items()},
    **ids,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "rope_theta": config.rope_theta,
    "rope_scaling": scaling,
    "rope_parameters": {
      **(scaling or {"rope_type": "default"}),
      "rope_theta": config.rope_theta,
    },
    **({"sliding_window": None} if kind == "qwen3" else {}),
    "use_cache": True,
    "dtype": dtype,
    "torch_dtype": dtype,
  }
