"""Checkpoints of a stage: parameters by Orbax, with what it takes to use them elsewhere.

workdir/checkpoints/300/params/    Orbax
workdir/checkpoints/300/meta/      step, model and prompt variant, JSON
workdir/tokenizer/                 Hugging Face folder

Beside them lies what training goes on from, see `saver`; nothing here reads it.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import logging as standard_logging
import shutil
import sys
from typing import Any, Literal

from absl import logging
from etils import epath
from flax import nnx
import jax
from orbax.checkpoint import v1 as ocp
from transformers import PreTrainedTokenizerBase

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.models.config import ModelConfig, Remat
from her_jax.models.qwen3 import abstract_model
from her_jax.roleplay.prompts import Variant


class MissingCheckpoint(FileNotFoundError):
  """An earlier stage's result is not where the config says."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A loaded model."""

  config: ModelConfig
  graphdef: nnx.GraphDef
  params: nnx.State
  tokenizer: PreTrainedTokenizerBase
  variant: Variant  # of the prompts it was trained on
  step: int = 0

  def with_remat(self, policy: Remat | Literal[""]) -> "Checkpoint":
    """The same weights under another policy of `ModelConfig.remat`; "" changes nothing."""
    if not policy:
      return self
    config = dataclasses.replace(self.config, remat=policy)
    return dataclasses.replace(self, config=config, graphdef=abstract_model(config)[0])


def save(
  workdir: str,
  step: int,
  config: ModelConfig,
  params: nnx.State,
  tokenizer: PreTrainedTokenizerBase | None,
  variant: Variant,
) -> None:
  """Writes a checkpoint; all processes call it. An older one of the same step is replaced.

  One without a tokenizer can be exported, and trained on once its workdir is given one.
  """
  if tokenizer is not None:
    write_tokenizer(workdir, tokenizer)
  with _quiet():
    ocp.save_checkpointables(
      folder(workdir, step).as_posix(), parts(step, config, params, variant), overwrite=True
    )


def parts(
  step: int, config: ModelConfig, params: nnx.State, variant: Variant
) -> dict[str, Any]:
  """What the readers here need of a checkpoint, by the name of the part."""
  meta = {
    "step": step,
    "model": dataclasses.asdict(config),
    "prompt": dataclasses.asdict(variant),
  }
  return {"params": _pure(params), "meta": meta}


def write_tokenizer(workdir: str, tokenizer: PreTrainedTokenizerBase) -> None:
  """Writes it into the workdir, whole or not at all; the first process does."""
  if jax.process_index() != 0:
    return
  place = epath.Path(workdir) / "tokenizer"
  part = place.with_name("tokenizer.part")
  shutil.rmtree(part, ignore_errors=True)
  tokenizer.save_pretrained(part.as_posix())
  shutil.rmtree(place, ignore_errors=True)
  part.rename(place)


def refuse_sources(workdir: str, *sources: str) -> None:
  """Checks that a run does not write where it starts from.

  Args:
    sources: workdirs that it starts from.

  Raises:
    ConfigError: one of them is `workdir` itself.
  """
  if any(source and _folder(source) == _folder(workdir) for source in sources):
    raise ConfigError(
      f"--workdir={workdir} holds the checkpoint that this run starts from, and a run"
      f" replaces the checkpoints of its workdir; choose another folder"
    )


def clear(workdir: str, *sources: str) -> None:
  """Removes checkpoints of an earlier run in this workdir; raises as `refuse_sources` does."""
  refuse_sources(workdir, *sources)
  if jax.process_index() == 0:
    shutil.rmtree(_folder(workdir), ignore_errors=True)


def is_finished(workdir: str) -> bool:
  """Whether a checkpoint lies there whole: one that was broken off has another name."""
  return bool(steps(workdir))


def clear_unfinished(workdir: str) -> None:
  """Removes what a save that was broken off has left."""
  if jax.process_index() == 0 and _folder(workdir).exists():
    for path in _folder(workdir).glob("*.orbax-checkpoint-tmp*"):
      shutil.rmtree(path)


