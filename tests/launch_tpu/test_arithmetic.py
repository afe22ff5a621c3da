"""FLOPs and bytes by arithmetic, by hand for small numbers."""

import pytest

from her_jax.models.config import ModelConfig
from launch_tpu import arithmetic

MODEL = ModelConfig(
  vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=2, num_heads=2,
  num_kv_heads=1, head_dim=2, tie_embeddings=False, max_position_embeddings=8,
)  # fmt: skip
_LAYER = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 6 + 2 * 2 + 2 * 4  # q, k and v, o, mlp, norms


def _work(rows=8, length=16, micro_batches=1, **sizes):
  mesh = {"data": 1, "fsdp": 1, "context": 1, "tensor": 1} | sizes
  return arithmetic.Work(rows, length, mesh, micro_batches)


def test_model_flops_by_hand():
  weights = 2 * _LAYER + 4 + 10 * 4  # with the head, without the looked-up table
  pairs = 3 * 4 / 2
  attention = 2 * (2 * 2 * 2 * 2 + 4 * 2 * 2 * 2) * pairs
  assert arithmetic.model_flops(MODEL, rows=5, length=3) == 5 * (6 * weights * 3 + attention)


def test_the_kernel_counts_whole_blocks_and_its_calls():
  # Rows of 1024: blocks of 512, of which 3 of 4 are visited.
  work = _work(rows=8, length=1024, fsdp=4)
  calls = {"tree_attention_forward": 2, "tree_attention_dq": 1, "tree_attention_dkv": 1}
  product = 2 * 2 * 2 * 3 * 512 * 512  # two rows on a chip, two heads of two
  assert arithmetic.kernel_flops(MODEL, work, calls) == 2 * product * (2 * 2 + 3 + 4)
  assert arithmetic.kernel_flops(MODEL, work, {}) == 0


def test_bytes_of_plain_fsdp():
  needed = arithmetic.needed_bytes(MODEL, _work(fsdp=4))
  layers = 2 * _LAYER + 4  # and the final norm
  assert needed["weights"] == pytest.approx(2 * 2 * (layers + 40) * 3 / 4)
  assert needed["gradients"] == pytest.approx((2 * layers + 4 * 40) * 3 / 4)
  assert needed["embedding"] == pytest.approx(2 * 2 * (8 * 16 / 4) * 4 * 3 / 4)
  assert needed["sums over data"] == needed["context"] == needed["tensor"] == 0


def test_bytes_of_the_other_axes():
  layers = 2 * _LAYER + 4
  replicas = arithmetic.needed_bytes(MODEL, _work(data=2, fsdp=2))
  assert replicas["sums over data"] == pytest.approx(2 / 2 * (2 * layers + 4 * 2 * 40) / 2)
  # Weights are split over context too; its devices exchange keys and values of one head of 2.
  context = arithmetic.needed_bytes(MODEL, _work(fsdp=2, context=2))
  assert context["weights"] == arithmetic.needed_bytes(MODEL, _work(fsdp=4))["weights"]
  keys = 8 * 16 / 4 * 2 * 1 * 2 * 2  # tokens, k and v, head, head_dim, layers
  queries = 8 * 16 / 4 * 2 * 2 * 2
  assert context["context"] == 3 * 2 * keys + 4 * 2 * queries / 2
  parts = arithmetic.needed_bytes(MODEL, _work(fsdp=4, micro_batches=2))
  assert parts["weights"] == 2 * arithmetic.needed_bytes(MODEL, _work(fsdp=4))["weights"]
