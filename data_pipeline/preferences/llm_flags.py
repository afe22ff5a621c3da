"""The fields of the section `llm` (configs/llm.py) as flags of a command."""

from collections.abc import Callable
from typing import Any

from absl import flags
import ml_collections

from her_jax.llm import build
from her_jax.llm.client import Client

# Field → default and help, as in configs/llm.py, which is no part of the installed package.
FIELDS: dict[str, tuple[Any, str]] = {
  "backend": ("endpoint", "endpoint, or replay of recorded replies"),
  "recorded": ("", "File or folder of recorded replies, for --backend=replay"),
  "model": ("", "By the endpoint's name"),
  "base_url": ("", "Of an OpenAI-compatible endpoint, for example http://127.0.0.1:8000/v1"),
  "api_key_env": ("OPENAI_API_KEY", "Environment variable with the key; empty: no key"),
  "concurrency": (8, "Calls under way at a time"),
  "timeout_s": (600.0, "Of one attempt, in seconds"),
  "max_attempts": (6, "Of one call"),
  "first_wait_s": (1.0, "Seconds before the second attempt at most; doubled each time"),
  "budget_tokens": (0, "Tokens after which nothing more is sent; 0: no limit"),
  "budget_usd": (0.0, "Dollars after which nothing more is sent; 0: no limit"),
  "budget_counts_earlier_runs": (True, "Whether what earlier runs on the journal spent counts"),
  "price_in": (0.0, "Dollars for a million tokens of prompts"),
  "price_out": (0.0, "Dollars for a million tokens of replies"),
}
_DEFINE: dict[type, Callable[..., Any]] = {
  str: flags.DEFINE_string, bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer, float: flags.DEFINE_float,
}  # fmt: skip


def define() -> Callable[[str], Client]:
  """Defines the flags; returns what makes their client, given the journal's path."""
  holders = {
    name: _DEFINE[type(default)](name, default, text)
    for name, (default, text) in FIELDS.items()
  }

  def client(journal: str) -> Client:
    values = {name: holder.value for name, holder in holders.items()}
    return build.client(ml_collections.ConfigDict(values), journal)

  return client
