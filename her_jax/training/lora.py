"""LoRA (Hu et al. 2021, arXiv:2106.09685): the weights stay, a product of two thin matrices learns.

Beside the matrix W of a layer, of n inputs and m outputs, stand A [n, rank] and B [rank, m], and

    y = x W + alpha / rank · (x A) B

A begins as noise of variance 1 / n, B as zeros: so the first step is the unchanged model's. Only A
and B have gradients and moments. Neither a merged weight nor a gradient of W exists during an
update: x A is `rank` numbers a token. What is merged, W + alpha / rank · A B, is made where others
are to read it, in checkpoints and measures: a second copy of the adapted matrices for that time.

    tuning, trained = lora.begin(config, params, settings, seed, mesh)
    loss_of(nnx.merge(tuning.graphdef, trained, *tuning.frozen), batch)
    params = tuning.whole(trained)    # of the plain model
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import functools
import math
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import ml_collections

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Einsum, Qwen3, abstract_model

# Target -> the matrices in that part of a layer.
TARGETS: Mapping[str, tuple[str, ...]] = {
  "attention": ("q", "k", "v", "o"),
  "mlp": ("gate", "up", "down"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is adapted, and how.

  Attributes:
    rank: Columns of A; 0: nothing is, all weights are trained.
    alpha: The product counts alpha / rank times.
    targets: Of `TARGETS`.
  """

  rank: int = 0
  alpha: float = 32.0
  targets: tuple[str, ...] = tuple(TARGETS)


def settings(config: ml_collections.ConfigDict, prefix: str = "config.lora") -> Settings:
  """The settings of a config's section `lora`.

  Args:
    prefix: Names the section, for the error.

  Raises:
    ConfigError: One of them cannot be.
  """
  if config.rank < 0:
    raise ConfigError(f"{prefix}.rank is {config.rank}; it must be 0 (all is trained) or more")
  if not (config.alpha > 0 and math.isfinite(config.alpha)):
    raise ConfigError(
      f"{prefix}.alpha is {config.alpha}; it must be a number above 0, such as twice the rank"
    )
  targets = tuple(name.strip() for name in config.targets.split(","))
  if unknown := [name for name in targets if name not in TARGETS]:
    raise ConfigError(
      f"{prefix}.targets: no target {', '.join(map(repr, unknown))}; there are"
      f" {', '.join(TARGETS)}, or several with commas between"
    )
  return Settings(config.rank, config.alpha, targets)


class Adapter(nnx.Module):
  """x -> scale · (x A) B for one matrix of all layers.

  Of q, [layers, embed, heads, head_dim], A is [layers, embed, rank] and B [layers, rank, heads,
  head_dim]; each is split over the devices as the axes that it shares with q. Both are float32.
  """

  def __init__(self, einsum: Einsum, rank: int, scale: float, rngs: nnx.Rngs):
    x, weight, y = einsum.equation.replace("->", ",").split(",")
    # "ble,ehd->blhd": e is taken, hd are made.
    taken = "".join(letter for letter in weight if letter in x)
    made = weight.removeprefix(taken)
    kept = "".join(letter for letter in x if letter not in taken)
    self.scale = scale
    self.equations = f"{x},{taken}r->{kept}r", f"{kept}r,r{made}->{y}"
    self.product_equation = f"n{taken}r,nr{made}->n{weight}"
    names = einsum.weight.get_metadata()["out_sharding"]
    (layers, *sizes), cut = einsum.weight.shape, 1 + len(taken)
    inputs, outputs = sizes[: len(taken)], sizes[len(taken) :]
    noise = jax.random.normal(rngs.params(), (layers, *inputs, rank), jnp.float32)
    self.a = nnx.LoRAParam(
      math.prod(inputs) ** -0.5 * noise,
      out_sharding=(*names[:cut], "rank"), eager_sharding=False,
    )  # fmt: skip
    self.b = nnx.LoRAParam(
      jnp.zeros((layers, rank, *outputs), jnp.float32),
      out_sharding=(names[0], "rank", *names[cut:]), eager_sharding=False,
    )  # fmt: skip

  def __call__(self, x: jax.Array) -> jax.Array:
    """Inside the scan over layers, where A and B have no layers' axis."""
    first, second = self.equations
    thin = jnp.einsum(first, x, self.a[...].astype(x.dtype))
    return self.scale * jnp.einsum(second, thin, self.b[...].astype(x.dtype))

  def added_to(self, weight: jax.Array) -> jax.Array:
    """weight + scale · A B of all layers, computed in float32, placed and typed as `weight`."""
    return _merge(
      self.product_equation, self.scale, weight.sharding, weight, self.a[...], self.b[...]
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _merge(equation, scale, place, weight, a, b):
  # A TPU would else round A and B to bfloat16.
  product = jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST)
  merged = (weight.astype(jnp.float32) + scale * product).astype(weight.dtype)
  return jax.lax.with_sharding_constraint(merged, place)


