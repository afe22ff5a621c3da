"""Sampling from the same module that is trained."""
