"""What a config's section `llm` makes, and what it says of mistakes."""

import pytest

from configs.llm import llm
from her_jax.errors import ConfigError
from her_jax.llm import build
from her_jax.llm.client import Message, Reply, Request
from tests.llm import bad_server


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
    ({"budget_usd": float("nan")}, "llm.budget_usd is nan"),
    ({"price_in": -1.0}, "llm.price_in is -1"),
    ({"first_wait_s": float("nan")}, "llm.first_wait_s is nan"),
    ({"timeout_s": float("nan")}, "llm.timeout_s"),
    ({"budget_tokens": -1}, "llm.budget_tokens is -1"),
    ({"base_url": "127.0.0.1:8000/v1"}, "llm.base_url is '127"),
    ({"base_url": "http:///v1"}, "llm.base_url is 'http:///v1'"),
  ],
)
def test_a_mistake_is_named(tmp_path, fields, told):
  with pytest.raises(ConfigError, match=told):
    build.client(section(**fields), tmp_path / "calls.jsonl")


@pytest.mark.parametrize("key", ["sk abc", "sk-ключ", "a\nb"])
def test_what_is_no_key_is_told_and_not_shown(tmp_path, monkeypatch, key):
  monkeypatch.setenv("HER_JAX_TEST_KEY", key)
  with pytest.raises(ConfigError, match="HER_JAX_TEST_KEY") as error:
    build.client(section(api_key_env="HER_JAX_TEST_KEY"), tmp_path / "calls.jsonl")
  assert key not in str(error.value)


def test_a_key_from_a_file_works_with_its_newline(tmp_path, monkeypatch):
  monkeypatch.setenv("HER_JAX_TEST_KEY", "sk-right\n")
  with bad_server.BadServer(tmp_path, key="sk-right") as server:
    config = section(api_key_env="HER_JAX_TEST_KEY", base_url=server.url)
    client = build.client(config, tmp_path / "calls.jsonl")
    ((_, answer),) = client.complete([Request("a", (Message("user", "?"),))])
  assert isinstance(answer, Reply)


def test_the_budget_of_a_config_holds_and_may_leave_earlier_runs_out(tmp_path):
  def asked(**fields):
    config = section(budget_tokens=6, base_url=server.url, concurrency=1, **fields)
    client = build.client(config, tmp_path / "calls.jsonl")
    ids = [Request(f"{sorted(fields)}/{i}", (Message("user", "say it"),)) for i in range(5)]
    return sum(isinstance(answer, Reply) for _, answer in client.complete(ids))

  with bad_server.BadServer(tmp_path) as server:  # 3 tokens a call.
    assert (asked(), asked(), asked(budget_counts_earlier_runs=False)) == (2, 2, 2)
    assert len(server.attempts()) == 4


def test_a_journal_in_use_is_named(tmp_path):
  client = build.client(section(), tmp_path / "calls.jsonl")
  with pytest.raises(ConfigError, match="in use"):
    build.client(section(), tmp_path / "calls.jsonl")
  del client
