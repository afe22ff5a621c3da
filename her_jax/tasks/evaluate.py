"""Measures a policy and a judge on held-out scenes."""

import json
from typing import Any

from etils import epath
import jax
import ml_collections

from her_jax.evaluation import console
from her_jax.evaluation import policy as policy_evaluation
from her_jax.rl import rewards
from her_jax.rl.judge import Comparison
from her_jax.roleplay import judging
from her_jax.tasks import data, genrm, start
from her_jax.tasks.sft import Measure
from her_jax.training import checkpoint


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Writes `evaluation.json`.

  Returns:
    `policy`: held-out loss and what its sampled replies are like; `judge`: accuracy by kind,
    where a judge is named; `win_rate` against `config.baseline`, where that is named too.
  """
  judged = {
    "config.judge.checkpoint": config.judge.checkpoint,
    "config.baseline": config.baseline,
  }
  checkpoint.require({"config.policy": config.policy} | {k: v for k, v in judged.items() if v})
  scenes = data.load_scenes(config, needed="heldout")
  pairs = data.load_pairs(config, scenes) if _judges_pairs(config) else []
  policy = checkpoint.load(config.policy, mesh, "config.policy")
  found: dict[str, Any] = {
    "policy": Measure(config, workdir, mesh, policy, scenes)(policy.params, "after")
  }
  if config.judge.checkpoint:
    model = checkpoint.load(config.judge.checkpoint, mesh, "config.judge.checkpoint")
    found["judge"] = genrm.measure(config, model, model.params, scenes, pairs)
    if config.baseline and config.eval_samples:
      found["win_rate"] = _win_rate(config, mesh, policy, model, scenes)
  if jax.process_index() == 0:
    (epath.Path(workdir) / "evaluation.json").write_text(json.dumps(found, indent=2))
    rows = [
      (f"{part}: {name}", value, "")
      for part, values in found.items()
      for name, value in values.items()
      if not isinstance(value, dict)
    ]
    console.print_table("Held-out scenes", rows)
  return found


def _judges_pairs(config: ml_collections.ConfigDict) -> bool:
  return bool(config.judge.checkpoint and config.eval_pairs)


def _win_rate(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  policy: checkpoint.Checkpoint,
  judge_model: checkpoint.Checkpoint,
  scenes: data.Scenes,
) -> dict[str, Any]:
  """One reply of each side to each held-out turn, judged in both orders."""
  baseline = checkpoint.load(config.baseline, mesh, "config.baseline")
  turns = policy_evaluation.pick_turns(scenes.heldout, config.eval_samples)
  replies = []
  for side, seed in ((policy, config.seed), (baseline, config.seed + 1)):
    sampler = start.make_sampler(
      side, config.engine, config.sampling, config.sampling.temperature
    )
    samples, _ = policy_evaluation.sample_replies(
      sampler, side.params, turns, side.tokenizer, seed, side.variant
    )
    replies.append([judging.candidate_text(s.reply, s.speaker) for s in samples])
  comparisons = []
  for (scene, turn), ours, theirs in zip(turns, *replies, strict=True):
    comparisons += [
      Comparison(scene, turn, ours, theirs),
      Comparison(scene, turn, theirs, ours),
    ]
  judge = start.make_judge(judge_model, config)
  winners = [verdict.winner for verdict in judge.compare(comparisons)]
  outcomes = [
    rewards.outcome(winners[i : i + 2], ["cand_1", "cand_2"]) for i in range(0, len(winners), 2)
  ]
  count = len(outcomes)
  return {name: outcomes.count(name) / count for name in ("win", "tie", "lose")} | {
    "unparsed": outcomes.count(None) / count,
    "comparisons": count,
  }
