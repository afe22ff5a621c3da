"""An export that is killed leaves nothing that looks whole, and the next one mends it."""

import os
import pathlib
import signal
import subprocess
import sys

from flax import nnx
import jax
import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from configs import export as export_config
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import export
from her_jax.hf.load import load
from her_jax.models.config import ModelConfig
from her_jax.tasks import export as export_task
from her_jax.training import checkpoint

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = ModelConfig(
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  dtype="float32",
)
# The process kills itself, as `kill -9` does, when it is about to call this for the n-th time.
_MOMENTS = {
  "before the first weight": ("tensor_file.write", 1),
  "within a file": ("tensor_file.write", 9),
  "between the last weight and the index": ("_write_json", 2),
  "between the index and the config": ("_write_json", 3),
  "with all written": ("pathlib.Path.unlink", 1),
}
_CHILD = """
import os, pathlib, signal, sys
from tests.hf import test_export_killed as test
from her_jax.hf import export

place, call, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
owner, _, name = place.rpartition(".")
owner = eval(owner, {"tensor_file": export.tensor_file, "pathlib": pathlib}) if owner else export
real, calls = getattr(owner, name), [0]

def deadly(*args, **kwargs):
  calls[0] += 1
  if calls[0] == call:
    os.kill(os.getpid(), signal.SIGKILL)
  return real(*args, **kwargs)

params = test.params()
setattr(owner, name, deadly)
export.export_model(test._CONFIG, params, folder, max_shard_bytes=4000)
"""

# Of an export with format=orbax: what Python reports just before, and the end of the path.
_ORBAX_MOMENTS = {
  "with an empty folder": ("os.mkdir", "/params"),
  "with the weights and no list of them": ("open", "/params/_METADATA"),
  "with all written": ("os.rename", ".orbax-checkpoint-tmp"),
}
_ORBAX_CHILD = """
import os, signal, sys
event, end = sys.argv.pop(1), sys.argv.pop(1)

def deadly(name, args):
  if name == event and "/checkpoints/" in str(args[0]) and str(args[0]).endswith(end):
    if name != "open" or args[1] == "w":
      os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(deadly)
from her_jax import main
main.run()
"""


def params() -> nnx.State:
  return sharding.init_sharded(_CONFIG, 0, sharding.make_mesh(devices=jax.devices()[:1]))[1]


@pytest.mark.parametrize(
  "moments",
  [
    ["within a file"],
    pytest.param([m for m in _MOMENTS if m != "within a file"], marks=pytest.mark.slow),
  ],
  ids=["one", "others"],
)
def test_a_killed_export_does_not_look_whole_and_can_be_run_again(moments, tmp_path):
  children = {}
  for i, moment in enumerate(moments):
    place, call = _MOMENTS[moment]
    command = [sys.executable, "-c", _CHILD, place, str(call), str(tmp_path / str(i))]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
    children[moment] = subprocess.Popen(command, cwd=_ROOT, env=environment)
  expected = params()
  for i, (moment, child) in enumerate(children.items()):
    assert child.wait(timeout=120) == -signal.SIGKILL, moment
    folder = tmp_path / str(i)
    assert (folder / export.INCOMPLETE).exists(), moment
    if moment != "with all written":
      with pytest.raises(FileNotFoundError, match="config.json is missing"):
        load(folder)
      with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    # The next export has fewer files: none of the old ones may stay.
    export.export_model(_CONFIG, expected, folder, max_shard_bytes=8000)
    assert not (folder / export.INCOMPLETE).exists()
    jax.tree.map(np.testing.assert_array_equal, load(folder)[2], expected)
    AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with pytest.raises(FileExistsError, match="delete them"):
      export.export_model(_CONFIG, expected, folder)


@pytest.mark.parametrize(
  "moments",
  [
    ["with the weights and no list of them"],
    pytest.param([m for m in _ORBAX_MOMENTS if "no list" not in m], marks=pytest.mark.slow),
  ],
  ids=["one", "others"],
)
def test_a_killed_export_to_a_workdir_can_be_run_again(moments, tmp_path):
  source, expected = tmp_path / "source", params()
  export.export_model(_CONFIG, expected, source)
  children = {}
  for i, moment in enumerate(moments):
    command = [sys.executable, "-c", _ORBAX_CHILD, *_ORBAX_MOMENTS[moment]]
    command += ["--config=configs/export.py:tiny", f"--workdir={tmp_path / str(i)}"]
    command += [f"--config.source={source}", "--config.format=orbax"]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    children[moment] = subprocess.Popen(command, cwd=_ROOT, env=environment)
  config = export_config.get_config("tiny")
  config.update({"source": str(source), "format": "orbax"})
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  for i, (moment, child) in enumerate(children.items()):
    assert child.wait(timeout=120) == -signal.SIGKILL, moment
    folder = tmp_path / str(i)
    checkpoints = folder / "export" / "checkpoints"
    assert [path.suffix for path in checkpoints.iterdir()] == [".orbax-checkpoint-tmp"], moment
    with pytest.raises(checkpoint.MissingCheckpoint):
      checkpoint.require({"config.policy": str(folder / "export")})
    # A later version of Orbax may number its leftovers.
    (checkpoints / "0.orbax-checkpoint-tmp-17").mkdir()
    export_task.run(config, str(folder), mesh)
    assert [path.name for path in checkpoints.iterdir()] == ["0"]
    found = checkpoint.load_params(str(folder / "export"), mesh, "config.policy")[2]
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(FileExistsError, match="already holds checkpoints"):
      export_task.run(config, str(folder), mesh)


_HOLDER = """
import sys, time
from her_jax.training import workdirs

with workdirs.alone_in(sys.argv[1]):
  print("in", flush=True)
  time.sleep(100)
"""


def test_two_exports_do_not_write_into_one_folder(tmp_path):
  """Each would take the other's files for those of one that was broken off."""
  export.export_model(_CONFIG, params(), tmp_path / "source")
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
  for to in ("huggingface", "orbax"):
    output = tmp_path / to
    config = export_config.get_config("tiny")
    config.update({"source": str(tmp_path / "source"), "output": str(output), "format": to})
    command = [sys.executable, "-c", _HOLDER, str(output)]
    with subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE) as other:
      assert other.stdout.readline() == b"in\n"
      with pytest.raises(ConfigError, match="another run is writing into this folder"):
        export_task.run(config, str(tmp_path), mesh)
      assert not list(output.iterdir())
      other.kill()
    export_task.run(config, str(tmp_path), mesh)
    assert list(output.iterdir())
