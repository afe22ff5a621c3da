"""Preference pairs for the judge."""
