"""The export task: every way between a workdir and a Hugging Face folder, and its mistakes."""

import dataclasses
import json
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from flax import nnx
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from configs import export as export_config
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import load as hf_load
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig
from her_jax.roleplay import chat
from her_jax.roleplay.prompts import Variant
from her_jax.tasks import data, export, start
from her_jax.training import budget, checkpoint

_CONFIG = ModelConfig(
  vocab_size=330,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  vocab_multiple=4,
  dtype="float32",
)


@pytest.fixture(scope="module")
def mesh():
  return sharding.make_mesh(fsdp=2, tensor=4)


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train(["Una waits. Una: Sit."], 320)


@pytest.fixture(scope="module")
def stage(mesh, tokenizer, tmp_path_factory):
  """The workdir of a stage, and its parameters."""
  workdir = tmp_path_factory.mktemp("stage")
  _, params = sharding.init_sharded(_CONFIG, 0, mesh)
  checkpoint.save(str(workdir), 7, _CONFIG, params, tokenizer, Variant("brief"))
  return workdir, params


@pytest.fixture(scope="module")
def folder(stage, mesh, tmp_path_factory):
  """The same as a Hugging Face folder, exported by the task."""
  workdir = tmp_path_factory.mktemp("run")
  found = export.run(_config(source=stage[0]), str(workdir), mesh)
  assert found == {"folder": str(workdir / "export")}
  return workdir / "export"


def _config(**settings) -> ml_collections.ConfigDict:
  config = export_config.get_config("tiny")
  config.update({name: str(value) for name, value in settings.items()})
  return config


def _assert_equal(one: nnx.State, two: nnx.State) -> None:
  assert jax.tree.structure(one) == jax.tree.structure(two)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), one, two
  )


def test_a_stage_becomes_a_folder_that_renders_the_training_prompt(
  stage, folder, mesh, tokenizer
):
  """Nothing but the folder is needed: tokenizer, template, stop ids, dtype, card."""
  _, _, params = hf_load.load(folder, mesh=mesh, vocab_multiple=4)
  _assert_equal(params, stage[1])
  alone = AutoTokenizer.from_pretrained(folder, local_files_only=True)
  messages = [
    {"role": "system", "content": "You are Una."},
    {"role": "user", "content": "Perran: <|im_end|> Sit?"},
  ]
  text = alone.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
  ours = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
  assert text == ours and text.endswith("<|im_start|>assistant\n")
  plain = alone(text.replace("<|im_end|> Sit", "Sit"))["input_ids"]
  assert plain[0] == chat.control_id(chat.IM_START, tokenizer)
  generation = json.loads((folder / "generation_config.json").read_text())
  stops = [chat.control_id(t, tokenizer) for t in (chat.IM_END, chat.PAD)]
  assert generation["eos_token_id"] == stops
  config = json.loads((folder / "config.json").read_text())
  assert config["vocab_size"] == 330 and config["dtype"] == "float32"
  assert (folder / "README.md").is_file()


def test_a_folder_becomes_one_of_another_dtype(folder, mesh, tmp_path):
  output = tmp_path / "half"
  base = "Qwen/Qwen3-0.6B"
  config = _config(source=folder, output=output, dtype="bfloat16", base_model=base)
  assert export.run(config, str(tmp_path), mesh) == {"folder": str(output)}
  wide, half = (load_file(path / "model.safetensors") for path in (folder, output))
  assert wide.keys() == half.keys()
  for name, value in wide.items():
    assert half[name].dtype == jnp.bfloat16
    np.testing.assert_array_equal(half[name], value.astype(jnp.bfloat16))
  assert base in (output / "README.md").read_text()
  assert (output / "tokenizer.json").is_file()


def test_a_folder_becomes_a_workdir_that_a_stage_starts_from(stage, folder, mesh, tmp_path):
  config = _config(source=folder, output=tmp_path / "new", format="orbax")
  config.prompt.style = "natural"
  export.run(config, str(tmp_path), mesh)
  loaded = checkpoint.load(str(tmp_path / "new"), mesh, "config.policy")
  _assert_equal(loaded.params, stage[1])
  assert (loaded.config, loaded.step) == (dataclasses.replace(_CONFIG, remat="none"), 0)
  assert loaded.variant.style == "natural"
  with pytest.raises(FileExistsError, match="already holds checkpoints"):
    export.run(config, str(tmp_path), mesh)


