"""The entry point: one config, one task, the same command on every host.

python -m her_jax.main --config=configs/sft.py:tiny --workdir=out/sft
python -m her_jax.main --config=configs/rl.py --workdir=/mnt/bucket/run1

The same command on the same workdir continues SFT and the judge from their newest checkpoint. It
exits with 42 where SIGTERM ended a run that has saved, see `training.preemption`, and with 43
where another host was lost, see `peers`.
"""

from collections.abc import Sequence
import importlib
import logging as standard_logging
import os

from absl import app, flags, logging

# Decided before JAX and transformers are imported: models are read from folders alone.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from etils import epath
import jax
import ml_collections
from ml_collections import config_flags

from her_jax import command_line, cpu_backend, distributed, sharding
from her_jax.errors import ConfigError
from her_jax.training import budget, continuation, workdirs

TASKS = ("sft", "genrm", "rl", "evaluate", "export", "quickstart", "serve", "synthesize")

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Path of a config, with a preset after a colon: configs/rl.py:tiny"
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of this run's results, on a local or mounted disk"
)
for _name, _example in (("config", "configs/sft.py:tiny"), ("workdir", "out/sft")):
  flags.register_validator(
    _name,
    lambda value: value is not None,
    message=f"is missing; for example --{_name}={_example}",
  )


def main(argv: Sequence[str]) -> None:
  """Runs the task that the config names."""
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Overrides begin with --config.")
  config, workdir = _CONFIG.value, _WORKDIR.value or ""
  if "://" in workdir:
    raise ConfigError(
      f"--workdir={workdir} is not a folder: metrics and samples are written to a disk; mount the"
      f" bucket (gcsfuse) and pass its path"
    )
  if config.task not in TASKS:
    raise app.UsageError(f"no task {config.task!r}; there are {', '.join(TASKS)}")

  command_line.check(config)
  _refuse_own_inputs(config, workdir)
  workdirs.refuse_model(workdir, "workdir")

  # At INFO, JAX tells of each kind of device that this machine does not have.
  standard_logging.getLogger("jax._src.xla_bridge").setLevel(standard_logging.WARNING)
  cpu_backend.tune()
  jax.config.update("jax_num_cpu_devices", config.cpu_devices)
  distributed.initialize(lambda: continuation.after_a_loss(config.task, workdir))
  logging.info(
    "%s on %d %s device(s) of %d host(s)",
    config.task, jax.device_count(), jax.default_backend(), jax.process_count(),
  )  # fmt: skip
  mesh = sharding.make_mesh(**config.mesh)
  budget.check(config, jax.devices())
  if config.task in continuation.TASKS:
    continuation.find(config, workdir)  # Refuses before the old config.json is written over.

  folder = epath.Path(workdir)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ConfigError(
      f"--workdir={workdir} cannot be made ({error.strerror}); choose another folder"
    ) from None
  if jax.process_index() == 0:
    (folder / "config.json").write_text(config.to_json_best_effort(indent=2))

  task = importlib.import_module(f"her_jax.tasks.{config.task}")
  with jax.set_mesh(mesh):
    task.run(config, workdir, mesh)
  logging.info("%s has ended; its results are in %s", config.task, workdir)


def _refuse_own_inputs(config: ml_collections.ConfigDict, workdir: str) -> None:
  """A run writes into its workdir, and clears checkpoints there: not where it reads from."""
  for field in ("init_from", "source", "policy", "baseline", "tokenizer", "judge.checkpoint"):
    section, _, name = field.rpartition(".")
    source = (config.get(section, {}) if section else config).get(name)
    if source and os.path.realpath(source) == os.path.realpath(workdir):
      raise ConfigError(
        f"--workdir={workdir} is the folder that config.{field} names: the run would overwrite"
        f" what it starts from; choose another folder"
      )


def run() -> None:
  """What `python -m her_jax.main` calls."""
  logging.set_verbosity(logging.INFO)
  command_line.run(main)


if __name__ == "__main__":
  run()
