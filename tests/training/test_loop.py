"""The loop: every step's metrics are written, and a loss that is no number ends the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax import sharding
from her_jax.training import loop, metrics


@pytest.fixture
def fit(tmp_path):
  """Runs a loop whose losses are given, over rows of four tokens; returns metrics.jsonl."""

  def run(losses):
    losses = jnp.asarray(losses, jnp.float32)
    step_fn = jax.jit(
      lambda state, batch: (state + 1, {"loss": losses[state], "gradient_norm": 1.0})
    )
    batch = {"tokens": np.zeros((8, 4), np.int32)}
    with metrics.MetricWriter(tmp_path) as writer:
      state = loop.fit(
        jnp.int32(0),
        step_fn,
        iter([batch] * len(losses)),
        steps=len(losses),
        schedule=lambda step: 0.5 * step,
        writer=writer,
        mesh=sharding.make_mesh(),
        log_every=1,
        name="SFT",
      )
    assert state == len(losses)
    return metrics.read(tmp_path / "metrics.jsonl")

  return run


@pytest.mark.parametrize("losses", [[3.0], [3.0, 2.0, 1.0]])
def test_each_step_is_written_once_with_its_own_numbers(fit, losses):
  rows = fit(losses)
  assert [row["step"] for row in rows] == list(range(1, len(losses) + 1))
  assert [row["loss"] for row in rows] == losses
  assert [row["tokens"] for row in rows] == [32 * row["step"] for row in rows]
  assert [row["learning_rate"] for row in rows] == [0.5 * i for i in range(len(losses))]
  assert all(row["tokens_per_second"] > 0 for row in rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad", [1, 2, 4])
def test_a_loss_that_is_no_number_ends_the_run(fit, tmp_path, value, bad):
  """Also in the last step, and with every step before it on record."""
  losses = [1.0] * 4
  losses[bad - 1] = value
  with pytest.raises(loop.NotFinite, match=f"loss of step {bad} is .*learning_rate"):
    fit(losses)
  assert len(metrics.read(tmp_path / "metrics.jsonl")) == bad - 1
