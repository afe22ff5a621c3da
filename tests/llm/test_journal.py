"""What a journal keeps, and what a damaged one says."""

import itertools
import json
import subprocess
import sys
import threading

import pytest

from her_jax.errors import ConfigError
from her_jax.llm import replay
from her_jax.llm.client import Client, Failure, Message, Reply, Request, Usage
from her_jax.llm.journal import Journal
from her_jax.llm.journal import replies as journal_replies
from her_jax.llm.scripted import Scripted
from her_jax.roleplay.schema import DataError


def request(i: int) -> Request:
  return Request(f"r/{i}", (Message("user", f"q{i}"),))


def answer(asked: Request) -> Reply:
  return Reply(f"to {asked.id} 你好\n", "because", usage=Usage(3, 2))


def fill(path, n: int) -> None:
  with Journal(path) as journal:
    list(Client(Scripted("m", answer), journal).complete(map(request, range(n))))


def test_an_answer_comes_back_as_it_was(tmp_path):
  path = tmp_path / "calls.jsonl"
  fill(path, 5)
  with Journal(path) as journal:
    assert journal.get(request(3).key("m")) == answer(request(3))
    assert journal.get(request(3).key("other")) is None
    assert (len(journal), journal.spent, journal.in_doubt) == (5, Usage(15, 10), 0)
  assert replay.read(path)["r/4"] == answer(request(4))


@pytest.mark.parametrize("cut", [1, 2, 30, 150])
def test_a_torn_last_line_is_taken_out_and_its_call_is_in_doubt(tmp_path, cut):
  path = tmp_path / "calls.jsonl"
  fill(path, 3)
  whole = path.read_bytes()
  path.write_bytes(whole[:-cut])
  with Journal(path) as journal:
    assert (len(journal), journal.in_doubt) == (2, 1)
    assert journal.torn == len(whole.splitlines(keepends=True)[-1]) - cut
    answers = list(Client(Scripted("m", answer), journal).complete(map(request, range(3))))
    assert sum(a.cached for _, a in answers) == 2
  assert len(replay.read(path)) == 3


@pytest.mark.parametrize(
  "line", ["nonsense", "{}", '{"kind": "reply"}', '{"kind": "x", "key": "00"}', "[]", ""]
)
def test_a_damaged_line_is_named(tmp_path, line):
  path = tmp_path / "calls.jsonl"
  fill(path, 3)
  lines = path.read_text().splitlines()
  lines.insert(2, line)
  path.write_text("\n".join(lines) + "\n")
  with pytest.raises(ConfigError, match=r"calls\.jsonl:3: damaged"):
    Journal(path)


