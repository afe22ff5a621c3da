"""Reverse synthesis: plain role-play conversations → trajectories with thoughts and plans.

Stage 0 (`prepare`) cleans without a model; 1 (`role_thinking`) deepens thoughts and sorts out
layers; 2 (`system_thinking`) drafts each plan forward and rewrites it backward; 3 (`setting`)
completes the sheets from the source. `pipeline` runs them in order, resumable at any instant.
"""
