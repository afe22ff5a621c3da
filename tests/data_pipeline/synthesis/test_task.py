"""The task as users start it: the samples offline, mistakes in settings, and being killed."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from configs import synthesize as synthesize_config
from data_pipeline import samples
from her_jax.errors import ConfigError
from her_jax.llm import build
from her_jax.roleplay import grammar, schema
from her_jax.roleplay.schema import DataError
from her_jax.tasks import synthesize
from her_jax.training import workdirs
from tests.data_pipeline.synthesis.synthesis_runs import files, read
from tests.llm.bad_server import BadServer

_ROOT = pathlib.Path(__file__).parents[3]


def _config(preset="samples", **changes):
  config = synthesize_config.get_config(preset)
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture(scope="module")
def run_of_samples(tmp_path_factory):
  folder = tmp_path_factory.mktemp("samples")
  return folder, synthesize.run(_config(), str(folder))


def test_the_samples_run_offline_through_all_stages(run_of_samples):
  folder, _ = run_of_samples
  table = json.loads((folder / "failures.json").read_text())
  assert len(table) == 4
  for stage, row in table.items():
    assert row["units"] >= 8 and not row["failed"] and not row["kept"], stage
  assert (folder / "retry.jsonl").read_text() == ""


def test_what_comes_out_is_what_the_samples_hold(run_of_samples):
  """Thoughts, layers and plans come back, to the letter, also of turns that were merged."""
  whole = {s.id: s for s in schema.read_trajectories(samples.SCENES)}
  made = read(run_of_samples[0])
  assert len(made) >= 8
  assert {s.language for s in made} == {"en", "zh"}
  for scene in made:
    true = whole[scene.id]
    assert [(t.speaker, t.reply) for t in scene.turns] == [
      (t.speaker, t.reply) for t in true.turns
    ]
    for turn, wanted in zip(scene.turns, true.turns, strict=True):
      assert not wanted.plan or turn.plan == wanted.plan
      if turn.speaker == scene.environment:
        assert not turn.plan
        continue
      her = turn.extra["her"]
      assert turn.plan and her["draft"] and her["reason"] and her["original"] != turn.reply
      assert her["layout"] == grammar.parse(turn.reply).layout()
  assert any(len(t.extra["her"]["origin_ids"]) == 2 for s in made for t in s.turns)
  facts = [f for s in made for f in s.extra["her"].get("settings_added", [])]
  assert len(facts) >= 8 and sum("settings_added" not in s.extra["her"] for s in made) == 1


def test_recorded_replies_are_each_of_a_request_and_none_is_left_over(run_of_samples):
  folder, _ = run_of_samples
  counts = json.loads((folder / "calls_report.json").read_text())
  recorded = [
    json.loads(line)["id"]
    for file in samples.RECORDED.glob("*.jsonl")
    for line in file.read_text().splitlines()
  ]
  assert len(set(recorded)) == len(recorded) == counts["calls"]


def test_drafts_and_reasons_are_each_written_for_their_turn():
  """No text of the recorded replies stands twice, and none is in the wrong person's name."""
  made = [
    (file.stem, json.loads(line))
    for file in samples.RECORDED.glob("*.jsonl")
    for line in file.read_text().splitlines()
  ]
  drafts = [row["reasoning"] for stage, row in made if stage == "forward"]
  assert len(set(drafts)) == len(drafts) > 60
  reasons = [
    turn["reason"]
    for stage, row in made
    if stage == "role_thinking"
    for turn in json.loads(row["text"])["turns"]
  ]
  assert len(set(reasons)) == len(reasons) == len(drafts)


def test_a_second_run_changes_nothing_and_calls_nobody(run_of_samples, monkeypatch):
  folder, _ = run_of_samples
  before = files(folder)
  monkeypatch.delattr(build, "client")
  synthesize.run(_config(), str(folder))
  assert files(folder) == before


