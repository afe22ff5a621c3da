"""Launching her_jax on Cloud TPU VMs."""
