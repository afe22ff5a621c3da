"""No tool writes over what it reads, in whatever place that lies."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from configs import synthesize as synthesize_config
from data_pipeline import export, own_inputs, page, samples, splits
from data_pipeline.builders import build
from data_pipeline.builders.source import Source
from her_jax.errors import ConfigError
from her_jax.tasks import synthesize

_ROOT = pathlib.Path(__file__).parents[2]
SHARES = {"sft": 3, "test": 1}


def _copy(path):
  path.parent.mkdir(parents=True, exist_ok=True)
  shutil.copyfile(samples.SCENES, path)
  return path


def _splits(path):
  splits.split([path], path.parent, purposes=SHARES)


def _export(path):
  proof = splits.split([path], path.parents[1] / "splits", purposes=SHARES)
  export.export(Source([path], proof), path.parents[1], overwrite=True)


def _build(path):
  proof = splits.split([path], path.parents[1] / "splits", purposes=SHARES)
  build.build(Source([path], proof), path.parents[1], overwrite=True)


def _page(path):
  page.write(path, path)


def _synthesize(path):
  config = synthesize_config.get_config("samples")
  config.source = str(path)
  synthesize.run(config, str(path.parent))


@pytest.mark.parametrize(
  ("name", "run"),
  [
    ("d/sft.jsonl", _splits),
    ("d/rl.jsonl", _splits),  # A purpose that is none of those wanted.
    ("jsonl/all.jsonl", _export),
    ("her_trajectories/all.jsonl", _build),
    ("d/all.jsonl", _page),
    ("d/trajectories.jsonl", _synthesize),
  ],
)
def test_an_input_is_refused_as_an_output(tmp_path, name, run):
  path = _copy(tmp_path / name)
  with pytest.raises(ConfigError, match=f"{path.name}: is read by this run"):
    run(path)
  assert path.read_bytes() == samples.SCENES.read_bytes()


@pytest.mark.parametrize(
  "command",
  [
    ["data_pipeline.preferences.make_pairs", "--scenes={0}", "--pairs={0}"],
    ["data_pipeline.page", "{0}", "--out={0}"],
    ["data_pipeline.sources.convert", "--source={0}", "--out={0}"],
    ["data_pipeline.splits", "--trajectories={0}", "--out={1}", "--purposes=sft=3,test=1"],
  ],
)
def test_the_commands_say_so_in_one_line(tmp_path, command):
  path = _copy(tmp_path / "d/sft.jsonl")
  done = subprocess.run(
    [sys.executable, "-m", *(part.format(path, path.parent) for part in command)],
    cwd=_ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode and "is read by this run" in done.stderr.splitlines()[-1]
  assert "Traceback" not in done.stderr
  assert path.read_bytes() == samples.SCENES.read_bytes()


def test_links_are_followed_and_neighbours_are_let_be(tmp_path):
  path = _copy(tmp_path / "a.jsonl")
  (tmp_path / "link.jsonl").symlink_to(path)
  with pytest.raises(ConfigError):
    own_inputs.refuse([tmp_path / "link.jsonl"], [path])
  own_inputs.refuse([tmp_path / "b.jsonl", tmp_path / "a"], [path])
