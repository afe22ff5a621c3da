"""A run that is stopped and continued ends as one that was not, bit for bit."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest

from data_pipeline.preferences import corruptions
from her_jax import sharding
from her_jax.hf import load as hf_load
from her_jax.roleplay import schema
from her_jax.training import checkpoint, metrics, preemption
from tests.training import short_runs


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  return short_runs.prepare(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
  "workers, packing, micro_batches",
  [
    (0, True, 1),
    *(
      pytest.param(workers, packing, micro, marks=pytest.mark.exhaustive)
      for workers in (0, 1, 2) for packing in (True, False) for micro in (1, 4)
      if (workers, packing, micro) != (0, True, 1)
    ),
  ],
)  # fmt: skip
def test_ten_steps_and_ten_are_twenty(settings, tmp_path, workers, packing, micro_batches):
  """Parameters, moments and all metrics. The first ten end by SIGTERM, at an odd moment."""
  settings = settings | {
    "data.workers": workers, "data.packing": packing, "micro_batches": micro_batches
  }  # fmt: skip
  # The step under way when the signal comes, two later than the one whose metrics are written.
  code = short_runs.finish(tmp_path / "two", settings, short_runs.Stop(signal.SIGTERM, 8))
  assert code == preemption.EXIT_CODE, short_runs.log(tmp_path / "two")
  printed = short_runs.log(tmp_path / "two")
  assert "Traceback" not in printed and printed.count("her_jax: ") == 1
  assert "ended by SIGTERM after step" in printed and "the same command continues" in printed
  (step,) = checkpoint.steps(str(tmp_path / "two"))
  assert 8 <= step <= 10
  assert short_runs.finish(tmp_path / "two", settings) == 0, short_runs.log(tmp_path / "two")
  assert f"continued after step {step} of 20" in short_runs.log(tmp_path / "two")
  assert short_runs.finish(tmp_path / "one", settings) == 0, short_runs.log(tmp_path / "one")
  short_runs.assert_equal(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_mixture_goes_on_too(settings, tmp_path):
  """With its shares told before the first step; another weight is another run."""
  lines = settings["data.scenes"].read_text(encoding="utf-8").splitlines()
  for name, own in (("a", lines[:2]), ("b", lines[2:])):
    (tmp_path / f"{name}.jsonl").write_text("\n".join(own) + "\n", encoding="utf-8")
  mixed = f"{tmp_path}/a.jsonl:0.8,{tmp_path}/b.jsonl:0.2"
  settings = settings | {"data.scenes": mixed, "short_copies": False}
  stop = short_runs.Stop(signal.SIGTERM, 8)
  code = short_runs.finish(tmp_path / "two", settings, stop)
  printed = short_runs.log(tmp_path / "two")
  assert code == preemption.EXIT_CODE, printed
  told = [line for line in printed.splitlines() if "source /" in line]
  assert len(told) == 2 and all("epochs of it" in line for line in told)
  assert "a.jsonl:" in told[0] and "asks for 80.0 % of the tokens" in told[0]
  assert "b.jsonl:" in told[1] and "asks for 20.0 % of the tokens" in told[1]
  for name in ("one", "two"):
    assert short_runs.finish(tmp_path / name, settings) == 0, short_runs.log(tmp_path / name)
  short_runs.assert_equal(tmp_path / "one", tmp_path / "two")
  other = settings | {"data.scenes": mixed.replace("0.8", "0.7")}
  assert short_runs.finish(tmp_path / "two", other) == 1
  assert "config.data.scenes was" in short_runs.log(tmp_path / "two")


@pytest.fixture(scope="module")
def base(settings, tmp_path_factory):
  """A model that runs with adapters start from."""
  workdir = tmp_path_factory.mktemp("base") / "run"
  assert short_runs.finish(workdir, settings | {"steps": 3}) == 0, short_runs.log(workdir)
  return workdir


@pytest.mark.exhaustive
def test_adapters_go_on_from_the_very_base_they_had(settings, base, tmp_path):
  """Merged weights, adapters, moments, matrices below and metrics; `init_from` is gone by then."""
  start = tmp_path / "start"
  shutil.copytree(base, start)
  settings = settings | {"init_from": start, "tokenizer": "", "lora.rank": 4}
  two = tmp_path / "two"
  code = short_runs.finish(two, settings, short_runs.Stop(signal.SIGTERM, 8))
  assert code == preemption.EXIT_CODE, short_runs.log(two)
  for name in ("params", "train"):
    shutil.rmtree(checkpoint.folder(str(start), 3) / name)
  assert short_runs.finish(two, settings) == 0, short_runs.log(two)
  assert "continued after step" in short_runs.log(two)
  shutil.copytree(base, start, dirs_exist_ok=True)
  assert short_runs.finish(tmp_path / "one", settings) == 0, short_runs.log(tmp_path / "one")
  short_runs.assert_equal(tmp_path / "one", two)
  # Another rank is another run.
  assert short_runs.finish(two, settings | {"lora.rank": 8}) == 1
  assert "config.lora.rank was 4 and is 8" in short_runs.log(two)


@pytest.mark.slow
def test_what_cannot_go_on_ends_in_one_message(settings, base, tmp_path):
  """A damaged file, a tokenizer that is gone, and one that is another: each named, no traceback."""
  settings = settings | {"steps": 3}

  def told(name, spoil):
    workdir = tmp_path / name
    shutil.copytree(base, workdir)
    spoil(workdir)
    assert short_runs.finish(workdir, settings) == 1
    printed = short_runs.log(workdir)
    assert "Traceback" not in printed and printed.count("her_jax: ") == 1, printed[-3000:]
    assert checkpoint.steps(str(workdir)) == [3]
    return printed

  def cut(workdir):
    for path in (workdir / "checkpoints" / "3" / "params").rglob("d/*"):
      path.write_bytes(path.read_bytes()[:100])

  def change(workdir):
    path = workdir / "tokenizer" / "tokenizer.json"
    rows = json.loads(path.read_text())
    vocabulary = rows["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.get)[400:402]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(rows))

  assert "checkpoints/3 cannot be read" in told("damaged", cut)
  assert "holds no tokenizer.json; copy it back" in told(
    "no_tokenizer", lambda workdir: shutil.rmtree(workdir / "tokenizer")
  )
  assert "or the tokenizer in the folder, have changed since" in told("changed", change)


@pytest.mark.slow
def test_what_is_never_due_is_told(settings, tmp_path):
  rows = [json.loads(line) for line in settings["data.scenes"].read_text().splitlines()]
  for row in rows:
    for turn in row["turns"] if row.get("split") == "heldout" else ():
      turn.pop("plan", None)
  path = tmp_path / "scenes.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)) + "\n")
  settings = settings | {
    "data.scenes": path, "steps": 2, "eval_samples": 2, "eval_every": 5, "profile.step": 7,
  }  # fmt: skip
  workdir = tmp_path / "run"
  assert short_runs.finish(workdir, settings) == 0, short_runs.log(workdir)
  printed = short_runs.log(workdir)
  assert "config.eval_every is 5, after the last of 2 steps: it is never due" in printed
  assert "config.profile.step is 7, after the last of 2 steps: it is never due" in printed
  assert "nothing that could be measured is held out" in printed
  assert printed.count("nothing is measured, as no held-out turn has a plan") == 2


@pytest.mark.exhaustive
def test_a_judge_of_adapters_goes_on_and_is_exported_merged(settings, base, tmp_path):
  """What the export holds is what the judge was measured with: base and adapters in one."""
  pairs = corruptions.make_pairs(schema.read_trajectories(settings["data.scenes"]), 0, 1)
  schema.write_jsonl(tmp_path / "pairs.jsonl", pairs)
  settings = settings | {
    "task": "genrm", "init_from": base, "tokenizer": "", "lora.rank": 4, "data.length": 2000,
    "data.pairs": tmp_path / "pairs.jsonl", "batch_size": 1, "eval_pairs": 2, "steps": 12,
    "judge.max_new_tokens": 4, "engine.rows": 4, "judge.prompt_length": 1000,
    "optimizer.name": "adamw",
  }  # fmt: skip
  del settings["eval_samples"]
  stop = short_runs.Stop(signal.SIGTERM, 5)
  code = short_runs.finish(tmp_path / "two", settings, stop)
  assert code == preemption.EXIT_CODE, short_runs.log(tmp_path / "two")
  for name in ("one", "two"):
    assert short_runs.finish(tmp_path / name, settings) == 0, short_runs.log(tmp_path / name)
  short_runs.assert_equal(tmp_path / "one", tmp_path / "two")
  told = [
    line.partition("held-out pairs: ")[2]
    for name in ("one", "two")
    for line in short_runs.log(tmp_path / name).splitlines()
    if "held-out pairs: " in line
  ]
  assert len(told) == 2 and told[0] == told[1]
  losses = [row["loss"] for row in metrics.read(tmp_path / "one" / "metrics.jsonl")]
  assert losses[-1] < losses[0]

  source = {"task": "export", "source": tmp_path / "one", "output": tmp_path / "hf"}
  assert short_runs.finish(tmp_path / "export", source) == 0, short_runs.log(
    tmp_path / "export"
  )
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  _, _, exported = hf_load.load(tmp_path / "hf", mesh=mesh, param_dtype="float32")
  _, _, merged, *_ = checkpoint.load_params(str(tmp_path / "one"), mesh, "one")
  _, _, before, *_ = checkpoint.load_params(str(base), mesh, "base")
  moved = []
  for (path, one), two, old in zip(
    jax.tree.leaves_with_path(exported),
    jax.tree.leaves(merged),
    jax.tree.leaves(before),
    strict=True,
  ):
    np.testing.assert_array_equal(one, two, jax.tree_util.keystr(path))
    moved.append(not np.array_equal(one, old))
  assert sum(moved) == 7  # The matrices of attention and MLP, each of all layers.


@pytest.mark.exhaustive
def test_the_judge_goes_on_too(settings, tmp_path):
  """It learns from all the package's pairs, and is measured on few of them at the end."""
  settings = settings | {
    "task": "genrm", "data.scenes": "samples", "init_from": "", "data.length": 2000,
    "batch_size": 1, "eval_pairs": 2, "judge.max_new_tokens": 4, "engine.rows": 4,
    "judge.prompt_length": 1000,
  }  # fmt: skip
  del settings["eval_samples"]
  stop = short_runs.Stop(signal.SIGTERM, 8)
  assert short_runs.finish(tmp_path / "two", settings, stop) == preemption.EXIT_CODE, (
    short_runs.log(tmp_path / "two")
  )
  for name in ("one", "two"):
    assert short_runs.finish(tmp_path / name, settings) == 0, short_runs.log(tmp_path / name)
  short_runs.assert_equal(tmp_path / "one", tmp_path / "two")
  measured = [
    line.partition("held-out pairs: ")[2]
    for name in ("one", "two")
    for line in short_runs.log(tmp_path / name).splitlines()
    if "held-out pairs: " in line
  ]
  assert len(measured) == 2 and measured[0] == measured[1]
  # Shown before the first step alone.
  assert short_runs.log(tmp_path / "two").count("GENRM: before") == 1


