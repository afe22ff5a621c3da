"""A run that is killed again and again pays for no call twice, and ends as an unbroken one."""

import json
import multiprocessing
import multiprocessing.context
import pathlib
import random
import subprocess
import sys
import time

import pytest

from her_jax.llm.client import Client, Message, Request
from her_jax.llm.endpoint import Endpoint
from her_jax.llm.journal import Journal
from tests.llm import bad_server

_ASKED = 40  # Each answer is asked about again, so there are twice as many calls.
_FAULTS = {"rate_limit": 0.05, "cut": 0.05, "server": 0.05, "delay": 0.1, "length": 0.05}

# A server that forks the runs: each begins at once, with all its modules.
_RUNS = multiprocessing.get_context("forkserver")
_RUNS.set_forkserver_preload(["openai.resources.chat", __name__])


def run(url: str, folder: pathlib.Path) -> None:
  """Two stages, the second from the first one's answers; results are written when all are there."""
  first = [Request(f"first/{i}", (Message("user", f"say {i}"),)) for i in range(_ASKED)]
  backend = Endpoint("m", url, first_wait_s=0.02, max_attempts=12, timeout_s=10)
  client = Client(backend, Journal(folder / "calls.jsonl"), concurrency=4)
  texts = {r.id: reply.text for r, reply in client.complete(first)}
  more = [Request(f"second/{r.id}", (Message("user", f"and {texts[r.id]}"),)) for r in first]
  texts |= {r.id: reply.text for r, reply in client.complete(more)}
  (folder / "part").write_text(json.dumps([texts[r.id] for r in first + more]))
  (folder / "part").rename(folder / "results.json")


def start(url: str, folder: pathlib.Path) -> multiprocessing.context.ForkServerProcess:
  process = _RUNS.Process(target=run, args=(url, folder))
  process.start()
  return process


def finish(url: str, folder: pathlib.Path) -> str:
  process = start(url, folder)
  process.join(120)
  assert process.exitcode == 0
  return (folder / "results.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [True, False])
def test_twenty_kills(tmp_path, idempotent):
  whole, broken = (
    bad_server.BadServer(tmp_path / name, faults=_FAULTS, idempotent=idempotent, delay=0.05)
    for name in ("whole", "broken")
  )
  with whole:
    unbroken = finish(whole.url, tmp_path / "whole")
  chance = random.Random(int(idempotent))
  with broken:
    for _ in range(20):
      # Killed while calls are under way: after so many more, and within the next one's time.
      goal = broken.arrived + chance.randint(1, 4)
      process = start(broken.url, tmp_path / "broken")
      while broken.arrived < goal:
        assert process.is_alive(), "the calls were done before the last kill"
        time.sleep(0.002)
      time.sleep(chance.uniform(0, 0.05))
      assert process.is_alive(), "the calls were done before the last kill"
      process.kill()
      process.join()
    results = finish(broken.url, tmp_path / "broken")
    paid = broken.paid()
  assert results == unbroken and len(json.loads(results)) == 2 * _ASKED
  assert len(paid) == 2 * _ASKED == len(whole.paid())
  with Journal(tmp_path / "broken" / "calls.jsonl") as journal:
    assert len(journal) == 2 * _ASKED
    in_doubt, lost = journal.in_doubt, journal.lost
  twice = {key for key, times in paid.items() if times > 1}
  print(
    f"20 kills, {2 * _ASKED} calls: {in_doubt} in doubt, {len(lost)} keys listed as lost,"
    f" {len(twice)} paid for twice"
  )
  assert in_doubt  # Or no kill hit a call.
  assert twice <= (set() if idempotent else lost)
  if not idempotent:
    assert twice  # Or there was nothing to see.


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
