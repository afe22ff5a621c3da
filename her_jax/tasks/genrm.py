"""The judge: taught to write judgements of reply pairs, both orders of each."""

from collections.abc import Sequence
from typing import Any

from absl import logging
import jax
import ml_collections

from data_pipeline import loaders
from her_jax import sharding
from her_jax.evaluation import console
from her_jax.evaluation.judge import evaluate_judge, judged_pairs
from her_jax.roleplay import chat
from her_jax.roleplay.schema import PreferencePair
from her_jax.tasks import data, start
from her_jax.training import checkpoint, loop, metrics
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Trains and saves a judge; returns `evaluation.judge.evaluate_judge` on held-out pairs."""
  scenes = data.load_scenes(config)
  pairs = data.load_pairs(config, scenes)
  train = [pair for pair in pairs if pair.split == "train"]
  model = start.start_model(config, mesh, scenes).with_remat(config.remat)
  rows, counts = loaders.judge_trees(
    train,
    scenes.train,
    model.tokenizer,
    config.data.length,
    config.judge.history,
    config.seed,
    model.variant,
    config.verdict_weight,
    data.load_judgements(config, train),
  )
  logging.info("judge data: %s", counts.line())
  host, hosts = sharding.row_shard(mesh)
  batches = loaders.batches(
    rows,
    length=config.data.length,
    batch_size=config.batch_size,
    seed=config.seed,
    pad_id=chat.control_id(chat.PAD, model.tokenizer),
    host=host,
    hosts=hosts,
    word_dropout=config.data.word_dropout,
    word_ids=start.word_ids(model.tokenizer, scenes),
  )
  optimizer, schedule = optimizers.build(config.optimizer, config.steps)
  step_fn = steps.make_train_step(
    model.graphdef, optimizer, steps.next_token_loss(len(model.tokenizer)), config.micro_batches
  )
  checkpoint.clear(workdir, config.init_from)
  _show(config, model, model.params, scenes, pairs, "before")
  with metrics.MetricWriter(workdir) as writer:
    state = loop.fit(
      TrainState.create(model.params, optimizer),
      step_fn,
      batches,
      steps=config.steps,
      schedule=schedule,
      writer=writer,
      mesh=mesh,
      log_every=config.log_every,
      name="judge",
    )
  checkpoint.save(
    workdir, config.steps, model.config, state.params, model.tokenizer, model.variant
  )
  _show(config, model, state.params, scenes, pairs, "after")
  return measure(config, model, state.params, scenes, pairs)


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
  judge = start.make_judge(model, config.judge, params)
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
  judge = start.make_judge(model, config.judge, params)
  few = _pick(pairs, 3)
  if not few:
    return
  shown = judged_pairs(judge, few, {scene.id: scene for scene in scenes.heldout})
  if jax.process_index() == 0:
    console.print_judgements(f"GENRM: {when}", shown)
