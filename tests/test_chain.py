"""The whole chain with a handful of updates: what each stage leaves behind, and that it repeats."""

import json
import os
import pathlib
import re
import subprocess
import sys

from flax import nnx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from her_jax import sharding
from her_jax.evaluation import console
from her_jax.training import checkpoint

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
_KEYS = (
  "seed sft_heldout_loss_before sft_heldout_loss_after grammar_valid_before"
  " grammar_valid_after judge_accuracy judge_pairs rl_reward_first_fifth rl_reward_last_fifth"
  " rl_reward_standard_error seconds_total peak_memory_gib"
).split()
# Enough updates that replies end, verdicts can be read, and rewards differ within a group.
_SAMPLING = {"engine.rows": 16}
_RL = {
  "rl.steps": 5, "rl.prompts_per_step": 4, "rl.group_size": 4, "rl.updates_per_step": 1,
  "rl.judge_invalid": True, "eval_samples": 3, "seed": 3, **_SAMPLING,
}  # fmt: skip
_EVALUATE = {"eval_pairs": 4, "eval_samples": 3, "seed": 3, **_SAMPLING}
_SFT = {"steps": 300, "eval_samples": 3, "seed": 3, **_SAMPLING}
_JUDGE = {"steps": 120, **_SAMPLING}
_CHAIN = {"seed": 3} | {
  f"{stage}.{name}": value
  for stage, settings in (
    ("sft", _SFT),
    ("genrm", _JUDGE),
    ("rl", _RL),
    ("evaluate", _EVALUATE),
  )
  for name, value in settings.items()
}


def _run(config: str, workdir: pathlib.Path, settings: dict) -> str:
  """Runs a task and returns what it printed."""
  environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "FORCE_COLOR")}
  flags = [f"--config.{name}={value}" for name, value in settings.items()]
  done = subprocess.run(
    [sys.executable, "-m", "her_jax.main", f"--config={config}", f"--workdir={workdir}", *flags],
    cwd=ROOT, env={**environment, "JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True, timeout=400,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


def _metrics(workdir: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def _scalars(workdir: pathlib.Path) -> list[dict]:
  """What a run with the same seed must repeat bit for bit: all but the times."""
  return [
    {k: v for k, v in row.items() if not re.search("second", k)} for row in _metrics(workdir)
  ]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
  folder = tmp_path_factory.mktemp("chain")
  return folder, _run("configs/quickstart.py", folder, _CHAIN)


def test_the_summary_holds_what_was_measured(chain):
  folder, _ = chain
  summary = json.loads((folder / "summary.json").read_text())
  assert list(summary) == _KEYS
  assert all(console.is_measured(value) for value in summary.values()), summary
  assert summary["seed"] == 3
  assert summary["sft_heldout_loss_after"] < summary["sft_heldout_loss_before"]
  evaluation = json.loads((folder / "evaluate" / "evaluation.json").read_text())
  assert summary["judge_accuracy"] == evaluation["judge"]["accuracy"]
  assert (folder / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("stage, steps", [("sft", 300), ("genrm", 120), ("rl", 5)])
def test_a_stage_writes_one_object_a_step(chain, stage, steps):
  rows = _metrics(chain[0] / stage)
  assert [row["step"] for row in rows] == list(range(1, steps + 1))
  assert all(np.isfinite(row["loss"]) for row in rows)


@pytest.mark.parametrize("stage", ["SFT", "GENRM", "RL"])
def test_a_stage_shows_samples_before_and_after(chain, stage):
  _, printed = chain
  for when in ("before", "after"):
    _, _, rest = printed.partition(f" {stage}: {when} ─")
    shown = rest.lstrip("─").partition("──")[0]
    assert len(re.findall(r" turn \d+ of ", shown)) == 3


def test_transformers_loads_the_export_and_agrees(chain):
  folder, _ = chain
  tokenizer = AutoTokenizer.from_pretrained(folder / "export", local_files_only=True)
  theirs = AutoModelForCausalLM.from_pretrained(folder / "export", local_files_only=True)
  ids = tokenizer("Una: <role_action>nods</role_action> 你好。")["input_ids"]
  mesh = sharding.make_mesh()
  ours = checkpoint.load(str(folder / "rl"), mesh, "policy")
  assert tokenizer.get_vocab() == ours.tokenizer.get_vocab()
  n = len(ids)
  model = nnx.merge(ours.graphdef, ours.params)
  hidden, _ = model(np.asarray([ids]), np.arange(n)[None], np.full((1, n), n))
  with torch.no_grad():
    expected = theirs(torch.tensor([ids])).logits.numpy()
  np.testing.assert_allclose(model.logits(hidden), expected, atol=1e-4)


@pytest.mark.exhaustive
def test_sft_alone_repeats_the_chains_bit_for_bit(chain, tmp_path):
  _run("configs/sft.py:tiny", tmp_path, _SFT)
  assert _scalars(tmp_path) == _scalars(chain[0] / "sft")


def test_rl_alone_repeats_the_chains_bit_for_bit(chain, tmp_path):
  folder, _ = chain
  stages = {"policy": folder / "sft", "judge.checkpoint": folder / "genrm"}
  _run("configs/rl.py:tiny", tmp_path, _RL | stages)
  assert _scalars(tmp_path) == _scalars(folder / "rl")
  assert any(row["gradient_norm"] > 0 for row in _scalars(folder / "rl")), "nothing was learnt"


def test_evaluation_of_one_reply_and_no_pairs_leaves_the_judge_out(chain, tmp_path):
  folder, _ = chain
  places = {"policy": folder / "rl", "baseline": "", "judge.checkpoint": folder / "genrm"}
  few = {"eval_pairs": 0, "eval_samples": 1}
  _run("configs/evaluate.py:tiny", tmp_path, _EVALUATE | places | few)
  found = json.loads((tmp_path / "evaluation.json").read_text())
  assert found["judge"] == {} and "win_rate" not in found
