"""What a config's section `llm` makes, and what it says of mistakes."""

import pytest

from configs.llm import llm
from her_jax.errors import ConfigError
from her_jax.llm import build
from her_jax.llm.client import Message, Reply, Request


def section(**fields):
  config = llm()
  config.update({"model": "m", "base_url": "http://127.0.0.1:1/v1", "api_key_env": ""} | fields)
  return config


def test_recorded_replies_need_nothing_else(tmp_path):
  (tmp_path / "r.jsonl").write_text('{"id": "a", "text": "yes"}\n')
  client = build.client(llm(str(tmp_path / "r.jsonl")), tmp_path / "calls.jsonl")
  ((_, answer),) = client.complete([Request("a", (Message("user", "?"),))])
  assert answer == Reply("yes")
  assert not (tmp_path / "calls.jsonl").exists()


@pytest.mark.parametrize(
  ("fields", "told"),
  [
    ({"backend": "oracle"}, "llm.backend is 'oracle'"),
    ({"backend": "replay"}, "llm.recorded"),
    ({"model": ""}, "llm.model is empty"),
    ({"base_url": ""}, "llm.base_url is empty"),
    ({"api_key_env": "HER_JAX_NO_SUCH_KEY"}, "HER_JAX_NO_SUCH_KEY"),
    ({"concurrency": 0}, "llm.concurrency"),
    ({"timeout_s": 0.0}, "llm.timeout_s"),
    ({"max_attempts": 0}, "llm.max_attempts"),
    ({"budget_usd": 5.0}, "llm.price_in"),
  ],
)
def test_a_mistake_is_named(tmp_path, fields, told):
  with pytest.raises(ConfigError, match=told):
    build.client(section(**fields), tmp_path / "calls.jsonl")


def test_a_journal_in_use_is_named(tmp_path):
  client = build.client(section(), tmp_path / "calls.jsonl")
  with pytest.raises(ConfigError, match="in use"):
    build.client(section(), tmp_path / "calls.jsonl")
  del client
