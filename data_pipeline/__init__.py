"""From role-play conversations to training batches."""
