"""Reinforcement learning against a frozen copy, judged pairwise."""
