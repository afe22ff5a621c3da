"""How a stage begins: its tokenizer and weights, sampler and judge, as the config names them."""

from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
from typing import Any

from flax import nnx
import jax
import ml_collections
from transformers import PreTrainedTokenizerBase

from data_pipeline.preferences import corruptions
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import gguf
from her_jax.hf import load as hf_load
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.inference.batches import Limits
from her_jax.inference.engine import Engine
from her_jax.inference.replicas import RolloutWeights
from her_jax.inference.sampler import Sampler
from her_jax.inference.sampling import Sampling
from her_jax.models.config import PRESETS
from her_jax.rl.judge import Judge
from her_jax.roleplay import chat, judging, prompts
from her_jax.roleplay.schema import Trajectory
from her_jax.tasks.data import Scenes
from her_jax.training import checkpoint, workdirs


def start_model(
  config: ml_collections.ConfigDict, mesh: jax.sharding.Mesh, scenes: Scenes
) -> checkpoint.Checkpoint:
  """The model that training starts from.

  `init_from` may be a workdir of an earlier stage, a Hugging Face folder, or a GGUF file or
  a folder with one; without it the weights are random, of the shape `config.model`.

  Raises:
    checkpoint.MissingCheckpoint: `init_from` is none of these.
    ConfigError: the tokenizer has ids for which the model has no rows.
  """
  source = pathlib.Path(config.init_from)
  if config.init_from and is_hugging_face(source):
    return load_folder(config.init_from, config, mesh, "config.init_from")
  if config.init_from:
    require_folder(source, "config.init_from")
    return checkpoint.load(config.init_from, mesh, "config.init_from", config.tokenizer)
  if config.tokenizer:
    tokenizer = checkpoint.read_tokenizer(config.tokenizer)
  else:
    tokenizer = hf_tokenizer.train(_texts(scenes.train), config.tokenizer_vocab)
  model = PRESETS[config.model]
  if config.model == "tiny":
    model = dataclasses.replace(model, vocab_size=len(tokenizer))
  model = dataclasses.replace(model, vocab_multiple=mesh.shape["tensor"])
  checkpoint.require_rows(model, tokenizer, f"--config.model={config.model}")
  graphdef, params = sharding.init_sharded(model, config.seed, mesh)
  return checkpoint.Checkpoint(model, graphdef, params, tokenizer, variant(config))


def load_folder(
  source: str,
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  field: str,
  *,
  trained: bool = True,
) -> checkpoint.Checkpoint:
  """The model of a Hugging Face folder or a GGUF file.

  Args:
    field: of the config, that names it.
    trained: whether its parameters are to be kept in the dtype of training, or in that of the
      computation.

  Raises:
    ConfigError: a file is damaged, or the tokenizer has ids for which the model has no rows.
  """
  preset = PRESETS[config.model]
  tokenizer = checkpoint.read_tokenizer(config.tokenizer or source)
  with damage_named(field, source):
    found = hf_load.read_config(source)
  checkpoint.require_rows(found, tokenizer, f"--{field}={source}")
  with damage_named(field, source):
    model, graphdef, params = hf_load.load(
      source, mesh=mesh, dtype=preset.dtype,
      param_dtype=preset.param_dtype if trained else preset.dtype,
      remat=preset.remat, vocab_multiple=mesh.shape["tensor"],
    )  # fmt: skip
  return checkpoint.Checkpoint(model, graphdef, params, tokenizer, variant(config))


@contextlib.contextmanager
def damage_named(field: str, source: str) -> Iterator[None]:
  """Makes what a folder's reader refuses a ConfigError that names the field of the config."""
  try:
    yield
  except ValueError as error:
    raise ConfigError(f"{field}={source}: {error}") from None


def is_hugging_face(path: pathlib.Path) -> bool:
  """Whether weights lie there in that format, or as GGUF; a workdir of a stage has neither."""
  return any(path.glob("*.safetensors")) or gguf.find(path) is not None


