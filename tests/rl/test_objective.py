"""The clipped objective: the same probabilities as the sampler's, and only what counts."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from data_pipeline import trees
from her_jax.inference.engine import Completion, Engine
from her_jax.inference.sampling import Sampling, with_seeds
from her_jax.rl import monitors, objective
from her_jax.rl.advantages import group_relative
from her_jax.training import losses
from her_jax.training import step as steps
from her_jax.training.state import TrainState
from tests import tiny_model
from tests.tiny_model import CONFIG, LIMITS, STOP, VALID

pytestmark = pytest.mark.usefixtures("quick_compile")

_PAD, _LENGTH = 0, 96
_TEMPERATURE = 0.6
_PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13]]


@pytest.fixture(scope="module")
def model():
  return tiny_model.make()


@pytest.fixture(scope="module")
def drawn(model):
  engine = Engine(CONFIG, *model, LIMITS, valid_vocab=VALID)
  settings = Sampling(max_tokens=12, stop_ids=(STOP,), temperature=_TEMPERATURE)
  prompts = [prompt for prompt in _PROMPTS for _ in range(4)]
  found = engine.generate(prompts, with_seeds(settings, 0, len(prompts)))
  return [found[:4], found[4:]]


def _loss_fn(**changes):
  settings = {
    "valid_vocab": VALID,
    "temperature": _TEMPERATURE,
    "clip_low": 0.2,
    "clip_high": 0.28,
  }
  return objective.clipped_policy_loss(**{**settings, **changes})


def _batch(rows):
  padded = [trees.pad(row, _LENGTH, _PAD) for row in rows]
  return {name: jnp.stack([row[name] for row in padded]) for name in padded[0]}


def _evaluate(model, batch, **changes):
  """Loss, weights and further sums as floats."""
  graphdef, params = model
  fn = jax.jit(lambda p, b: _loss_fn(**changes)(nnx.merge(graphdef, p), b))
  total, count, extra = fn(params, batch)
  return float(total), float(count), {name: float(value) for name, value in extra.items()}


def _trainer_log_probs(model, batch):
  graphdef, params = model

  @jax.jit
  def run(params):
    qwen = nnx.merge(graphdef, params)
    hidden, _ = qwen(batch["tokens"], batch["positions"], batch["visible_until"])
    targets, weights = batch["targets"], batch["loss_weights"]
    return losses.token_log_probs(
      hidden, qwen.head(), targets, weights, valid_vocab=VALID, temperature=_TEMPERATURE
    )[0]

  return run(params)


def test_the_sampler_and_the_trainer_agree_on_every_token(model, drawn):
  """So the ratio of the first update is 1, at the sampling temperature."""
  rows = [
    objective.group_tree(prompt, group, [1.0] * 4, [True] * 4)
    for prompt, group in zip(_PROMPTS, drawn, strict=True)
  ]
  batch = _batch(rows)
  trained = batch["loss_weights"] > 0
  assert int(trained.sum()) == sum(len(c.ids) for group in drawn for c in group)
  ours = np.asarray(_trainer_log_probs(model, batch))[np.asarray(trained)]
  theirs = np.asarray(batch["sampler_log_probs"])[np.asarray(trained)]
  np.testing.assert_allclose(ours, theirs, atol=1e-4)
  assert np.ptp(theirs) > 0.5  # Not a uniform distribution, which would agree anyhow.

  total, count, extra = _evaluate(model, batch)
  np.testing.assert_allclose(total, -count, rtol=1e-4)  # Ratio 1, advantage 1.
  assert extra["sampler_gap"] / count < 1e-4
  assert extra["clipped_share"] == 0


def test_another_temperature_would_not_agree(model, drawn):
  batch = _batch([objective.group_tree(_PROMPTS[0], drawn[0], [1.0] * 4, [True] * 4)])
  _, count, extra = _evaluate(model, batch, temperature=1.0)
  assert extra["sampler_gap"] / count > 0.05


def test_the_trained_ids_are_the_sampled_ids(drawn):
  row = objective.group_tree(_PROMPTS[0], drawn[0], [1.0, -1.0, 0.5, 0.0], [True] * 4)
  trained = row["loss_weights"] > 0
  sampled = [i for completion in drawn[0] for i in completion.ids]
  assert row["targets"][trained].tolist() == sampled
  advantages = [
    value for value, c in zip([1.0, -1.0, 0.5, 0.0], drawn[0], strict=True) for _ in c.ids
  ]
  np.testing.assert_array_equal(row["advantages"][trained], np.float32(advantages))


def test_completions_that_do_not_count_do_not_change_the_loss(model, drawn):
  group, gains = drawn[0], [1.0, -0.5, 3.0, -2.0]
  cut = Completion([17] * 12, [-50.0] * 12, "length")
  some = objective.group_tree(
    _PROMPTS[0], [*group[:2], cut, cut], gains, [True, True, False, False]
  )
  alone = objective.group_tree(_PROMPTS[0], group[:2], gains[:2], [True, True])
  one, two = _evaluate(model, _batch([some])), _evaluate(model, _batch([alone]))
  assert one[1] == two[1] == sum(len(c.ids) for c in group[:2])
  np.testing.assert_allclose(one[0], two[0], rtol=1e-6)


def test_a_group_of_which_nothing_counts_weighs_nothing(model, drawn):
  none = objective.group_tree(_PROMPTS[0], drawn[0], [1.0] * 4, [False] * 4)
  one = objective.group_tree(_PROMPTS[1], drawn[1], [1.0] * 4, [True] * 4)
  assert set(none) == set(one)  # They can stand in one batch.
  total, count, _ = _evaluate(model, _batch([none]))
  assert (total, count) == (0.0, 0.0)
  alone, both = _evaluate(model, _batch([one])), _evaluate(model, _batch([none, one]))
  np.testing.assert_allclose(both[0], alone[0], rtol=1e-6)
  assert both[1] == alone[1]


def test_equal_rewards_move_nothing(model, drawn):
  gains = group_relative(np.full((1, 4), 0.35), np.ones((1, 4), bool))[0]
  batch = _batch([objective.group_tree(_PROMPTS[0], drawn[0], gains, [True] * 4)])
  graphdef, params = model

  def loss(params):
    return _loss_fn()(nnx.merge(graphdef, params), batch)[0]

  value, gradient = jax.jit(jax.value_and_grad(loss))(params)
  assert float(value) == 0
  assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
  "log_ratio, advantage, gain, clipped",
  [
    (0.0, 1.0, 1.0, 0),
    (1.0, 1.0, 1.28, 1),  # A likelier good token: no further than 1 + clip_high.
    (1.0, -1.0, -np.exp(1.0), 0),  # A likelier bad one: the whole ratio.
    (-1.0, 1.0, np.exp(-1.0), 0),
    (-1.0, -1.0, -0.8, 1),  # A rarer bad token: no further than 1 - clip_low.
  ],
)
def test_the_clip_is_one_sided_and_unequal(model, drawn, log_ratio, advantage, gain, clipped):
  completion = drawn[0][0]
  row = objective.group_tree(_PROMPTS[0], [completion], [advantage], [True])
  row["sampler_log_probs"] = np.where(
    row["loss_weights"] > 0, row["sampler_log_probs"] - np.float32(log_ratio), 0
  )
  total, count, extra = _evaluate(model, _batch([row]))
  assert count == len(completion.ids)
  np.testing.assert_allclose(-total / count, gain, rtol=1e-3)
  assert extra["clipped_share"] == clipped * count
  # A weight below 0 turns the sign and changes nothing else.
  row["loss_weights"] = -row["loss_weights"]
  negative, _, _ = _evaluate(model, _batch([row]))
  np.testing.assert_allclose(negative, -total, rtol=1e-5)


def test_a_filler_log_probability_of_minus_infinity_does_no_harm(model, drawn):
  row = objective.group_tree(_PROMPTS[0], drawn[0], [1.0] * 4, [True] * 4)
  row["sampler_log_probs"] = np.where(row["loss_weights"] > 0, row["sampler_log_probs"], -1e9)
  batch = _batch([row])
  graphdef, params = model
  gradient = jax.jit(jax.grad(lambda p: _loss_fn()(nnx.merge(graphdef, p), batch)[0]))(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_frozen_copy_stays_as_it_was(model, drawn):
  """The step donates its state; the reference and the caller keep their weights."""
  graphdef, frozen = model
  before = monitors.fingerprint(frozen)
  optimizer = optax.adamw(1e-2)
  state = TrainState.create(frozen, optimizer)
  assert monitors.fingerprint(state.params) == before
  gains = [1.0, -1.0, 1.0, -1.0]
  batch = _batch([objective.group_tree(_PROMPTS[0], drawn[0], gains, [True] * 4)])
  step = steps.make_train_step(graphdef, optimizer, _loss_fn())
  for _ in range(2):
    state, _ = step(state, batch)
  assert monitors.fingerprint(state.params) != before
  assert monitors.fingerprint(frozen) == before


def test_an_update_makes_good_replies_likelier_and_bad_ones_rarer(model, drawn):
  graphdef, params = model
  optimizer = optax.sgd(1e-4)
  gains = [1.0, -1.0, 0.0, 0.0]
  batch = _batch([objective.group_tree(_PROMPTS[0], drawn[0], gains, [True] * 4)])
  step = steps.make_train_step(graphdef, optimizer, _loss_fn())
  state, _ = step(TrainState.create(params, optimizer), batch)
  change = _trainer_log_probs((graphdef, state.params), batch) - batch["sampler_log_probs"]
  advantages = batch["advantages"]
  assert float(jnp.sum(jnp.where(advantages > 0, change, 0))) > 0
  assert float(jnp.sum(jnp.where(advantages < 0, change, 0))) < 0
