"""A model of two layers whose ids and temperatures matter, for what samples from one."""

from flax import nnx
import jax

from her_jax.inference.batches import Limits
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3

# Rows of a tokenizer, fewer than the model has; the id that ends a completion.
VALID, STOP = 60, 1
CONFIG = ModelConfig(
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  tie_embeddings=True,
  max_position_embeddings=128,
  dtype="float32",
  remat="none",
)
LIMITS = Limits(
  rows=8, pages=200, page_size=4, context=64, chunk=16, steps=4, shared=2, query_block=8
)


def make(config: ModelConfig = CONFIG) -> tuple[nnx.GraphDef, nnx.State]:
  """graphdef and params, twice as large as fresh ones, which would draw nearly uniformly."""
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  return graphdef, jax.tree.map(lambda x: 2 * x, params)
