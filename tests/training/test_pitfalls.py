"""Faults of masks and packing that others met in training, each held off in its kind.

That packed documents leave each other's logits alone is held for every attention in
tests/models; that sums are divided once in test_step; that small updates move a weight in
test_qwen3_parity.
"""

import dataclasses
import itertools

from flax import nnx
import jax
import numpy as np
import pytest

from data_pipeline import loaders, rendering, samples, trees
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.roleplay import chat, schema
from her_jax.roleplay.prompts import Variant
from her_jax.training import step as steps

_VOCAB = 64
_BRIEF = Variant("brief")
SCENES = schema.read_trajectories(samples.SCENES)[:2]


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train((f"{t.plan} {t.reply}" for s in SCENES for t in s.turns), 700)


@pytest.fixture(scope="module")
def sums():
  """Gives loss, weight and gradient of a batch, each a sum."""
  config = ModelConfig(
    vocab_size=_VOCAB, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=16, tie_embeddings=True, max_position_embeddings=512, dtype="float32",
  )  # fmt: skip
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(3)))
  loss_fn = steps.next_token_loss(_VOCAB)

  def total(params, batch):
    loss, count, _ = loss_fn(nnx.merge(graphdef, params), batch)
    return loss, count

  def run(rows):
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    (loss, count), gradient = jax.value_and_grad(total, has_aux=True)(params, batch)
    return float(loss), float(count), jax.tree.leaves(gradient)

  return run


def _document(seed, size=14):
  ids = np.random.default_rng(seed).integers(1, _VOCAB, size).tolist()
  return trees.lay_out(ids[:-4], [trees.Branch(6, ids[-4:-2]), trees.Branch(8, ids[-2:])])


def _packed(documents, length):
  """The one row that the loader packs of them."""
  stream = loaders.batches(documents, length=length, batch_size=1, seed=0, pad_id=0)
  for batch in itertools.islice(stream, 20):
    row = {name: values[0] for name, values in batch.items()}
    roots = (row["positions"] == 0) & (row["tokens"] > 0)
    if sorted(row["tokens"][roots]) == sorted(d["tokens"][0] for d in documents):
      return row
  raise AssertionError("no row with all documents")


def test_a_packed_row_has_the_loss_and_gradient_of_its_documents(sums):
  documents = [_document(seed) for seed in (1, 2)]
  loss, count, gradient = sums([_packed(documents, 40)])
  alone = [sums([trees.pad(document, 40, 0)]) for document in documents]
  np.testing.assert_allclose(loss, sum(one[0] for one in alone), rtol=1e-5)
  assert count == sum(one[1] for one in alone)
  for whole, *parts in zip(gradient, *(one[2] for one in alone), strict=True):
    np.testing.assert_allclose(whole, sum(parts), atol=1e-5)


def test_three_equal_documents_weigh_a_third_each(sums):
  """Their place in the row, or number in it, is no weight."""
  document = _document(4)
  loss, count, gradient = sums([_packed([document] * 3, 60)])
  one_loss, one_count, one_gradient = sums([trees.pad(document, 60, 0)])
  np.testing.assert_allclose([loss, count], [3 * one_loss, 3 * one_count], rtol=1e-5)
  for whole, part in zip(gradient, one_gradient, strict=True):
    np.testing.assert_allclose(whole, 3 * part, atol=3e-5)


def test_the_longest_length_changes_no_target(tokenizer):
  """Exact, one more, far more: the same ids, targets and weights, the end token's too."""
  expected, counts = rendering.sft_trees(SCENES, tokenizer, 1 << 20, variant=_BRIEF)
  end = chat.control_id(chat.IM_END, tokenizer)
  for length in (counts.longest, counts.longest + 1, 8192):
    found, _ = rendering.sft_trees(SCENES, tokenizer, length, variant=_BRIEF)
    np.testing.assert_equal(found, expected)
    stream = loaders.batches(found, length=length, batch_size=1, seed=0, pad_id=0)
    by_size = {len(row["tokens"]): row for row in expected}
    assert len(by_size) == len(expected)
    for batch in itertools.islice(stream, 2 * len(found)):
      roots = np.flatnonzero((batch["positions"][0] == 0) & (batch["tokens"][0] != 0))
      for root in roots:
        stop = int(batch["visible_until"][0, root])
        for name in ("tokens", "targets", "loss_weights"):
          one = batch[name][0, root:stop]
          np.testing.assert_array_equal(one, by_size[stop - root][name])
    assert len(roots) and all((row["targets"] == end).any() for row in expected)


def test_of_a_conversation_that_is_split_up_each_reply_is_whole(tokenizer):
  """No row ends within a reply, and none is taught an end that it does not hold."""
  whole, counts = rendering.sft_trees(SCENES, tokenizer, 1 << 20, variant=_BRIEF)
  parts, split = rendering.sft_trees(SCENES, tokenizer, 2 * counts.longest // 3, variant=_BRIEF)
  assert split.split_up and split.supervised == counts.supervised
  end = chat.control_id(chat.IM_END, tokenizer)

  def replies(rows):
    found = []
    for row in rows:
      ids = row["targets"][row["loss_weights"] > 0].tolist()
      assert ids[-1] == end
      text = ",".join(map(str, ids))
      found += [reply for reply in text.split(f",{end}") if reply]
    return sorted(reply.strip(",") for reply in found)

  assert replies(parts) == replies(whole)


def test_a_conversation_without_a_plan_makes_no_row(tokenizer):
  bare = [
    dataclasses.replace(s, turns=tuple(dataclasses.replace(t, plan="") for t in s.turns))
    for s in SCENES
  ]
  rows, counts = rendering.sft_trees(bare, tokenizer, 8192, variant=_BRIEF)
  assert not rows and not counts.supervised
  assert counts.left["replies without a plan"] == sum(
    t.speaker != s.environment for s in SCENES for t in s.turns
  )
