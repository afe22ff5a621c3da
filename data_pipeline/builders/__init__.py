"""Data sets in ArrayRecord with TFDS' layout: builders, their command, their data card."""
