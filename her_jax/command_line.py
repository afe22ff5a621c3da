"""What the programs have in common that take a config: one line for each mistake."""

from collections.abc import Callable, Sequence
import errno
import functools
import math
import os
import re
import runpy
import sys
import traceback
from typing import Any, get_args

from absl import app, flags
import ml_collections

from her_jax import peers
from her_jax.errors import ConfigError
from her_jax.models.config import PRESETS, Remat
from her_jax.roleplay.schema import DataError
from her_jax.training import lora, preemption
from her_jax.training.loop import NotFinite, WorkerLost

# What a user can mend: shown as a message, without a traceback.
_EXPECTED = (
  DataError, ConfigError, NotFinite, WorkerLost, FileNotFoundError, FileExistsError,
  NotADirectoryError,
)  # fmt: skip
# Of what a disk refuses: that it is full, or that it may not be written.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR)
# How libraries in Rust ("os error 28") and TensorStore ("os_error_code='28'") pass it on.
_ERROR_NUMBER = re.compile(r"\bos[ _]error(?:_code=')? ?(\d+)")

# Field -> what it names, and what there is.
_NAMES = (
  ("model", "preset", tuple(PRESETS)),
  ("remat", "policy", ("", *get_args(Remat))),
)
# The least that a number may be -> the fields, where the task has them.
_LEAST = {
  0: (
    "steps", "judge.history", "eval_samples", "eval_pairs", "eval_every", "checkpoint.every", "data.workers",
    "profile.step", "profile.steps", "engine.pages", "serve.port", "serve.max_queue",
  ),
  1: (
    "batch_size", "micro_batches", "tokenizer_vocab", "log_every", "cpu_devices", "checkpoint.keep", "data.length",
    "data.eval_length", "data.eval_batch_size",
    *(f"{section}.{field}" for section in ("sampling", "judge")
      for field in ("prompt_length", "max_new_tokens")),
    "engine.rows", "engine.page_size", "engine.chunk", "serve.max_body_bytes",
  ),
}  # fmt: skip

# The fields that are no sizes -> the least they may be, and the most or what they stay below.
_RANGES = (
  (
    0.0, math.inf, "[)",
    ("optimizer.learning_rate", "optimizer.weight_decay", "optimizer.final_scale",
     "optimizer.warmup_steps", "context_weight", "name_weight", "verdict_weight",
     "sampling.temperature"),
  ),
  (0.0, 2.0**63, "[)", ("seed",)),
  (0.0, math.inf, "()", ("optimizer.muon_scale", "serve.timeout_s", "serve.grace_s")),
  (0.0, math.inf, "(]", ("optimizer.clip_norm",)),  # inf: nothing is clipped.
  (0.0, 1.0, "[)", ("optimizer.b1", "optimizer.b2", "optimizer.ema")),
  (0.0, 1.0, "[]", ("data.word_dropout",)),
)  # fmt: skip


def run(
  main: Callable[[Sequence[str]], Any], program: str = "her_jax", default: str = ""
) -> None:
  """Calls `main` as `app.run` does; expected failures end in one message each.

  Exits with 0, 1 (failed), 2 (a mistake on the command line), `preemption.EXIT_CODE`: the run
  was told to end, has saved, and is continued by the same command; or `peers.EXIT_CODE`: another
  of its processes was lost. One that fails ends the others.

  Args:
    main: Takes what is left of the command line.
    program: Begins the messages.
    default: Config where the command line names none.
  """
  parse = functools.partial(parse_flags, program=program, default=default)
  try:
    app.run(main, flags_parser=parse)
  except preemption.Preempted as error:
    print(f"{program}: {error}", file=sys.stderr)
    sys.exit(preemption.EXIT_CODE)
  except _EXPECTED as error:
    message = str(error)
  except Exception as error:
    others = peers.current()
    if others:
      others.hear_why()
    if (disk := _of_disk(error)) is None:
      if others:
        traceback.print_exc()
        others.fail()
      raise
    message = disk
  print(f"{program}: {message}", file=sys.stderr)
  if others := peers.current():
    others.fail()
  sys.exit(1)


