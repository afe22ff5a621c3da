"""How all rooms of the data pipeline ask a model: one question, and thousands side by side."""