def require(places: Mapping[str, str]) -> None:
  """Checks that there is a checkpoint in each of several workdirs.

  Args:
    places: the config field that names a workdir -> the workdir.

  Raises:
    MissingCheckpoint: one message for all that are missing.
  """
  missing = [
    f"no checkpoint under {_folder(place).as_posix() if place else 'an empty path'!r}, which"
    f" {field} names; run the stage that writes it first, or point --{field} at its workdir"
    for field, place in places.items()
    if not steps(place)
  ]
  if missing:
    raise MissingCheckpoint("\n".join(missing))


def read_tokenizer(folder: str) -> PreTrainedTokenizerBase:
  """`hf_tokenizer.load`, with a ConfigError that names the folder where a file is broken."""
  try:
    return hf_tokenizer.load(folder)
  except (FileNotFoundError, ConfigError):
    raise
  except Exception as error:  # tokenizers raises just that, transformers what it stumbles over.
    said = error if isinstance(error, ValueError | OSError) else repr(error)
    raise ConfigError(f"the tokenizer in {folder} cannot be read: {said}") from None


def require_rows(model: ModelConfig, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
  """Checks that the model has a row for each of the tokenizer's ids; it may have more.

  Without the row, JAX looks up another one and says nothing.

  Args:
    source: what names the model, for the error.

  Raises:
    ConfigError: a row is missing, or the ids have gaps.
  """
  count, ids = len(tokenizer), max(tokenizer.get_vocab().values()) + 1
  if ids > model.vocab_size:
    raise ConfigError(
      f"{source}: the tokenizer has {ids} ids, the model only {model.vocab_size} rows; pass the"
      f" tokenizer that belongs to the model (--config.tokenizer)"
    )
  if ids > count:  # Ids from `count` on are taken for rows that only fill up.
    raise ConfigError(
      f"{source}: the tokenizer has {count} tokens and ids up to {ids - 1}; number them without"
      f" gaps"
    )


def load(
  workdir: str, mesh: jax.sharding.Mesh, what: str, tokenizer_folder: str = ""
) -> Checkpoint:
  """Loads the newest checkpoint of a workdir onto a mesh, each device its own part.

  Args:
    what: the config field that names `workdir`, for the error.
    tokenizer_folder: in the place of the workdir's own.

  Raises:
    MissingCheckpoint: there is none; the message says which stage writes it.
    ConfigError: the tokenizer is another model's.
  """
  model = model_config(workdir, what)
  own = (epath.Path(workdir) / "tokenizer").as_posix()
  tokenizer = read_tokenizer(tokenizer_folder or own)
  require_rows(model, tokenizer, f"--{what}={workdir}")
  config, graphdef, params, variant, step = load_params(workdir, mesh, what)
  return Checkpoint(config, graphdef, params, tokenizer, variant, step)


def model_config(workdir: str, what: str) -> ModelConfig:
  """The model of the newest checkpoint; raises as `load` does."""
  return ModelConfig(**_meta(workdir, what)["model"])


def load_params(
  workdir: str, mesh: jax.sharding.Mesh, what: str
) -> tuple[ModelConfig, nnx.GraphDef, nnx.State, Variant, int]:
  """What `load` loads and raises, but for the tokenizer, which need not be there."""
  meta = _meta(workdir, what)
  path = folder(workdir, steps(workdir)[-1])
  saved = ModelConfig(**meta["model"])
  _, abstract = abstract_model(saved)
  placed = jax.tree.map(
    lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at),
    _pure(abstract),
    _pure(sharding.shardings(abstract, mesh)),
  )
  pure = read(path, "params", placed)
  params = abstract
  nnx.replace_by_pure_dict(params, pure)
  config = dataclasses.replace(saved, vocab_multiple=mesh.shape["tensor"])
  graphdef, params = _filled_up(config, params, mesh)
  return config, graphdef, params, Variant(**meta["prompt"]), int(meta["step"])


def _filled_up(
  config: ModelConfig, params: nnx.State, mesh: jax.sharding.Mesh
) -> tuple[nnx.GraphDef, nnx.State]:
  """The same model with the vocabulary filled up to another multiple of rows of zeros.

  Saved with tensor=4, 330 tokens have 332 rows. Restored with tensor=8 they need 336: 332 do
  not divide, and every device would hold the whole table.
  """
  graphdef, abstract = abstract_model(config)
  return graphdef, fill_up(params, abstract, sharding.shardings(abstract, mesh))


