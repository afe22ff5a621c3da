"""The tiny model that the tests of folders write and read."""

from flax import nnx
import pytest

from her_jax import sharding
from her_jax.models.config import ModelConfig


@pytest.fixture(scope="session")
def config() -> ModelConfig:
  return ModelConfig(
    vocab_size=320,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    tie_embeddings=True,
    max_position_embeddings=64,
    dtype="float32",
  )


@pytest.fixture(scope="session")
def params(config) -> nnx.State:
  return sharding.init_sharded(config, 0, sharding.make_mesh())[1]
