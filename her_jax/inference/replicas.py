"""Weights on their way from training to sampling: every host gets a copy on its own chips.

Training splits the weights over all chips of a pod. A host that samples on its own needs them
whole, split over its own chips alone, in the dtype of the computation.

    weights = RolloutWeights(state.params, mesh, config.dtype)
    with jax.set_mesh(weights.mesh):
      engine = Engine(config, graphdef, weights(state.params), limits)
      while ...:  # No host waits for another here.
        engine.step()
      ...
      engine.load(weights(state.params))  # Here all meet.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from her_jax.errors import ConfigError
from her_jax.sharding import MESH_AXES, RULES, process_of, shardings

HostOf = Callable[[jax.Device], int]


class RolloutWeights:
  """Takes trained weights to a copy on this host's chips, which no other host has a part in.

  Built once and called before each rollout, by all hosts together.

  Attributes:
    mesh: This host's chips, all of them along `tensor`: that of `jax.set_mesh` for the engine.
  """

  def __init__(
    self,
    params: nnx.State,
    mesh: Mesh,
    dtype: str,
    *,
    host: int | None = None,
    host_of: HostOf = process_of,
  ):
    """Fixes where the weights come from and where they go.

    Args:
      params: Concrete or abstract parameters, whose variables name their axes.
      mesh: On which they are trained.
      dtype: Of the copies.
      host: Whose chips they go to; this one when None.
      host_of: The host of a device.

    Raises:
      ConfigError: As `gather`.
    """
    host = jax.process_index() if host is None else host
    chips = np.asarray([d for d in mesh.devices.flat if host_of(d) == host])
    # In their order along the axes that `gather` splits over.
    self.mesh = Mesh(chips.reshape(1, 1, 1, -1), MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    self._trained_on = mesh
    self._places = shardings(params, self.mesh)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(params)}
    self._as_trained = self.mesh == mesh and dtypes == {jnp.dtype(dtype)}
    self._gather = gather(params, mesh, dtype, host_of)

  def __call__(self, params: nnx.State) -> nnx.State:
    """The copy of trained weights on `mesh`, in `dtype`.

    Where the weights are trained on this host alone as it samples with them, they are
    returned as they are: what is donated to an update is gone from the engine too, and it needs
    to `load` before it goes on.
    """
    if self._as_trained:
      return params
    with jax.set_mesh(self._trained_on):
      return self._own(self._gather(params))

  def _own(self, copies: nnx.State) -> nnx.State:
    """This host's parts of copies on all hosts, as arrays of its own; nothing is moved."""

    def wrap(array: jax.Array, place: NamedSharding) -> jax.Array:
      parts = {shard.device: shard.data for shard in array.addressable_shards}
      ours = [parts[device] for device in self.mesh.devices.flat]
      return jax.make_array_from_single_device_arrays(array.shape, place, ours)

    return jax.tree.map(wrap, copies, self._places)


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
    params -> params, split over each host's chips as over `tensor`, alike on all hosts. Their
    order along it is that in which the mesh has them.

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
  chips = math.prod(fine.mesh.shape[axis] for axis in fine.own)
  own = RULES.spec(names, x.shape, AbstractMesh((1, 1, 1, chips), MESH_AXES))
  target = [fine.own if axes == "tensor" else None for axes in own]
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
