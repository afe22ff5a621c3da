"""What cannot fit is refused before anything is allocated."""

import dataclasses
import types

import ml_collections
import pytest

from her_jax.models.config import PRESETS
from her_jax.training import budget

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class _Device:
  """As much of a device as the budget looks at."""

  platform: str
  gib: float = 0.0
  process_index: int = 0

  def memory_stats(self):
    return {"bytes_limit": int(self.gib * _GIB)} if self.gib else None


def _config(task: str, model: str) -> ml_collections.ConfigDict:
  return ml_collections.ConfigDict({"task": task, "model": model})


def test_training_takes_sixteen_bytes_a_parameter():
  """Weight, two moments and gradient in float32; 32.8 billion of them for Qwen3-32B."""
  model = PRESETS["qwen3-32b"]
  assert budget.required_bytes("sft", model) == 16 * model.num_params()
  assert 480 < budget.required_bytes("sft", model) / _GIB < 500


def test_reinforcement_learning_takes_two_frozen_models_more():
  model = PRESETS["qwen3-8b"]
  more = budget.required_bytes("rl", model) - budget.required_bytes("sft", model)
  assert more == 8 * model.num_params()


def test_the_pod_config_is_refused_on_one_accelerator():
  with pytest.raises(budget.TooLarge) as caught:
    budget.check(_config("sft", "qwen3-32b"), [_Device("tpu", 95)])
  message = str(caught.value)
  for part in (
    "qwen3-32b",
    "sft",
    "1 TPU device",
    "95 GiB",
    "488 GiB",
    "Nothing was allocated",
  ):
    assert part in message
  assert "--config=configs/sft.py:qwen3-1.7b" in message  # 26 GiB; 4B's 60 leave too little.


def test_the_pod_config_is_accepted_on_a_pod():
  devices = [_Device("tpu", 95, process_index=i // 4) for i in range(16)]
  budget.check(_config("rl", "qwen3-32b"), devices)


@pytest.mark.parametrize("factor, fits", [(0.999, False), (1.001, True)])
def test_the_limit_is_the_sum_over_devices(factor, fits):
  each = budget.required_bytes("sft", PRESETS["qwen3-0.6b"]) / 4 / _GIB * factor
  devices = [_Device("gpu", each)] * 4
  if fits:
    budget.check(_config("sft", "qwen3-0.6b"), devices)
  else:
    with pytest.raises(budget.TooLarge, match="4 GPU device"):
      budget.check(_config("sft", "qwen3-0.6b"), devices)


def test_fake_cpu_devices_share_their_hosts_memory(monkeypatch):
  total = types.SimpleNamespace(total=8 * _GIB)
  monkeypatch.setattr(budget.psutil, "virtual_memory", lambda: total)
  eight = [_Device("cpu")] * 8
  assert budget.device_bytes(eight) == budget.device_bytes(eight[:1]) == 8 * _GIB
  assert budget.device_bytes([_Device("cpu"), _Device("cpu", process_index=1)]) == 16 * _GIB
  with pytest.raises(budget.TooLarge, match=r"have 8 GiB in all.*configs/sft\.py:tiny"):
    budget.check(_config("sft", "qwen3-0.6b"), eight)
  budget.check(_config("sft", "tiny"), eight)


def test_where_nothing_fits_it_says_so():
  with pytest.raises(budget.TooLarge, match="No preset fits here"):
    budget.check(_config("rl", "qwen3-8b"), [_Device("gpu", 1e-6)])


def test_a_device_that_does_not_tell_is_not_refused():
  budget.check(_config("sft", "qwen3-32b"), [_Device("tpu")])


def test_a_task_without_one_model_is_passed_over():
  budget.check(_config("quickstart", "tiny"), [_Device("gpu", 1e-6)])
