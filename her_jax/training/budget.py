"""Will it fit? An estimate from the config alone, before anything is allocated."""

from collections.abc import Sequence

import jax
import ml_collections
import psutil

from her_jax.errors import ConfigError
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.training import lora

_GIB = 2**30
# Bytes a parameter: float32 master, two float32 moments, and the gradient.
_TRAINED = 4 + 8 + 4
_FROZEN = 4
# Whole models that a task holds: (trained, frozen). RL: the policy; its first weights, the judge.
_COPIES = {"sft": (1, 0), "genrm": (1, 0), "rl": (1, 2), "evaluate": (0, 3)}


class TooLarge(ConfigError):
  """The config asks for more memory than the devices have."""


def required_bytes(task: str, model: ModelConfig, adapted: lora.Settings | None = None) -> int:
  """A lower bound, in bytes over all devices: weights, moments and gradients, no activations.

  Args:
    adapted: where there are adapters, they are trained and the model is not. Merged for a
      checkpoint, the adapted matrices are there twice.
  """
  trained, frozen = _COPIES[task]
  if adapted and adapted.rank:
    adapters, merged = lora.counts(model, adapted)
    return (model.num_params() + merged) * _FROZEN + adapters * _TRAINED
  return model.num_params() * (trained * _TRAINED + frozen * _FROZEN)


def device_bytes(devices: Sequence[jax.Device]) -> int:
  """Memory of all devices in bytes; fake CPU devices share the host's."""
  if devices[0].platform == "cpu":
    hosts = len({device.process_index for device in devices})
    return psutil.virtual_memory().total * hosts
  stats = devices[0].memory_stats() or {}
  return stats.get("bytes_limit", 0) * len(devices)


def check(config: ml_collections.ConfigDict, devices: Sequence[jax.Device]) -> None:
  """Stops a run that cannot fit. An export's size is that of its source: see `check_source`.

  Raises:
    TooLarge: says what is needed, what is there, and the largest preset that fits.
  """
  if config.task not in _COPIES:
    return
  available = device_bytes(devices)
  adapted = lora.settings(config.lora) if "lora" in config else None
  required = lambda name: required_bytes(config.task, PRESETS[name], adapted)
  needed = required(config.model)
  if not available or needed <= available:
    return
  fitting = [name for name in PRESETS if required(name) <= available]
  best = max(fitting, key=lambda name: PRESETS[name].num_params()) if fitting else None
  # A preset that leaves no room for activations is no advice.
  roomy = [name for name in fitting if required(name) <= available / 2]
  best = max(roomy, key=lambda name: PRESETS[name].num_params()) if roomy else best
  advice = (
    f"The largest preset that fits here is {best}: --config=configs/{config.task}.py:{best}."
    if best
    else "No preset fits here."
  )
  raise TooLarge(
    f"{config.model} with task {config.task} needs at least {needed / _GIB:,.0f} GiB for weights,"
    f" moments and gradients over all devices, and the {len(devices)}"
    f" {devices[0].platform.upper()} device(s) found have {available / _GIB:,.0f} GiB in all."
    f" Nothing was allocated. {advice} For {config.model}, start the same command on every host"
    f" of a pod (launch_tpu/run.sh)."
  )


def check_source(
  source: str, model: ModelConfig, itemsize: int, devices: Sequence[jax.Device]
) -> None:
  """Stops the conversion of weights that do not fit: the parameters alone, no moments.

  Args:
    source: Where they are, for the error.
    model: What they are.
    itemsize: Bytes a parameter.
    devices: Where they are to go.

  Raises:
    TooLarge: says what is needed and what is there.
  """
  needed, available = model.num_params() * itemsize, device_bytes(devices)
  if available and needed > available:
    raise TooLarge(
      f"{source} needs {needed / _GIB:,.0f} GiB for its weights over all devices, and the"
      f" {len(devices)} {devices[0].platform.upper()} device(s) found have"
      f" {available / _GIB:,.0f} GiB in all. Nothing was allocated. Start the same command on"
      f" every host of a pod (launch_tpu/run.sh)."
    )