def test_a_smaller_limit_leaves_nothing_of_the_larger(tmp_path):
  """Also where the last, shorter block of the larger one is what goes."""
  synthesize.run(_config(limit=6, block=4), str(tmp_path / "a"))
  synthesize.run(_config(limit=4, block=4), str(tmp_path / "a"))
  synthesize.run(_config(limit=4, block=4), str(tmp_path / "b"))
  assert len(read(tmp_path / "a")) == 4
  assert files(tmp_path / "a") == files(tmp_path / "b")
  # And the larger one goes on again.
  synthesize.run(_config(limit=6, block=4), str(tmp_path / "a"))
  assert len(read(tmp_path / "a")) == 6


def test_two_runs_do_not_write_into_one_workdir(tmp_path):
  with workdirs.alone_in(str(tmp_path)), pytest.raises(ConfigError, match="another run"):
    synthesize.run(_config(), str(tmp_path))


def test_a_missing_recorded_reply_is_listed(tmp_path):
  recorded = tmp_path / "some.jsonl"
  lines = (samples.RECORDED / "role_thinking.jsonl").read_text().splitlines()
  recorded.write_text("\n".join(lines[1:]) + "\n")
  config = _config(**{"llm.recorded": str(recorded), "stages": "0,1"})
  synthesize.run(config, str(tmp_path / "run"))
  (line,) = (tmp_path / "run/retry.jsonl").read_text().splitlines()
  assert json.loads(line) | {"cause": "missing"} == json.loads(line)
  # It is written beside the others, and found.
  recorded.write_text("\n".join(lines) + "\n")
  synthesize.run(
    _config(**{"llm.recorded": str(recorded), "stages": "0,1", "retry_failed": True}),
    str(tmp_path / "run"),
  )
  assert not (tmp_path / "run/retry.jsonl").read_text()


@pytest.mark.parametrize("field", ["llm.recorded", "tokenizer"])
def test_a_workdir_made_with_others_is_refused(tmp_path, qwen3_folder, field):
  run = str(tmp_path / "run")
  config = _config(stages="0,1")
  synthesize.run(config, run)
  other = qwen3_folder
  if field == "llm.recorded":
    other = tmp_path / "replies"
    shutil.copytree(samples.RECORDED, other)
  with pytest.raises(ConfigError, match=f"other settings \\({field.rpartition('.')[2]}\\)"):
    synthesize.run(_config(stages="0,1", **{field: str(other)}), run)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"source": ""}, "config.source is empty"),
    ({"stages": "0,4"}, "config.stages holds '4'"),
    ({"stages": ""}, "config.stages empty"),
    ({"block": 0}, "config.block is 0"),
    ({"limit": -1}, "config.limit is -1"),
    ({"backward.tries": 0}, "config.backward.tries is 0"),
    ({"role_thinking.window": 0}, "config.role_thinking.window is 0"),
    ({"backward.length_en": (900, 100)}, "config.backward.length_en"),
    ({"forward.speakers": "some"}, "config.forward.speakers is 'some'"),
    ({"prepare.notation": "markdown"}, "config.prepare.notation is 'markdown'"),
    ({"llm.backend": "endpoint"}, "llm.model is empty"),
    ({"encoding": "utf-9"}, "config.encoding: 'utf-9' is unknown; pass the right one"),
    ({"encoding": "gb18030"}, "config.encoding is 'gb18030', but trajectories are UTF-8"),
    ({"forward.temperature": float("nan")}, "config.forward.temperature is nan"),
    ({"setting.temperature": -1.0}, "config.setting.temperature is -1.0"),
    ({"backward.top_p": 0.0}, "config.backward.top_p is 0.0"),
    ({"backward.leak_share": -3.0}, "config.backward.leak_share is -3.0"),
    ({"backward.leak_share": float("nan")}, "config.backward.leak_share is nan"),
    ({"role_thinking.most_changed": float("nan")}, "config.role_thinking.most_changed is nan"),
    ({"backward.leak_run_zh": 0}, "config.backward.leak_run_zh is 0"),
    ({"role_thinking.most_changed": 1.5}, "config.role_thinking.most_changed is 1.5"),
  ],
)
def test_mistakes_in_settings_are_told(tmp_path, changes, words):
  with pytest.raises(ConfigError) as caught:
    synthesize.run(_config(**changes), str(tmp_path))
  assert words in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_broken_source_is_told_with_its_line(tmp_path):
  source = tmp_path / "in.jsonl"
  good = samples.PLAIN.read_text().splitlines()[0]
  source.write_text(f'{good}\n{{"id": "x", "turns": 3}}\n')
  with pytest.raises(DataError, match=r"in\.jsonl:2 \(id 'x'\)"):
    synthesize.run(_config(source=str(source)), str(tmp_path / "strict"))
  config = _config(source=str(source), lenient=True)
  summary = synthesize.run(config, str(tmp_path / "lenient"))
  assert summary["stages"]["prepare"]["conversation: unreadable"] == 1
  with pytest.raises(DataError, match="no such file"):
    synthesize.run(_config(source=str(tmp_path / "none")), str(tmp_path / "none_out"))


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path, caplog):
  shelf = tmp_path / "shelf"
  (shelf / "sub").mkdir(parents=True)
  one, two, *_ = samples.PLAIN.read_text().splitlines()
  (shelf / "sub" / "a.JSONL").write_text(one + "\n")
  (shelf / "b.jsonl").write_text(two + "\n")
  (shelf / "notes.txt").write_text("No conversation.")
  with caplog.at_level("WARNING"):
    synthesize.run(_config(source=str(shelf)), str(tmp_path / "run"))
  assert len(read(tmp_path / "run")) == 2
  assert "1 x file left out, as none of .jsonl, .ndjson: notes.txt" in caplog.text