def fill_up(tree: Any, abstract: Any, places: Any) -> Any:
  """Each array of `tree` with zeros behind it, or such cut off, until it has the shape wanted.

  Args:
    abstract: the shapes, in the structure of `tree`.
    places: the shardings, likewise.
  """

  def change(old: jax.Array, new: jax.ShapeDtypeStruct, place: jax.sharding.Sharding):
    if old.shape == new.shape:
      return old
    more = [(0, new.shape[axis] - size) for axis, size in enumerate(old.shape)]
    # What is cut off are zeros too.
    return jax.jit(
      lambda x: jax.lax.pad(x, x.dtype.type(0), [(*ends, 0) for ends in more]),
      out_shardings=place,
    )(old)

  return jax.tree.map(change, tree, abstract, places)


def _meta(workdir: str, what: str) -> dict[str, Any]:
  require({what: workdir})
  path = folder(workdir, steps(workdir)[-1])
  return read(path, "meta", None)


def read(
  path: epath.Path,
  part: str,
  abstract: Any,
  mend: str = "copy it again, or run the stage that writes it",
) -> Any:
  """One part of a checkpoint, or a ConfigError with the mend and what Orbax says of it."""
  try:
    with _quiet(), _first_error_alone():
      return ocp.load_checkpointables(path.as_posix(), {part: abstract})[part]
  except (MemoryError, jax.errors.JaxRuntimeError):
    raise
  except Exception as error:  # Of a dozen types, by what is wrong where.
    first: BaseException = error
    while first.__cause__ is not None:
      first = first.__cause__
    said = " ".join(str(first).split())
    raise ConfigError(
      f"{path} cannot be read, a file is damaged or missing; {mend}. Orbax says of its {part}:"
      f" {said[:160]}"
    ) from error


def folder(workdir: str, step: int) -> epath.Path:
  """Where the checkpoint of a step lies."""
  return _folder(workdir) / str(step)


def _folder(workdir: str) -> epath.Path:
  """Where the checkpoints of a workdir lie; Orbax takes absolute paths alone."""
  return epath.Path(workdir).resolve() / "checkpoints"


def steps(workdir: str) -> list[int]:
  """The steps of which a whole checkpoint lies in a workdir, in ascending order."""
  if not workdir or not _folder(workdir).exists():
    return []
  found = [path for path in _folder(workdir).iterdir() if path.name.isdigit()]
  # Orbax writes this last, and gives the folder its name then.
  return sorted(int(p.name) for p in found if (p / "_CHECKPOINT_METADATA").exists())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps Orbax's account of its own work out of the run's log; warnings stay.

  So do not the tracebacks of its threads: what went wrong in them is raised.
  """
  before, logger = logging.get_verbosity(), logging.get_absl_logger()
  no_traceback = lambda record: not record.exc_info
  logging.set_verbosity(logging.WARNING)
  logger.addFilter(no_traceback)
  try:
    yield
  finally:
    logging.set_verbosity(before)
    logger.removeFilter(no_traceback)


@contextlib.contextmanager
def _first_error_alone() -> Iterator[None]:
  """Keeps quiet about the other arrays where the reading of one has failed.

  They fail too, some before the error is raised and some after: asyncio prints a traceback of
  each, the last when the process ends, and TensorStore one where the event loop that it reports to
  is closed by then.
  """
  logger = standard_logging.getLogger("asyncio")
  level = logger.level
  hook = sys.unraisablehook

  def tell(unraisable: Any) -> None:
    if "Event loop is closed" not in str(unraisable.exc_value):
      hook(unraisable)

  sys.unraisablehook = tell
  logger.setLevel(standard_logging.CRITICAL)
  yield  # Where it fails, all stays so.
  logger.setLevel(level)
  sys.unraisablehook = hook


def _pure(params: nnx.State) -> Any:
  return nnx.to_pure_dict(params)
