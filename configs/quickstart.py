"""The whole chain on a tiny model: SFT, judge, RL, evaluation, export and a report.

python -m her_jax.main --config=configs/quickstart.py --workdir=out/quickstart
"""

import ml_collections

from configs import evaluate, export, genrm, rl, sft


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Each stage is the `tiny` preset of its own config; `--config.seed` seeds them all.

  But for SFT, which goes on for so long that its replies can be judged.
  """
  if arg not in (None, "", "tiny"):
    raise ValueError(f"the quickstart has one size, not {arg!r}")
  config = ml_collections.ConfigDict()
  config.task = "quickstart"
  config.seed = 0
  config.model = "tiny"
  # Whether stages that are there already are kept, and one that was broken off goes on.
  config.checkpoint = ml_collections.ConfigDict({"resume": True})
  config.mesh = sft.get_config("tiny").mesh
  config.cpu_devices = sft.get_config("tiny").cpu_devices
  for stage in (sft, genrm, rl, evaluate, export):
    stage_config = stage.get_config("tiny")
    config[stage_config.task] = stage_config
  config.sft.update(steps=1800, eval_samples=96)
  config.genrm.eval_pairs = 0  # `evaluate` judges the same pairs.
  return config