def test_a_row_of_two_megabytes_goes_through(tmp_path):
  row = json.loads(samples.PLAIN.read_text().splitlines()[0])
  row |= {"id": "huge"}
  row["turns"][0]["reply"] = "Well, well. " * 170_000
  source = tmp_path / "in.jsonl"
  source.write_text(json.dumps(row) + "\n" + samples.PLAIN.read_text())
  summary = synthesize.run(_config(source=str(source)), str(tmp_path / "out"))
  assert summary["stages"]["prepare"]["conversations kept"] == 9
  table = json.loads((tmp_path / "out/failures.json").read_text())
  assert table["role_thinking"]["failed_by_cause"] == {"too_long": 1}


def test_a_reasoner_of_its_own_writes_the_drafts(tmp_path):
  """The drafts go to another endpoint and another journal; its own budget counts."""
  reply = "tests.teachers.synthesis:over_http"
  with (
    BadServer(tmp_path / "a", reply=reply) as teacher,
    BadServer(tmp_path / "b", reply=reply) as reasoner,
  ):
    config = _against(teacher.url, limit=1)
    config.reasoner.update(model="thinker", base_url=reasoner.url)
    synthesize.run(config, str(tmp_path / "out"))
    drafts = len(reasoner.paid())
    assert drafts >= 7 and len(teacher.paid()) >= drafts + 2
  assert (tmp_path / "out/calls_reasoner.jsonl").exists()


def test_a_spent_budget_ends_the_run_and_a_larger_one_goes_on(tmp_path):
  reply = "tests.teachers.synthesis:over_http"
  with BadServer(tmp_path / "server", reply=reply) as server:
    config = _against(server.url, limit=2)
    config.llm.budget_tokens = 5000
    with pytest.raises(ConfigError, match=r"5000.*budget_tokens"):
      synthesize.run(config, str(tmp_path / "out"))
    assert not (tmp_path / "out/trajectories.jsonl").exists()
    config.llm.budget_tokens = 0
    synthesize.run(config, str(tmp_path / "out"))
    assert set(server.paid().values()) == {1}
    with pytest.raises(ConfigError, match="model"):
      synthesize.run(
        _against(server.url, limit=2, **{"llm.model": "other"}), str(tmp_path / "out")
      )
  assert len(read(tmp_path / "out")) == 2


