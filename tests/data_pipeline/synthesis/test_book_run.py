"""From a plain book to data sets in one run, over HTTP, also when it is killed."""

import json
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from configs import synthesize as synthesize_config
from data_pipeline import records, samples, splits
from data_pipeline.synthesis import from_book
from her_jax.errors import ConfigError
from her_jax.llm.client import Client, Failure, Reply
from her_jax.llm.guarded import Stopped
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from her_jax.tasks import synthesize
from tests.data_pipeline.synthesis.synthesis_runs import files
from tests.llm.bad_server import BadServer
from tests.teachers import novelist

_ROOT = pathlib.Path(__file__).parents[3]
_CHAPTER = """CHAPTER {number}

The rain had come up the valley and stopped at the toll house, where {one} kept the ledger.

"You have charged me for {count} wheels," said {two}.

"The cart had {count} when it came," replied {one}. "I count what I see."

{two} looked out at the cart, which stood in the yard with its shafts in the air.

"One of them is on the back for mending," said {two}. "It has not turned since Tarrow."

"A wheel that has been to Tarrow is a wheel," replied {one}.

"Then charge me for the horse's shoes as well," cried {two}. "He has four, and a spare."

"I had not seen the spare," said {one}, and wrote it down.

The ink was slow to dry. Nobody else came along the road that afternoon, and in the end they
shared the bread.
"""
_PEOPLE = (("Hesper", "Corrin"), ("Maud", "Corrin"), ("Hesper", "Tobin"), ("Maud", "Tobin"))


@pytest.fixture
def novel(tmp_path):
  chapters = [
    _CHAPTER.format(number=i + 1, one=one, two=two, count=("three", "five", "six", "nine")[i])
    for i, (one, two) in enumerate(_PEOPLE)
  ]
  path = tmp_path / "toll.txt"
  path.write_text("THE TOLL AT TARROW\n\nby A. Nobody\n\n\n" + "\n\n".join(chapters))
  return path


def _config(source, url="http://127.0.0.1:9/v1", **changes):
  config = synthesize_config.get_config("book")
  config.update_from_flattened_dict({
    "source": str(source), "llm.base_url": url, "llm.model": "teacher", "llm.api_key_env": "",
    "llm.max_attempts": 12, "llm.first_wait_s": 0.02, "llm.timeout_s": 5.0, "block": 2, **changes,
  })  # fmt: skip
  return config


def _check(folder, book):
  """What a run has left fits together; its conversations."""
  made = schema.read_trajectories(folder / "trajectories.jsonl")
  proof = splits.verify(folder / "splits", [folder / "splits/sft.jsonl"])
  assert list(proof.books) == [book]
  scenes = records.Trajectories(folder / "built", "sft")
  assert [s.id for s in scenes] == [s.id for s in made]
  turns = list(records.SftTurns(folder / "built", "sft"))
  assert len(turns) == sum(len(s.trained_turns()) for s in made) > 0
  assert "sft" in (folder / "built/DATA_CARD.md").read_text()
  page = (folder / "page.html").read_text()
  assert all(s.turns[0].speaker in page for s in made)
  quality = json.loads((folder / "quality.json").read_text())
  assert quality["turns"] == sum(len(s.turns) for s in made)
  assert json.loads((folder / "diversity.json").read_text())
  return made


def test_a_book_becomes_data_sets_and_a_second_run_asks_nothing(novel, tmp_path):
  with BadServer(tmp_path / "server", reply=novelist.REPLY) as server:
    summary = synthesize.run(_config(novel, server.url), str(tmp_path / "run"))
    paid = server.paid()
    # Derived from the trajectories: they come again, and no call is made.
    (tmp_path / "run/page.html").unlink()
    synthesize.run(_config(novel, server.url), str(tmp_path / "run"))
    assert server.paid() == paid
    # Another book in the same workdir is not the one before.
    novel.write_text(novel.read_text().replace("TARROW", "MERROW"))
    synthesize.run(_config(novel, server.url), str(tmp_path / "run"))
    assert len(server.paid()) > len(paid)
  made = _check(tmp_path / "run", "THE TOLL AT MERROW")
  assert len(made) == 4
  assert {c.name for s in made for c in s.characters} >= {"Hesper", "Maud", "Corrin", "Tobin"}
  assert summary["data_sets"]["books"] == {"sft": 1}
  report = json.loads((tmp_path / "run/book/report.json").read_text())
  assert report["conversations"] == 4 and not report["failed"]


