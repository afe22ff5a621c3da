"""The entry point: one config, one task, the same command on every host.

python -m her_jax.main --config=configs/sft.py:tiny --workdir=out/sft
python -m her_jax.main --config=configs/rl.py --workdir=/mnt/bucket/run1
"""

from collections.abc import Sequence
import importlib
import logging as standard_logging
import os
import runpy
import sys

from absl import app, flags, logging

# Decided before JAX and transformers are imported: models are read from folders alone.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from etils import epath
import jax
import ml_collections
from ml_collections import config_flags

from her_jax import cpu_backend, distributed, sharding
from her_jax.errors import ConfigError
from her_jax.roleplay.schema import DataError
from her_jax.training import budget
from her_jax.training.loop import NotFinite

TASKS = ("sft", "genrm", "rl", "evaluate", "export", "quickstart", "synthesize")

# What a user can mend: shown as a message, without a traceback.
_EXPECTED = (
  DataError, ConfigError, NotFinite, FileNotFoundError, FileExistsError, NotADirectoryError,
)  # fmt: skip

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

  if config.seed < 0:
    raise ConfigError(f"config.seed is {config.seed}; it must be 0 or more")
  _refuse_own_inputs(config, workdir)

  # At INFO, JAX tells of each kind of device that this machine does not have.
  standard_logging.getLogger("jax._src.xla_bridge").setLevel(standard_logging.WARNING)
  cpu_backend.tune()
  jax.config.update("jax_num_cpu_devices", config.cpu_devices)
  distributed.initialize()
  logging.info(
    "%s on %d %s device(s) of %d host(s)",
    config.task, jax.device_count(), jax.default_backend(), jax.process_count(),
  )  # fmt: skip
  mesh = sharding.make_mesh(**config.mesh)
  budget.check(config, jax.devices())

  folder = epath.Path(workdir)
  folder.mkdir(parents=True, exist_ok=True)
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


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the command line; a mistake in it is one line and exit code 2."""
  try:
    rest = flags.FLAGS(list(argv))
    _ = _CONFIG.value.task  # A config that failed to load says so only when it is read.
    return rest
  except (flags.Error, AttributeError, KeyError, ValueError, TypeError, OSError) as error:
    # ml_collections raises these for unknown keys, values of another type and bad presets.
    message = _missing_file(argv) or _first_line(error)
    if isinstance(error, (AttributeError, KeyError)) and (unknown := _unknown_fields(argv)):
      cause = error.args[0]  # "'key'\nhint", or a KeyError of that
      _, _, hint = str(cause.args[0] if isinstance(cause, KeyError) else cause).partition("\n")
      message = ". ".join(filter(None, ["no such config field: " + " or ".join(unknown), hint]))
    print(f"her_jax: {message}", file=sys.stderr)
    sys.exit(2)


def run() -> None:
  """What `python -m her_jax.main` calls: expected failures end in one message each."""
  logging.set_verbosity(logging.INFO)
  try:
    app.run(main, flags_parser=parse_flags)
  except _EXPECTED as error:
    print(f"her_jax: {error}", file=sys.stderr)
    sys.exit(1)


def _unknown_fields(argv: Sequence[str]) -> list[str]:
  """The overrides whose field the config does not have."""
  path, _, arg = _config_spec(argv).partition(":")
  try:
    config = runpy.run_path(path)["get_config"](*filter(None, [arg]))
  except Exception:  # The config itself is at fault, and that is told.
    return []
  names = [arg.split("=")[0] for arg in argv if arg.startswith("--config.")]
  return [name for name in names if not _has(config, name.split(".")[1:])]


def _unquoted(line: str) -> str:
  """A line without the quotes that a repr put around it; its own stay in pairs."""
  whole = len(line) > 1 and line[0] == line[-1] and line[0] in "\"'"
  return line[1:-1] if whole else line


def _missing_file(argv: Sequence[str]) -> str | None:
  """Says that the file of --config is not there, where that is what is wrong."""
  path = _config_spec(argv).partition(":")[0]
  if not path or os.path.isfile(path):
    return None
  return (
    f"--config={path}: no such file from {os.getcwd()}; the configs lie in configs/ of the"
    f" repository, from whose root the command is started"
  )


def _config_spec(argv: Sequence[str]) -> str:
  plain = flags.FlagValues()
  source = flags.DEFINE_string("config", None, "", flag_values=plain)
  plain(argv, known_only=True)
  return source.value or ""


def _has(config: ml_collections.ConfigDict, path: Sequence[str]) -> bool:
  for key in path:
    if not isinstance(config, ml_collections.ConfigDict) or key not in config:
      return False
    config = config[key]
  return True


def _first_line(error: BaseException) -> str:
  """The useful line of what ml_collections wraps around a mistake."""
  while error.__cause__ is not None:
    error = error.__cause__
  lines = [line.strip() for line in str(error.args[0] if error.args else error).splitlines()]
  lines = [_unquoted(line) for line in lines if line]
  if "Traceback (most recent call last):" in lines:  # A config's own error is the last line.
    return lines[-1]
  return " ".join(lines)


if __name__ == "__main__":
  run()
