"""Qwen3 (arXiv:2505.09388) in Flax NNX: one forward pass for trainer, sampler and judge.

Without norms of queries and keys it is Llama (arXiv:2302.13971).
"""

from collections.abc import Callable
import functools
from typing import Protocol, Self, TypeVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from her_jax.models import dispatch
from her_jax.models.config import ModelConfig
from her_jax.models.rope import apply_rope, rope_angles
from her_jax.models.tree_attention import SAVED_NAMES as ATTENTION_OUTPUTS
from her_jax.sharding import constrain

# What each policy of `ModelConfig.remat` keeps of a layer beside its input, by the names
# that `checkpoint_name` gives below and in tree_attention.py.
_SAVED = {
  "full": (),
  "attention": ATTENTION_OUTPUTS,
  "projections": ("qkv", "residual"),
  "minimal": (*ATTENTION_OUTPUTS, "qkv", "gate_up"),
}


class Cache(Protocol):
  """What a model reads new tokens into, and attends through: one for all layers."""

  def attend(
    self, layer: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array
  ) -> tuple[jax.Array, Self]:
    """Writes k and v of one layer, and attends to all that it holds of it.

    Args:
      layer: int32 scalar.
      q: [batch, length, heads, head_dim]; k and v: [batch, length, kv_heads, head_dim].

    Returns:
      [batch, length, heads, head_dim] and the cache.
    """


C = TypeVar("C", bound=Cache)


def _param(value: jax.Array, *axes: str) -> nnx.Param:
  # The axes are logical names, resolved by her_jax.sharding; NNX would take them for mesh
  # axes and place the array at once, hence eager_sharding=False.
  return nnx.Param(value, out_sharding=axes, eager_sharding=False)


class RMSNorm(nnx.Module):
  """Root-mean-square normalisation over the last axis."""

  def __init__(self, size: int, axis: str, config: ModelConfig):
    self.eps = config.rms_norm_eps
    self.weight = _param(jnp.ones(size, config.param_dtype), axis)

  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., size] -> [..., size]. Normalised in float32, cast back, then multiplied."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return (wide * scale).astype(x.dtype) * self.weight[...].astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _contract(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
  """`jnp.einsum`, with the weight's gradient as x times the output's and not the reverse.

  JAX takes the reverse, the transpose of which XLA's CPU backend makes together with whatever
  the output's gradient is computed from, element by element: a backward pass of 12 layers took
  1.45 times as long so.
  """
  return jnp.einsum(equation, x, weight)


def _contract_fwd(equation, x, weight):
  return _contract(equation, x, weight), (x, weight)


def _contract_bwd(equation, kept, gradient):
  x, weight = kept
  inputs, output = equation.split("->")
  ours, theirs = inputs.split(",")
  return (
    jnp.einsum(f"{output},{theirs}->{ours}", gradient, weight),
    jnp.einsum(f"{ours},{output}->{theirs}", x, gradient),
  )


_contract.defvjp(_contract_fwd, _contract_bwd)


class Einsum(nnx.Module):
  """A weight and the contraction that applies it, without a bias.

  `adapter`, where training sets one, is added to the result: see `training.lora`.
  """

  adapter: Callable[[jax.Array], jax.Array] | None = None

  def __init__(
    self,
    equation: str,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    config: ModelConfig,
    rngs: nnx.Rngs,
    branches: int = 1,
  ):
    """Args as named; `branches`: how many such outputs add up in the residual stream."""
    self.equation = equation
    normal = jax.random.normal(rngs.params(), shape, config.param_dtype)
    self.weight = _param(_std(config) * branches**-0.5 * normal, *axes)

  def __call__(self, x: jax.Array) -> jax.Array:
    y = _contract(self.equation, x, self.weight[...].astype(x.dtype))
    return y if self.adapter is None else y + self.adapter(x)


