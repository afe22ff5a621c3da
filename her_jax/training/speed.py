"""How fast steps are, of what the chips could do, and what the steps wait for."""

from collections import deque
from typing import Any

import jax
import numpy as np

from her_jax.models.config import ModelConfig
from her_jax.training import lora

# Peak of dense bfloat16 products, FLOP/s a chip, as its vendor states it, by JAX's name for it.
PEAK = {
  "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5e": 197e12, "TPU v5": 459e12,
  "TPU v5p": 459e12, "TPU v6 lite": 918e12, "TPU v6e": 918e12,
  "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12,
}  # fmt: skip
_WINDOW = 100


def flops_per_token(model: ModelConfig, adapted: lora.Settings | None = None) -> int:
  """Floating-point operations that training needs for a token.

  6 for each weight that it meets: forward 2, backward 2 for the gradient of what comes in and 2 for
  that of the weight (Kaplan et al., arXiv:2001.08361). A weight that is frozen below adapters has
  none of the last, so 4; the adapters' own have 6. The embedding is looked up and not multiplied;
  attention's own products, which depend on what sees what, are left out, as is what
  rematerialisation computes twice. So it is a lower bound.
  """
  table = model.vocab_size * model.hidden_size
  met = model.num_params() - (0 if model.tie_embeddings else table)
  if adapted and adapted.rank:
    return 4 * met + 6 * lora.counts(model, adapted)[0]
  return 6 * met


class Speed:
  """Gathers the times of steps and gives the metrics of the newest.

  `step_seconds_p50` and `step_seconds_p95` are over the last 100 steps, without the first of the
  run, which compiles.
  """

  def __init__(
    self,
    model: ModelConfig | None,
    devices: int | None = None,
    adapted: lora.Settings | None = None,
  ):
    """Args:
    model: what is trained; None where it is not known, and MFU is missing.
    adapted: the adapters beside it that are trained in its place, if any.
    devices: chips of all hosts.
    """
    self._seconds: deque[float] = deque(maxlen=_WINDOW)
    self._first = True
    self._devices = devices or jax.device_count()
    peak = PEAK.get(jax.devices()[0].device_kind)
    self._mfu = None
    if model and peak:
      self._mfu = flops_per_token(model, adapted) / (peak * self._devices)

  def __call__(self, tokens: int, seconds: float, waited: float) -> dict[str, float | None]:
    """The metrics of a step.

    Args:
      tokens: of the global batch, padding included, since it is computed too.
      seconds: that the step took.
      waited: of these for its batch.

    Returns:
      `tokens_per_second`, the same a chip, `mfu` (share of the chips' peak), `step_seconds_p50`,
      `step_seconds_p95`, `data_wait_seconds`, `hbm_gib` (the most that this host's fullest chip
      has held); None for what cannot be known here.
    """
    if not self._first:
      self._seconds.append(seconds)
    self._first = False
    times = list(self._seconds)
    rate = tokens / seconds
    return {
      "tokens_per_second": rate,
      "tokens_per_second_per_chip": rate / self._devices,
      "mfu": None if self._mfu is None else rate * self._mfu,
      "step_seconds_p50": float(np.percentile(times, 50)) if times else None,
      "step_seconds_p95": float(np.percentile(times, 95)) if times else None,
      "data_wait_seconds": waited,
      "hbm_gib": _peak_gib(),
    }


def _peak_gib() -> float | None:
  found: list[Any] = [device.memory_stats() for device in jax.local_devices()]
  peaks = [
    stats["peak_bytes_in_use"] for stats in found if stats and "peak_bytes_in_use" in stats
  ]
  return max(peaks) / 2**30 if peaks else None
