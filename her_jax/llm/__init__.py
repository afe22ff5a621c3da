"""Replies of language models: an endpoint, recorded ones, and a journal that pays for each once."""
