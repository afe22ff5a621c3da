"""The decoder: configuration, rotary positions, attention, Qwen3 in Flax NNX."""
