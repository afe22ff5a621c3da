"""What a training run carries from step to step."""

from typing import Any

from flax import nnx, struct
import jax
import jax.numpy as jnp
import optax

from her_jax import sharding


@struct.dataclass
class TrainState:
  """Float32 master weights, optimiser moments and the number of finished updates."""

  step: jax.Array
  params: nnx.State
  opt_state: Any

  @classmethod
  def create(cls, params: nnx.State, optimizer: optax.GradientTransformation) -> "TrainState":
    """A state at step 0; a moment is split over the devices as its parameter is.

    The parameters are copied: the step donates its state, and the caller may keep the
    originals, as RL does for its frozen copy.
    """
    params = jax.tree.map(jnp.copy, params)
    # Left to itself, the compiler makes zeros whole on every device.
    mesh = _mesh_of(params)
    places = moment_shardings(jax.eval_shape(optimizer.init, params), mesh) if mesh else None
    init = jax.jit(optimizer.init, out_shardings=places)
    return cls(count(0, mesh), params, init(params))


def count(step: int, mesh: jax.sharding.Mesh | None) -> jax.Array:
  """The counter of finished updates, on every device of the mesh."""
  value = jnp.asarray(step, jnp.int32)
  return jax.device_put(value, sharding.replicated(mesh)) if mesh else value


def moment_shardings(opt_state: Any, mesh: jax.sharding.Mesh) -> Any:
  """Where the parts of an optimiser's state lie: moments as their parameters, counts everywhere.

  Args:
    opt_state: concrete or abstract; moments are variables that name their axes, as parameters.
    mesh: of the parameters.
  """

  def place(part: Any) -> Any:
    if not isinstance(part, nnx.Variable):
      return sharding.replicated(mesh)
    # Muon has an empty variable for what Adam updates, and the other way round.
    return sharding.shardings(part, mesh) if jax.tree.leaves(part) else part

  return jax.tree.map(place, opt_state, is_leaf=lambda part: isinstance(part, nnx.Variable))


def _mesh_of(params: nnx.State) -> jax.sharding.Mesh | None:
  """The mesh that the parameters are on; None where they are not on one, as in small tests."""
  places = {getattr(leaf.sharding, "mesh", None) for leaf in jax.tree.leaves(params)}
  return next(iter(places)) if len(places) == 1 else None
