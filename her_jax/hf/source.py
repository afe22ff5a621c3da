"""What a reader of a checkpoint format gives to load.py."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np


class Tensor(Protocol):
  """A tensor on disk of which blocks are read."""

  def get_shape(self) -> Sequence[int]:
    """As Hugging Face's: [out, in] for a linear layer."""
    ...

  def __getitem__(self, index: Any) -> np.ndarray:
    """The block that a slice, or one slice an axis, selects."""
    ...


@dataclasses.dataclass(frozen=True)
class Source:
  """An opened checkpoint.

  Attributes:
    hf: Its `config.json`, or the same told by other metadata.
    tensors: By the names in the file.
    rename: Hugging Face's name of a tensor -> the one in the file.
  """

  hf: Mapping[str, Any]
  tensors: Mapping[str, Tensor]
  rename: Callable[[str], str] = str