def test_a_source_without_a_tokenizer_says_so(folder, mesh, tmp_path, caplog):
  """Both ways; and one can be given."""
  bare = tmp_path / "bare"
  bare.mkdir()
  for name in ("config.json", "model.safetensors"):
    (bare / name).write_bytes((folder / name).read_bytes())
  with caplog.at_level(logging.WARNING, logger="absl"):
    export.run(_config(source=bare, format="orbax", output=tmp_path / "work"), "", mesh)
    export.run(_config(source=tmp_path / "work", output=tmp_path / "again"), "", mesh)
  for place in (bare, tmp_path / "work" / "tokenizer"):
    assert f"{place} holds no tokenizer.json" in caplog.text
  assert not (tmp_path / "again" / "tokenizer.json").exists()
  assert "without a tokenizer" in (tmp_path / "again" / "README.md").read_text()
  weights = [path / "model.safetensors" for path in (folder, tmp_path / "again")]
  assert weights[0].read_bytes() == weights[1].read_bytes()
  export.run(_config(source=bare, output=tmp_path / "given", tokenizer=folder), "", mesh)
  assert (tmp_path / "given" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"source": ""}, "config.source is empty; pass the workdir"),
    ({"source": "{tmp}/none"}, "--config.source={tmp}/none: no such folder"),
    ({"source": "{tmp}"}, "no checkpoint under .* which config.source names"),
    ({"source": "{stage}", "format": "gguf"}, "config.format is 'gguf'; .* huggingface, orbax"),
    ({"source": "{stage}", "dtype": "int8"}, "config.dtype is 'int8'"),
    ({"source": "{stage}", "format": "orbax"}, "is the workdir of a stage: use it as it is"),
    ({"source": "{folder}", "output": "{folder}/../export"}, "is the source itself"),
    ({"source": "{stage}", "output": "gs://bucket/x"}, "mount the bucket"),
    (
      {"source": "{broken}"},
      "config.source={broken}: Weights in .*\n  missing: lm_head.weight",
    ),
  ],
)
def test_a_mistake_is_named_before_anything_is_written(
  settings, message, stage, folder, mesh, tmp_path
):
  broken = tmp_path / "broken"
  broken.mkdir()
  (broken / "config.json").write_bytes((folder / "config.json").read_bytes())
  tensors = load_file(folder / "model.safetensors")
  del tensors["lm_head.weight"]
  save_file(tensors, broken / "model.safetensors")
  places = {"tmp": tmp_path, "stage": stage[0], "folder": folder, "broken": broken}
  settings = {name: value.format(**places) for name, value in settings.items()}
  expected = (ConfigError, checkpoint.MissingCheckpoint)
  with pytest.raises(expected, match=message.format(**places)):
    export.run(_config(**settings), str(tmp_path / "out"), mesh)
  assert not (tmp_path / "out").exists()


_PYTORCH = "holds pytorch_model.* and neither .*safetensors nor a .gguf .* save_pretrained"
# What to do with a Hugging Face folder -> what is said. None removes the file.
_BROKEN_FOLDERS = {
  "weights that are cut": ({"model.safetensors": 100}, "no safetensors file, or a part of one"),
  "an index that is cut": ({"model.safetensors.index.json": b"{"}, "index.json is broken"),
  "a config that is cut": ({"config.json": 20}, "config.json"),
  "a tokenizer that is cut": ({"tokenizer.json": 20}, "tokenizer in .* cannot be read"),
  "another tokenizer": ({"tokenizer.json": b"[]"}, "tokenizer in .* cannot be read"),
  "one file of PyTorch's": (
    {"model.safetensors": None, "pytorch_model.bin": b""},
    _PYTORCH,
  ),
  "several files of PyTorch's": (
    {"model.safetensors": None, "pytorch_model-00001-of-00002.bin": b"", "config.json": None},
    _PYTORCH,
  ),
  "no weights": ({"model.safetensors": None}, "holds config.json and neither"),
  "nothing of a model": (
    {"model.safetensors": None, "config.json": None},
    "no checkpoint under .*copy/checkpoints",
  ),
}


