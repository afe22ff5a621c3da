"""Meshes, and the one table from logical axis names to mesh axes.

Modules name what an axis *is* (`embed`, `heads`, `batch`); `RULES` says over which mesh axes
it is spread. Constraints are active on every backend, so eight fake CPU devices run the very
program that a pod runs.

    mesh = make_mesh(fsdp=-1, tensor=4)
    graphdef, params = init_sharded(config, seed=0, mesh=mesh)
    with jax.set_mesh(mesh):
      step(params, to_global(batch, mesh))
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from absl import logging
from flax import nnx
import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from her_jax.errors import ConfigError
from her_jax.models.config import ModelConfig

MESH_AXES = ("data", "fsdp", "context", "tensor")

# The mesh axes one array axis is spread over; None leaves it whole.
MeshAxes = str | tuple[str, ...] | None


def make_mesh(
  data: int = 1,
  fsdp: int = -1,
  context: int = 1,
  tensor: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Builds the mesh `(data, fsdp, context, tensor)`.

  Args:
    data: Replicas of the parameters; each trains on its own rows. Cheap across slices.
    fsdp: Ways in which the parameters are split; rows are split over it as well.
    context: Ways in which a row's positions are split.
    tensor: Ways in which heads, MLP and vocabulary are split.
    devices: Those to use; all of them when None.
    At most one size may be -1: it takes the devices that the others leave.

  Raises:
    ConfigError: The sizes do not multiply to the number of devices, or would split something
      other than `data` over the slices of a pod.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = dict(zip(MESH_AXES, (data, fsdp, context, tensor), strict=True))
  asked = ", ".join(f"{name}={size}" for name, size in sizes.items())
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
    raise ConfigError(f"Mesh {asked}: sizes are positive, and at most one is -1.")
  if free:
    sizes[free[0]] = len(devices) // math.prod(s for s in sizes.values() if s != -1)
  if math.prod(sizes.values()) != len(devices):
    raise ConfigError(
      f"Mesh {asked} does not fit {len(devices)} devices: the product of the sizes must be "
      f"{len(devices)}, or divide it where one size is -1."
    )
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  if sizes["data"] % slices:
    raise ConfigError(
      f"Mesh {asked} on {slices} slices: data must be a multiple of {slices}, because replicas"
      " alone talk seldom enough for the network between slices."
    )
  laid_out = _lay_out(list(sizes.values()), devices, slices)
  return Mesh(laid_out, MESH_AXES, axis_types=(AxisType.Auto,) * 4)


def _lay_out(shape: list[int], devices: Sequence[jax.Device], slices: int) -> np.ndarray:
  """Devices in `shape`, so that neighbours in the mesh are neighbours in the torus."""
  if devices[0].platform != "tpu":
    return np.asarray(devices).reshape(shape)
  if slices == 1:
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  return mesh_utils.create_hybrid_device_mesh(
    [shape[0] // slices, *shape[1:]], [slices, 1, 1, 1], devices,
    allow_split_physical_axes=True,
  )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rules:
  """Logical axis -> mesh axes. A name without a field here is an error.

  A mesh axis that does not divide an array axis is left out there, the last of a tuple
  first, and the array axis is replicated over it. So two KV heads on `tensor=4` are whole on
  every device, and a batch of 4 on `data=2, fsdp=4` is split over `data` alone.
  """

  # Parameters. heads, kv_heads, mlp and vocab serve activations too.
  layers: MeshAxes = None
  embed: MeshAxes = ("fsdp", "context")
  mlp: MeshAxes = "tensor"
  heads: MeshAxes = "tensor"
  kv_heads: MeshAxes = "tensor"
  head_dim: MeshAxes = None
  vocab: MeshAxes = "tensor"
  rank: MeshAxes = None
  # Activations. slots, and pages of them, are keys and values, of which each query needs all.
  batch: MeshAxes = ("data", "fsdp")
  lookup_batch: MeshAxes = "data"
  lookup_embed: MeshAxes = "fsdp"
  length: MeshAxes = "context"
  slots: MeshAxes = None
  pages: MeshAxes = None
  act_embed: MeshAxes = None

  def spec(
    self, names: Sequence[str], shape: Sequence[int], mesh: Mesh | AbstractMesh
  ) -> PartitionSpec:
    """Where an array lives.

    With `fsdp=4, tensor=2`, ("embed", "mlp") of shape [128, 384] gives P("fsdp", "tensor"),
    and of shape [128, 383] P("fsdp", None).

    Args:
      names: Logical name of each axis.
      shape: Size of each axis.
      mesh: Has the axes of `make_mesh`.

    Raises:
      ValueError: An axis has no rule, two axes claim one mesh axis, or the counts differ.
    """
    if len(names) != len(shape):
      raise ValueError(f"{len(names)} axis names {tuple(names)} for shape {tuple(shape)}.")
    claimed: dict[str, str] = {}
    entries = []
    for name, size in zip(names, shape, strict=True):
      if name not in self.__dataclass_fields__:
        raise ValueError(
          f"No sharding rule for axis {name!r} of {tuple(names)}: add it to Rules."
        )
      axes = getattr(self, name) or ()
      axes = (axes,) if isinstance(axes, str) else tuple(axes)
      for axis in axes:
        if axis in claimed:
          raise ValueError(
            f"Axes {claimed[axis]!r} and {name!r} of {tuple(names)} both map to mesh axis "
            f"{axis!r}: an array can be split over it only once."
          )
        claimed[axis] = name
      while axes and size % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
      entries.append(axes[0] if len(axes) == 1 else axes or None)
    return PartitionSpec(*entries)


RULES = Rules()


def constrain(x: jax.Array, *names: str) -> jax.Array:
  """Fixes how an activation is laid out over the mesh of `jax.set_mesh`.

  Does nothing only where no mesh is set. `constrain(x, "batch", "length", "act_embed")`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return x
  return jax.lax.with_sharding_constraint(x, RULES.spec(names, x.shape, mesh))


