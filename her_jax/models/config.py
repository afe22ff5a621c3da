"""Shape and numerics of a Qwen3 decoder, and its Hugging Face spelling."""

from collections.abc import Mapping
import dataclasses
from typing import Any, Literal, get_args

_FLOAT_DTYPES = ("float32", "bfloat16", "float16")
Remat = Literal["full", "attention", "projections", "minimal", "none"]
Attention = Literal[
  "auto", "reference", "tree", "tree_interpret", "splash", "splash_interpret", "cudnn"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """Everything that fixes a Qwen3 decoder's parameters and forward pass.

  Attributes:
    vocab_size: Rows of the embedding; the tokenizer may have fewer.
    hidden_size: Width of the residual stream.
    intermediate_size: Width of the SwiGLU MLP.
    num_layers: Decoder layers.
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    head_dim: Width of one head. Not `hidden_size / num_heads`: Qwen3-32B has 128, not 80.
    tie_embeddings: Whether the output head is the transposed embedding.
    max_position_embeddings: Longest context the weights were trained for.
    rope_theta: Base of the rotary frequencies.
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
  rope_theta: float = 1e6
  rms_norm_eps: float = 1e-6
  dtype: str = "bfloat16"
  param_dtype: str = "float32"
  remat: Remat = "full"
  attention: Attention = "auto"

  def __post_init__(self):
    sizes = (
      "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
      "num_kv_heads", "head_dim", "max_position_embeddings",
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

  def num_params(self) -> int:
    """Exact number of parameters, a tied head counted once.

    embedding                   vocab · hidden          (twice when untied)
    q and o projection, a layer 2 · hidden · heads · head_dim
    k and v projection          2 · hidden · kv_heads · head_dim
    q and k norm                2 · head_dim
    gate, up, down projection   3 · hidden · intermediate
    two layer norms             2 · hidden
    final norm                  hidden
    """
    attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
    mlp = 3 * self.hidden_size * self.intermediate_size
    norms = 2 * self.head_dim + 2 * self.hidden_size
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


# Our field -> the field of Hugging Face's Qwen3 config.json.
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

# Fields that change the forward pass, with the only value implemented here.
_HF_FIXED = {
  "model_type": "qwen3",
  "hidden_act": "silu",
  "attention_bias": False,
  "use_sliding_window": False,
}


def from_hf(hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
  """Reads a Hugging Face `config.json`.

  Args:
    hf: The parsed file, with `rope_theta` and `rope_scaling` (transformers 4) or
      `rope_parameters` (transformers 5).
    **overrides: Fields of `ModelConfig` that the file does not decide: `dtype`,
      `param_dtype`, `remat`.

  Raises:
    ValueError: A field is missing, or asks for something that is not implemented.
  """
  for name, only in _HF_FIXED.items():
    if hf.get(name, only) != only:
      raise ValueError(f"config.json: {name}={hf[name]!r} is unsupported, only {only!r} is.")
  missing = [name for name in _HF_FIELDS.values() if name not in hf]
  if missing:
    raise ValueError(f"config.json lacks {', '.join(missing)}; add them: none has a default.")
  fields = {ours: hf[theirs] for ours, theirs in _HF_FIELDS.items()}
  return ModelConfig(**{**fields, "rope_theta": _rope_theta(hf), **overrides})


def _rope_theta(hf: Mapping[str, Any]) -> float:
  """The rotary base in either spelling; raises on any scaling of the frequencies."""
  ropes = [hf.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
  for rope in ropes:
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
      raise ValueError(
        f"config.json asks for {rope_type!r} rotary scaling, which is not implemented. Remove "
        "it to use the context the weights were trained for (40,960 tokens for Qwen3)."
      )
  thetas = {float(rope["rope_theta"]) for rope in (hf, *ropes) if "rope_theta" in rope}
  if len(thetas) != 1:
    raise ValueError(
      "config.json needs one rope_theta, at the top or in rope_parameters; "
      f"found {sorted(thetas) or 'none'}."
    )
  return thetas.pop()


def to_hf(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
  """The Hugging Face `config.json`, readable by transformers 4 and 5.

  Args:
    config: The model.
    dtype: Of the weights beside the file.
  """
  return {
    "architectures": ["Qwen3ForCausalLM"],
    **_HF_FIXED,
    **{theirs: getattr(config, ours) for ours, theirs in _HF_FIELDS.items()},
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "rope_theta": config.rope_theta,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    "sliding_window": None,
    "use_cache": True,
    "dtype": dtype,
    "torch_dtype": dtype,
  }
