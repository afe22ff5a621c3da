"""What a pod's program takes, by compilation; the arithmetic beside it by hand."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from her_jax.models.config import ModelConfig
from launch_tpu import aot, pods, roofline

ROOT = pathlib.Path(__file__).parents[2]


def test_model_flops_by_hand():
  model = ModelConfig(
    vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=2, tie_embeddings=False, max_position_embeddings=8,
  )  # fmt: skip
  layer = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 6 + 2 * 2 + 2 * 4  # q, k and v, o, mlp, norms
  weights = 2 * layer + 4 + 10 * 4  # with the head, without the looked-up table
  pairs = 3 * 4 / 2
  attention = 2 * (2 * 2 * 2 * 2 + 4 * 2 * 2 * 2) * pairs
  assert aot.model_flops(model, rows=5, length=3) == 5 * (6 * weights * 3 + attention)


@pytest.mark.parametrize("name", pods.PODS)
def test_every_pod_has_a_chip_with_peaks(name):
  pod = pods.PODS[name]
  assert roofline.usable_hbm_gib(pod.chip) > 0
  cores = 2 if pod.chip == "v5p" else 1
  size = int(name.rpartition("-")[2])
  chips = 1
  for side in pod.shape:
    chips *= side
  assert chips * cores == size


def test_a_mesh_takes_the_devices_that_are_left():
  mesh = aot.make_mesh({"data": 2, "fsdp": -1, "context": 1, "tensor": 2}, jax.devices()[:8], 1)
  assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "context": 1, "tensor": 2}


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="pip install '.[tpu]'")
def test_the_train_step_of_a_preset_compiles_for_a_pod(tmp_path):
  command = [sys.executable, "-m", "launch_tpu.aot", "--config=configs/sft.py:qwen3-0.6b"]
  command += ["--pod=v6e-64", "--config.batch_size=64", "--config.data.length=1024"]
  done = subprocess.run(
    [*command, f"--out={tmp_path}/aot.json"],
    cwd=ROOT,
    env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  (found,) = json.loads((tmp_path / "aot.json").read_text())
  assert found["fits"] and found["hbm_peak_gib"] < found["hbm_limit_gib"]
  # The layers' inputs alone are kept: one forward pass more, 4/3 of the model's FLOPs.
  assert 1.0 < found["flops_per_chip"] / found["model_flops_per_chip"] < 1.35
