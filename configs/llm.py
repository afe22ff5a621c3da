"""Who answers the prompts of synthesis, labels and evaluation: the section `llm`."""

import ml_collections


def llm(recorded: str = "") -> ml_collections.ConfigDict:
  """An OpenAI-compatible endpoint, or, with `recorded`, replies from a file or folder."""
  return ml_collections.ConfigDict(
    {
      # endpoint, or replay of recorded replies.
      "backend": "replay" if recorded else "endpoint",
      "recorded": recorded,
      "model": "",
      # For example http://127.0.0.1:8000/v1.
      "base_url": "",
      # Name of the environment variable with the key; the key itself is written nowhere.
      "api_key_env": "OPENAI_API_KEY",
      # Calls under way at a time.
      "concurrency": 8,
      # Of one attempt.
      "timeout_s": 600.0,
      "max_attempts": 6,
      # Before the second attempt, at most; doubled each time.
      "first_wait_s": 1.0,
      # Where a run stops sending; 0 is no limit. Prices are dollars for a million tokens.
      "budget_tokens": 0,
      "budget_usd": 0.0,
      # Whether what earlier runs on the same journal spent counts.
      "budget_counts_earlier_runs": True,
      "price_in": 0.0,
      "price_out": 0.0,
    }
  )
