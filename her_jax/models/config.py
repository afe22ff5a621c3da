"""Shape and numerics of a Qwen3 or Llama decoder, and its Hugging Face spelling."""

from collections.abc import Mapping
import dataclasses
from typing import Any, Literal, get_args

_FLOAT_DTYPES = ("float32", "bfloat16", "float16")
Remat = Literal["full", "attention", "projections", "minimal", "none"]
Attention = Literal[
  "auto", "reference", "tree", "tree_interpret", "splash", "splash_interpret", "cudnn"
]

# Kind of rotary scaling -> the fields it must have, and those it may have.
_SCALINGS = {
  "linear": (("factor",), ()),
  "yarn": (
    ("factor", "original_max_position_embeddings"),
    ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
  ),
  "llama3": (
    ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    (),
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
  """How rotary frequencies are slowed down for a longer context; see `rope.scaling_factors`.

  The fields carry Hugging Face's names. One that is None is absent in the file too, and the
  formula's own value holds.

  Attributes:
    rope_type: "linear", "yarn" or "llama3".
    factor: By which the context grows; at least 1.
    original_max_position_embeddings: The context before, in tokens.
    beta_fast: YaRN keeps pairs that turn more often than this in that context (32).
    beta_slow: YaRN slows pairs that turn more rarely by the whole factor (1).
    attention_factor: YaRN's multiplier of every query and key.
    mscale: With `mscale_all_dim`, another way to that multiplier.
    mscale_all_dim: See `mscale`.
    truncate: Whether YaRN rounds the ends of its ramp to whole pairs (True).
    low_freq_factor: Llama 3 slows pairs that turn more rarely by the whole factor.
    high_freq_factor: Llama 3 keeps pairs that turn more often.
  """

  rope_type: Literal["linear", "yarn", "llama3"]
  factor: float
  original_max_position_embeddings: int | None = None
  beta_fast: float | None = None
  beta_slow: float | None = None
  attention_factor: float | None = None
  mscale: float | None = None
  mscale_all_dim: float | None = None
  truncate: bool | None = None
  low_freq_factor: float | None = None
  high_freq_factor: float | None = None

  def __post_init__(self):
    if self.rope_type not in _SCALINGS:
      raise ValueError(
        f"rope_type={self.rope_type!r} is not implemented, only default, "
        f"{', '.join(_SCALINGS)} are. Take rope_scaling out to use the context the weights "
        "were trained for (40,960 tokens for Qwen3)."
      )
    required, optional = _SCALINGS[self.rope_type]
    given = {name for name, value in self.to_hf().items() if name != "rope_type"}
    if lacks := [name for name in required if name not in given]:
      raise ValueError(f"rope_type {self.rope_type!r} lacks {', '.join(lacks)}; add them.")
    if unread := sorted(given - {*required, *optional}):
      raise ValueError(f"rope_type {self.rope_type!r} does not read {', '.join(unread)}.")
    for name in sorted(given - {"truncate"}):
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"rope_scaling: {name} must be a number above 0, got {value!r}.")
    if self.factor < 1:
      raise ValueError(f"rope_scaling: factor must be at least 1, got {self.factor}.")
    if not isinstance(self.truncate, bool | None):
      raise ValueError(f"rope_scaling: truncate must be true or false, got {self.truncate!r}.")
    ramps = {
      "yarn": ("beta_slow", self.beta_slow or 1, "beta_fast", self.beta_fast or 32),
      "llama3": (
        "low_freq_factor", self.low_freq_factor or 0, "high_freq_factor",
        self.high_freq_factor or 0,
      ),
    }  # fmt: skip
    if self.rope_type in ramps:
      low, below, high, above = ramps[self.rope_type]
      if below >= above:
        raise ValueError(f"rope_scaling: {low}={below} must be less than {high}={above}.")

  def to_hf(self) -> dict[str, Any]:
    """The fields that are set."""
    return {name: value for name, value in vars(self).items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """Everything that fixes a decoder's parameters and forward pass.

  Attributes:
    vocab_size: Rows of the embedding in a checkpoint; the tokenizer may have fewer.
    vocab_multiple: The table held here is filled up with rows of zeros to a multiple of it,
      so that the `tensor` axis of a mesh divides them.
    hidden_size: Width of the residual stream.
    intermediate_size: Width of the SwiGLU MLP.
    num_layers: Decoder layers.
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    head_dim: Width of one head. Not `hidden_size / num_heads`: Qwen3-32B has 128, not 80.
    tie_embeddings: Whether the output head is the transposed embedding.
    max_position_embeddings: Longest context the weights were trained for. Nothing is cut
      at it.
    qk_norm: Whether every query and key head is normalised, as in Qwen3; Llama does not.
    rope_theta: Base of the rotary frequencies.
    rope_scaling: Of those frequencies, for a longer context; a mapping becomes one.
    rms_norm_eps: Added to the mean square in every RMSNorm.
    dtype: Of the computation; logits and softmax are float32 whatever it says.
    param_dtype: Of the stored parameters. bfloat16 has steps of 1e-4 at 0.02, so updates
      of 1e-6 vanish: train with float32.
    remat: What the backward pass finds, beside each layer's input, and need not compute
      again: "full" nothing; "attention" what the attention kernel put out; "projections" q,
      k, v and the residual stream between attention and MLP; "minimal" q, k, v, what the
      kernel put out and the MLP's gate and up, so that of a layer's products only attention's
      output projection runs twice; "none" every intermediate.
    attention: "reference" is plain JAX; "tree" the Pallas kernel for TPU; "splash" JAX's own
      for TPU, only for rows of documents that do not branch; "cudnn" NVIDIA's for GPU. "auto"
      is "tree" on TPU, "cudnn" on a GPU where it can, and the reference elsewhere. A cache is
      always read by the reference.
  """

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  tie_embeddings: bool
  max_position_embeddings: int
  qk_norm: bool = True
  vocab_multiple: int = 1
  rope_theta: float = 1e6
  rope_scaling: RopeScaling | None = None
  rms_norm_eps: float = 1e-6
  dtype: str = "bfloat16"
  param_dtype: str = "float32"
  remat: Remat = "full"
  attention: Attention = "auto"

  def __post_init__(self):
    scaling: Any = self.rope_scaling
    if isinstance(scaling, Mapping):  # As a checkpoint's metadata give it back.
      object.__setattr__(self, "rope_scaling", RopeScaling(**scaling))
    sizes = (
      "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
      "num_kv_heads", "head_dim", "max_position_embeddings", "vocab_multiple",
    )  # fmt: skip
    for name in sizes:
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
        "every key/value head serves the same number of query heads."
      )
    if self.head_dim % 2:
      raise ValueError(f"head_dim={self.head_dim} must be even: RoPE rotates pairs.")
    for name in ("dtype", "param_dtype"):
      if getattr(self, name) not in _FLOAT_DTYPES:
        raise ValueError(f"{name}={getattr(self, name)!r} is not one of {_FLOAT_DTYPES}.")
    for name, allowed in (("remat", get_args(Remat)), ("attention", get_args(Attention))):
      if getattr(self, name) not in allowed:
        raise ValueError(f"{name}={getattr(self, name)!r} is not one of {allowed}.")

  @property
  def vocab_rows(self) -> int:
    """Rows of the table as held: 151,936 with a multiple of 10 are 151,940."""
    return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

  def num_params(self) -> int:
    """Exact number of parameters, a tied head counted once and filled-up rows not at all.

    embedding                   vocab · hidden          (twice when untied)
    q and o projection, a layer 2 · hidden · heads · head_dim
    k and v projection          2 · hidden · kv_heads · head_dim
    q and k norm                2 · head_dim            (none without qk_norm)
    gate, up, down projection   3 · hidden · intermediate
    two layer norms             2 · hidden
    final norm                  hidden
    """
    attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
    mlp = 3 * self.hidden_size * self.intermediate_size
    norms = 2 * self.head_dim * self.qk_norm + 2 * self.hidden_size
    embedding = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
    return embedding + self.num_layers * (attention + mlp + norms) + self.hidden_size


def _qwen3(hidden: int, mlp: int, layers: int, heads: int, tied: bool) -> ModelConfig:
  """A published dense Qwen3; all share vocabulary, KV heads, head width and context."""
  return ModelConfig(
    vocab_size=151_936,
    hidden_size=hidden,
    intermediate_size=mlp,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=8,
    head_dim=128,
    tie_embeddings=tied,
    max_position_embeddings=40_960,
  )


PRESETS: Mapping[str, ModelConfig] = {
  # For laptops and tests. vocab_size stands in for that of the tokenizer in use.
  "tiny": ModelConfig(
    vocab_size=4096,
    hidden_size=128,
    intermediate_size=256,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    tie_embeddings=True,
    max_position_embeddings=4096,
    rope_theta=1e4,
    dtype="float32",
    remat="none",
  ),
  "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
  "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
  "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
  "qwen3-8b": _qwen3(4096, 12_288, 36, 32, tied=False),
  "qwen3-14b": _qwen3(5120, 17_408, 40, 40, tied=False),
  "qwen3-32b": _qwen3(5120, 25_600, 64, 64, tied=False),
}


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
