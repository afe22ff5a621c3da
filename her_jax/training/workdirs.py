"""What a folder must not hold where a run is to write its results."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib

import jax

from her_jax import locks
from her_jax.errors import ConfigError
from her_jax.hf.export import INCOMPLETE

_WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin")


def weights_in(folder: pathlib.Path) -> list[str]:
  """Names of the files that hold a model's weights, in any format that transformers loads."""
  return sorted(path.name for pattern in _WEIGHTS for path in folder.glob(pattern))


def model_in(folder: pathlib.Path) -> str | None:
  """Name of a file by which the folder is a model's; None if it is none.

  A run writes a `config.json` too, of other content.
  """
  if found := weights_in(folder):
    return found[0]
  try:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return None
  theirs = isinstance(config, dict) and "model_type" in config and "task" not in config
  return "config.json" if theirs else None


def refuse_model(folder: str, field: str) -> None:
  """A run writes `config.json` and more into its folder: not beside the weights of a model.

  An export that was broken off is no model yet, and may be begun anew.

  Args:
    field: The flag that names the folder, for the error.

  Raises:
    ConfigError: A model lies there.
  """
  path = pathlib.Path(folder)
  if (path / INCOMPLETE).exists():
    return
  if found := model_in(path):
    raise ConfigError(
      f"--{field}={folder} is the folder of a model, it holds {found}: the run would overwrite"
      f" its files; choose another folder"
    )


@contextlib.contextmanager
def alone_in(folder: str) -> Iterator[None]:
  """Makes the folder, and keeps other runs of this machine out until the block ends.

  The lock is on the folder itself and goes with the process, also one that is killed. A mounted
  bucket may know no locks: nothing is kept out there.

  Raises:
    ConfigError: Another run is in.
  """
  if jax.process_index() != 0:  # The first process stands for all of its run.
    yield
    return
  pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      locks.take(descriptor)
    except BlockingIOError:
      raise ConfigError(
        f"{folder}: another run is writing into this folder; wait for its end, or choose another"
      ) from None
    except OSError:
      pass
    yield
  finally:
    os.close(descriptor)
