"""Mistakes on the command line and in the data end in one clear message, not a traceback."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

from configs import pods
from data_pipeline import samples
from her_jax import command_line
from her_jax.errors import ConfigError
from her_jax.models.config import PRESETS
from her_jax.training import workdirs

ROOT = pathlib.Path(__file__).parents[1]


def _run(*arguments: str, workdir: pathlib.Path) -> subprocess.CompletedProcess:
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  return subprocess.run(
    [sys.executable, "-m", "her_jax.main", f"--workdir={workdir}", *arguments],
    cwd=ROOT,
    env={**environment, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=120,
  )


def _broken_scenes(folder: pathlib.Path) -> pathlib.Path:
  """The sample scenes with the third line cut in the middle."""
  lines = samples.SCENES.read_text(encoding="utf-8").splitlines()
  lines[2] = lines[2][: len(lines[2]) // 2]
  path = folder / "scenes.jsonl"
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  return path


def _misspelt_speaker(folder: pathlib.Path) -> pathlib.Path:
  rows = [json.loads(line) for line in samples.SCENES.read_text(encoding="utf-8").splitlines()]
  rows[1]["turns"][0]["speaker"] = "Nobody"
  path = folder / "scenes.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
  return path


_SFT = "--config=configs/sft.py:tiny"
_QUICK = ("--config.steps=1", "--config.eval_samples=0")
# Name -> (arguments, what the message must hold). {folder} is the test's own.
_MISTAKES = {
  "wrong key": ((_SFT, "--config.stepz=3"), ("field: --config.stepz", '"steps"')),
  "wrong key in a section": (
    (_SFT, "--config.optimizer.lr=3"),
    ("no such config field: --config.optimizer.lr",),
  ),
  "wrong key beside a right one that ends alike": (
    ("--config=configs/rl.py:tiny", "--config.rl.steps=1", "--config.sft.steps=1"),
    ("no such config field: --config.sft.steps\n",),
  ),
  "pairs of other scenes": (
    (
      "--config=configs/genrm.py:tiny",
      f"--config.data.scenes={ROOT}/data_pipeline/samples/scenes.jsonl",
    ),
    ("--config.data.pairs", "data_pipeline.preferences.make_pairs"),
  ),
  "wrong preset": (("--config=configs/sft.py:qwen3-33b",), ("'qwen3-33b'", "qwen3-32b")),
  "missing config file": (("--config=configs/nowhere.py",), ("configs/nowhere.py",)),
  "wrong value": ((_SFT, "--config.steps=many"), ("many",)),
  "no config": ((), ("config",)),
  "an argument without dashes": ((_SFT, "config.steps=3"), ("config.steps=3",)),
  "unknown task": ((_SFT, "--config.task=sftt"), ("'sftt'", "genrm")),
  "unknown remat": (
    (_SFT, "--config.remat=nonsense"),
    ("config.remat", "'nonsense'", "full, attention, projections, minimal, none"),
  ),
  "unknown remat of a stage": (
    ("--config=configs/quickstart.py", "--config.rl.remat=nonsense"),
    ("config.rl.remat", "'nonsense'", "minimal"),
  ),
  "unknown model to export": (
    ("--config=configs/export.py:tiny", "--config.source={folder}", "--config.model=foo"),
    ("config.model", "'foo'", "qwen3-32b"),
  ),
  "unknown model": ((_SFT, "--config.model=qwen4"), ("qwen4", "qwen3-32b")),
  "missing data file": (
    (_SFT, *_QUICK, "--config.data.scenes={folder}/none.jsonl"),
    ("none.jsonl", "no such file"),
  ),
  "missing checkpoint": (
    (
      "--config=configs/rl.py:tiny",
      "--config.policy={folder}/none",
      "--config.judge.checkpoint={folder}/no_judge",
    ),
    ("{folder}/none", "--config.policy", "{folder}/no_judge", "--config.judge.checkpoint"),
  ),
  "missing init_from": (
    ("--config=configs/genrm.py:tiny", "--config.init_from={folder}/none"),
    ("{folder}/none", "--config.init_from"),
  ),
  "an unknown dtype": (
    ("--config=configs/export.py:tiny", "--config.dtype=float31"),
    ("config.dtype is 'float31'", "bfloat16"),
  ),
  "missing source to export": (
    ("--config=configs/export.py:tiny", "--config.source={folder}/none"),
    ("--config.source={folder}/none: no such folder", "Hugging Face"),
  ),
  "missing tokenizer": (
    (_SFT, *_QUICK, "--config.tokenizer={folder}/none"),
    ("{folder}/none", "tokenizer.json"),
  ),
  "rows that are too short": (
    (_SFT, *_QUICK, "--config.data.length=32"),
    ("data.length = 32", "raise it"),
  ),
  "a negative seed": ((_SFT, "--config.seed=-1"), ("config.seed is -1",)),
  "a workdir that is the start": (
    (_SFT, "--config.init_from={folder}/out"),
    ("config.init_from", "choose another folder"),
  ),
  "a workdir that is the judge": (
    ("--config=configs/rl.py:tiny", "--config.judge.checkpoint={folder}/../{name}/out"),
    ("config.judge.checkpoint", "choose another folder"),
  ),
  "no prompts": (
    ("--config=configs/rl.py:tiny", "--config.rl.prompts_per_step=0"),
    ("rl.prompts_per_step is 0", "at least 1"),
  ),
  "a group of one": (
    ("--config=configs/rl.py:tiny", "--config.rl.group_size=1"),
    ("rl.group_size is 1", "at least 2"),
  ),
  "a group that is too long": (
    ("--config=configs/rl.py:tiny", "--config.rl.group_size=5"),
    ("data.length is 976", "1157"),
  ),
  "no temperature": (
    ("--config=configs/rl.py:tiny", "--config.sampling.temperature=0.0"),
    ("sampling.temperature is 0.0",),
  ),
  "rows that micro-batches do not divide": (
    (_SFT, *_QUICK, "--config.micro_batches=3"),
    ("2 rows", "micro_batches = 3"),
  ),
  "prompts that micro-batches do not divide": (
    ("--config=configs/rl.py:tiny", "--config.micro_batches=7"),
    ("rl.prompts_per_step: ", "micro_batches = 7"),
  ),
  **{
    f"{field} = {value}": (
      (f"--config=configs/{task}.py:tiny", f"--config.{field}={value}"),
      (f"config.{field} is {value}; it must be {value + 1} or more",),
    )
    for task, field, value in (
      ("sft", "batch_size", 0),
      ("sft", "micro_batches", 0),
      ("genrm", "log_every", 0),
      ("rl", "engine.rows", 0),
      ("rl", "judge.max_new_tokens", 0),
      ("evaluate", "data.eval_batch_size", 0),
      ("sft", "steps", -1),
      ("sft", "data.workers", -1),
      ("genrm", "checkpoint.keep", 0),
    )
  },
  "an engine without room": (
    (_SFT, *_QUICK, "--config.eval_samples=1", "--config.engine.pages=2"),
    ("config.engine: 2 pages of 32 tokens cannot hold one request", "pages or more"),
  ),
  "a workdir below a file": (
    (_SFT, *_QUICK, "--workdir=/dev/null/run"),
    ("--workdir=", "cannot be made", "choose another folder"),
  ),
  "a mesh that does not fit": ((_SFT, *_QUICK, "--config.mesh.tensor=3"), ("tensor=3",)),
  "a model that is too large": (
    ("--config=configs/sft.py:qwen3-32b",),
    ("qwen3-32b", "GiB", "Nothing was allocated", "configs/sft.py:"),
  ),
}


def _assert_one_message(done: subprocess.CompletedProcess, *parts: str) -> None:
  assert done.returncode != 0
  assert "Traceback" not in done.stderr, done.stderr[-3000:]
  for part in parts:
    assert part in done.stdout + done.stderr
  own = [line for line in done.stderr.splitlines() if line.startswith("her_jax: ")]
  assert len(own) <= 1


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_mistake_gives_one_clear_message(mistake, tmp_path):
  arguments, parts = _MISTAKES[mistake]
  put = lambda text: text.replace("{folder}", str(tmp_path)).replace("{name}", tmp_path.name)
  earlier = tmp_path / "out" / "checkpoints" / "7"
  earlier.mkdir(parents=True)
  done = _run(*map(put, arguments), workdir=tmp_path / "out")
  _assert_one_message(done, *map(put, parts))
  assert list(earlier.parent.iterdir()) == [earlier]  # That of an earlier run is still there.


@pytest.mark.parametrize("task", ["sft", "genrm", "rl", "evaluate", "export", "quickstart"])
def test_the_configs_themselves_are_no_mistake(task):
  get_config = importlib.import_module(f"configs.{task}").get_config
  presets = [*PRESETS, *pods.TRAINING.get(task, ())] if task != "quickstart" else ["tiny"]
  for preset in (None, *presets):
    command_line.check(get_config(preset))


def test_a_line_that_is_cut_is_named(tmp_path):
  path = _broken_scenes(tmp_path)
  done = _run(_SFT, *_QUICK, f"--config.data.scenes={path}", workdir=tmp_path / "out")
  _assert_one_message(done, f"{path}:3:", "not valid JSON", "one whole JSON object")


def test_a_misspelt_speaker_is_named(tmp_path):
  path = _misspelt_speaker(tmp_path)
  done = _run(_SFT, *_QUICK, f"--config.data.scenes={path}", workdir=tmp_path / "out")
  _assert_one_message(done, f"{path}:2", "turns[0].speaker: 'Nobody'")


_HF_CONFIG = '{"model_type": "qwen3"}'
_MODELS = {
  "safetensors": {"model.safetensors": "weights"},
  "a part of safetensors": {"model-00002-of-00003.safetensors": "weights"},
  "gguf": {"qwen3-q8_0.gguf": "weights"},
  "pytorch": {"pytorch_model.bin": "weights"},
  "a part of pytorch": {"pytorch_model-00001-of-00002.bin": "weights"},
  "a config alone": {"config.json": _HF_CONFIG},
}


@pytest.mark.parametrize("trailing", ["", "/", "/../model"])
@pytest.mark.parametrize("model", _MODELS)
def test_a_workdir_that_holds_a_model_is_refused(model, trailing, tmp_path):
  folder = tmp_path / "model"
  folder.mkdir()
  files = {"config.json": _HF_CONFIG, **_MODELS[model]}
  for name, text in files.items():
    (folder / name).write_text(text)
  with pytest.raises(
    ConfigError, match="--workdir=.* is the folder of a model.*choose another"
  ):
    workdirs.refuse_model(f"{folder}{trailing}", "workdir")


@pytest.mark.parametrize(
  "files",
  [
    {},
    {"config.json": '{"task": "sft", "model": "tiny"}', "metrics.jsonl": ""},
    {"config.json": '{"task": "sft", "model_type": "of a config that has it"}'},
    {"config.json": "{"},
    {"config.json": "[]"},
    # The export before this one was broken off.
    {"INCOMPLETE": "", "model.safetensors": "weights"},
  ],
  ids=["nothing", "a run", "a run's own field", "cut", "a list", "a broken-off export"],
)
def test_a_workdir_of_an_earlier_run_is_not_refused(files, tmp_path):
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  workdirs.refuse_model(str(tmp_path), "workdir")
  workdirs.refuse_model(str(tmp_path / "new"), "workdir")


def test_no_file_of_a_model_is_touched(tmp_path):
  files = {"config.json": _HF_CONFIG, "model.safetensors": "weights"}
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  done = _run(_SFT, *_QUICK, workdir=tmp_path)
  _assert_one_message(
    done, f"--workdir={tmp_path} is the folder of a model", "model.safetensors"
  )
  assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