_RUN = """
import sys
from tests.data_pipeline.synthesis.test_book_run import _config
from her_jax.tasks import synthesize
synthesize.run(_config(*sys.argv[1:3]), sys.argv[3])
"""


@pytest.mark.slow
def test_killed_anywhere_it_ends_like_a_run_that_was_not(novel, tmp_path):
  faults = {"rate_limit": 0.05, "server": 0.05, "cut": 0.05, "refusal": 0.03, "length": 0.04}
  whole, killed = tmp_path / "whole", tmp_path / "killed"

  def start(url, workdir):
    command = [sys.executable, "-c", _RUN, str(novel), url, str(workdir)]
    return subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE)

  with BadServer(tmp_path / "calm", reply=novelist.REPLY, faults=faults, seed=2) as calm:
    run = start(calm.url, whole)
    assert run.wait(120) == 0, run.stderr.read().decode()
    paid, attempts = calm.paid(), len(calm.attempts())
  chance = random.Random(3)
  with BadServer(tmp_path / "stormy", reply=novelist.REPLY, faults=faults, seed=2) as stormy:
    for share in (0.02, 0.1, 0.2, 0.4, 0.7, 0.9):
      run = start(stormy.url, killed)
      while len(stormy.attempts()) < share * attempts and run.poll() is None:
        time.sleep(0.01)
      time.sleep(chance.uniform(0, 0.05))
      run.send_signal(signal.SIGKILL)
      run.wait()
    run = start(stormy.url, killed)
    assert run.wait(120) == 0, run.stderr.read().decode()
    assert set(stormy.paid().values()) == {1} and stormy.paid().keys() == paid.keys()
  assert files(killed) == files(whole)
  for file in ("book/trajectories.jsonl", "book/report.json", "quality.json", "page.html"):
    assert (killed / file).read_bytes() == (whole / file).read_bytes()
  _check(killed, "THE TOLL AT TARROW")
  assert _derived(killed) == _derived(whole)


@pytest.mark.slow
def test_killed_while_data_sets_are_made_it_makes_them_again(novel, tmp_path):
  run_dir, part = tmp_path / "run", tmp_path / "run/finish.part"
  moments = ("splits", "built", "page.html")
  with BadServer(tmp_path / "server", reply=novelist.REPLY) as server:
    synthesize.run(_config(novel, server.url), str(run_dir))
    paid, wanted = server.paid(), _derived(run_dir)
    for moment in moments:
      command = [sys.executable, "-c", _RUN, str(novel), server.url, str(run_dir)]
      run = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL)
      while not (part / moment).exists() and run.poll() is None:
        time.sleep(0.001)
      run.send_signal(signal.SIGKILL)
      assert run.wait() == -signal.SIGKILL, moment
      # What was there before is still whole.
      _check(run_dir, "THE TOLL AT TARROW")
    synthesize.run(_config(novel, server.url), str(run_dir))
    assert server.paid() == paid
  assert _derived(run_dir) == wanted and not part.exists()


def _derived(folder):
  files = ("quality.json", "diversity.json", "page.html", "splits/splits_proof.json")
  found: dict = {name: (folder / name).read_bytes() for name in files}
  # Records, not bytes: these differ from process to process, also where nothing was killed.
  for kind in (records.Trajectories, records.SftTurns):
    built = kind(folder / "built", "sft")
    found[kind.KIND] = [built.raw(i) for i in range(len(built))]
  return found


def _scenes(novel, workdir, function, again=False):
  return from_book.find_scenes(
    novel, workdir, lambda: Client(Scripted("teacher", function)), give_up_after=5, again=again
  )