class Attention(nnx.Module):
  """Grouped-query self-attention, in Qwen3 with RMSNorm on every query and key head before RoPE."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    width, head = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    q_axes, kv_axes = ("embed", "heads", "head_dim"), ("embed", "kv_heads", "head_dim")
    self.q = Einsum("ble,ehd->blhd", (width, heads, head), q_axes, config, rngs)
    self.k = Einsum("ble,ekd->blkd", (width, kv_heads, head), kv_axes, config, rngs)
    self.v = Einsum("ble,ekd->blkd", (width, kv_heads, head), kv_axes, config, rngs)
    self.o = Einsum(
      "blhd,hde->ble", (heads, head, width), ("heads", "head_dim", "embed"), config, rngs,
      branches=2 * config.num_layers,
    )  # fmt: skip
    self.q_norm = RMSNorm(head, "head_dim", config) if config.qk_norm else None
    self.k_norm = RMSNorm(head, "head_dim", config) if config.qk_norm else None

  def __call__(
    self,
    x: jax.Array,
    rope: tuple[jax.Array, jax.Array],
    visible_until: jax.Array,
    cache: C | None,
    layer: jax.Array,
    plan: dispatch.Plan | None = None,
  ) -> tuple[jax.Array, C | None]:
    """Attends, through the cache where there is one.

    Args:
      x: [batch, length, hidden].
      rope: cos and sin of `rope_angles`.
      visible_until: int32 [batch, length]; not looked at where there is a cache.
      cache: Of all layers.
      layer: int32 scalar, this layer's place in the cache.
      plan: Of `dispatch.prepare`, where a kernel runs.

    Returns:
      [batch, length, hidden] and the cache with this layer's new keys and values.
    """
    q, k, v = (checkpoint_name(f(x), "qkv") for f in (self.q, self.k, self.v))
    if self.q_norm is not None and self.k_norm is not None:
      q, k = self.q_norm(q), self.k_norm(k)
    q, k = apply_rope(q, *rope), apply_rope(k, *rope)
    q = constrain(q, "batch", "length", "heads", "head_dim")
    # A kernel gathers keys and values itself, and so sums their gradients where they live.
    kv_axes = ("batch", "slots" if plan is None else "length", "kv_heads", "head_dim")
    k, v = constrain(k, *kv_axes), constrain(v, *kv_axes)
    if cache is None:
      mixed = dispatch.attend(plan, q, k, v, visible_until)
    else:
      mixed, cache = cache.attend(layer, q, k, v)
    return self.o(constrain(mixed, "batch", "length", "heads", "head_dim")), cache


class MLP(nnx.Module):
  """SwiGLU: down(silu(gate(x)) · up(x))."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    width, inner = config.hidden_size, config.intermediate_size
    self.gate = Einsum("ble,em->blm", (width, inner), ("embed", "mlp"), config, rngs)
    self.up = Einsum("ble,em->blm", (width, inner), ("embed", "mlp"), config, rngs)
    self.down = Einsum(
      "blm,me->ble", (inner, width), ("mlp", "embed"), config, rngs,
      branches=2 * config.num_layers,
    )  # fmt: skip

  def __call__(self, x: jax.Array) -> jax.Array:
    """[batch, length, hidden] -> [batch, length, hidden]."""
    gate, up = (checkpoint_name(f(x), "gate_up") for f in (self.gate, self.up))
    return self.down(constrain(jax.nn.silu(gate) * up, "batch", "length", "mlp"))


