"""Reinforcement learning: sample, judge, learn."""

from collections.abc import Sequence
import json
from typing import Any

from absl import logging
from etils import epath
import jax
import ml_collections
import numpy as np

from data_pipeline import loaders, trees
from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.evaluation import policy as policy_evaluation
from her_jax.rl import advantages as group_advantages
from her_jax.rl import monitors, objective
from her_jax.rl.rollout import Group, Rollouts
from her_jax.roleplay import chat
from her_jax.tasks import data, start
from her_jax.tasks.sft import Measure
from her_jax.training import checkpoint, loop, metrics
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Trains a policy against its frozen first weights.

  Returns:
    `reward_first_fifth, reward_last_fifth, reward_standard_error` (None below five steps),
    and the held-out measures before and after.
  """
  rl = config.rl
  _check(config)
  if jax.process_count() > 1:
    raise ConfigError(
      "reinforcement learning samples on one host for now; run it on a single TPU VM"
    )
  sources = {
    "config.policy": config.policy, "config.judge.checkpoint": config.judge.checkpoint
  }  # fmt: skip
  checkpoint.require(sources)
  scenes = data.load_scenes(config)
  policy = checkpoint.load(config.policy, mesh, "config.policy").with_remat(config.remat)
  judge_model = checkpoint.load(config.judge.checkpoint, mesh, "config.judge.checkpoint")
  tokenizer = policy.tokenizer
  sampler = start.make_sampler(
    policy, config.engine, config.sampling, config.sampling.temperature
  )
  judge = start.make_judge(judge_model, config)
  frozen = policy.params
  rollouts = Rollouts(
    sampler,
    frozen,
    judge,
    tokenizer,
    group_size=rl.group_size,
    orders=config.judge.orders,
    seed=config.seed,
    variant=policy.variant,
    judge_invalid=rl.judge_invalid,
  )
  count = rl.prompts or sum(len(scene.trained_turns()) for scene in scenes.train)
  turns = policy_evaluation.pick_turns(scenes.train, count)
  stream = iter(loaders.prompt_stream(turns, batch_size=rl.prompts_per_step, seed=config.seed))
  optimizer, schedule = optimizers.build(config.optimizer, rl.steps * rl.updates_per_step)
  step_fn = steps.make_train_step(
    policy.graphdef, optimizer, loss(config, len(tokenizer)), config.micro_batches
  )
  state = TrainState.create(frozen, optimizer)
  measure = Measure(config, workdir, mesh, policy, scenes)
  rewards: list[list[tuple[tuple[str, int], float]]] = []

  with metrics.MetricWriter(workdir) as writer, metrics.progress("RL", rl.steps) as advance:
    before = measure(frozen, "before")
    checkpoint.clear(workdir, *sources.values())
    watch = metrics.Stopwatch()
    for step in range(1, rl.steps + 1):
      groups = rollouts(state.params, next(stream), step)
      gains = group_advantages.group_relative(
        np.asarray([[r.reward for r in g.rollouts] for g in groups]),
        np.asarray([[r.counted for r in g.rollouts] for g in groups]),
      )
      updates = []
      for batch in _batches(groups, gains, config, chat.control_id(chat.PAD, tokenizer)):
        state, scalars = step_fn(state, sharding.to_global(batch, mesh))
        updates.append({k: float(v) for k, v in scalars.items()})
      values = monitors.rollout_metrics(groups, gains)
      if values["equal_groups"] == 1:
        logging.warning(
          "step %d: within every group all rewards are equal, so nothing is learnt", step
        )
      if values["planted"]:
        logging.warning(
          "step %d: %.3g of the replies imitate a verdict", step, values["planted"]
        )
      values |= {k: float(np.mean([u[k] for u in updates])) for k in updates[0]}
      if not all(np.isfinite(u["loss"]) for u in updates):
        raise loop.NotFinite(f"RL: the loss of step {step} is no longer a number")
      rewards.append(
        [((g.scene.id, g.turn), float(np.mean([r.reward for r in g.rollouts]))) for g in groups]
      )
      values |= {"learning_rate": float(schedule((step - 1) * rl.updates_per_step))}
      values |= _speed(groups, watch.lap())
      writer.write(step, values)
      _write_groups(workdir, step, groups)
      if step % config.log_every == 0 or step in (1, rl.steps):
        shown = ("reward_mean", "win", "lose", "loss", "grammar_valid", "tokens_per_second")
        metrics.log_line(step, rl.steps, {k: values[k] for k in shown})
      advance()
    checkpoint.save(workdir, rl.steps, policy.config, state.params, tokenizer, policy.variant)
    after = measure(state.params, "after")
  found = {f"{k}_before": v for k, v in before.items()}
  found |= {f"{k}_after": v for k, v in after.items()}
  first = last = error = None
  if rl.steps >= 5:
    first, last, error = monitors.reward_gain(rewards)
    logging.info("reward %.3f -> %.3f, standard error %s", first, last, error)
  return found | {
    "reward_first_fifth": first,
    "reward_last_fifth": last,
    "reward_standard_error": error,
  }


def loss(config: ml_collections.ConfigDict, valid_vocab: int) -> steps.LossFn:
  """The clipped objective, with the clips and the temperature of `config`."""
  return objective.clipped_policy_loss(
    valid_vocab=valid_vocab,
    temperature=config.sampling.temperature,
    clip_low=config.rl.clip_low,
    clip_high=config.rl.clip_high,
  )


def _check(config: ml_collections.ConfigDict) -> None:
  """Refuses at once what would fail, or learn nothing, after hours."""
  rl, sampling = config.rl, config.sampling
  for name in ("steps", "prompts_per_step", "updates_per_step"):
    if rl[name] < 1:
      raise ConfigError(f"rl.{name} is {rl[name]}; it must be at least 1")
  if rl.group_size < 2:
    raise ConfigError(
      f"rl.group_size is {rl.group_size}; a reply is measured by the others of its group, so it"
      f" must be at least 2"
    )
  if sampling.temperature <= 0:
    raise ConfigError(
      f"sampling.temperature is {sampling.temperature}; equal replies teach nothing, so it must"
      f" be above 0"
    )
  if rl.prompts_per_step % rl.updates_per_step:
    raise ConfigError(
      f"rl.prompts_per_step = {rl.prompts_per_step} cannot be split into"
      f" rl.updates_per_step = {rl.updates_per_step} equal parts"
    )
  rows = rl.prompts_per_step // rl.updates_per_step
  if rows % config.micro_batches:
    raise ConfigError(
      f"rl.prompts_per_step: {rows} rows of an update cannot be split into micro_batches ="
      f" {config.micro_batches}"
    )
  longest = sampling.prompt_length + rl.group_size * (sampling.max_new_tokens + 1)
  if longest > config.data.length:
    raise ConfigError(
      f"data.length is {config.data.length}, but a prompt and its group take up to {longest}"
      f" tokens (prompt_length + group_size · (max_new_tokens + 1)); raise it"
    )


def _batches(
  groups: Sequence[Group], gains: np.ndarray, config: ml_collections.ConfigDict, pad_id: int
) -> list[dict[str, np.ndarray]]:
  """One batch an update, each a tree a prompt. Groups without a difference weigh nothing."""
  rows = []
  for group, gain in zip(groups, gains, strict=True):
    informative = bool(np.any(gain != 0))
    row = objective.group_tree(
      group.prompt,
      [r.completion for r in group.rollouts],
      gain,
      [r.counted and informative for r in group.rollouts],
    )
    rows.append(trees.pad(row, config.data.length, pad_id))
  size = len(rows) // config.rl.updates_per_step
  return [
    {name: np.stack([row[name] for row in rows[i : i + size]]) for name in rows[0]}
    for i in range(0, len(rows), size)
  ]


def _speed(groups: Sequence[Group], seconds: float) -> dict[str, float]:
  tokens = sum(len(r.completion.ids) for g in groups for r in g.rollouts)
  return {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}


def _write_groups(workdir: str, step: int, groups: Sequence[Group]) -> None:
  """One prompt's group for people: the baseline and every reply with its outcome."""
  if jax.process_index() != 0:
    return
  folder = epath.Path(workdir) / "samples"
  folder.mkdir(parents=True, exist_ok=True)
  group = groups[0]
  row = {
    "step": step,
    "scene": group.scene.id,
    "turn": group.turn,
    "baseline": group.baseline,
    "replies": [{"outcome": r.outcome, "text": r.text} for r in group.rollouts],
  }
  with (folder / "rollouts.jsonl").open("w" if step == 1 else "a") as f:
    f.write(json.dumps(row, ensure_ascii=False) + "\n")
