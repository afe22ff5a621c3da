"""A folder in Hugging Face format: config.json and the safetensors beside it."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import reprlib

from her_jax.errors import ConfigError
from her_jax.hf import json_object, tensor_file
from her_jax.hf.source import Source, Tensor

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Source]:
  """Opens every weights file of a folder; only their headers are read.

  Raises:
    FileNotFoundError: A file is not there.
    ConfigError: A file is damaged, or it is not clear which weights are meant.
  """
  path = folder / CONFIG
  if not path.is_file():
    raise FileNotFoundError(
      f"{path} is missing: pass a local folder in Hugging Face format, or a .gguf file."
    )
  hf = json_object.read(path)
  files = _files(folder)
  if missing := [name for name in files if not (folder / name).is_file()]:
    raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}.")
  with contextlib.ExitStack() as stack:
    found: dict[str, Tensor] = {}
    for name in files:
      held = stack.enter_context(tensor_file.opened(folder / name))
      if twice := sorted(found.keys() & held.keys()):
        raise ConfigError(
          f"{folder / name} holds {twice[0]} a second time: keep one of the files."
        )
      found |= held
    yield Source(path, hf, found)


def _files(folder: Path) -> list[str]:
  """Names of the weights files: those of the index, or the only one."""
  index = folder / INDEX
  if not index.is_file():
    return [_WEIGHTS]
  places = json_object.read(index).get("weight_map")
  if not isinstance(places, dict) or not places:
    raise json_object.broken(
      index, f"weight_map must be an object of file names, got {reprlib.repr(places)}"
    )
  for tensor, name in places.items():
    # A path could lead out of the folder, to a file of which nobody thinks.
    plain = isinstance(name, str) and Path(name).name == name and name not in ("", "..")
    if not plain or "\\" in name or "\0" in name:
      raise json_object.broken(
        index,
        f"weight_map puts {tensor} into {reprlib.repr(name)}, which is no name of a file beside "
        "it",
      )
  files = sorted(set(places.values()))
  if _WEIGHTS not in files and (folder / _WEIGHTS).is_file():
    raise ConfigError(
      f"{folder} holds two sets of weights, {_WEIGHTS} and the files that {INDEX} names: delete "
      f"{INDEX} to load the first, or {_WEIGHTS} to load the others."
    )
  return files