def parse_flags(argv: Sequence[str], program: str = "her_jax", default: str = "") -> list[str]:
  """Parses the command line; a mistake in it is one line and exit code 2.

  The program has defined a flag `config` by `config_flags.DEFINE_config_file`, without a default:
  ml_collections would apply the overrides to it at once, also those that are of another config.
  """
  if default and not _config_spec(argv):
    argv = [argv[0], f"--config={default}", *argv[1:]]
  try:
    rest = flags.FLAGS(list(argv))
    _ = flags.FLAGS.config.task  # A config that failed to load says so only when it is read.
    return rest
  except (flags.Error, AttributeError, KeyError, ValueError, TypeError, OSError) as error:
    # ml_collections raises these for unknown keys, values of another type and bad presets.
    message = _missing_file(argv) or _first_line(error)
    if isinstance(error, (AttributeError, KeyError)) and (unknown := _unknown_fields(argv)):
      cause = error.args[0]  # "'key'\nhint", or a KeyError of that
      _, _, hint = str(cause.args[0] if isinstance(cause, KeyError) else cause).partition("\n")
      message = ". ".join(filter(None, ["no such config field: " + " or ".join(unknown), hint]))
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(2)


def _of_disk(error: Exception) -> str | None:
  """The message, where it is the disk that is at fault."""
  number = error.errno if isinstance(error, OSError) else None
  if number is None and (found := _ERROR_NUMBER.search(str(error))):
    number = int(found[1])
  said = " ".join(str(error).split())
  if number in _NO_SPACE:
    return f"{said}. The disk is full: make room, or take another folder, and start again"
  if number in _NO_WRITING:
    return f"{said}. Take a folder that may be written"
  return None


def check(config: ml_collections.ConfigDict, prefix: str = "config") -> None:
  """Checks names and sizes, of every stage where the config holds several.

  Later some would be told only behind minutes of compiling, when the checkpoints of an earlier
  run are cleared already.

  Raises:
    ConfigError: There is none of the name, or the size is none.
  """
  for field, kind, names in _NAMES:
    if field in config and config[field] not in names:
      raise ConfigError(
        f"{prefix}.{field}: no {kind} {config[field]!r}; there are"
        f" {', '.join(filter(None, names))}"
      )
  for least, fields in _LEAST.items():
    for field in fields:
      if _has(config, field.split(".")) and (size := _get(config, field)) < least:
        raise ConfigError(f"{prefix}.{field} is {size}; it must be {least} or more")
  for low, high, ends, fields in _RANGES:
    for field in fields:
      if _has(config, field.split(".")) and not _within(_get(config, field), low, high, ends):
        raise ConfigError(
          f"{prefix}.{field} is {_get(config, field)}; {_told(low, high, ends)}"
        )
  rows = config.get("batch_size", 0)
  if rows % config.get("micro_batches", 1):
    raise ConfigError(
      f"{prefix}.batch_size: {rows} rows cannot be split into micro_batches ="
      f" {config.micro_batches}"
    )
  if "lora" in config:
    lora.settings(config.lora, f"{prefix}.lora")
  for name, section in config.items():
    if isinstance(section, ml_collections.ConfigDict) and "task" in section:
      check(section, f"{prefix}.{name}")


def _within(value: float, low: float, high: float, ends: str) -> bool:
  """Whether a number is in a range whose `ends` are its own, as in "[)"; NaN is in none."""
  above = value >= low if ends[0] == "[" else value > low
  return above and (value <= high if ends[1] == "]" else value < high)


def _told(low: float, high: float, ends: str) -> str:
  least = f"{low:g} or more" if ends[0] == "[" else f"above {low:g}"
  most = {"]": f" and at most {high:g}", ")": f" and below {high:g}"}[ends[1]]
  return f"it must be a number, {least}" + (most if math.isfinite(high) else "")


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


def _get(config: ml_collections.ConfigDict, field: str) -> Any:
  return functools.reduce(lambda section, name: section[name], field.split("."), config)


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
