"""Conversations → rows that a loader packs."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from data_pipeline import trees
from her_jax.roleplay import chat
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import Trajectory


def sft_rows(
  trajectories: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  variant: Variant = chat.DEFAULT,
) -> list[dict[str, np.ndarray]]:
  """Each trained reply as a row of its own behind the whole conversation before it.

  What `loaders.sft_trees` lays out once a conversation is here once a reply: the same losses and
  gradients, with several times the tokens. Of a conversation longer than `length` the oldest
  turns are left out.

      prompt = [7, 8, 9], completion = [5, 6]

      tokens          7 8 9 5 6
      targets         0 0 5 6 0
      loss_weights    0 0 1 1 0
      visible_until   5 5 5 5 5
      positions       0 1 2 3 4

  Raises:
    DataError: a sheet, last turn and reply are longer than `length`.
  """
  made = []
  for scene in trajectories:
    for turn in scene.trained_turns():
      example = chat.render_example(scene, turn, tokenizer, length, variant)
      begins = example.mask.index(1)
      branch = trees.Branch(begins, example.ids[begins:])
      made.append(trees.lay_out(example.ids[:begins], [branch]))
  return made
