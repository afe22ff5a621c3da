"""The one table between our stacked parameters and Hugging Face's names and layouts.

A linear layer there is [out, in] with heads flattened; ours is [in, out] with heads and
head_dim apart, and all layers stacked. For heads = 2, head_dim = 3, hidden = 4:

    layers.attention.q.weight [layers, 4, 2, 3]  <->  model.layers.0.self_attn.q_proj.weight [6, 4]
    layers.attention.o.weight [layers, 2, 3, 4]  <->  model.layers.0.self_attn.o_proj.weight [4, 6]
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from flax import nnx
import jax
import numpy as np

# Our path -> (their name, number of our leading axes that are a linear layer's inputs).
# No inputs: the layouts agree.
_LAYER = {
  "attention_norm.weight": ("input_layernorm.weight", 0),
  "attention.q.weight": ("self_attn.q_proj.weight", 1),
  "attention.k.weight": ("self_attn.k_proj.weight", 1),
  "attention.v.weight": ("self_attn.v_proj.weight", 1),
  "attention.o.weight": ("self_attn.o_proj.weight", 2),
  "attention.q_norm.weight": ("self_attn.q_norm.weight", 0),
  "attention.k_norm.weight": ("self_attn.k_norm.weight", 0),
  "mlp_norm.weight": ("post_attention_layernorm.weight", 0),
  "mlp.gate.weight": ("mlp.gate_proj.weight", 1),
  "mlp.up.weight": ("mlp.up_proj.weight", 1),
  "mlp.down.weight": ("mlp.down_proj.weight", 1),
}
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
_BEFORE = {"embedding": (EMBEDDING, 0)}
_AFTER = {"final_norm.weight": ("model.norm.weight", 0), "lm_head": (LM_HEAD, 1)}
# Parameters that a model has together or not at all.
_OPTIONAL = (
  {"lm_head"},
  {"layers.attention.q_norm.weight", "layers.attention.k_norm.weight"},
)


@dataclasses.dataclass(frozen=True)
class Weight:
  """One tensor of a Hugging Face checkpoint and its place among our parameters.

  Attributes:
    name: Theirs.
    path: Ours, as in `flatten`.
    layer: Its place on the `layers` axis; None for a parameter that is not stacked.
    shape: Ours, without the `layers` axis and without rows that fill up the vocabulary.
    inputs: Leading axes of `shape` that are a linear layer's inputs; 0: same layout.
  """

  name: str
  path: str
  layer: int | None
  shape: tuple[int, ...]
  inputs: int

  @property
  def hf_shape(self) -> tuple[int, ...]:
    """Shape there: (out, in) for a linear layer."""
    return tuple(reversed(self._matrix())) if self.inputs else self.shape

  def to_hf(self, ours: np.ndarray) -> np.ndarray:
    """Our `shape` -> `hf_shape`."""
    return ours.reshape(self._matrix()).T if self.inputs else ours

  def from_hf(self, theirs: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A block of theirs -> our block of the given shape."""
    return theirs.T.reshape(shape) if self.inputs else theirs.reshape(shape)

  def hf_block(self, block: Sequence[slice]) -> tuple[slice, ...]:
    """The block of theirs that holds a block of ours; both without the `layers` axis.

    In the example above, heads 1:2 of q, `(0:4, 1:2, 0:3)`, are rows `(3:6, 0:4)`.

    Raises:
      ValueError: head_dim is cut, so the block is not one rectangle there.
    """
    if not self.inputs:
      return tuple(block)
    sides = []
    for axes in (slice(self.inputs, None), slice(0, self.inputs)):
      first, *rest = zip(block[axes], self.shape[axes], strict=True)
      if any((part.start, part.stop) != (0, size) for part, size in rest):
        raise ValueError(f"{self.name}: only the first of its flattened axes may be sharded.")
      width = math.prod(size for _, size in rest)
      sides.append(slice(first[0].start * width, first[0].stop * width))
    return tuple(sides)

  def flat(self) -> "Weight":
    """The same tensor with the inputs, and the outputs, of a linear layer on one axis each."""
    if not self.inputs:
      return self
    return dataclasses.replace(self, shape=self._matrix(), inputs=1)

  def _matrix(self) -> tuple[int, int]:
    return math.prod(self.shape[: self.inputs]), math.prod(self.shape[self.inputs :])


def flatten(params: nnx.State) -> dict[str, Any]:
  """Dotted path -> array, as "layers.mlp.up.weight", in the order of `jax.tree.leaves`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  # The last key of a path is the variable's own `value`.
  keystr = jax.tree_util.keystr
  return {keystr(path[:-1], simple=True, separator="."): leaf for path, leaf in leaves}


def weights(params: nnx.State, vocab_size: int | None = None) -> list[Weight]:
  """All tensors of a checkpoint, in the order of the forward pass.

  Args:
    params: Concrete or abstract parameters of `Qwen3`.
    vocab_size: Rows of the embedding there; those of the parameters when None.

  Raises:
    ValueError: The table does not name a parameter, or names one that must be there.
  """
  shapes = {path: tuple(array.shape) for path, array in flatten(params).items()}
  for path, axis in (("embedding", 0), ("lm_head", 1)):
    if vocab_size is not None and path in shapes:
      shapes[path] = (*shapes[path][:axis], vocab_size, *shapes[path][axis + 1 :])
  stacked = {f"layers.{path}": entry for path, entry in _LAYER.items()}
  named = _BEFORE | stacked | _AFTER
  absent = set[str]().union(*(group for group in _OPTIONAL if not group & shapes.keys()))
  if wrong := shapes.keys() ^ named.keys() - absent:
    raise ValueError(f"Parameters and table disagree about {sorted(wrong)}.")

  def weight(path: str, name: str, layer: int | None, inputs: int) -> Weight:
    shape = shapes[path] if layer is None else shapes[path][1:]
    return Weight(name, path, layer, shape, inputs)

  num_layers = shapes["layers.attention_norm.weight"][0]
  return [
    *(weight(path, name, None, inputs) for path, (name, inputs) in _BEFORE.items()),
    *(
      weight(path, f"model.layers.{layer}.{name}", layer, inputs)
      for layer in range(num_layers)
      for path, (name, inputs) in stacked.items()
      if path in shapes
    ),
    *(
      weight(path, name, None, inputs)
      for path, (name, inputs) in _AFTER.items()
      if path in shapes
    ),
  ]
