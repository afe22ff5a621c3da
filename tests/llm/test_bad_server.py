"""The server's own promises: tests lean on them."""

import collections
import concurrent.futures
import json
import time
import urllib.request

from tests.llm import bad_server


def post(server: bad_server.BadServer, key: str) -> dict:
  body = {"model": "m", "messages": [{"role": "user", "content": "a b c d"}]}
  request = urllib.request.Request(
    f"{server.url}/chat/completions", json.dumps(body).encode(), {"Idempotency-Key": key}
  )
  return json.load(urllib.request.urlopen(request, timeout=10))


def slowly(messages):
  time.sleep(0.2)
  return "yes"


def test_every_fault_comes_by_its_share(tmp_path):
  faults = {"refusal": 0.2, "length": 0.2, "content_filter": 0.2, "empty": 0.3}
  with bad_server.BadServer(tmp_path, faults=faults, delay=0) as server:
    for i in range(200):
      post(server, str(i))
    met = collections.Counter(row["fault"] for row in server.attempts())
  assert met["empty"] in range(40, 81)
  for fault in ("refusal", "length", "content_filter"):
    assert met[fault] in range(14, 45)  # A fifth of what is not empty.


def test_one_seed_gives_the_same_faults_in_any_order(tmp_path):
  met = []
  for order in (range(40), reversed(range(40))):
    folder = tmp_path / str(len(met))
    with bad_server.BadServer(folder, faults={"refusal": 0.5}, delay=0) as server:
      for i in order:
        post(server, str(i))
      met.append({row["key"]: row["fault"] for row in server.attempts()})
  assert met[0] == met[1] and len(set(met[0].values())) == 2


def test_attempts_of_one_call_side_by_side_are_paid_once_where_the_key_is_heeded(tmp_path):
  for heeded, times in ((True, 1), (False, 4)):
    folder = tmp_path / str(heeded)
    reply = f"{__name__}:slowly"
    with bad_server.BadServer(folder, reply, idempotent=heeded, delay=0) as server:
      with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, [server] * 4, ["one"] * 4))
      assert server.paid() == {"one": times} and server.arrived == 4
    assert all(answer == answers[0] for answer in answers)


def test_what_was_paid_for_outlives_the_process(tmp_path):
  with bad_server.BadServer(tmp_path, delay=0) as server:
    first = post(server, "one")
    server.kill()
    assert server.died
    server.start()
    assert post(server, "one") == first and server.paid() == {"one": 1}
