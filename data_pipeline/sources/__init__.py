"""Readers of other projects' conversations, of books and of character cards.

`reader.read` gives trajectories; `convert` is the command, which writes them.
"""
