"""The role-play domain: scenes, the dual-layer turn, prompts, verdicts. Imports no JAX."""