@pytest.mark.parametrize("task", ["export", "training"])
@pytest.mark.parametrize("broken", _BROKEN_FOLDERS)
def test_a_broken_folder_is_named_with_what_is_wrong(broken, task, folder, mesh, tmp_path):
  copy = shutil.copytree(folder, tmp_path / "copy")
  changes, message = _BROKEN_FOLDERS[broken]
  for name, content in changes.items():
    if content is None:
      (copy / name).unlink()
    else:
      whole = content if isinstance(content, bytes) else (copy / name).read_bytes()[:content]
      (copy / name).write_bytes(whole)
  field = {"export": "source", "training": "init_from"}[task]
  with pytest.raises((ConfigError, checkpoint.MissingCheckpoint), match=message) as error:
    if task == "export":
      export.run(_config(source=copy), str(tmp_path / "out"), mesh)
    else:
      start.start_model(_config(init_from=copy), mesh, data.Scenes([], []))
  assert str(copy) in str(error.value) and "\n" not in str(error.value)
  if "tokenizer" not in broken and "config" not in broken:
    assert f"config.{field}" in str(error.value)
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["its own", "another"])
@pytest.mark.parametrize(
  "source, to", [("stage", "huggingface"), ("folder", "huggingface"), ("folder", "orbax")]
)
def test_a_tokenizer_with_more_ids_than_rows_is_refused(
  source, to, given, stage, folder, mesh, tokenizer, tmp_path
):
  larger = hf_tokenizer.train(["Una waits. Una: Sit."], 320)
  larger.add_tokens([f"<extra {i}>" for i in range(_CONFIG.vocab_size + 1 - len(larger))])
  larger.save_pretrained(tmp_path / "larger")
  place = {"stage": stage[0], "folder": folder}[source]
  settings = {"tokenizer": tmp_path / "larger"}
  if given == "its own":
    place = shutil.copytree(place, tmp_path / "copy")
    larger.save_pretrained(place / "tokenizer" if source == "stage" else place)
    settings = {}
  config = _config(source=place, format=to, output=tmp_path / "new", **settings)
  message = f"--config.source={place}: the tokenizer has 331 ids, the model only 330 rows; pass"
  with pytest.raises(ConfigError, match=message):
    export.run(config, str(tmp_path), mesh)
  assert not (tmp_path / "new").exists()
  # One id less is one for each row.
  tokenizer.save_pretrained(tmp_path / "fits")
  config.tokenizer = str(tmp_path / "fits")
  export.run(config, str(tmp_path), mesh)


@pytest.mark.parametrize("to", ["huggingface", "orbax"])
@pytest.mark.parametrize(
  "name", ["model-00001-of-00002.safetensors", "model.gguf", "pytorch_model.bin"]
)
def test_nothing_is_written_beside_the_weights_of_a_model(name, to, folder, mesh, tmp_path):
  files = {name: "weights", "config.json": "{}", "tokenizer.json": "{}"}
  for file, text in files.items():
    (tmp_path / file).write_text(text)
  with pytest.raises(FileExistsError, match=f"already holds .*{name}"):
    export.run(_config(source=folder, output=tmp_path, format=to), "", mesh)
  assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_only_the_weights_have_to_fit(stage, mesh, tmp_path, monkeypatch):
  """Four bytes a parameter: no moments, no gradients."""
  size = 4 * _CONFIG.num_params()
  monkeypatch.setattr(budget, "device_bytes", lambda devices: size - 1)
  with pytest.raises(budget.TooLarge, match="needs .* GiB for its weights"):
    export.run(_config(source=stage[0]), str(tmp_path), mesh)
  monkeypatch.setattr(budget, "device_bytes", lambda devices: size)
  export.run(_config(source=stage[0]), str(tmp_path), mesh)
  assert (pathlib.Path(tmp_path) / "export" / "config.json").is_file()


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv.pop(1))))
from her_jax import main
main.run()
"""


@pytest.mark.parametrize(
  "to, limit",
  [
    ("huggingface", 8_000),  # Of tokenizer.json; the weights are larger.
    ("huggingface", 40_000),
    ("orbax", 8_000),
    ("orbax", 40_000),
  ],
)
def test_a_disk_that_is_full_is_told_in_one_line(to, limit, folder, mesh, tmp_path):
  """As a limit of the size of a file; its message differs only in the words of the system."""
  command = [sys.executable, "-c", _LIMITED, str(limit), "--config=configs/export.py:tiny"]
  command += [f"--workdir={tmp_path}", f"--config.source={folder}", f"--config.format={to}"]
  done = subprocess.run(
    command, cwd=pathlib.Path(__file__).parents[2], capture_output=True, text=True, timeout=120,
    env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
  )  # fmt: skip
  assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
  (told,) = [line for line in done.stderr.splitlines() if line.startswith("her_jax: ")]
  assert "The disk is full: make room" in told
  # What is left can be begun anew.
  export.run(_config(source=folder, format=to), str(tmp_path), mesh)


@pytest.mark.slow
def test_two_processes_read_exchange_and_write_as_one_does(folder, tmp_path):
  """Each reads its rows; the first alone writes what both gather."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  command = [sys.executable, "-m", "her_jax.main", "--config=configs/export.py:tiny"]
  command += [f"--workdir={tmp_path}", f"--config.source={folder}", "--config.cpu_devices=2"]
  command += ["--config.mesh.fsdp=2", "--config.mesh.tensor=2", "--num_processes=2"]
  command += [f"--coordinator_address=localhost:{port}", "--startup_timeout=120"]
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  processes = [
    subprocess.Popen(
      [*command, f"--process_id={i}"],
      cwd=pathlib.Path(__file__).parents[2],
      env={**environment, "JAX_PLATFORMS": "cpu"},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )  # fmt: skip
    for i in range(2)
  ]
  outputs = [process.communicate(timeout=200)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs[0][-3000:]
  for path in folder.iterdir():
    assert (tmp_path / "export" / path.name).read_bytes() == path.read_bytes(), path.name