def _against(url, **changes):
  """The samples' scenes, answered by an endpoint on loopback."""
  config = _config(None, **{
    "source": str(samples.PLAIN), "block": 3, "llm.base_url": url, "llm.model": "teacher",
    "llm.api_key_env": "", "llm.max_attempts": 12, "llm.first_wait_s": 0.02,
    "llm.timeout_s": 5.0, **changes,
  })  # fmt: skip
  return config


_RUN = """
import sys
from absl import logging
from tests.data_pipeline.synthesis.test_task import _against
from her_jax.tasks import synthesize
from her_jax.training import workdirs
synthesize.run(_against(sys.argv[1]), sys.argv[2])
"""


def _start(url, workdir):
  return subprocess.Popen(
    [sys.executable, "-c", _RUN, url, str(workdir)],
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
  )


@pytest.mark.slow
def test_killed_at_twenty_moments_it_ends_like_a_run_that_was_not(tmp_path, capsys):
  """Against a server that delays, limits, cuts, refuses and breaks; no call is paid for twice."""
  reply = "tests.teachers.synthesis:over_http"
  faults = {
    "rate_limit": 0.05, "server": 0.05, "cut": 0.05, "broken": 0.05, "delay": 0.02,
    "empty": 0.02, "refusal": 0.03, "content_filter": 0.04, "length": 0.04,
  }  # fmt: skip
  server = lambda name: BadServer(tmp_path / name, reply=reply, faults=faults, seed=5)
  with server("calm") as calm:
    whole = _start(calm.url, tmp_path / "whole")
    assert whole.wait(120) == 0, whole.stderr.read().decode()
    paid, attempts = calm.paid(), len(calm.attempts())
  chance = random.Random(7)
  # By calls, not by seconds: a machine may be busier in one half of the test than in the other.
  moments = sorted(chance.sample(range(int(0.9 * attempts)), 20))
  with server("stormy") as stormy:
    for moment in moments:
      run = _start(stormy.url, tmp_path / "killed")
      # If so many calls were made before, then before there is any.
      while stormy.arrived < moment and run.poll() is None:
        time.sleep(0.005)
      time.sleep(chance.uniform(0, 0.05))
      run.send_signal(signal.SIGKILL)
      run.wait()
    done = (tmp_path / "killed/trajectories.jsonl").exists()
    last = _start(stormy.url, tmp_path / "killed")
    assert last.wait(120) == 0, last.stderr.read().decode()
    again = stormy.paid()
  assert not done, "it had ended before the last kill: the moments are too late"
  assert files(tmp_path / "killed") == files(tmp_path / "whole")
  assert set(again.values()) == {1} and again.keys() == paid.keys()
  table = json.loads((tmp_path / "killed/failures.json").read_text())
  causes = {cause for row in table.values() for cause in row["failed_by_cause"]}
  assert {"refusal", "content_filter"} <= causes
  with capsys.disabled():
    print(f"\n20 kills, {len(again)} calls, each paid for once: {json.dumps(table)}")


@pytest.mark.slow
def test_main_runs_it_with_the_same_results(run_of_samples, tmp_path):
  command = [sys.executable, "-m", "her_jax.main", "--config=configs/synthesize.py:samples"]
  done = subprocess.run(
    [*command, f"--workdir={tmp_path}"], cwd=_ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert files(tmp_path) == files(run_of_samples[0])
  told = subprocess.run(
    [*command, f"--workdir={tmp_path}", "--config.stages=9"],
    cwd=_ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert told.returncode == 1
  assert told.stderr.splitlines()[-1].startswith("her_jax: config.stages holds '9'")
