"""The judge: taught to write judgements of reply pairs, both orders of each."""

from collections.abc import Sequence
from typing import Any

from absl import logging
import jax
import ml_collections

from data_pipeline import mixing, rendering
from her_jax.evaluation import console
from her_jax.evaluation.judge import evaluate_judge, judged_pairs
from her_jax.roleplay.schema import DataError, PreferencePair, Trajectory
from her_jax.tasks import data, start, train
from her_jax.tasks.heldout import HeldOut
from her_jax.training import checkpoint, preemption


@preemption.at_once("the judge")
def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Trains and saves a judge, or goes on where an earlier run of this workdir stopped.

  Returns:
    `evaluation.judge.evaluate_judge` on held-out pairs.
  """
  scenes = data.load_scenes(config)
  pairs = data.load_pairs(config, scenes)
  taught, heldout = ([p for p in pairs if p.split == s] for s in ("train", "heldout"))
  judgements = data.load_judgements(config, pairs)
  model, earlier = train.start_model(config, workdir, mesh, scenes)

  def rows_of(name: str, train: Sequence[Trajectory]) -> list[rendering.Row]:
    ids = {scene.id for scene in train}
    rows, counts = rendering.judge_trees(
      [pair for pair in taught if pair.scene in ids],
      train,
      model.tokenizer,
      config.data.length,
      config.judge.history,
      config.seed,
      model.variant,
      config.verdict_weight,
      judgements,
    )
    logging.info("judge data, %s: %s", name, counts.line())
    if not rows:
      raise DataError(f"{name}: no pair is of a scene of split 'train', so nothing is taught")
    return rows

  rows = mixing.join(
    [mixing.Part(one.name, rows_of(one.name, one.train), one.weight) for one in scenes.sources]
  )

  def show_before() -> dict[str, Any]:
    _show(config, model, model.params, scenes, pairs, "before")
    return {}

  unseen, _ = rendering.judge_trees(
    heldout if config.eval_every else [],
    scenes.heldout,
    model.tokenizer,
    config.data.eval_length,
    config.judge.history,
    config.seed,
    model.variant,
    judgements=judgements,
    field="data.eval_length",
  )
  params, _ = train.fit(
    config, workdir, mesh, model, earlier, scenes, rows, show_before,
    HeldOut(unseen, model, config.data, mesh), "judge",
  )  # fmt: skip
  _show(config, model, params, scenes, pairs, "after")
  return measure(config, model, params, scenes, pairs)


def measure(
  config: ml_collections.ConfigDict,
  model: checkpoint.Checkpoint,
  params: Any,
  scenes: data.Scenes,
  pairs: Sequence[PreferencePair],
) -> dict[str, Any]:
  """Judges `config.eval_pairs` held-out pairs, spread evenly over the scenes; {} for none."""
  chosen = _pick(pairs, config.eval_pairs)
  if not chosen:
    why = "no pair is held out (split)" if config.eval_pairs else "eval_pairs is 0"
    logging.info("the judge is not measured, as %s", why)
    return {}
  judge = start.make_judge(model, config, params)
  found = evaluate_judge(judge, chosen, {scene.id: scene for scene in scenes.heldout})
  logging.info("judge on held-out pairs: %s", found)
  return found


def _pick(pairs: Sequence[PreferencePair], count: int) -> list[PreferencePair]:
  """`count` held-out pairs spread evenly over the scenes, the same at every call."""
  heldout = [pair for pair in pairs if pair.split == "heldout"]
  count = min(count, len(heldout))
  return [heldout[i * len(heldout) // count] for i in range(count)]


def _show(
  config: ml_collections.ConfigDict,
  model: checkpoint.Checkpoint,
  params: Any,
  scenes: data.Scenes,
  pairs: Sequence[PreferencePair],
  when: str,
) -> None:
  """Prints three held-out pairs with the judgement on each."""
  judge = start.make_judge(model, config, params)
  few = _pick(pairs, 3)
  if not few:
    return
  shown = judged_pairs(judge, few, {scene.id: scene for scene in scenes.heldout})
  if jax.process_index() == 0:
    console.print_judgements(f"GENRM: {when}", shown)
