"""One update: gradients of a sum, divided by one global count."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from her_jax.errors import ConfigError
from her_jax.models.qwen3 import Qwen3
from her_jax.training import losses
from her_jax.training.state import TrainState

Batch = Mapping[str, jax.Array]
# (model, batch) -> sum of losses, sum of weights, and further metrics by name: sums, whose mean
# is over all weights, or pairs of a sum and its own weight.
Extra = Mapping[str, jax.Array | tuple[jax.Array, jax.Array]]
LossFn = Callable[[Qwen3, Batch], tuple[jax.Array, jax.Array, Extra]]


_LAYERS = tuple(f"loss_{layer}" for layer in ("plan", "thought", "action", "speech"))


@functools.cache
def next_token_loss(valid_vocab: int) -> LossFn:
  """Cross-entropy in nats at the weighted targets, for SFT and the judge alike.

  Of a batch with `layers` (as `roleplay.token_layers` numbers them) the mean of each layer's own
  targets is told too, as `loss_plan`, `loss_thought`, `loss_action`, `loss_speech`.
  """

  def loss_fn(model: Qwen3, batch: Batch) -> tuple[jax.Array, jax.Array, Extra]:
    hidden, _ = model(batch["tokens"], batch["positions"], batch["visible_until"])
    weights = batch["loss_weights"]
    log_probs, _ = losses.token_log_probs(
      hidden, model.head(), batch["targets"], weights, valid_vocab=valid_vocab
    )
    extra: dict[str, jax.Array | tuple[jax.Array, jax.Array]] = {}
    for number, name in enumerate(_LAYERS if "layers" in batch else (), 1):
      own = jnp.where(batch["layers"] == number, weights, 0.0)
      extra[name] = -jnp.sum(own * log_probs), jnp.sum(own)
    return -jnp.sum(weights * log_probs), jnp.sum(weights), extra

  return loss_fn


def make_train_step(
  graphdef: nnx.GraphDef,
  optimizer: optax.GradientTransformation,
  loss_fn: LossFn,
  micro_batches: int = 1,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
  """Builds the jitted update; the state is donated.

  With `micro_batches` the rows are worked through in that many parts; sums of losses,
  weights and gradients are added and divided once, so the split changes nothing: ten targets
  at loss 2 and one at 10 give 30 / 11 however they are split.

  Returns:
    step(state, batch, *frozen) -> state and metrics: `loss`, `targets` (the sum of weights),
    `gradient_norm`, and the means of what `loss_fn` adds, NaN where there is nothing. `frozen` is
    what the model has beside the state's parameters, which alone get gradients. It raises
    ConfigError where `micro_batches` does not divide the rows.
  """

  def sums(
    params: nnx.State, batch: Batch, *frozen: nnx.State
  ) -> tuple[jax.Array, tuple[jax.Array, Extra]]:
    total, count, extra = loss_fn(nnx.merge(graphdef, params, *frozen), batch)
    return total, (count, extra)

  def accumulate(params: nnx.State, batch: Batch, *frozen: nnx.State) -> tuple[Any, Any]:
    value_and_grad = jax.value_and_grad(sums, has_aux=True)
    if micro_batches == 1:
      return value_and_grad(params, batch, *frozen)
    rows = len(next(iter(batch.values())))
    if rows % micro_batches:
      raise ConfigError(f"{rows} rows cannot be split into micro_batches = {micro_batches}")
    parts = jax.tree.map(lambda x: x.reshape(micro_batches, -1, *x.shape[1:]), dict(batch))
    zeros = jax.tree.map(
      lambda s: jnp.zeros(s.shape, s.dtype),
      jax.eval_shape(value_and_grad, params, jax.tree.map(lambda x: x[0], parts), *frozen),
    )

    def add(so_far: Any, part: Batch) -> tuple[Any, None]:
      return jax.tree.map(jnp.add, so_far, value_and_grad(params, part, *frozen)), None

    return jax.lax.scan(add, zeros, parts)[0]

  @jax.jit(donate_argnums=0)
  def step(
    state: TrainState, batch: Batch, *frozen: nnx.State
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    (total, (count, extra)), gradients = accumulate(state.params, batch, *frozen)
    denominator = jnp.maximum(count, 1.0)
    gradients = jax.tree.map(lambda g: g / denominator, gradients)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = {
      "loss": total / denominator,
      "targets": count,
      "gradient_norm": optax.tree.norm(gradients),
      **{
        name: value[0] / value[1] if isinstance(value, tuple) else value / denominator
        for name, value in extra.items()
      },
    }
    return TrainState(state.step + 1, params, opt_state), metrics

  return step


@functools.cache
def make_eval_step(
  graphdef: nnx.GraphDef, loss_fn: LossFn
) -> Callable[[nnx.State, Batch], tuple[jax.Array, jax.Array, Extra]]:
  """Builds the jitted `(params, batch) -> what loss_fn gives`, once for each pair."""

  @jax.jit
  def step(params: nnx.State, batch: Batch) -> tuple[jax.Array, jax.Array, Extra]:
    return loss_fn(nnx.merge(graphdef, params), batch)

  return step
