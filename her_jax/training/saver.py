"""Saves a whole run, not its model alone, so that it can be killed at any instant.

workdir/checkpoints/300/params, meta   the model, see `checkpoint`
workdir/checkpoints/300/train/         moments and counts of the optimiser, Orbax; with LoRA also
                                       adapters, and the matrices below them
workdir/checkpoints/300/data/          where the loader is in its data: Grain's state, JSON
workdir/checkpoints/300/run/           config, first measures, and what the data were, JSON

A checkpoint is written in the background, under a name that no reader takes for a finished one,
until all its parts are on the disk.
"""

from collections.abc import Mapping
import json
import logging as standard_logging
import shutil
from typing import Any

from absl import logging
from etils import epath
import grain
import jax
import ml_collections
from orbax.checkpoint import v1 as ocp

from her_jax.errors import ConfigError
from her_jax.training import checkpoint, lora
from her_jax.training.state import TrainState

_GIB = 2**30


class Saver:
  """Saves the states of one run in the background; all processes call it alike."""

  def __init__(
    self,
    workdir: str,
    settings: ml_collections.ConfigDict,
    model: checkpoint.Checkpoint,
    tuning: lora.Tuning,
    batches: grain.DatasetIterator,
    run: Mapping[str, Any],
  ):
    """Fixes what is saved beside the state.

    Args:
      settings: `every` so many steps, 0 for the end alone; `keep` the newest so many.
      model: its shape and prompt variant are saved.
      tuning: what the states have parameters of.
      batches: the iterator that the steps take from.
      run: what `continuation` reads of the run, JSON.
    """
    self._workdir, self._settings, self._model = workdir, settings, model
    self._tuning, self._batches, self._run = tuning, batches, dict(run)
    self._saving: ocp.AsyncResponse[None] | None = None

  def due(self, step: int) -> bool:
    """Whether it is time, by the number of the step."""
    return bool(self._settings.every) and step % self._settings.every == 0

  def require_space(self, state: TrainState) -> None:
    """Checks that the folder has room for all that will lie there at once.

    Raises:
      ConfigError: it has not.
    """
    params = self._tuning.frozen or state.params
    kept = self._tuning.kept(state.params, state.opt_state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((params, kept)))
    # A new one is written before the oldest goes.
    missing = max(self._settings.keep + 1 - len(checkpoint.steps(self._workdir)), 1)
    free = shutil.disk_usage(self._workdir).free
    if missing * size > free:
      raise ConfigError(
        f"--workdir={self._workdir} has {free / _GIB:.3g} GiB free, and the checkpoints of this"
        f" run need {missing * size / _GIB:.3g} GiB: {size / _GIB:.3g} GiB each,"
        f" config.checkpoint.keep = {self._settings.keep} of them and the one being written;"
        f" make room, or keep fewer"
      )

  def save(self, state: TrainState) -> None:
    """Begins to save `state`, unless it is saved already; the state may be donated at once."""
    step = int(state.step)
    self.wait()
    if step in checkpoint.steps(self._workdir):
      return
    self._mend_workdir()
    params = self._tuning.whole(state.params)
    parts = checkpoint.parts(step, self._model.config, params, self._model.variant)
    parts |= {
      "train": flat(self._tuning.kept(state.params, state.opt_state)),
      "data": {"state": json.dumps(self._batches.get_state())},
      "run": self._run,
    }
    path = checkpoint.folder(self._workdir, step)
    self._saving = ocp.save_checkpointables_async(path.as_posix(), parts)

  def _mend_workdir(self) -> None:
    """Writes the tokenizer again where somebody has removed it, without which all is of no use."""
    if self._model.tokenizer is None or (epath.Path(self._workdir) / "tokenizer").exists():
      return
    logging.error(
      "%s was removed, or what was in it, while the run was writing into it: metrics and older"
      " checkpoints are lost; what is saved from here on is whole",
      self._workdir,
    )
    epath.Path(self._workdir).mkdir(parents=True, exist_ok=True)
    checkpoint.write_tokenizer(self._workdir, self._model.tokenizer)

  def wait(self) -> None:
    """Waits until what was begun is on the disk, then removes what is more than `keep`."""
    if self._saving is None:
      return
    saving, self._saving = self._saving, None
    saving.result()
    if jax.process_index() == 0:
      for step in checkpoint.steps(self._workdir)[: -self._settings.keep]:
        _remove(checkpoint.folder(self._workdir, step))

  def __enter__(self) -> "Saver":
    logging.get_absl_logger().addFilter(_no_orbax_chatter)
    return self

  def __exit__(self, *error: object) -> None:
    try:
      self.wait()
    except Exception:
      if error[0] is None:
        raise
      logging.exception("and the last checkpoint could not be saved")
    finally:
      logging.get_absl_logger().removeFilter(_no_orbax_chatter)


def flat(kept: Any) -> dict[str, Any]:
  """The arrays of an optimiser's state, or a tree, by name: {"1.0.mu.embedding.value": …, …}."""
  leaves = jax.tree_util.tree_leaves_with_path(kept)
  return {jax.tree_util.keystr(k, simple=True, separator="."): leaf for k, leaf in leaves}


def _remove(path: epath.Path) -> None:
  """Removes a checkpoint; killed in the middle, it leaves none that looks whole."""
  gone = path.with_name(f"{path.name}.orbax-checkpoint-tmp-removed")
  path.rename(gone)
  shutil.rmtree(gone)


def _no_orbax_chatter(record: standard_logging.LogRecord) -> bool:
  """Keeps Orbax's account of its own work, from threads of its own, out of the run's log."""
  if "/orbax/" not in record.pathname:
    return True
  if "Skipping merge of OCDBT" in record.getMessage():  # `data` and `run` hold no arrays.
    return False
  return bool(record.levelno > standard_logging.INFO and not record.exc_info)
