"""The loss of held-out rows, at the ends of a run and every so many steps, and the best state."""

from collections import defaultdict
from collections.abc import Sequence
import json
from typing import Any

from absl import logging
from etils import epath
import jax
import ml_collections

from data_pipeline import files, loaders
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.roleplay import chat
from her_jax.training import checkpoint, lora
from her_jax.training import step as steps
from her_jax.training.state import TrainState

BEST = "best"


class HeldOut:
  """Measures the loss of the same rows again and again."""

  def __init__(
    self,
    rows: Sequence[loaders.Row],
    model: checkpoint.Checkpoint,
    settings: ml_collections.ConfigDict,
    mesh: jax.sharding.Mesh,
  ):
    """Args:
    settings: `config.data`, with `eval_length` and `eval_batch_size`.
    """
    self._rows, self._mesh, self._settings = rows, mesh, settings
    self._pad_id = chat.control_id(chat.PAD, model.tokenizer)
    self._step = steps.make_eval_step(
      model.graphdef, steps.next_token_loss(len(model.tokenizer))
    )

  def __bool__(self) -> bool:
    return bool(self._rows)

  def __call__(self, params: Any) -> dict[str, float]:
    """`heldout_loss` in nats a target, and `heldout_loss_plan` and so on of what has layers."""
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, float] = defaultdict(float)
    for batch in loaders.padded_batches(
      self._rows,
      length=self._settings.eval_length,
      batch_size=self._settings.eval_batch_size,
      pad_id=self._pad_id,
    ):
      total, count, extra = self._step(params, self._placed(batch))
      for name, (one, weight) in {"loss": (total, count), **extra}.items():
        sums[name] += float(one)
        counts[name] += float(weight)
    return {f"heldout_{name}": sums[name] / counts[name] for name in sums if counts[name]}

  def _placed(self, batch: loaders.Row) -> Any:
    """Each device gets its own rows, where they can be divided."""
    part, parts = sharding.row_shard(self._mesh)
    rows = self._settings.eval_batch_size
    if rows % (self._mesh.shape["data"] * self._mesh.shape["fsdp"]):
      return jax.device_put(batch, sharding.replicated(self._mesh))
    own = slice(part * rows // parts, (part + 1) * rows // parts)
    return sharding.to_global({name: values[own] for name, values in batch.items()}, self._mesh)


class Intervals:
  """Measures every so many steps, and keeps the model that was best.

  That lies in `workdir/best`, which other runs take as a workdir (`--config.init_from`), with its
  loss in `best.json`.
  """

  def __init__(
    self,
    every: int,
    heldout: HeldOut,
    model: checkpoint.Checkpoint,
    tuning: lora.Tuning,
    workdir: str,
    after: int,
  ):
    """Args:
    every: steps; 0 for never.
    tuning: what the states have parameters of.
    after: the step that the run goes on after: what an earlier one found later does not count.
    """
    self._every, self._heldout, self._model, self._tuning = every, heldout, model, tuning
    self._folder = epath.Path(workdir) / BEST
    self._best = self._read(after)

  def due(self, step: int) -> bool:
    return bool(self._every and self._heldout) and step % self._every == 0

  def __call__(self, state: TrainState, step: int) -> dict[str, float]:
    params = self._tuning.whole(state.params)
    found = self._heldout(params)
    loss = found["heldout_loss"]
    logging.info("after step %d: held-out loss %.4f", step, loss)
    if self._best is None or loss < self._best:
      self._best = loss
      self._keep(params, step)
    return found

  def _keep(self, params: Any, step: int) -> None:
    model, folder = self._model, str(self._folder)
    old = [at for at in checkpoint.steps(folder) if at != step]
    checkpoint.save(folder, step, model.config, params, model.tokenizer, model.variant)
    if jax.process_index() == 0:
      told = json.dumps({"step": step, "heldout_loss": self._best})
      files.write_whole(self._folder / "best.json", told + "\n")
      for at in old:
        checkpoint.folder(folder, at).rmtree()

  def _read(self, after: int) -> float | None:
    path = self._folder / "best.json"
    if not after or not path.exists():
      return None
    try:
      found = json.loads(path.read_text())
      return float(found["heldout_loss"]) if found["step"] <= after else None
    except (ValueError, KeyError, TypeError):
      raise ConfigError(
        f"{path} is damaged: it tells no step and held-out loss; delete it, and the best model is"
        f" sought from step {after} on"
      ) from None
