"""A run that ended early goes on in the same workdir as if it had not.

earlier = continuation.find(config, workdir)          # None: nothing to go on from
model = earlier.load_model(mesh)
tuning, state = earlier.restore(model, …, batches, …) # and `batches` gives the next batch
"""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from absl import logging
import grain
import jax
import ml_collections
import optax

from her_jax.errors import ConfigError
from her_jax.models.config import ModelConfig
from her_jax.training import checkpoint, lora, saver
from her_jax.training import origin as origins
from her_jax.training.state import TrainState, count, moment_shardings

# What goes on in the same workdir.
TASKS = ("sft", "genrm")
# Fields and sections that may be others: where it runs, how much at once, what it tells.
_FREE = (
  "checkpoint", "cpu_devices", "data.eval_batch_size", "engine", "eval_every", "log_every", "mesh",
  "micro_batches", "pod", "profile", "remat",
)  # fmt: skip
# Whatever of them is another, the sums are added in another order.
_ROUNDING = ("cpu_devices", "mesh", "micro_batches", "remat")
_ANEW = "--config.checkpoint.resume=False begins anew and removes the old checkpoints"


@dataclasses.dataclass(frozen=True)
class Earlier:
  """The newest checkpoint that an earlier run of this workdir left.

  Attributes:
    run: what that run said of itself, as `describe` gives it.
  """

  workdir: str
  step: int
  run: Mapping[str, Any]

  @property
  def before(self) -> dict[str, Any]:
    """The stage's measures before its first step."""
    return dict(self.run["before"])

  @property
  def origin(self) -> str:
    """What it started from, as `origin.identity` told it then."""
    return self.run.get("origin", "")

  def load_model(self, mesh: jax.sharding.Mesh) -> checkpoint.Checkpoint:
    """Model and tokenizer, as the training left them.

    Raises:
      ConfigError: a file is damaged.
    """
    try:
      return checkpoint.load(self.workdir, mesh, "workdir")
    except FileNotFoundError as error:
      raise ConfigError(
        f"--workdir={self.workdir} has lost a file of its run: {str(error).partition(';')[0]}; copy it"
        f" back, or choose another folder; {_ANEW}"
      ) from error
    except ConfigError as error:
      raise ConfigError(f"{error}. Or else {_mend(self.workdir)}") from error

  def restore(
    self,
    model: checkpoint.Checkpoint,
    settings: lora.Settings,
    optimizer: optax.GradientTransformation,
    batches: grain.DatasetIterator,
    mesh: jax.sharding.Mesh,
    data: str,
  ) -> tuple[lora.Tuning, TrainState]:
    """The state of the run, and of what of the model; parameters of `model` will be donated.

    Args:
      model: of `load_model`.
      settings: what is adapted.
      batches: a new iterator over the same data; it is set to the batch that comes next.
      data: a fingerprint of the data now, as in `describe`.

    Raises:
      ConfigError: the data are others, or a file is damaged.
    """
    if self.run["data"] != data:
      raise ConfigError(
        f"--workdir={self.workdir} holds a run of other training data than the config names now:"
        f" the files, or the tokenizer in the folder, have changed since. Put the old ones back,"
        f" or choose another folder; {_ANEW}"
      )
    path = checkpoint.folder(self.workdir, self.step)
    saved = ModelConfig(**checkpoint.read(path, "meta", None)["model"])
    old, new = (_kept(config, settings, optimizer) for config in (saved, model.config))
    placed = jax.tree.map(
      lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
      old,
      moment_shardings(old, mesh),
    )
    names = saver.flat(placed)
    mend = _mend(self.workdir)
    found = checkpoint.read(path, "train", names, mend)
    kept = jax.tree.unflatten(jax.tree.structure(old), [found[name] for name in names])
    kept = checkpoint.fill_up(kept, new, moment_shardings(new, mesh))
    batches.set_state(json.loads(checkpoint.read(path, "data", None, mend)["state"]))
    tuning, params, opt_state = lora.resume(model.config, model.params, settings, kept)
    return tuning, TrainState(count(self.step, mesh), params, opt_state)