@dataclasses.dataclass(frozen=True)
class Tuning:
  """What training moves of a model, and what it leaves.

  Attributes:
    graphdef: Of the model with its adapters, if any.
    frozen: () where all is trained; or the parameters of the plain model, which stay.
  """

  graphdef: nnx.GraphDef
  frozen: tuple[nnx.State, ...] = ()

  def whole(self, trained: nnx.State) -> nnx.State:
    """Parameters of the plain model; what has no adapter is the very array that is frozen."""
    if not self.frozen:
      return trained
    # A copy of the variables, not of the arrays: else those of `frozen` were set below.
    model = nnx.merge(self.graphdef, trained, *self.frozen, copy=True)
    for einsum in _einsums(model):
      if isinstance(einsum.adapter, Adapter):
        einsum.weight.set_value(einsum.adapter.added_to(einsum.weight[...]))
        del einsum.adapter
    return nnx.state(model)

  def kept(self, trained: nnx.State, opt_state: Any) -> Any:
    """What a checkpoint holds beside `whole`, to go on from bit for bit; may be abstract.

    The adapted matrices as they were before are among it. They cannot be had from the merged
    ones, W + D - D being W but for rounding, and `init_from` may be another by then, or gone.
    """
    if not self.frozen:
      return opt_state
    matrices = _adapted(self.frozen[0], trained)
    return {"opt_state": opt_state, "adapters": trained, "frozen": matrices}


def abstract(config: ModelConfig, settings: Settings) -> tuple[Tuning, nnx.State]:
  """How a model is tuned, and what of it is trained, with shapes in the place of arrays."""
  if not settings.rank:
    graphdef, params = abstract_model(config)
    return Tuning(graphdef), params
  with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
    model = nnx.eval_shape(lambda: _with_adapters(config, settings, 0))
  graphdef, *states = nnx.split(model, nnx.LoRAParam, ...)
  trained, frozen = states
  return Tuning(graphdef, (frozen,)), trained


def begin(
  config: ModelConfig, params: nnx.State, settings: Settings, seed: int, mesh: jax.sharding.Mesh
) -> tuple[Tuning, nnx.State]:
  """How a model is tuned, and what of it is trained, before the first step.

  Args:
    config: Of the model.
    params: Its parameters; they are not copied.
    settings: What is adapted.
    seed: Of A, whose values do not depend on the mesh.
    mesh: Of the parameters.
  """
  tuning, trained = abstract(config, settings)
  if not tuning.frozen:
    return tuning, params

  def build() -> nnx.State:  # Of the model around them nothing is computed.
    return nnx.state(_with_adapters(config, settings, seed), nnx.LoRAParam)

  init = jax.jit(build, out_shardings=sharding.shardings(trained, mesh))
  return dataclasses.replace(tuning, frozen=(params,)), init()


def resume(
  config: ModelConfig, params: nnx.State, settings: Settings, found: Any
) -> tuple[Tuning, nnx.State, Any]:
  """How a model is tuned, what of it is trained and its moments, as a checkpoint has them.

  Args:
    config: Of the model.
    params: Of the checkpoint, where `Tuning.whole` made them. Merged matrices among them are
      deleted, as those before the merging take their place.
    settings: What is adapted.
    found: What `Tuning.kept` gave.
  """
  tuning, trained = abstract(config, settings)
  if not tuning.frozen:
    return tuning, params, found
  for merged in jax.tree.leaves(_adapted(params, trained)):
    merged.delete()
  frozen = nnx.merge_state(params, found["frozen"])
  return dataclasses.replace(tuning, frozen=(frozen,)), found["adapters"], found["opt_state"]


def counts(config: ModelConfig, settings: Settings) -> tuple[int, int]:
  """How many numbers the adapters have, and the matrices that they are merged into."""
  tuning, adapters = abstract(config, settings)
  size = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
  return size(adapters), size(_adapted(tuning.frozen[0], adapters))


def _with_adapters(config: ModelConfig, settings: Settings, seed: int) -> Qwen3:
  model = Qwen3(config, rngs=nnx.Rngs(0))
  # Random weights of the same seed begin with the plain key.
  rngs = nnx.Rngs(params=jax.random.fold_in(jax.random.key(seed), 1))
  for einsum in _einsums(model, settings.targets):
    einsum.adapter = Adapter(einsum, settings.rank, settings.alpha / settings.rank, rngs)
  return model


def _einsums(model: Qwen3, targets: Iterable[str] = TARGETS) -> Iterator[Einsum]:
  """The matrices of all layers that may have adapters."""
  for target in targets:
    for name in TARGETS[target]:
      yield getattr(getattr(model.layers, target), name)


def _adapted(params: nnx.State, adapters: nnx.State) -> nnx.State:
  """Those of the plain model's parameters that have adapters."""
  beside = {path[:-2] for path, _ in nnx.to_flat_state(adapters)}
  return nnx.filter_state(params, lambda path, _: path[:-1] in beside)
