"""What a program needs by arithmetic, to hold against what the compiler made of it."""

from collections.abc import Mapping
import dataclasses
import math

from her_jax.models.block_pairs import block_sizes
from her_jax.models.config import ModelConfig

# Matrix products over every visited pair of blocks, by kernel: scores and output; scores,
# probabilities' gradient and dq; scores, dv, probabilities' gradient and dk.
_KERNEL_PRODUCTS = {
  "tree_attention_forward": 2,
  "tree_attention_dq": 3,
  "tree_attention_dkv": 4,
}


@dataclasses.dataclass(frozen=True)
class Work:
  """A causal batch on a mesh.

  Attributes:
    rows: Of the global batch.
    length: Tokens a row.
    mesh: Size of each mesh axis.
    micro_batches: Parts in which the batch is worked through.
  """

  rows: int
  length: int
  mesh: Mapping[str, int]
  micro_batches: int = 1

  @property
  def chips(self) -> int:
    return math.prod(self.mesh.values())


def multiplied_weights(model: ModelConfig) -> int:
  """Parameters that a token is multiplied with: all but an embedding that is looked up."""
  table = model.vocab_size * model.hidden_size
  return model.num_params() - (0 if model.tie_embeddings else table)


def model_flops(model: ModelConfig, rows: int, length: int) -> float:
  """Matrix products of one update over all chips: the numerator of MFU.

  6 a weight and token (2 forward, 4 backward), and causal attention's: 2 products forward and
  4 backward, each 2 · heads · head_dim FLOPs a pair of slots.
  """
  pairs = length * (length + 1) / 2
  attention = 6 * 2 * model.num_layers * model.num_heads * model.head_dim * pairs
  return rows * (6 * multiplied_weights(model) * length + attention)


def kernel_flops(model: ModelConfig, work: Work, calls: Mapping[str, int]) -> float:
  """FLOPs of the attention kernel on one chip, which do not stand in the program's text.

  Args:
    model: The model.
    work: A causal batch; the kernel works on whole blocks, so a row of 4096 counts 36 of its
      64 blocks of 512 x 512.
    calls: How often each kernel runs, as `hlo.count` found it.
  """
  block_q, block_k = block_sizes(work.length, model.head_dim)
  pairs = sum(
    block_q * min(work.length, -(-stop // block_k) * block_k)
    for stop in range(block_q, work.length + block_q, block_q)
  )
  # One call serves one layer and micro-batch, with the rows and heads of one chip.
  rows = work.rows / work.micro_batches / (work.chips / work.mesh["tensor"])
  product = 2 * rows * model.num_heads / work.mesh["tensor"] * model.head_dim * pairs
  return sum(product * _KERNEL_PRODUCTS.get(name, 0) * n for name, n in calls.items())


def needed_bytes(model: ModelConfig, work: Work) -> dict[str, float]:
  """Bytes that one chip must send in an update, by purpose, each moved once and in a ring.

  Weights are gathered in bfloat16 twice, for the forward and for the backward pass, and the
  layers' gradients summed in bfloat16; those of the embedding and of the head are float32.
  """
  sizes = work.mesh
  shards = sizes["fsdp"] * sizes["context"]
  others = (shards - 1) / shards
  table = model.vocab_size * model.hidden_size / sizes["tensor"]
  heads = 1 if model.tie_embeddings else 2
  layers = model.num_params() / sizes["tensor"] - heads * table
  tokens = work.rows * work.length / (work.chips / sizes["tensor"])
  replicas = (sizes["data"] - 1) / sizes["data"]
  split = (sizes["tensor"] - 1) / sizes["tensor"]
  kv = tokens * 2 * model.num_kv_heads / sizes["tensor"] * model.head_dim * model.num_layers
  queries = tokens * model.num_heads / sizes["tensor"] * model.head_dim * model.num_layers
  dealt = 2 * queries / 2
  return {
    "weights": work.micro_batches * 2 * 2 * (layers + table) * others,
    "gradients": work.micro_batches * (2 * layers + 4 * table) * others,
    "sums over data": 2 * replicas * (2 * layers + 4 * heads * table) / shards,
    # To the devices of `fsdp` that hold a token's columns of the table, and its gradient back;
    # the parts of the table that `context` splits are gathered, and their gradient summed.
    "embedding": 2 * 2 * tokens * model.hidden_size * (1 - 1 / sizes["fsdp"])
    + 2 * 4 * (table - table / sizes["context"]) / sizes["fsdp"],
    # Keys and values for the forward pass and again for the backward one, and their gradients;
    # half of the queries and of the output change places, and so do their gradients.
    "context": 3 * 2 * kv * (sizes["context"] - 1) + (4 * dealt if sizes["context"] > 1 else 0),
    # Two sums over `tensor` in a layer, forward and backward, each as scatter and gather.
    "tensor": 4 * 2 * 2 * split * tokens * model.hidden_size * model.num_layers,
  }