def _answer(request):

  messages = [{"role": m.role, "content": m.content} for m in request.messages]
  return Reply(novelist.reply(messages))


def test_what_gave_nothing_is_asked_anew_alone(novel, tmp_path):
  asked, refused = [], set()

  def reply(request):
    asked.append(request.id)
    if request.tag == "book/dialogue" and not refused:
      refused.add(request.id)
    return Reply("", finish_reason="refusal") if request.id in refused else _answer(request)

  path = _scenes(novel, tmp_path, reply)
  before = len(schema.read_trajectories(path))
  report = json.loads((tmp_path / "book/report.json").read_text())
  (failed,) = set(report["failures"])
  assert failed == "dialogue: refusal" and set(report["failed"]) == refused
  asked.clear()
  assert _scenes(novel, tmp_path, reply) == path and not asked
  assert len(schema.read_trajectories(_scenes(novel, tmp_path, reply, again=True))) > before
  assert set(report["failed"]) == {i.split("/again")[0] for i in asked if "/again1" in i}
  assert not json.loads((tmp_path / "book/report.json").read_text())["failed"]


def test_a_round_of_retries_is_begun_once_until_the_run_has_ended(novel, tmp_path):
  """What is killed behind the book and started again with the same flag asks for nothing."""
  asked = []

  def reply(request):
    asked.append(request.id)
    refused = request.tag == "book/dialogue" and "/0/" in request.id
    return Reply("", finish_reason="refusal") if refused else _answer(request)

  def retried(again=True):
    asked.clear()
    path = _scenes(novel, tmp_path, reply, again)
    return path.read_bytes(), [i.rpartition("/")[2] for i in asked if i.startswith("dialogue")]

  retried(again=False)
  once, rounds = retried()
  assert rounds.count("again1") == 1
  assert retried() == (once, []) and not asked
  from_book.end_round(tmp_path)
  assert retried(again=False) == (once, [])
  assert retried()[1].count("again2") == 1


def test_a_round_that_was_stopped_is_gone_on_with(novel, tmp_path):
  def refusing(request):
    refused = request.tag == "book/dialogue" and "/0/" in request.id
    return Reply("", finish_reason="refusal") if refused else _answer(request)

  def dead(request):
    return Failure("connection", "gone")

  asked = []

  def well(request):
    asked.append(request.id)
    return _answer(request)

  _scenes(novel, tmp_path, refusing)
  with pytest.raises(Stopped):
    _scenes(novel, tmp_path, dead, again=True)
  # With or without the flag: the round is under way.
  assert len(schema.read_trajectories(_scenes(novel, tmp_path, well))) == 4
  assert sum(id.endswith("/again1") for id in asked) == 1
  assert not any(id.endswith("/again2") for id in asked)


@pytest.mark.parametrize("cause", ["budget", "connection"])
def test_a_dead_endpoint_or_a_spent_budget_ends_the_book_and_it_goes_on(novel, tmp_path, cause):
  def dead(request):
    return Failure(cause, "all is lost")

  with pytest.raises(Stopped, match=f"{cause}.*start the same command again"):
    _scenes(novel, tmp_path, dead)
  assert not (tmp_path / "book" / from_book.SCENES).exists()
  assert len(schema.read_trajectories(_scenes(novel, tmp_path, _answer))) == 4


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"purposes": "sft=3,test=1"}, "names 2 purposes for 1 books; .* --config.purposes=sft=1"),
    ({"purposes": "training=1"}, "'training' is not one of"),
    ({"purposes": "sft"}, "purposes: 'sft'; write NAME=SIZE"),
    ({"book.piece": 10}, "config.book.piece is 10; it must be 1000 or more"),
    ({"book.chapters": -1}, "config.book.chapters is -1"),
    ({"source": ""}, "config.source is empty"),
    ({"source": "samples"}, "config.source is 'samples', which are conversations"),
    ({"llm.recorded": "samples"}, "config.llm.recorded is 'samples', which holds no replies"),
    ({"llm.model": ""}, "llm.model is empty"),
  ],
)
def test_mistakes_in_settings_are_told_before_any_call(novel, tmp_path, changes, words):
  with pytest.raises(ConfigError, match=words) as caught:
    synthesize.run(_config(**{"source": novel, **changes}), str(tmp_path / "run"))
  assert "\n" not in str(caught.value)


