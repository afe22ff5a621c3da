"""Weights on their way from training to sampling: every host gets a copy on its own chips.

Training splits the weights over all chips of a pod. A host that samples on its own needs them
whole, split over its own chips alone, in the dtype of the computation.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from her_jax.errors import ConfigError
from her_jax.sharding import RULES, Rules, process_of

HostOf = Callable[[jax.Device], int]


def gather(params: nnx.State, mesh: Mesh, dtype: str, host_of: HostOf = process_of) -> Any:
  """Builds the jitted function that copies trained weights to every host.

  It casts first, then exchanges parts among the chips of a host, and only then gathers from
  the other hosts: left to itself the compiler gathers each array whole on every chip, 15.6 GiB
  for one of Qwen3-32B, and cuts it afterwards.

  Args:
    params: Concrete or abstract parameters, whose variables name their axes.
    mesh: On which they are trained. The copies keep its order of devices, as one program has
      one order.
    dtype: Of the copies.
    host_of: The host of a device.

  Returns:
    params -> params, split over each host's chips as over `tensor`, alike on all hosts.

  Raises:
    ConfigError: The chips of a host are scattered over the mesh, so that no axes name them.
  """
  fine = _Fine.of(mesh, host_of)
  is_variable = lambda node: isinstance(node, nnx.Variable)

  def copy(param: nnx.Variable) -> nnx.Variable:
    names = param.get_metadata()["out_sharding"]
    return param.replace(_copy(param.get_value().astype(jnp.dtype(dtype)), names, mesh, fine))

  @jax.jit
  def run(params: nnx.State) -> nnx.State:
    return jax.tree.map(copy, params, is_leaf=is_variable)

  return run


@dataclasses.dataclass(frozen=True)
class _Fine:
  """The mesh with an axis for each prime factor of its sizes.

  Chips of a host are neighbours in two or three directions of the torus, and a mesh axis may
  run over one direction first: along fsdp = 16 of a 4 x 4 slice with hosts of 2 x 2 chips, the
  hosts are 0 0 2 2 0 0 2 2 1 1 3 3 1 1 3 3, so of its four factors of 2 the second and the
  fourth stay on a host.

  Attributes:
    mesh: The same devices in the same order.
    parts: Of each axis of the coarse mesh, its axes here.
    own: The axes here along which a host's chips lie.
  """

  mesh: Mesh
  parts: dict[str, tuple[str, ...]]
  own: tuple[str, ...]

  @classmethod
  def of(cls, mesh: Mesh, host_of: HostOf) -> "_Fine":
    parts, sizes = {}, []
    for axis, size in mesh.shape.items():
      factors = _prime_factors(size)
      parts[axis] = tuple(f"{axis}{i}" for i in range(len(factors)))
      sizes += factors
    names = tuple(name for part in parts.values() for name in part)
    devices = mesh.devices.reshape(sizes)
    hosts = np.vectorize(host_of, otypes=[int])(devices)
    own = tuple(
      name for i, name in enumerate(names) if np.all(hosts == hosts.take([0], axis=i))
    )
    fine = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    chips = int(np.unique(hosts, return_counts=True)[1].max())
    if math.prod(fine.shape[name] for name in own) != chips:
      raise ConfigError(
        f"The {chips} chips of a host do not lie along axes of the mesh {dict(mesh.shape)}, so"
        " the weights cannot be gathered onto them: choose sizes that are multiples of a"
        " host's side."
      )
    return cls(fine, parts, own)


def _copy(x: jax.Array, names: Sequence[str], mesh: Mesh, fine: _Fine) -> jax.Array:
  """One weight, as it lies in training -> split over each host's chips."""
  rules = Rules(
    layers=None, embed=None, mlp=fine.own, heads=fine.own, kv_heads=fine.own, head_dim=None,
    vocab=fine.own,
  )  # fmt: skip
  target = list(rules.spec(names, x.shape, fine.mesh))
  trained = RULES.spec(names, x.shape, mesh)
  # Every axis of the array as one for each part it lies in, and one for what is inside a part.
  shape: list[int] = []
  exchanged: list[Any] = []
  gathered: list[Any] = []
  for size, places, final in zip(x.shape, trained, target, strict=True):
    axes = (places,) if isinstance(places, str) else places or ()
    # Those that stay, as vocab and heads over own chips, are left to the compiler.
    pieces = [] if final else [part for axis in axes for part in fine.parts[axis]]
    sizes = [fine.mesh.shape[piece] for piece in pieces]
    shape += [*sizes, size // math.prod(sizes)]
    exchanged += [*(None if p in fine.own else p for p in pieces), final]
    gathered += [*[None] * len(pieces), final]
  place = lambda spec: NamedSharding(fine.mesh, PartitionSpec(*spec))
  pieces_apart = x.reshape(shape)
  for spec in (exchanged, gathered):
    pieces_apart = jax.lax.with_sharding_constraint(pieces_apart, place(spec))
  return jax.lax.with_sharding_constraint(pieces_apart.reshape(x.shape), place(target))


def _prime_factors(number: int) -> list[int]:
  """12 gives 3, 2, 2."""
  factors, divisor = [], 2
  while number > 1:
    while number % divisor == 0:
      factors.append(divisor)
      number //= divisor
    divisor += 1
  return factors[::-1]