def test_a_second_process_is_sent_away(tmp_path):
  path = tmp_path / "calls.jsonl"
  code = f"from her_jax.llm.journal import Journal; Journal({str(path)!r})"
  with Journal(path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "in use by another process" in done.stderr
  assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_failures_are_kept_and_asked_again(tmp_path):
  path = tmp_path / "calls.jsonl"
  with Journal(path) as journal:
    failing = Scripted("m", lambda r: Failure("server", "down", Usage(7, 0)))
    list(Client(failing, journal).complete([request(0)]))
  with Journal(path) as journal:
    assert (len(journal), journal.spent, journal.in_doubt) == (0, Usage(7, 0), 0)
    ((_, found),) = Client(Scripted("m", answer), journal).complete([request(0)])
    assert found == answer(request(0))


def test_requests_are_taken_as_they_are_needed():
  taken = itertools.count()
  endless = (request(next(taken)) for _ in itertools.count())
  answers = Client(Scripted("m", answer), concurrency=4).complete(endless)
  for _ in range(20):
    next(answers)
  answers.close()
  assert next(taken) <= 20 + 2 * 4 + 2


def test_two_requests_of_one_id_are_refused():
  with pytest.raises(ValueError, match="r/1"):
    list(Client(Scripted("m", answer)).complete([request(1), request(1)]))


def test_what_goes_wrong_in_the_requests_reaches_the_caller():
  def broken():
    yield request(0)
    raise DataError("scene 3: bad")

  with pytest.raises(DataError, match="scene 3"):
    list(Client(Scripted("m", answer)).complete(broken()))


def test_many_threads_share_a_journal(tmp_path):
  path = tmp_path / "calls.jsonl"
  with Journal(path) as journal:

    def work(part: int) -> None:
      for i in range(part, 200, 4):
        journal.begin(request(i).key("m"), request(i))
        journal.end(request(i).key("m"), request(i), answer(request(i)))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert all(journal.get(request(i).key("m")) == answer(request(i)) for i in range(200))
  assert len(replay.read(path)) == 200


@pytest.mark.parametrize(
  ("line", "told"),
  [
    ("x", "Expecting value"),
    ("[]", "expected one JSON object"),
    ('{"id": "a"}', "text: missing"),
    ('{"text": "a"}', "id: missing"),
    ('{"id": "a", "text": "b", "txet": ""}', "txet: no such field"),
    ('{"id": "ok", "text": "b"}', "stands twice"),
    ('{"id": "a", "text": "b", "reasoning": null}', "reasoning: expected a text"),
    (
      '{"id": "a", "text": "b", "finish_reason": "done"}',
      "finish_reason: 'done' is not one of",
    ),
    ('{"id": "a", "text": "\\ud800"}', "half of a surrogate pair"),
  ],
)
def test_a_broken_recording_is_named(tmp_path, line, told):
  path = tmp_path / "replies.jsonl"
  path.write_text(json.dumps({"id": "ok", "text": "yes"}) + "\n\n" + line + "\n")
  with pytest.raises(DataError, match=rf"replies\.jsonl:3\b.*{told}"):
    replay.read(path)


def test_recordings_answer_by_id_and_a_missing_one_is_told(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"id": "r/0", "text": "zero"}\n')
  (tmp_path / "b.jsonl").write_text('{"id": "r/1", "text": "one", "finish_reason": "length"}\n')
  client = Client(replay.Replay(replay.read(tmp_path)))
  answers = {r.id: a for r, a in client.complete(map(request, range(3)))}
  assert answers["r/0"].text == "zero" and answers["r/1"].finish_reason == "length"
  assert answers["r/2"] == Failure("missing", "no reply to 'r/2' is recorded")
  with pytest.raises(DataError, match="no recorded reply"):
    replay.read((tmp_path / "none").mkdir() or tmp_path / "none")


def test_a_full_disk_leaves_no_half_line_behind(tmp_path):
  """What is written later must not stand behind a half."""
  code = """
import resource, signal, sys
from her_jax.llm.client import Message, Reply, Request
from her_jax.llm.journal import Journal
from her_jax.llm.journal import replies as journal_replies
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Journal(sys.argv[1]) as journal:
  requests = [Request(f"r/{i}", (Message("user", f"q{i}"),)) for i in range(3)]
  journal.begin(requests[0].key("m"), requests[0])
  journal.end(requests[0].key("m"), requests[0], Reply("zero"))
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
  try:
    journal.end(requests[1].key("m"), requests[1], Reply("one " * 1000))
    sys.exit("the disk was not full")
  except OSError:
    pass
  resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  journal.end(requests[2].key("m"), requests[2], Reply("two"))
  assert journal.get(requests[2].key("m")).text == "two"
"""
  path = tmp_path / "calls.jsonl"
  subprocess.run([sys.executable, "-c", code, str(path)], check=True)
  with Journal(path) as journal:
    assert len(journal) == 2 and journal.torn == 0
    assert journal.get(request(1).key("m")) is None


def test_calls_that_may_have_been_paid_for_twice_are_listed(tmp_path):
  path = tmp_path / "calls.jsonl"
  answers = [
    Reply("whole", usage=Usage(3, 2)),
    Reply("first attempt cut", usage=Usage(3, 2, 1), attempts=2),
    Reply("tokens not told", usage=Usage(unknown=1)),
    Failure("timeout", "", Usage(unknown=6), attempts=6),
    Failure("rate_limit", "", attempts=6),
  ]
  with Journal(path) as journal:
    for i, found in enumerate(answers):
      journal.begin(request(i).key("m"), request(i))
      journal.end(request(i).key("m"), request(i), found)
    journal.begin(request(5).key("m"), request(5))
    journal.begin(request(0).key("n"), request(0))
    journal.end(request(0).key("n"), request(0), answers[0])
    spent, told, lost = journal.spent, journal.told, journal.lost
  assert (spent, told) == (Usage(9, 6, 8), 3)
  with Journal(path) as journal:
    assert (journal.spent, journal.told, journal.in_doubt) == (spent, told, 1)
    assert journal.lost == lost | {request(5).key("m")}
    assert journal.lost == {request(i).key("m") for i in (1, 3, 5)}


def test_a_record_of_odd_make_is_named(tmp_path):
  for i, reply in enumerate(
    [
      {"text": 5, "usage": {}},
      {"text": "a", "usage": {"prompt_tokens": "3"}},
      {"text": "a", "usage": []},
      {"text": "a", "usage": {"prompt_tokens": 10**400}},
      {"text": "a", "usage": {"prompt_tokens": -1}},
      {"usage": {}},
      {"text": "a", "usage": {}, "more": 1},
    ]
  ):
    path = tmp_path / f"{i}.jsonl"
    row = {"kind": "reply", "key": "00" * 32, "id": "r", "reply": reply}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=rf"{i}\.jsonl:1: damaged"):
      Journal(path)
    with pytest.raises(ConfigError, match=rf"{i}\.jsonl:1: damaged"):
      list(journal_replies(path))


def test_a_lock_that_is_just_let_go_is_waited_for(tmp_path):
  """As that of a process killed a moment ago, which the system still clears away."""
  first = Journal(tmp_path / "calls.jsonl")
  timer = threading.Timer(0.4, first.close)
  timer.start()
  with Journal(tmp_path / "calls.jsonl"):
    timer.join()
