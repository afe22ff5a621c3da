"""Rates and times of steps are those of a plain count, and what cannot be known is missing."""

import dataclasses

from flax import nnx
import jax
import numpy as np
import pytest

from her_jax.models.config import PRESETS
from her_jax.models.qwen3 import abstract_model
from her_jax.training import lora, speed
from her_jax.training import step as steps
from launch_tpu import roofline


def test_a_token_of_the_32b_model_takes_six_operations_a_weight():
  model = PRESETS["qwen3-32b"]
  met = model.num_params() - model.vocab_size * model.hidden_size  # The head is no table.
  assert speed.flops_per_token(model) == 6 * met
  assert 6 * 31e9 < speed.flops_per_token(model) < 6 * 33e9
  tied = PRESETS["qwen3-0.6b"]
  assert tied.tie_embeddings and speed.flops_per_token(tied) == 6 * tied.num_params()


@pytest.mark.parametrize("rank, targets", [(16, ("attention", "mlp")), (4, ("attention",))])
def test_frozen_weights_take_four_and_adapters_six(rank, targets):
  model, settings = PRESETS["qwen3-32b"], lora.Settings(rank, targets=targets)
  met = speed.flops_per_token(model) // 6
  adapters = lora.counts(model, settings)[0]
  assert speed.flops_per_token(model, settings) == 4 * met + 6 * adapters
  assert speed.flops_per_token(model, lora.Settings()) == 6 * met


def test_the_count_with_adapters_is_that_of_the_compiled_step():
  """XLA's own count of two steps, of which one freezes the matrices; attention is small beside."""
  model = dataclasses.replace(
    PRESETS["tiny"], vocab_size=64, hidden_size=256, intermediate_size=1024, num_layers=4,
    remat="none", dtype="float32",
  )  # fmt: skip
  settings = lora.Settings(rank=4)
  graphdef, params = abstract_model(model)
  tuning, adapters = lora.abstract(model, settings)
  rows = {
    name: jax.ShapeDtypeStruct((1, 32), np.float32 if name == "loss_weights" else np.int32)
    for name in ("tokens", "targets", "positions", "visible_until", "loss_weights")
  }
  loss_fn = steps.next_token_loss(64)

  def flops(graphdef, *states):
    total = lambda params, batch, *frozen: loss_fn(nnx.merge(graphdef, params, *frozen), batch)[
      0
    ]
    run = jax.jit(jax.grad(total)).lower(states[0], rows, *states[1:])
    return run.compile().cost_analysis()["flops"]

  expected = speed.flops_per_token(model, settings) / speed.flops_per_token(model)
  found = flops(tuning.graphdef, adapters, *tuning.frozen) / flops(graphdef, params)
  assert found == pytest.approx(expected, rel=0.1)


def test_rates_percentiles_and_waits():
  meter = speed.Speed(PRESETS["tiny"], devices=4)
  first = meter(1000, seconds=50.0, waited=3.0)
  assert first["step_seconds_p50"] is None  # That of the compilation says nothing.
  for seconds in range(1, 101):
    found = meter(1000, seconds=float(seconds), waited=0.25)
  assert found["tokens_per_second"] == 10.0 and found["tokens_per_second_per_chip"] == 2.5
  assert found["step_seconds_p50"] == 50.5
  assert found["step_seconds_p95"] == pytest.approx(95.05)
  assert found["data_wait_seconds"] == 0.25
  assert found["mfu"] is None and found["hbm_gib"] is None  # Of a CPU neither is known.


def test_the_share_of_the_peak(monkeypatch):
  kind = speed.jax.devices()[0].device_kind
  monkeypatch.setitem(speed.PEAK, kind, 1e12)
  model = PRESETS["tiny"]
  found = speed.Speed(model, devices=2)(tokens=500, seconds=0.5, waited=0.0)
  assert found["mfu"] == pytest.approx(1000 * speed.flops_per_token(model) / 2e12)


@pytest.mark.parametrize("chip, names", [("v5e", ["TPU v5 lite", "TPU v5e"]),
                                         ("v5p", ["TPU v5", "TPU v5p"]),
                                         ("v6e", ["TPU v6 lite", "TPU v6e"])])  # fmt: skip
def test_peaks_are_those_of_the_roofline(chip, names):
  for name in names:
    assert speed.PEAK[name] == roofline.CHIPS[chip].bf16_tflops * 1e12
