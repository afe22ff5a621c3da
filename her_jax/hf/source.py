"""What a reader of a checkpoint format gives to load.py."""

from collections.abc import Callable, Mapping
import dataclasses
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Tensor(Protocol):
  """A tensor on disk of which rows are read."""

  @property
  def dtype(self) -> str:
    """In the spelling of safetensors, such as "BF16"."""
    ...

  @property
  def shape(self) -> tuple[int, ...]:
    """As Hugging Face's: (out, in) for a linear layer."""
    ...

  def read_rows(self, start: int, out: np.ndarray) -> None:
    """Fills `out`, contiguous and of the dtype, with rows from `start` on.

    A row is all that one index of the first axis holds; a tensor of one axis has one row.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Source:
  """An opened checkpoint.

  Attributes:
    file: Where `hf` was read, for errors.
    hf: Its `config.json`, or the same told by other metadata.
    tensors: By the names in the file.
    rename: Hugging Face's name of a tensor -> the one in the file.
  """

  file: Path
  hf: Mapping[str, Any]
  tensors: Mapping[str, Tensor]
  rename: Callable[[str], str] = str