def test_too_few_books_for_all_purposes_are_told_before_any_call(tmp_path):
  config = synthesize_config.get_config("samples")
  config.update_from_flattened_dict({"build": True, "limit": 4, "llm.recorded": "/nowhere"})
  with pytest.raises(ConfigError, match="names 5 purposes for 3 books; .* name at most 3"):
    synthesize.run(config, str(tmp_path / "few"))
  row = json.loads(samples.PLAIN.read_text().splitlines()[0]) | {"source": ""}
  (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
  config.source = str(tmp_path / "in.jsonl")
  with pytest.raises(DataError, match="names no book; the split is by book"):
    synthesize.run(config, str(tmp_path / "nameless"))
  assert not (tmp_path / "few/stage_1").exists()


def test_a_source_that_is_no_book_is_told(novel, tmp_path):
  with pytest.raises(DataError, match="none.txt: no such file"):
    synthesize.run(_config(tmp_path / "none.txt"), str(tmp_path / "run"))
  (tmp_path / "empty.txt").write_text(" \n")
  with pytest.raises(DataError, match="empty.txt"):
    synthesize.run(_config(tmp_path / "empty.txt"), str(tmp_path / "run"))


def test_a_book_of_which_nothing_is_left_says_why(novel, tmp_path):
  missing = lambda request: Failure("missing", "no reply is recorded")
  with pytest.raises(
    DataError, match=r"no scene is left of it: .* 4 calls gave nothing .*missing 4"
  ):
    _scenes(novel, tmp_path, missing)


def test_volumes_are_one_book_and_count_as_one(novel, tmp_path):
  shelf = tmp_path / "shelf"
  shelf.mkdir()
  head, *chapters = novel.read_text().split("CHAPTER ")
  for name, part in (("1.txt", chapters[:2]), ("2.txt", chapters[2:])):
    (shelf / name).write_text(head + "".join(f"CHAPTER {c}" for c in part))
  with pytest.raises(ConfigError, match="names 2 purposes for 1 book"):
    synthesize.run(_config(shelf, purposes="sft=1,test=1"), str(tmp_path / "run"))
  whole = _scenes(novel, tmp_path / "whole", _answer).read_bytes()
  assert _scenes(shelf, tmp_path / "parts", _answer).read_bytes() == whole


def test_an_encoding_that_cannot_be_told_is_asked_for_and_taken(novel, tmp_path):
  other = tmp_path / "other.txt"
  other.write_bytes(novel.read_text().replace("toll", "tøll").encode("cp037"))
  with pytest.raises(DataError, match=r"other\.txt:\d+: not UTF-8; .*--config\.encoding="):
    synthesize.run(_config(other), str(tmp_path / "none"))
  with BadServer(tmp_path / "server", reply=novelist.REPLY) as server:
    config = _config(other, server.url, encoding="cp037")
    assert synthesize.run(config, str(tmp_path / "run"))["data_sets"]["books"] == {"sft": 1}
  assert len(_check(tmp_path / "run", "THE TOLL AT TARROW")) == 4


@pytest.mark.slow
def test_the_real_novel_becomes_data_sets(real_data, tmp_path):
  source = real_data("pride_and_prejudice.txt")
  with BadServer(tmp_path / "server", reply=novelist.REPLY, delay=0.0) as server:
    config = _config(source, server.url, **{"book.chapters": 12, "block": 64})
    synthesize.run(config, str(tmp_path / "run"))
    assert set(server.paid().values()) == {1}
  made = _check(tmp_path / "run", "Pride and Prejudice")
  assert len(made) >= 8 and sum(len(s.turns) for s in made) >= 100
