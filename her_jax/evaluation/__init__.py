"""What a model has learned, measured and shown."""
