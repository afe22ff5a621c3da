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


@dataclasses.dataclass(frozen=True)
class Engine:
  """What the engine of one host works on together, beside the weights on its chips.

  Attributes:
    rows: Requests that grow together.
    pages: Of keys and values; 0: what `rows` of the longest requests fill.
    page_size: Tokens of a page.
    chunk: Prompt tokens that are read together.
  """

  rows: int = 64
  pages: int = 0
  page_size: int = 128
  chunk: int = 2048


# Trained weights and moments stay where they are, 11.4 GiB a chip of v5p-128, 5.7 of v6e-64 and 2.9
# of v6e-256, and on v5p there is room for the judge's weights too, 15.3 GiB.
_V5P = Engine(rows=64, pages=5120)
_V6E = Engine(rows=32, pages=1024)
ENGINE: Mapping[str, Engine] = {
  "v5p-128": _V5P,
  "v5p-256": _V5P,
  "v6e-64": dataclasses.replace(_V6E, pages=640),
  "v6e-256": _V6E,
  "2xv6e-256": _V6E,
}
