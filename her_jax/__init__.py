"""Role-play language models with dual-layer thinking, trained in JAX on TPU."""
