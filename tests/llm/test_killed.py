"""A run that is killed again and again pays for no call twice, and ends as an unbroken one."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from her_jax.llm.journal import Journal
from tests.llm import bad_server

_CALLS = 120
_FAULTS = {"rate_limit": 0.05, "cut": 0.05, "server": 0.05, "delay": 0.1, "length": 0.05}

# Its results are written when all are there, in the order of the requests.
_RUN = """
import json, os, sys
from her_jax.llm.client import Client, Message, Request
from her_jax.llm.endpoint import Endpoint
from her_jax.llm.journal import Journal

url, folder, count = sys.argv[1:]
requests = [Request(f"r/{i}", (Message("user", f"say {i}"),)) for i in range(int(count))]
journal = Journal(f"{folder}/calls.jsonl")
backend = Endpoint("m", url, first_wait_s=0.05, max_attempts=12, timeout_s=10)
answers = {r.id: a for r, a in Client(backend, journal, concurrency=4).complete(requests)}
with open(f"{folder}/part", "w") as file:
  json.dump([[answers[r.id].text, answers[r.id].finish_reason] for r in requests], file)
os.replace(f"{folder}/part", f"{folder}/results.json")
"""


def start(url: str, folder: pathlib.Path) -> subprocess.Popen:
  folder.mkdir(exist_ok=True)
  root = str(pathlib.Path(__file__).parents[2])
  return subprocess.Popen(
    [sys.executable, "-c", _RUN, url, str(folder), str(_CALLS)],
    env={**os.environ, "PYTHONPATH": root},
  )


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [True, False])
def test_twenty_kills(tmp_path, idempotent):
  servers = [
    bad_server.BadServer(tmp_path / name, faults=_FAULTS, idempotent=idempotent, delay=0.4)
    for name in ("whole", "broken")
  ]
  with servers[0] as server:
    assert start(server.url, tmp_path / "run1").wait(120) == 0
  chance = random.Random(int(idempotent))
  with servers[1] as server:
    kills = 0
    for _ in range(20):
      run = start(server.url, tmp_path / "run2")
      try:
        run.wait(chance.uniform(0.5, 1.2))
        pytest.fail("the calls were done before the last kill")
      except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGKILL)
        run.wait()
        kills += 1
    began = time.monotonic()
    assert start(server.url, tmp_path / "run2").wait(120) == 0
    paid = server.paid()
  results = [(tmp_path / run / "results.json").read_bytes() for run in ("run1", "run2")]
  assert results[0] == results[1] and len(json.loads(results[0])) == _CALLS
  assert len(paid) == _CALLS
  with Journal(tmp_path / "run2" / "calls.jsonl") as journal:
    assert len(journal) == _CALLS
    in_doubt = journal.in_doubt
  twice = sum(paid.values()) - _CALLS
  print(
    f"{kills} kills, {in_doubt} calls in doubt, {twice} paid for twice; the last run took"
    f" {time.monotonic() - began:.1f} s"
  )
  if idempotent:
    assert twice == 0
  else:
    # An answer that was cut on its way is asked for again as well, in one run.
    cut = sum(row["fault"] == "cut" for row in server.attempts())
    assert twice <= in_doubt + cut


@pytest.mark.slow
def test_a_large_journal_opens_fast_and_small(tmp_path):
  path = tmp_path / "calls.jsonl"
  with path.open("w") as file:
    for i in range(100_000):
      name = f"{i:064x}"
      reply = {"text": "x" * 2000, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
      file.write(json.dumps({"kind": "begin", "key": name, "id": str(i)}) + "\n")
      file.write(
        json.dumps({"kind": "reply", "key": name, "id": str(i), "reply": reply}) + "\n"
      )
  code = (
    "import resource, sys; from her_jax.llm.journal import Journal;"
    "kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
    f"before = kb(); journal = Journal({str(path)!r});"
    "assert len(journal) == 100_000 and journal.get(f'{7:064x}').text == 'x' * 2000;"
    "print((kb() - before) / 1024)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert float(done.stdout) < 60  # MiB; the file has 220.
