"""Supervised fine-tuning: replies with their plans, on packed trees."""

from collections.abc import Sequence
from typing import Any

from absl import logging
import jax
import ml_collections

from data_pipeline import mixing, rendering
from her_jax.errors import ConfigError
from her_jax.evaluation import console
from her_jax.evaluation import policy as policy_evaluation
from her_jax.roleplay.schema import DataError, Trajectory
from her_jax.tasks import data, start, train
from her_jax.tasks.heldout import HeldOut
from her_jax.training import checkpoint, preemption


@preemption.at_once("SFT")
def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Trains and saves a policy, or goes on where an earlier run of this workdir stopped.

  Returns:
    `heldout_loss_before, heldout_loss_after, grammar_valid_before, grammar_valid_after`, None
    where `eval_samples` is 0 or nothing is held out; else also the losses of the layers.
  """
  scenes = data.load_scenes(config)
  model, earlier = train.start_model(config, workdir, mesh, scenes)
  rows = _rows(config, model, scenes)
  measure = Measure(config, workdir, mesh, model, scenes)

  def measure_before() -> dict[str, Any]:
    return measure(model.params, "before")

  params, before = train.fit(
    config, workdir, mesh, model, earlier, scenes, rows, measure_before, measure.heldout, "SFT"
  )
  after = measure(params, "after")
  return {f"{k}_before": v for k, v in before.items()} | {
    f"{k}_after": v for k, v in after.items()
  }


def _rows(
  config: ml_collections.ConfigDict, model: checkpoint.Checkpoint, scenes: data.Scenes
) -> Sequence[rendering.Row]:
  """What is trained, in a `mixing.Mixture` where there are several sources.

  Raises:
    DataError: a source has nothing to train.
  """
  return mixing.join(
    [
      mixing.Part(one.name, _rows_of(config, model, one.name, one.train), one.weight)
      for one in scenes.sources
    ]
  )


def _rows_of(
  config: ml_collections.ConfigDict,
  model: checkpoint.Checkpoint,
  name: str,
  train: Sequence[Trajectory],
) -> list[rendering.Row]:
  """The training scenes of one source, as `config.data.rows` wants them."""
  rows, counts = _render(config, model, train)
  logging.info("SFT data, %s: %s", name, counts.line())
  if not rows:
    raise DataError(
      f"{name}: no turn of split 'train' has a plan, so there is nothing to train;"
      f" give the replies to be learnt the field 'plan'"
    )
  if config.short_copies:
    short = rendering.reply_trees(
      train, model.tokenizer, config.context_weight, config.name_weight
    )
    logging.info("and %d replies behind their names alone", len(short))
    rows += short
  return rows


def _render(
  config: ml_collections.ConfigDict, model: checkpoint.Checkpoint, train: Sequence[Trajectory]
) -> tuple[list[rendering.Row], rendering.Counts]:
  """Raises ConfigError where it names no form of rows, or one that cannot train all turns."""
  form = config.data.rows
  if form not in ("trees", "replies"):
    raise ConfigError(f"config.data.rows is {form!r}; there are 'trees' and 'replies'")
  if form == "replies" and config.all_turns:
    raise ConfigError(
      "config.all_turns needs config.data.rows=trees: pass that, or all_turns=False"
    )
  settings = (
    train, model.tokenizer, config.data.length, config.context_weight, model.variant,
    config.name_weight,
  )  # fmt: skip
  if form == "replies":
    return rendering.sft_rows(*settings)
  return rendering.sft_trees(*settings, all_turns=config.all_turns)


class Measure:
  """Held-out loss and sampled replies of a policy, written to `workdir/samples`."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str,
    mesh: jax.sharding.Mesh,
    model: checkpoint.Checkpoint,
    scenes: data.Scenes,
  ):
    self._config, self._workdir, self._mesh = config, workdir, mesh
    self._tokenizer, self._variant = model.tokenizer, model.variant
    self._turns = policy_evaluation.pick_turns(scenes.heldout, config.eval_samples)
    self._model = model
    self._scenes = scenes.heldout
    rows, _ = rendering.sft_trees(
      scenes.heldout if config.eval_samples or config.eval_every else [], model.tokenizer,
      config.data.eval_length, variant=model.variant,
      field="data.eval_length",
    )  # fmt: skip
    self.heldout = HeldOut(rows, model, config.data, mesh)

  def __call__(self, params: Any, when: str) -> dict[str, Any]:
    """What `HeldOut` and `policy.describe` give."""
    if not self._turns:
      why = "no held-out turn has a plan" if self._scenes else "no scene is held out (split)"
      why = why if self._config.eval_samples else "eval_samples is 0"
      logging.info("%s: nothing is measured, as %s", when, why)
      return {"heldout_loss": None, "grammar_valid": None}
    losses = self.heldout(params)
    # Made anew each time: while the model is trained, its cache would only take room.
    sampler = start.make_sampler(
      self._model, self._config.engine, self._config.sampling, self._config.sampling.temperature
    )
    samples, completions = policy_evaluation.sample_replies(
      sampler, params, self._turns, self._tokenizer, self._config.seed, self._variant
    )
    found = {**losses, **policy_evaluation.describe(samples, completions)}
    valid = sum(sample.valid for sample in samples)
    logging.info(
      "%s: held-out loss %.4f, %d of %d replies valid",
      when,
      losses["heldout_loss"],
      valid,
      len(samples),
    )
    if jax.process_index() == 0:
      console.write_samples(f"{self._workdir}/samples/{when}.json", samples)
      console.print_samples(
        f"{self._config.task.upper()}: {when}", samples[:: max(len(samples) // 3, 1)][:3]
      )
    return found
