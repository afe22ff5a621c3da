"""How Qwen3-32B is laid out on each pod: `--config=configs/sft.py:v5p-128`.

docs/pods.md holds what was compared. Every number of it comes from

    python -m launch_tpu.aot --config=configs/sft.py:v5p-128 --programs=train
"""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class Training:
  """One update on a pod.

  Attributes:
    rows: Of the global batch.
    length: Tokens a row.
    remat: A policy of `ModelConfig.remat`.
    data: Replicas of the weights; fsdp takes what the other axes leave.
    context: Ways in which a row is split.
    micro_batches: Parts of the batch.
  """

  rows: int
  length: int
  remat: str
  data: int = 1
  context: int = 1
  micro_batches: int = 1


_SFT = {
  "v5p-128": Training(64, 8192, "projections", data=2),
  "v5p-256": Training(128, 8192, "projections", data=4),
  "v6e-64": Training(64, 8192, "full"),
  "v6e-256": Training(256, 8192, "full", data=4),
  "2xv6e-256": Training(512, 8192, "full", data=8),
}

# A prompt and its group are one long row, so rows are split over several chips.
_RL = {
  "v5p-128": Training(32, 32_768, "attention", data=2, context=2),
  "v5p-256": Training(32, 32_768, "attention", data=2, context=4),
  "v6e-64": Training(32, 32_768, "full", context=4, micro_batches=2),
  "v6e-256": Training(32, 32_768, "full", data=2, context=8),
  "2xv6e-256": Training(64, 32_768, "full", data=4, context=8),
}

TRAINING: Mapping[str, Mapping[str, Training]] = {"sft": _SFT, "genrm": _SFT, "rl": _RL}

# Prompts that one host samples from together: what fits its chips beside the weights, by the
# rooms that configs/rl.py gives prompts and groups.
PROMPTS_PER_CALL: Mapping[str, int] = {
  "v5p-128": 16,
  "v5p-256": 16,
  "v6e-64": 4,
  "v6e-256": 4,
  "2xv6e-256": 4,
}