def test_a_run_that_has_ended_is_measured_again_and_not_trained(settings, tmp_path):
  settings = settings | {"steps": 3, "eval_samples": 2, "sampling.prompt_length": 400}
  settings |= {"data.eval_length": 512, "sampling.max_new_tokens": 4}
  workdir = tmp_path / "run"
  # The last step's metrics are written when no further step will ask for the signal.
  code = short_runs.finish(workdir, settings, short_runs.Stop(signal.SIGTERM, 3))
  assert code == preemption.EXIT_CODE, short_runs.log(workdir)
  assert checkpoint.steps(str(workdir)) == [3]
  assert short_runs.finish(workdir, settings) == 0, short_runs.log(workdir)
  files = ("metrics.jsonl", "config.json", "samples/before.json", "samples/after.json")
  before = {name: (workdir / name).read_bytes() for name in files}
  (workdir / "samples" / "after.json").unlink()
  assert short_runs.finish(workdir, settings) == 0, short_runs.log(workdir)
  printed = short_runs.log(workdir)
  assert "has done its 3 steps, nothing is trained" in printed
  assert printed.count("before: held-out loss") == 1
  assert printed.count("after: held-out loss") == 2
  assert {name: (workdir / name).read_bytes() for name in files} == before
  # What is refused leaves all as it is, the config too.
  assert short_runs.finish(workdir, settings | {"steps": 5}) == 1
  assert "config.steps was 3 and is 5" in short_runs.log(workdir)
  assert {name: (workdir / name).read_bytes() for name in files} == before
  anew = settings | {"steps": 5, "checkpoint.resume": False}
  assert short_runs.finish(workdir, anew) == 0, short_runs.log(workdir)
  assert checkpoint.steps(str(workdir)) == [5]
