"""What an export writes beside the weights, and what it leaves alone."""

import dataclasses
import json
import re

import pytest
import yaml

from her_jax.errors import ConfigError
from her_jax.hf import export
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.hf.export import export_model
from her_jax.hf.load import load


@pytest.fixture
def tokenizer():
  """With all that one can have: several templates become files of their own."""
  found = hf_tokenizer.train(["Una waits. Una: Sit."], 320)
  found.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
  return found


def _names(folder) -> set[str]:
  files = (path for path in folder.rglob("*") if path.is_file())
  return {path.relative_to(folder).as_posix() for path in files}


def test_the_card_is_valid_and_says_what_the_weights_are(config, params, tmp_path):
  for name, base in (("known", 'Qwen/Qwen3-0.6B "x": y'), ("unknown", "")):
    export_model(config, params, tmp_path / name, base_model=base)
    _, front, text = (tmp_path / name / "README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(front)
    assert head.get("base_model", "") == base and "license" not in head
    assert head["library_name"] == "transformers" and "role-play" in head["tags"]
    assert "float32" in text and "from_pretrained" in text and "## Licence" in text
    (code,) = re.findall("```python\n(.*?)```", text, re.S)
    compile(code, "card", "exec")
  index = json.loads((tmp_path / "known" / "config.json").read_text())
  assert index["rope_theta"] == index["rope_parameters"]["rope_theta"] == 1e6


def test_parameters_of_another_config_are_not_exported(config, params, tmp_path):
  with pytest.raises(ValueError, match="lm_head: absent, not \\(16, 320\\)"):
    export_model(dataclasses.replace(config, tie_embeddings=False), params, tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("folder", "dtype", "message"),
  [
    ("gs://bucket/export", "float32", "not a disk"),
    ("{}", "int8", "dtype 'int8' is not one of"),
  ],
)
def test_what_cannot_be_exported_is_said_in_words(
  config, params, tmp_path, folder, dtype, message
):
  with pytest.raises(ConfigError, match=message):
    export_model(config, params, folder.format(tmp_path), dtype=dtype)


def test_stop_ids_come_from_the_tokenizer(config, params, tmp_path):
  class Tokenizer:
    eos_token_id, pad_token_id = 5, 3

    def save_pretrained(self, folder):
      (folder / "tokenizer.json").write_text("{}")

  export_model(config, params, tmp_path, tokenizer=Tokenizer())
  generation = json.loads((tmp_path / "generation_config.json").read_text())
  assert generation["eos_token_id"] == [5, 3]
  assert generation["pad_token_id"] == 3
  assert (tmp_path / "tokenizer.json").exists()


_FOREIGN = [
  "config.json", "README.md", "generation_config.json", "model.safetensors", "other.safetensors",
  "model.safetensors.index.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
  "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
  "chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja",
]  # fmt: skip


@pytest.mark.parametrize("name", _FOREIGN)
@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_no_file_of_others_is_replaced_or_joined(
  config, params, tokenizer, tmp_path, name, with_tokenizer
):
  """A tokenizer that lies there would be loaded with weights it does not belong to."""
  (tmp_path / name).parent.mkdir(exist_ok=True)
  (tmp_path / name).write_text("mine")
  (tmp_path / "notes.txt").write_text("mine too")
  with pytest.raises(FileExistsError, match=f"already holds {name}: delete .* a new folder"):
    export_model(config, params, tmp_path, tokenizer if with_tokenizer else None)
  assert (tmp_path / name).read_text() == "mine"
  assert _names(tmp_path) == {name, "notes.txt"}


def test_every_file_of_an_export_is_known_to_the_next(config, params, tokenizer, tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  export_model(config, params, tmp_path, tokenizer, max_shard_bytes=8000)
  found = _names(tmp_path)
  assert "additional_chat_templates/tool_use.jinja" in found
  own = {path.relative_to(tmp_path).as_posix() for path in export._remains(tmp_path)}
  assert found == own | {"notes.txt"}
  with pytest.raises(
    FileExistsError, match="additional_chat_templates/tool_use.jinja, chat_te"
  ):
    export_model(config, params, tmp_path)
  assert _names(tmp_path) == found


@pytest.mark.parametrize("again", [True, False], ids=["another tokenizer", "no tokenizer"])
def test_nothing_stays_of_an_export_that_was_broken_off(
  config, params, tokenizer, tmp_path, monkeypatch, again
):
  """The first had several templates and many files; notes that lie there stay."""

  class Killed(Exception):
    pass

  def killed(path, value):
    if path.name == "config.json":
      raise Killed
    real(path, value)

  real = export._write_json
  folder, fresh = tmp_path / "export", tmp_path / "fresh"
  folder.mkdir()
  (folder / "notes.txt").write_text("mine")
  with monkeypatch.context() as patch:
    patch.setattr(export, "_write_json", killed)
    with pytest.raises(Killed):
      export_model(config, params, folder, tokenizer, max_shard_bytes=8000)
  other = hf_tokenizer.train(["Perran sits. Perran: Wait."], 300) if again else None
  for place in (folder, fresh):
    export_model(config, params, place, other)
  assert _names(folder) == _names(fresh) | {"notes.txt"}
  for name in _names(fresh):
    assert (folder / name).read_bytes() == (fresh / name).read_bytes(), name
  load(folder)
