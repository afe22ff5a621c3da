"""What a pod's programs take, by compilation; needs libtpu, and no TPU."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from configs import pods as layouts
from configs import rl, sft
from her_jax import sharding
from her_jax.errors import ConfigError
from launch_tpu import aot, pods, programs, roofline

ROOT = pathlib.Path(__file__).parents[2]
needs_libtpu = pytest.mark.skipif(
  not importlib.util.find_spec("libtpu"), reason="pip install '.[test]' brings libtpu"
)


@pytest.mark.parametrize("name", pods.PODS)
def test_every_pod_has_a_chip_with_peaks(name):
  pod = pods.PODS[name]
  assert roofline.usable_hbm_gib(pod.chip) > 0
  cores = 2 if pod.chip == "v5p" else 1
  assert pods.chips(dataclasses.replace(pod, slices=1)) * cores == int(name.rpartition("-")[2])


def test_every_layout_is_of_a_known_pod_and_divides_it():
  for task, table in layouts.TRAINING.items():
    for name, layout in table.items():
      pod = pods.PODS[name]
      shards = pods.chips(pod) // layout.context
      assert layout.data % pod.slices == 0, (task, name)
      assert layout.rows // layout.micro_batches % shards == 0, (task, name)


@pytest.mark.parametrize("task", ["sft", "rl"])
def test_every_layout_was_compiled_and_leaves_a_tenth_free(task):
  """docs/pods.json holds what `python -m launch_tpu.compare` found."""
  compiled = json.loads((ROOT / "docs" / "pods.json").read_text())
  for name, layout in layouts.TRAINING[task].items():
    wanted = {"program": "train", "topology": name, "fits": True}
    wanted |= {key: getattr(layout, key) for key in ("rows", "length", "remat")}
    wanted["mesh"] = {"data": layout.data, "context": layout.context, "tensor": 1}
    wanted["mesh"]["fsdp"] = pods.chips(pods.PODS[name]) // layout.data // layout.context
    found = [
      result
      for key, results in compiled.items()
      for result in results
      if key.startswith(task) and wanted.items() <= result.items()
    ]
    assert found, f"{task} {name} {layout}: not in docs/pods.json"
    for result in found:
      assert result["hbm_peak_gib"] <= 0.9 * result["hbm_limit_gib"]
      # Of products with weights: 1.25 where every layer runs forward twice.
      assert result["weight_flops_ratio"] <= 1.3


def test_every_engine_was_compiled_and_leaves_a_tenth_free_beside_the_trained_state():
  compiled = json.loads((ROOT / "docs" / "pods.json").read_text())
  assert layouts.ENGINE.keys() == layouts.TRAINING["rl"].keys()
  for name, engine in layouts.ENGINE.items():
    state = compiled[f"rl {name}"][0]
    assert state["program"] == "train"
    found = compiled[f"host {name}"]
    assert [result["program"] for result in found] == ["prefill", "decode"]
    for result in found:
      kept = {key: getattr(engine, key) for key in ("rows", "pages", "page_size")}
      assert kept.items() <= result["engine"].items(), f"{name} {engine}: compile it again"
      assert result["engine"]["context"] == 6144 + 2048
      together = result["hbm_peak_gib"] + state["argument_gib"]
      assert together <= 0.9 * result["hbm_limit_gib"]
      # The loops' trips are told to the counter: without them it finds too little.
      assert 0.99 <= result["flops_per_chip"] / result["model_flops_per_chip"] <= 1.3
      assert result["hbm_gib_per_chip"] >= result["needed_hbm_gib_per_chip"]


def test_a_pod_is_named_after_the_colon():
  config = sft.get_config("v5p-128")
  layout = layouts.TRAINING["sft"]["v5p-128"]
  assert (config.pod, config.model) == ("v5p-128", "qwen3-32b")
  assert (config.batch_size, config.data.length) == (layout.rows, layout.length)
  assert config.mesh.data == layout.data and programs.model_config(config).remat == layout.remat
  with pytest.raises(ValueError, match="v6e-256"):
    sft.get_config("v9-1")


def test_adapters_spare_a_third_of_the_products_with_weights():
  config = sft.get_config("v5p-128")
  full, in_all = programs.needed_flops(config, "train")
  config.lora.rank = 16
  spared, rest = programs.needed_flops(config, "train")
  # Adapters of rank 16 are 0.4 % of the weights, at six operations each.
  assert spared == pytest.approx(full * 2 / 3, rel=0.007)
  assert in_all - full == pytest.approx(rest - spared)


def test_changes_lower_memory_step_by_step():
  config = sft.get_config("v5p-128")
  config.remat, config.mesh.data = "minimal", 2
  found = list(aot.changes(config, "train", "v5p-128"))
  assert found[0] == {"remat": "full"}
  assert found[1] == {"remat": "full", "mesh.data": 1}
  assert {"mesh.context": 2, "micro_batches": 2}.items() <= found[2].items()
  assert found[-1] == {"pod": "v5p-256", "remat": "full"}
  halves = list(aot.changes(rl.get_config(), "decode", "v5p-128"))
  assert halves[0] == {"engine.rows": 32, "engine.pages": 0} and len(halves) == 6
  halves = list(aot.changes(rl.get_config("v6e-64"), "decode", "v6e-64"))
  assert halves[0] == {"engine.rows": 16, "engine.pages": 320}
  # What the longest request fills, and the page that nobody reads.
  assert halves[-1] == {"engine.rows": 1, "engine.pages": 68}


def test_slices_are_joined_by_data_alone():
  @dataclasses.dataclass(frozen=True)
  class Chip:
    slice_index: int
    platform: str = "cpu"

  chips = [Chip(0)] * 4 + [Chip(1)] * 4
  with pytest.raises(ConfigError, match="data must be a multiple of 2"):
    sharding.make_mesh(fsdp=8, devices=chips)


def _run_aot(*args, timeout=900, cwd=ROOT):
  return subprocess.run(
    [sys.executable, "-m", "launch_tpu.aot", *args],
    cwd=cwd,
    env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=timeout,
  )


# Name -> (arguments, exit code, what the message must hold). {folder} is the test's own.
_MISTAKES = {
  "unknown pod": (("--pod=v9-1",), 2, ("--pod=v9-1", "v5p-128")),
  "unknown pod in the config": (("--config.pod=v9-1",), 1, ("config.pod: no pod 'v9-1'",)),
  "no pod": (("--config=configs/sft.py",), 1, ("name a pod with --pod", "v5p-128")),
  "unknown remat": (("--config.remat=nonsense",), 1, ("config.remat", "'nonsense'", "minimal")),
  "unknown model": (("--config.model=foo",), 1, ("config.model", "'foo'", "qwen3-32b")),
  "missing config file": (
    ("--config=configs/nowhere.py",),
    2,
    ("configs/nowhere.py: no such",),
  ),
  "unknown preset": (("--config=configs/sft.py:v9-1",), 2, ("'v9-1'", "v5p-128")),
  "unknown field": (
    ("--config.stepz=3",),
    2,
    ("no such config field: --config.stepz", "steps"),
  ),
  "unknown field of a config that is named": (
    ("--config=configs/rl.py:v5p-128", "--config.rl.stepz=3"),
    2,
    ("no such config field: --config.rl.stepz", "steps"),
  ),
  "wrong value": (("--config.steps=many",), 2, ("many",)),
  "unknown program": (("--programs=trian",), 1, ("no program 'trian'", "prefill")),
  "no programs": (("--programs=",), 1, ("--programs names none", "prefill")),
  "a program that the task lacks": (
    ("--config=configs/genrm.py:v5p-128", "--programs=prefill"),
    1,
    ("prefill is no program of task genrm",),
  ),
  "an engine without room for a request": (
    ("--config=configs/rl.py:v5p-128", "--programs=decode", "--config.engine.pages=8"),
    1,
    ("config.engine: 8 pages of 128", "67 pages or more"),
  ),
  "a task without programs": (
    ("--config=configs/export.py", "--pod=v5p-16"),
    1,
    ("task export has no programs",),
  ),
  "a result in no folder": (
    ("--out={folder}/none/a.json",),
    1,
    ("--out={folder}/none/a.json",),
  ),
  "a result that is a folder": (("--out={folder}",), 1, ("--out={folder} is no file",)),
  "a mesh that does not fit": (("--config.mesh.tensor=3",), 1, ("tensor=3", "64 devices")),
  "micro-batches": (("--config.micro_batches=3",), 1, ("64 rows", "micro_batches = 3")),
}
# Told by what the pod's devices are, for which libtpu is asked.
_OF_DEVICES = ("a mesh that does not fit", "micro-batches")


@pytest.mark.parametrize(
  "mistake",
  [pytest.param(m, marks=needs_libtpu if m in _OF_DEVICES else ()) for m in _MISTAKES],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_compiled(mistake, tmp_path):
  arguments, code, parts = _MISTAKES[mistake]
  put = lambda text: text.replace("{folder}", str(tmp_path))
  done = _run_aot(*map(put, arguments), timeout=120)
  assert done.returncode == code
  assert "Traceback" not in done.stderr, done.stderr[-3000:]
  usage = "no pod", "unknown program", "no programs"  # Those come behind the flags.
  own = [line for line in done.stderr.splitlines() if line.startswith("aot: ")]
  assert len(own) == (mistake not in usage)
  for part in map(put, parts):
    assert part in (own[0] if own else done.stdout + done.stderr)


def test_the_config_that_nobody_named_is_missed_elsewhere(tmp_path):
  done = _run_aot(cwd=tmp_path, timeout=120)
  assert done.returncode == 2
  assert f"aot: --config=configs/sft.py: no such file from {tmp_path}" in done.stderr


def _run(tmp_path, *args, timeout=900):
  done = _run_aot(*args, f"--out={tmp_path}/aot.json", timeout=timeout)
  return done, json.loads((tmp_path / "aot.json").read_text())


@pytest.mark.slow
@needs_libtpu
def test_qwen3_32b_trains_on_a_pod_within_its_budget(tmp_path):
  """A minute of compiling stands for the whole table in docs/pods.md."""
  done, found = _run(
    tmp_path,
    "--config=configs/sft.py:v5p-128",
    "--config.data.length=4096",
    "--config.remat=minimal",
  )
  assert done.returncode == 0, done.stderr[-2000:]
  (train,) = found
  assert train["fits"] and train["hbm_peak_gib"] < 0.9 * train["hbm_limit_gib"]
  assert train["temporary_gib"] <= 46
  assert 1.0 <= train["weight_flops_ratio"] <= 1.05
  sent, needed = train["collective_gib_per_chip"], train["needed_gib_per_chip"]
  assert sum(sent.values()) <= 1.2 * sum(needed.values())
  # Weights are gathered; gradients are reduced and scattered, not summed whole everywhere.
  assert sent["all-gather"] == pytest.approx(needed["weights"], rel=0.05)
  assert sent["reduce-scatter"] == pytest.approx(needed["gradients"], rel=0.05)


@pytest.mark.slow
@needs_libtpu
def test_programs_of_a_host_and_one_that_does_not_fit(tmp_path):
  done, found = _run(
    tmp_path,
    "--config=configs/rl.py",
    "--pod=v6e-64",
    "--programs=gather,decode",
    "--config.engine.rows=32",
  )
  assert done.returncode == 1
  assert "decode does not fit v6e-64: " in done.stderr and "exceeds" in done.stderr
  assert "it fits with --config.engine.rows=16 --config.engine.pages=0" in done.stderr
  assert [(row["program"], row["fits"]) for row in found] == [
    ("gather", True),
    ("decode", False),
  ]
