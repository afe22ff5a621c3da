"""Shape and numerics of a Qwen3 or Llama decoder."""

from collections.abc import Mapping
import dataclasses
import reprlib
import sys
from typing import Any, Literal, get_args

from her_jax.errors import ConfigError

_FLOAT_DTYPES = ("float32", "bfloat16", "float16")
Remat = Literal["full", "attention", "projections", "minimal", "none"]
Attention = Literal[
  "auto", "reference", "tree", "tree_interpret", "splash", "splash_interpret", "cudnn"
]

# What a setting can be -> how an error says it.
Wanted = Literal["size", "number", "switch"]
_LARGEST = 2**31 - 1  # Of an axis: XLA counts some in 32 bits.
_WORDS: Mapping[Wanted, str] = {
  "size": f"a whole number from 1 to {_LARGEST:,}",
  "number": "a finite number above 0",
  "switch": "true or false",
}

# Kind of rotary scaling -> the fields it must have, and those it may have.
SCALINGS = {
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


def require(name: str, value: Any, wanted: Wanted) -> None:
  """Raises ConfigError unless a setting is what it has to be.

  JSON lets through what Python then takes for something else: "false" is true, and true is 1.
  32.0 is no size, and neither NaN nor 10**400 is a number.
  """
  number = isinstance(value, int | float) and not isinstance(value, bool)
  fits = {
    "size": number and isinstance(value, int) and 1 <= value <= _LARGEST,
    "number": number and 0 < value <= sys.float_info.max,
    "switch": isinstance(value, bool),
  }
  if not fits[wanted]:
    raise ConfigError(f"{name} must be {_WORDS[wanted]}, got {reprlib.repr(value)}.")


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
    if self.rope_type not in list(SCALINGS):  # A set would have to hash it.
      raise ConfigError(
        f"rope_type={reprlib.repr(self.rope_type)} is not implemented, only default, "
        f"{', '.join(SCALINGS)} are. Take rope_scaling out to use the context the weights "
        "were trained for (40,960 tokens for Qwen3)."
      )
    required, optional = SCALINGS[self.rope_type]
    given = {name for name, value in self.to_hf().items() if name != "rope_type"}
    if lacks := [name for name in required if name not in given]:
      raise ConfigError(f"rope_type {self.rope_type!r} lacks {', '.join(lacks)}; add them.")
    if unread := sorted(given - {*required, *optional}):
      raise ConfigError(f"rope_type {self.rope_type!r} does not read {', '.join(unread)}.")
    special: dict[str, Wanted] = {
      "truncate": "switch", "original_max_position_embeddings": "size"
    }  # fmt: skip
    for name in sorted(given):
      require(f"rope_scaling: {name}", getattr(self, name), special.get(name, "number"))
    if self.factor < 1:
      raise ConfigError(f"rope_scaling: factor must be at least 1, got {self.factor}.")
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
        raise ConfigError(f"rope_scaling: {low}={below} must be less than {high}={above}.")

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
      require(name, getattr(self, name), "size")
    for name in ("tie_embeddings", "qk_norm"):
      require(name, getattr(self, name), "switch")
    for name in ("rope_theta", "rms_norm_eps"):
      require(name, getattr(self, name), "number")
    if self.rope_theta <= 1:
      raise ConfigError(
        f"rope_theta must be above 1, got {self.rope_theta}: pairs rotate ever more slowly."
      )
    if self.num_heads % self.num_kv_heads:
      raise ConfigError(
        f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
        "every key/value head serves the same number of query heads."
      )
    if self.head_dim % 2:
      raise ConfigError(f"head_dim={self.head_dim} must be even: RoPE rotates pairs.")
    for name in ("dtype", "param_dtype"):
      if getattr(self, name) not in _FLOAT_DTYPES:
        raise ConfigError(f"{name}={getattr(self, name)!r} is not one of {_FLOAT_DTYPES}.")
    for name, allowed in (("remat", get_args(Remat)), ("attention", get_args(Attention))):
      if getattr(self, name) not in allowed:
        raise ConfigError(f"{name}={getattr(self, name)!r} is not one of {allowed}.")

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
