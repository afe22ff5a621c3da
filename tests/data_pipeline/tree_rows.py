"""Scenes whose trees are tested, and what stands in a tree."""

from data_pipeline import loaders, samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import chat, schema

SCENES = schema.read_trajectories(samples.SCENES)[:3]


def tokenizer_of_scenes():
  return hf_tokenizer.train((f"{t.plan} {t.reply}" for s in SCENES for t in s.turns), 700)


def completions(row: loaders.Row, tokenizer) -> list[list[int]]:
  """The branches' ids: runs of weighted targets that end in the end token."""
  end = chat.control_id(chat.IM_END, tokenizer)
  runs: list[list[int]] = [[]]
  for target, weight in zip(row["targets"], row["loss_weights"], strict=True):
    if weight:
      runs[-1].append(int(target))
      if target == end:
        runs.append([])
  assert runs.pop() == []
  return runs