def require_folder(folder: pathlib.Path, field: str) -> None:
  """Raises MissingCheckpoint, naming the field of the config, unless it may be a workdir."""
  takes = "it takes a folder in Hugging Face format, a .gguf file or the workdir of a stage"
  if not folder.is_dir():
    raise checkpoint.MissingCheckpoint(f"--{field}={folder}: no such folder; {takes}")
  if not checkpoint.is_finished(folder.as_posix()) and (found := workdirs.model_in(folder)):
    raise checkpoint.MissingCheckpoint(
      f"--{field}={folder} holds {found} and neither *.safetensors nor a .gguf file, of which"
      f" alone weights are read; save the model with safetensors (transformers:"
      f" save_pretrained), or copy the files that are missing"
    )


def variant(config: ml_collections.ConfigDict) -> prompts.Variant:
  """How `config.prompt` puts scenes to a model.

  Raises:
    ConfigError: it names what there is not.
  """
  try:
    return prompts.Variant(**config.prompt)
  except ValueError as error:
    raise ConfigError(f"config.prompt: {error}") from None


def engine_limits(
  engine: ml_collections.ConfigDict, settings: ml_collections.ConfigDict
) -> Limits:
  """Of an engine for the longest prompt and completion.

  Args:
    engine: that section of a config.
    settings: its section `sampling` or `judge`.

  Raises:
    ConfigError: it has no room for one request.
  """
  try:
    return Limits.of(engine, settings.prompt_length + settings.max_new_tokens)
  except ValueError as error:
    raise ConfigError(f"config.engine: {error}") from None


def make_sampler(
  model: checkpoint.Checkpoint,
  engine: ml_collections.ConfigDict,
  settings: ml_collections.ConfigDict,
  temperature: float,
) -> Sampler:
  """A sampler for a model on the mesh of `jax.set_mesh`.

  Args:
    engine: that section of a config.
    settings: its section `sampling` or `judge`.
  """
  valid_vocab = len(model.tokenizer)
  limits = engine_limits(engine, settings)
  sampling = Sampling(
    max_tokens=settings.max_new_tokens,
    temperature=temperature,
    stop_ids=chat.stop_ids(model.tokenizer),
  )
  weights = RolloutWeights(model.params, jax.sharding.get_mesh(), model.config.dtype)

  def make(params: nnx.State) -> Engine:
    return Engine(model.config, model.graphdef, params, limits, valid_vocab=valid_vocab)

  return Sampler(make, weights, sampling, settings.prompt_length)


def make_judge(
  model: checkpoint.Checkpoint, config: ml_collections.ConfigDict, params: Any = None
) -> Judge:
  """A judge from a config's sections `engine` and `judge`.

  Args:
    params: other weights than the model's.
  """
  return Judge(
    make_sampler(model, config.engine, config.judge, temperature=0.0),
    model.params if params is None else params,
    model.tokenizer,
    config.judge.history,
    model.variant,
  )


def word_ids(tokenizer: PreTrainedTokenizerBase, scenes: Scenes) -> list[int]:
  """Ids of ordinary text, for word dropout: no control token, no tag, no part of a name."""
  kept = {
    tokenizer.convert_tokens_to_ids(t) for t in (*hf_tokenizer.CONTROL, *hf_tokenizer.LAYOUT)
  }
  for scene in scenes.all:
    for character in scene.characters:
      for text in (character.name, f" {character.name}", f"{character.name}: "):
        kept.update(chat.encode_text(text, tokenizer))
  return [i for i in range(len(tokenizer)) if i not in kept]


def _texts(scenes: list[Trajectory]) -> Iterator[str]:
  """What the tiny tokenizer is trained on: all that prompts and replies of `scenes` hold."""
  # The principles that judge pairs made of scenes decide by.
  spoilt = [principle for _, broken in corruptions.CORRUPTIONS.values() for principle in broken]
  for scene in scenes:
    for character in scene.characters:
      yield from (
        prompts.system_prompt(scene, character, prompts.Variant(style))
        for style in ("full", "brief", "name")
      )
      # So often that the parts of a name are whole tokens.
      yield f"{character.name}: {character.name} " * 20
    for turn in scene.turns:
      yield turn.plan
      yield f"{turn.speaker}: {turn.reply}"
    for principle in spoilt:
      for one, two in (([principle], []), ([], [principle]), ([principle], [principle])):
        yield judging.judgement_text(one, two, [], scene.language)
    yield judging.candidates_text("", "")
