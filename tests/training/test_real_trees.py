"""Trees and single replies of real conversations: one loss, one gradient, fewer tokens."""

from collections import defaultdict

from flax import nnx
import jax
import numpy as np
import pytest

from benchmarks.trees import compact
from data_pipeline import rendering, trees
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.training import step as steps
from tests.data_pipeline.synthesis import synthesis_runs
from tests.teachers.synthesis import Teacher

_MULTIPLE = 640  # Row lengths are rounded up to it: few programs to compile.


@pytest.fixture(scope="module")
def scenes(real_data, tmp_path_factory):
  """The 43 cases of public-domain books, with plans by the scripted teacher."""
  given = synthesis_runs.real_cases(real_data("coser_public_domain_cases.json"))
  folder = tmp_path_factory.mktemp("cases")
  synthesis_runs.make(folder, Teacher()).run(synthesis_runs.source(given))
  return synthesis_runs.read(folder)


def _forms(scenes, qwen3_folder):
  """Rows of both forms, with small ids in the place of Qwen3's, and the vocabulary's size."""
  tokenizer = hf_tokenizer.load(qwen3_folder)
  as_trees, _ = rendering.sft_trees(scenes, tokenizer, 1 << 20)
  single, _ = rendering.sft_rows(scenes, tokenizer, 1 << 20)
  return as_trees, single, compact(as_trees, single)


def test_trees_take_less_than_half_the_tokens(scenes, qwen3_folder):
  assert len(scenes) == 43
  as_trees, single, _ = _forms(scenes, qwen3_folder)
  assert len(single) == sum(len(scene.trained_turns()) for scene in scenes)
  tokens = [sum(len(row["tokens"]) for row in form) for form in (as_trees, single)]
  targets = [
    sum(int((row["loss_weights"] > 0).sum()) for row in form) for form in (as_trees, single)
  ]
  assert targets[0] == targets[1]
  print(f"\n{tokens[0]} tokens as trees, {tokens[1]} as single replies, {targets[0]} targets")
  assert tokens[1] > 2 * tokens[0]


@pytest.mark.parametrize(
  "one_in",
  [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)],
)
def test_trees_have_the_loss_and_gradients_of_single_replies(scenes, qwen3_folder, one_in):
  as_trees, single, vocab = _forms(scenes[::one_in], qwen3_folder)
  config = ModelConfig(
    vocab_size=vocab, hidden_size=16, intermediate_size=32, num_layers=2, num_heads=1,
    num_kv_heads=1, head_dim=8, tie_embeddings=True, max_position_embeddings=8192,
    dtype="float32", remat="none",
  )  # fmt: skip
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  loss_fn = steps.next_token_loss(vocab)

  @jax.jit
  def gradients(params, batch):
    def total(params):
      loss, count, _ = loss_fn(nnx.merge(graphdef, params), batch)
      return loss, count

    return jax.value_and_grad(total, has_aux=True)(params)

  def summed(form):
    """Loss, targets and gradients over all rows, added up in float64."""
    by_length = defaultdict(list)
    for row in form:
      by_length[-(-len(row["tokens"]) // _MULTIPLE) * _MULTIPLE].append(row)
    loss = count = 0.0
    found = [np.zeros(leaf.shape) for leaf in jax.tree.leaves(params)]
    for length, some in sorted(by_length.items()):
      for row in some:
        padded = {k: v[None] for k, v in trees.pad(row, length, 0).items()}
        (one, targets), grads = gradients(params, padded)
        loss, count = loss + float(one), count + float(targets)
        for total, more in zip(found, jax.tree.leaves(grads), strict=True):
          np.add(total, np.asarray(more), out=total)
    return loss, count, found

  tree_loss, tree_count, tree_grads = summed(as_trees)
  row_loss, row_count, row_grads = summed(single)
  assert tree_count == row_count
  assert tree_loss == pytest.approx(row_loss, rel=1e-5)
  for one, two in zip(tree_grads, row_grads, strict=True):
    assert np.linalg.norm(two) > 0
    assert np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two)
