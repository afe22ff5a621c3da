"""No tool writes over what it reads."""

from collections.abc import Iterable
import os
import pathlib

from her_jax.errors import ConfigError

Path = str | os.PathLike[str]


def refuse(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
  """Checks that no input is one of the files or lies in one of the folders to be written.

  Raises:
    ConfigError: names the input.
  """
  targets = [pathlib.Path(path).resolve() for path in outputs]
  for path in inputs:
    real = pathlib.Path(path).resolve()
    if any(real == target or target in real.parents for target in targets):
      raise ConfigError(
        f"{path}: is read by this run, which would write over it; choose another"
        f" place for the output"
      )
