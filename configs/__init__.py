"""Configs: each is a short Python file whose docstring is the command that runs it."""