class Layer(nnx.Module):
  """Attention and MLP, each on the normalised residual stream."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.attention_norm = RMSNorm(config.hidden_size, "embed", config)
    self.attention = Attention(config, rngs)
    self.mlp_norm = RMSNorm(config.hidden_size, "embed", config)
    self.mlp = MLP(config, rngs)

  def __call__(
    self,
    x: jax.Array,
    rope: tuple[jax.Array, jax.Array],
    visible_until: jax.Array,
    cache: C | None,
    layer: jax.Array,
    plan: dispatch.Plan | None = None,
  ) -> tuple[jax.Array, C | None]:
    """As `Attention.__call__`, with the residual added."""
    mixed, cache = self.attention(
      self.attention_norm(x), rope, visible_until, cache, layer, plan
    )
    x = checkpoint_name(constrain(x + mixed, "batch", "length", "act_embed"), "residual")
    x = constrain(x + self.mlp(self.mlp_norm(x)), "batch", "length", "act_embed")
    return x, cache


class Qwen3(nnx.Module):
  """The decoder. Its layers are one module whose parameters have a leading `layers` axis.

  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  hidden, _ = nnx.merge(graphdef, params)(tokens, positions, visible_until)
  """

  def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
    self.config = config
    table = (config.vocab_size, config.hidden_size)
    # Zeros are added after the draw, so that the weights do not depend on their number.
    more = (0, config.vocab_rows - config.vocab_size)
    normal = jax.random.normal(rngs.params(), table, config.param_dtype)
    self.embedding = _param(jnp.pad(_std(config) * normal, (more, (0, 0))), "vocab", "embed")

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    def stack(rngs: nnx.Rngs) -> Layer:
      return Layer(config, rngs)

    self.layers = stack(rngs)
    self.final_norm = RMSNorm(config.hidden_size, "embed", config)
    if config.tie_embeddings:
      self.lm_head = None
    else:
      normal = jax.random.normal(rngs.params(), table[::-1], config.param_dtype)
      self.lm_head = _param(jnp.pad(_std(config) * normal, ((0, 0), more)), "embed", "vocab")

  def __call__(
    self,
    tokens: jax.Array,
    positions: jax.Array,
    visible_until: jax.Array,
    cache: C | None = None,
  ) -> tuple[jax.Array, C | None]:
    """Reads tokens, after those in the cache where one is given.

    Args:
      tokens: int32 [batch, length].
      positions: int32 [batch, length], counted along the path from the root.
      visible_until: int32 [batch, length], see `attention.attention_mask`; padding has its own
        slot + 1. Not looked at where there is a cache, which knows itself who sees what.
      cache: Of what was read before.

    Returns:
      [batch, length, hidden] after the final norm, in `config.dtype`, and the cache with the
      tokens' keys and values (None without one).
    """
    config = self.config
    rope = rope_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
    graphdef, stacked = nnx.split(self.layers)
    # Before the loop, while each device has its shard alone: gathered in float32 the weights
    # would move twice the bytes.
    stacked = jax.tree.map(lambda x: x.astype(config.dtype), stacked)
    plan = None
    if cache is None:
      plan = dispatch.prepare(config.attention, visible_until, config.head_dim, config.dtype)

    # The cache is carried and updated in place: as xs and ys of the scan it would be held
    # twice, 47 GiB more for 32 rows of 8192 slots of Qwen3-32B on four chips.
    def body(carry, xs):
      x, cache = carry
      params, layer = xs
      layers = nnx.merge(graphdef, params)
      return layers(x, rope, visible_until, cache, layer, plan), None

    if self.config.remat != "none" and cache is None:
      policy = jax.checkpoint_policies.save_only_these_names(*_SAVED[self.config.remat])
      # A scan body is safe from common subexpression elimination.
      body = jax.checkpoint(body, prevent_cse=False, policy=policy)

    # Every device looks its columns of the table up, for the tokens of all of `fsdp`; an
    # all-to-all then gives each its own rows. So no device ever holds the table or its gradient:
    # 2 · 2.9 GiB of Qwen3-32B. Cast after the lookup, so that the gradients of a frequent token
    # are summed in float32.
    table = constrain(self.embedding[...], "vocab", "lookup_embed")
    x = table[constrain(tokens, "lookup_batch", "length")]
    x = constrain(x.astype(self.config.dtype), "lookup_batch", "length", "lookup_embed")
    x = constrain(x, "batch", "length", "act_embed")
    (x, cache), _ = jax.lax.scan(
      body, (x, cache), (stacked, jnp.arange(self.config.num_layers))
    )
    return self.final_norm(x), cache

  def head(self) -> jax.Array:
    """The output projection [hidden, vocab_rows], in the parameters' dtype."""
    return self.embedding[...].T if self.lm_head is None else self.lm_head[...]

  def logits(self, hidden: jax.Array) -> jax.Array:
    """float32 [..., vocab_rows] of hidden states [..., hidden]."""
    head = self.head().astype(hidden.dtype)
    return jnp.einsum("...e,ev->...v", hidden, head, preferred_element_type=jnp.float32)


def abstract_model(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
  """graphdef and params of a model, with shapes in the place of arrays; allocates nothing."""
  # Under a mesh NNX would look the logical axis names up in it; none is needed for shapes.
  with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
    return nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))))


def _std(config: ModelConfig) -> float:
  """Standard deviation of fresh weights: 0.014 for a width of 5120, 0.088 for 128.

  A fixed 0.02 suits wide models only: with it a model of width 128 stands at a loss of 5.0
  nats on one batch after 14 updates where this rule has reached 1.1.
  """
  return config.hidden_size**-0.5