def shardings(params: Any, mesh: Mesh) -> Any:
  """The sharding of every parameter, in the structure of `params`.

  Args:
    params: Concrete or abstract parameters whose variables name their axes.
    mesh: Of `make_mesh`.

  Returns:
    `params` with a `NamedSharding` in the place of each array.

  Raises:
    ValueError: A parameter names no axes, or `Rules.spec` refuses them.
  """

  def place(path: tuple[Any, ...], param: nnx.Variable) -> nnx.Variable:
    names = param.get_metadata().get("out_sharding")
    if not names:
      raise ValueError(f"Parameter {jax.tree_util.keystr(path)} names no sharding axes.")
    shape = param.get_value().shape
    spec = RULES.spec(names, shape, mesh)
    if mesh.size > 1 and not any(spec):
      logging.info("%s %s is replicated.", jax.tree_util.keystr(path), shape)
    return param.replace(NamedSharding(mesh, spec))

  is_variable = lambda node: isinstance(node, nnx.Variable)
  return jax.tree_util.tree_map_with_path(place, params, is_leaf=is_variable)


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
  """The sharding that keeps a whole copy on every device."""
  return NamedSharding(mesh, PartitionSpec())


def init_sharded(config: ModelConfig, seed: int, mesh: Mesh) -> tuple[nnx.GraphDef, nnx.State]:
  """Initialises a model piece by piece where it will live, never whole on one device.

  The values depend on the seed alone, not on the mesh.

  Returns:
    graphdef, params: `nnx.merge(graphdef, params)` is the model.
  """
  # Here and not above, because qwen3.py takes `constrain` from this module.
  from her_jax.models.qwen3 import Qwen3, abstract_model

  def build() -> nnx.State:
    return nnx.state(Qwen3(config, rngs=nnx.Rngs(seed)))

  graphdef, abstract = abstract_model(config)
  # Runs once, so on CPU most of its time would go into LLVM's passes: 20 s, 3 s without.
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  options = {"xla_backend_optimization_level": 0} if on_cpu else None
  init = jax.jit(build, out_shardings=shardings(abstract, mesh), compiler_options=options)
  return graphdef, init()


def process_of(device: jax.Device) -> int:
  """The host that a device belongs to."""
  return device.process_index


def row_shard(
  mesh: Mesh, host: int | None = None, host_of: Callable[[jax.Device], int] = process_of
) -> tuple[int, int]:
  """Which part of every batch a host loads, and into how many parts batches are split.

  Hosts whose chips work on the same rows, as with `context` larger than a host, load the same
  part. With two chips a host and fsdp = 2, context = 4, hosts 0 and 1 load part 0 of 2, hosts 2
  and 3 part 1.

  Args:
    mesh: Of `make_mesh`.
    host: Which; this one when None.
    host_of: The host of a device.

  Raises:
    ConfigError: Hosts share some of their rows and not others, so no parts are theirs alone.
  """
  host = jax.process_index() if host is None else host
  rows: dict[int, set[int]] = {}
  for place, device in np.ndenumerate(mesh.devices):
    row = place[0] * mesh.shape["fsdp"] + place[1]
    rows.setdefault(host_of(device), set()).add(row)
  parts = sorted({tuple(sorted(part)) for part in rows.values()})
  if sum(map(len, parts)) != mesh.shape["data"] * mesh.shape["fsdp"]:
    raise ConfigError(
      f"On the mesh {dict(mesh.shape)} hosts share some of their rows and not others: choose a"
      " context and a tensor that divide a host's chips, or are multiples of them."
    )
  return parts.index(tuple(sorted(rows[host]))), len(parts)


def to_global(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Joins every host's rows into one batch, split over `data` and `fsdp`.

  Args:
    batch: name -> this host's part of the rows, by `row_shard` [local_batch, ...].
    mesh: Over all hosts.

  Returns:
    name -> [local_batch · parts, ...]. A single host with rows that the mesh does not
    divide replicates them, as `Rules` says.

  Raises:
    ConfigError: Several hosts, and rows that the mesh does not divide.
  """
  ways = mesh.shape["data"] * mesh.shape["fsdp"]
  hosts, parts = jax.process_count(), row_shard(mesh)[1]
  result = {}
  for name, rows in batch.items():
    if hosts > 1 and len(rows) * parts % ways:
      raise ConfigError(
        f"{name}: {len(rows)} rows on each of {hosts} hosts cannot be split {ways} ways "
        f"(data · fsdp): make the global batch a multiple of {ways}."
      )
    spec = RULES.spec(("batch",), (len(rows) * parts,), mesh)
    whole = (len(rows) * parts, *rows.shape[1:])
    result[name] = jax.make_array_from_process_local_data(
      NamedSharding(mesh, spec), rows, whole
    )
  return result
