"""Rates and times of steps are those of a plain count, and what cannot be known is missing."""

import pytest

from her_jax.models.config import PRESETS
from her_jax.training import speed
from launch_tpu import roofline


def test_a_token_of_the_32b_model_takes_six_operations_a_weight():
  model = PRESETS["qwen3-32b"]
  met = model.num_params() - model.vocab_size * model.hidden_size  # The head is no table.
  assert speed.flops_per_token(model) == 6 * met
  assert 6 * 31e9 < speed.flops_per_token(model) < 6 * 33e9
  tied = PRESETS["qwen3-0.6b"]
  assert tied.tie_embeddings and speed.flops_per_token(tied) == 6 * tied.num_params()


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
