"""Hugging Face's `config.json` of a dense Qwen3 or a Llama, both ways."""

from collections.abc import Mapping
import reprlib
from typing import Any

from her_jax.errors import ConfigError
from her_jax.models.config import SCALINGS, ModelConfig, RopeScaling, Wanted, require

# Our field -> the field of Hugging Face's config.json, and what it has to be.
_HF_FIELDS: Mapping[str, tuple[str, Wanted]] = {
  "vocab_size": ("vocab_size", "size"),
  "hidden_size": ("hidden_size", "size"),
  "intermediate_size": ("intermediate_size", "size"),
  "num_layers": ("num_hidden_layers", "size"),
  "num_heads": ("num_attention_heads", "size"),
  "num_kv_heads": ("num_key_value_heads", "size"),
  "head_dim": ("head_dim", "size"),
  "tie_embeddings": ("tie_word_embeddings", "switch"),
  "max_position_embeddings": ("max_position_embeddings", "size"),
  "rms_norm_eps": ("rms_norm_eps", "number"),
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
      `param_dtype`, `remat`, `vocab_multiple`.

  Raises:
    ConfigError: A field is missing, is not what it has to be, or asks for something that is not
      implemented. The caller says which file it is.
  """
  kind = hf.get("model_type", "qwen3")
  if kind not in list(_HF_FIXED):  # A set would have to hash it.
    raise ConfigError(
      f"model_type={reprlib.repr(kind)} is unsupported, only {' and '.join(_HF_FIXED)} are."
    )
  for name, only in {**_HF_FIXED[kind], **_HF_UNSUPPORTED}.items():
    value = hf.get(name, only)
    if value != only or isinstance(value, bool) != isinstance(only, bool):
      raise ConfigError(f"{name}={reprlib.repr(value)} is unsupported, only {only!r} is.")
  _check_layers(hf.get("layer_types"))
  for name, wanted in _HF_FIELDS.values():
    if hf.get(name) is not None:
      require(name, hf[name], wanted)
  if kind == "llama":
    hf = _with_llama_defaults(hf)
  missing = [name for name, _ in _HF_FIELDS.values() if hf.get(name) is None]
  if missing:
    raise ConfigError(f"it lacks {', '.join(missing)}; add them: none has a default.")
  fields = {ours: hf[theirs] for ours, (theirs, _) in _HF_FIELDS.items()}
  fields |= {"rope_theta": _rope_theta(hf), "rope_scaling": _rope_scaling(hf)}
  return ModelConfig(**{**fields, "qk_norm": kind == "qwen3", **overrides})


def _check_layers(layers: Any) -> None:
  """Raises unless every layer sees the whole context, if anything is said of it."""
  if not isinstance(layers, list | None):
    raise ConfigError(f"layer_types must be a list or null, got {reprlib.repr(layers)}.")
  if others := [layer for layer in layers or () if layer != "full_attention"]:
    raise ConfigError(
      f"layer_types has {reprlib.repr(others[0])}, which is unsupported, only "
      "'full_attention' is."
    )


def _with_llama_defaults(hf: Mapping[str, Any]) -> dict[str, Any]:
  """Fills in what older Llama files leave out, which has one meaning only."""
  width, heads = hf.get("hidden_size"), hf.get("num_attention_heads")
  derived: dict[str, Any] = {"num_key_value_heads": heads}
  if width and heads:
    derived["head_dim"] = width // heads
  if not any("rope_theta" in rope for rope in _ropes(hf).values()):
    derived["rope_theta"] = 1e4
  return {**hf, **{name: value for name, value in derived.items() if hf.get(name) is None}}


def _ropes(hf: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """The rotary settings that are there, by their spelling, without those that are null."""
  kept = ("factor", "truncate")  # Null says something else than an absent one there.
  found = {}
  for name in ("rope_scaling", "rope_parameters"):
    rope = hf.get(name)
    if not isinstance(rope, Mapping | None):
      raise ConfigError(f"{name} must be an object or null, got {reprlib.repr(rope)}.")
    if rope:
      found[name] = {k: v for k, v in rope.items() if v is not None or k in kept}
  return found


def _rope_theta(hf: Mapping[str, Any]) -> float:
  """The rotary base in either spelling."""
  bases = {"rope_theta": hf.get("rope_theta")}
  bases |= {f"{name}.rope_theta": rope.get("rope_theta") for name, rope in _ropes(hf).items()}
  given = {name: base for name, base in bases.items() if base is not None}
  for name, base in given.items():
    require(name, base, "number")
  thetas = {float(base) for base in given.values()}
  if len(thetas) != 1:
    raise ConfigError(
      "it needs one rope_theta, at the top or in rope_parameters; "
      f"found {sorted(thetas) or 'none'}."
    )
  return thetas.pop()


def _rope_scaling(hf: Mapping[str, Any]) -> RopeScaling | None:
  """The scaling in either spelling; raises where both are there and differ."""
  found = {_one_scaling(name, rope, hf) for name, rope in _ropes(hf).items()}
  if len(found) > 1:
    raise ConfigError(
      "rope_scaling and rope_parameters ask for different scalings of the rotary "
      "frequencies; make them say the same, or take one out."
    )
  return found.pop() if found else None


def _one_scaling(
  name: str, rope: Mapping[str, Any], hf: Mapping[str, Any]
) -> RopeScaling | None:
  """The scaling of one spelling, `name`."""
  kind = rope.get("rope_type", rope.get("type", "default"))
  if rope.get("type", kind) != kind:
    raise ConfigError(
      f"{name} says rope_type={reprlib.repr(kind)} and type={reprlib.repr(rope['type'])}, two "
      "names of one setting; take the wrong one out."
    )
  fields = {k: v for k, v in rope.items() if k not in ("rope_type", "type", "rope_theta")}
  if fields.pop("partial_rotary_factor", 1.0) != 1.0:
    raise ConfigError("partial_rotary_factor is unsupported, only 1.0 is.")
  if kind == "default":
    if unread := sorted(field for field, value in fields.items() if value is not None):
      raise ConfigError(
        f"{name} has {', '.join(unread)}, which rope_type 'default' does not read; give the "
        f"rope_type that is meant ({', '.join(SCALINGS)}), or take them out."
      )
    return None
  if kind in ("yarn", "llama3"):
    # A length at the top of the file goes first, and the context stands in for an absent one.
    context, key = hf["max_position_embeddings"], "original_max_position_embeddings"
    original = fields.get(key, context) if hf.get(key) is None else hf[key]
    require(key, original, "size")
    fields[key] = original
    if kind == "yarn" and fields.get("factor", 1) is None:
      fields["factor"] = context / original
    if fields.get("truncate", True) is None:
      fields["truncate"] = False
  if unread := sorted(fields.keys() - RopeScaling.__dataclass_fields__.keys()):
    raise ConfigError(f"rope_type {kind!r} does not read {', '.join(unread)}.")
  return RopeScaling(**{"factor": None, **fields, "rope_type": kind})


def to_hf(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
  """The Hugging Face `config.json`, readable by transformers 4 and 5.

  A model with norms of queries and keys is written as a Qwen3, one without as a Llama.

  Args:
    config: The model.
    dtype: Of the weights beside the file.

  Raises:
    ConfigError: The model is a Llama of a shape that transformers refuses.
  """
  kind = "qwen3" if config.qk_norm else "llama"
  if kind == "llama" and config.hidden_size % config.num_heads:
    raise ConfigError(
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
    **{theirs: getattr(config, ours) for ours, (theirs, _) in _HF_FIELDS.items()},
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
