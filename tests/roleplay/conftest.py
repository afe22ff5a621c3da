"""The real Qwen3 tokenizer."""

import pytest


@pytest.fixture(scope="session")
def qwen3(qwen3_folder):
  """Qwen3's tokenizer through the same call as any other."""
  from her_jax.hf import tokenizer

  return tokenizer.load(qwen3_folder)
