"""What a training run carries from step to step."""

from typing import Any

from flax import nnx, struct
import jax
import jax.numpy as jnp
import optax


@struct.dataclass
class TrainState:
  """Float32 master weights, optimiser moments and the number of finished updates."""

  step: jax.Array
  params: nnx.State
  opt_state: Any

  @classmethod
  def create(cls, params: nnx.State, optimizer: optax.GradientTransformation) -> "TrainState":
    """A state at step 0; the moments take over the shardings of `params`.

    The parameters are copied: the step donates its state, and the caller may keep the
    originals, as RL does for its frozen copy.
    """
    params = jax.tree.map(jnp.copy, params)
    return cls(jnp.zeros((), jnp.int32), params, jax.jit(optimizer.init)(params))
