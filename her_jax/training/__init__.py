"""State, losses, the step, the loop, checkpoints."""
