"""A client as the section `llm` of a config describes it (configs/llm.py)."""

import os
import re

import ml_collections

from her_jax.errors import ConfigError
from her_jax.llm import replay
from her_jax.llm.budget import Budget
from her_jax.llm.client import Backend, Client
from her_jax.llm.journal import Journal


def client(config: ml_collections.ConfigDict, journal: str | os.PathLike[str]) -> Client:
  """Args:
    config: The section `llm`.
    journal: The file of calls and answers.

  Raises:
    ConfigError: A setting is missing or wrong, or the journal is damaged or in use.
    DataError: The recorded replies are.
  """
  for field in ("budget_tokens", "budget_usd", "price_in", "price_out", "first_wait_s"):
    if not 0 <= config[field] < float("inf"):
      raise ConfigError(f"llm.{field} is {config[field]}; give 0 or more")
  if config.concurrency < 1 or config.max_attempts < 1 or not config.timeout_s > 0:
    raise ConfigError(
      "llm.concurrency, llm.max_attempts and llm.timeout_s must be above 0; they are"
      f" {config.concurrency}, {config.max_attempts}, {config.timeout_s}"
    )
  budget = Budget(
    tokens=config.budget_tokens or None,
    money=config.budget_usd or None,
    price_in=config.price_in,
    price_out=config.price_out,
    earlier_runs=config.get("budget_counts_earlier_runs", True),
  )
  if budget.money and not (budget.price_in or budget.price_out):
    raise ConfigError("llm.budget_usd needs llm.price_in and llm.price_out, per million tokens")
  backend = _backend(config)
  # Recorded replies cost nothing, and are already on disk.
  kept = None if config.backend == "replay" else Journal(journal)
  return Client(backend, kept, budget, config.concurrency)


def _backend(config: ml_collections.ConfigDict) -> Backend:
  if config.backend == "replay":
    if not config.recorded:
      raise ConfigError("llm.backend is 'replay': name the replies' file with llm.recorded")
    return replay.Replay(replay.read(config.recorded))
  if config.backend != "endpoint":
    raise ConfigError(f"llm.backend is {config.backend!r}; there are 'endpoint' and 'replay'")
  for field in ("model", "base_url"):
    if not config[field]:
      raise ConfigError(f"llm.{field} is empty; an endpoint needs it")
  if not re.match(r"https?://[^/\s]", config.base_url):
    raise ConfigError(
      f"llm.base_url is {config.base_url!r}; give an address like http://127.0.0.1:8000/v1"
    )
  # Stripped: a key from a file often ends with a newline, which no header may hold.
  key = os.environ.get(config.api_key_env, "").strip() if config.api_key_env else ""
  if config.api_key_env and not key:
    raise ConfigError(
      f"the environment variable {config.api_key_env} (llm.api_key_env) is not set; put the key"
      " there, or --config.llm.api_key_env= for an endpoint without one"
    )
  if not re.fullmatch(r"[!-~]*", key):
    raise ConfigError(
      f"the environment variable {config.api_key_env} (llm.api_key_env) holds blanks or letters"
      " that no key has; put the key alone there"
    )
  try:
    from her_jax.llm.endpoint import Endpoint
  except ImportError as error:
    raise ConfigError(
      f"an endpoint needs {error.name}: pip install 'her_jax[synthesis]'"
    ) from None
  return Endpoint(
    config.model, config.base_url, key, config.timeout_s, config.max_attempts,
    config.first_wait_s,
  )  # fmt: skip
