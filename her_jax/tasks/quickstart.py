"""The whole chain on a tiny model: each stage as its own task would run it, then a report."""

import json
import pathlib
import shutil
import time
from typing import Any

from absl import logging
import jax
import ml_collections

from her_jax.evaluation import console, report
from her_jax.tasks import evaluate, export, genrm, rl, sft
from her_jax.training import metrics


def run(
  config: ml_collections.ConfigDict, workdir: str, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Runs the stages and writes `summary.json`, `report.html` and `export/`."""
  started = time.perf_counter()
  root = pathlib.Path(workdir)
  places = {name: str(root / name) for name in ("sft", "genrm", "rl", "evaluate")}
  config = ml_collections.ConfigDict(config)
  for stage in (*places, "export"):
    config[stage].seed = config.seed
    if "checkpoint" in config[stage]:
      config[stage].checkpoint.resume = config.checkpoint.resume
  config.genrm.init_from = places["sft"]
  config.rl.policy = config.evaluate.baseline = places["sft"]
  config.rl.judge.checkpoint = config.evaluate.judge.checkpoint = places["genrm"]
  config.evaluate.policy = config.export.source = places["rl"]

  found = {}
  for stage, task in (("sft", sft), ("genrm", genrm), ("rl", rl), ("evaluate", evaluate)):
    logging.info("—— %s ——", stage)
    found[stage] = task.run(config[stage], places[stage], mesh)
  config.export.output = str(root / "export")
  shutil.rmtree(config.export.output, ignore_errors=True)
  export.run(config.export, workdir, mesh)

  summary = {
    "seed": config.seed,
    "sft_heldout_loss_before": found["sft"]["heldout_loss_before"],
    "sft_heldout_loss_after": found["sft"]["heldout_loss_after"],
    "grammar_valid_before": found["sft"]["grammar_valid_before"],
    "grammar_valid_after": found["sft"]["grammar_valid_after"],
    "judge_accuracy": found["evaluate"]["judge"].get("accuracy"),
    "judge_pairs": found["evaluate"]["judge"].get("pairs"),
    "rl_reward_first_fifth": found["rl"]["reward_first_fifth"],
    "rl_reward_last_fifth": found["rl"]["reward_last_fifth"],
    "rl_reward_standard_error": found["rl"]["reward_standard_error"],
    "seconds_total": round(time.perf_counter() - started, 1),
    "peak_memory_gib": round(metrics.peak_memory_gib(), 2),
  }
  (root / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  page = report.write_report(root, summary)
  console.print_table("Quickstart", [(name, value, "") for name, value in summary.items()])
  logging.info("report: %s", page)
  return summary