def describe(
  config: ml_collections.ConfigDict,
  before: Mapping[str, Any],
  data: str,
  origin: str = "",
) -> dict[str, Any]:
  """What a run says of itself in its checkpoints.

  Args:
    before: the stage's measures before its first step, numbers or None.
    data: a fingerprint of the training data.
    origin: of the weights it started from, see `origin.identity`; "" where it is not known.
  """
  plain = {k: v.item() if hasattr(v, "item") else v for k, v in before.items()}
  return {"config": _plain(config), "before": plain, "data": data, "origin": origin}


def find(config: ml_collections.ConfigDict, workdir: str) -> Earlier | None:
  """The earlier run that this one goes on with; None where there is none, or it begins anew.

  Raises:
    ConfigError: the workdir holds checkpoints of another config, of a run from other weights, or
      none of such a run.
  """
  steps = checkpoint.steps(workdir)
  if not steps or not config.checkpoint.resume:
    return None
  path = checkpoint.folder(workdir, steps[-1])
  if not (path / "run").exists():
    raise ConfigError(
      f"--workdir={workdir} holds a checkpoint of step {steps[-1]} without the state of a"
      f" training, so it cannot be continued; choose another folder, with"
      f" --config.init_from={workdir} to start from it. {_ANEW}"
    )
  run = checkpoint.read(path, "run", None, _mend(workdir))
  # Runs of before there were adapters trained all weights.
  changed = _differences({"lora": {"rank": 0}} | run["config"], _plain(config))
  if rounding := sorted(name for name in changed if _is_in(name, _ROUNDING)):
    logging.info("%s changed: equal from here on but for rounding", ", ".join(rounding))
  refused = {name: both for name, both in changed.items() if not _is_in(name, _FREE)}
  if refused:
    told = "; ".join(
      f"config.{name} was {_short(old)} and is {_short(new)}"
      for name, (old, new) in sorted(refused.items())
    )
    why = " (the rates of all steps follow from their number)" if "steps" in refused else ""
    raise ConfigError(
      f"--workdir={workdir} holds a run of another config: {told}{why}. Continue with the old"
      f" values, or choose another folder; {_ANEW}"
    )
  now = origins.identity(config.init_from)
  if now and run.get("origin") and now != run["origin"]:
    raise ConfigError(
      f"--workdir={workdir} holds a run that started from other weights than now lie in"
      f" config.init_from={config.init_from}, which would not be read: it goes on from its own."
      f" Put the old ones back or take them away, to continue; or choose another folder; {_ANEW}"
    )
  return Earlier(workdir, steps[-1], run)


def after_a_loss(task: str, workdir: str) -> str:
  """What to do where a host is lost, and what comes of it; `task` is the config's."""
  again = "start the same command again on every host"
  if task not in TASKS:
    return again
  steps = checkpoint.steps(workdir)
  return f"{again}: " + (
    f"it continues after step {steps[-1]}" if steps else "it begins anew, nothing is saved yet"
  )


def _kept(
  config: ModelConfig, settings: lora.Settings, optimizer: optax.GradientTransformation
) -> Any:
  """What a checkpoint holds beside the parameters, with shapes in the place of arrays."""
  tuning, trained = lora.abstract(config, settings)
  return tuning.kept(trained, jax.eval_shape(optimizer.init, trained))


def _mend(workdir: str) -> str:
  """What to do about a damaged part of the newest checkpoint."""
  *_, older, newest = [0, *checkpoint.steps(workdir)]
  if older:
    return f"delete {newest}/ to continue from step {older}, the one before"
  return f"copy it again, or begin anew: {_ANEW}"


def _differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
  """Field -> both values. A field that the older or the newer code does not have is none."""
  found: dict[str, tuple[Any, Any]] = {}
  for name in sorted(old.keys() & new.keys()):
    one, two, path = old[name], new[name], f"{prefix}{name}"
    if isinstance(one, dict) and isinstance(two, dict):
      found |= _differences(one, two, f"{path}.")
    elif one != two:
      found[path] = one, two
  return found


def _is_in(name: str, fields: tuple[str, ...]) -> bool:
  return any(name == field or name.startswith(f"{field}.") for field in fields)


def _plain(config: ml_collections.ConfigDict) -> dict[str, Any]:
  return json.loads(config.to_json_best_effort())


def _short(value: Any) -> str:
  text = json.dumps(value, ensure_ascii=False)
  return text if len(text) < 60 else f"{text[:57]}…"
