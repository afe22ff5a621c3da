"""How well a judge judges: accuracy by kind and by order, ties apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from her_jax.evaluation.console import JudgedPair
from her_jax.rl.judge import Comparison, Judge
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import PreferencePair, Trajectory
from her_jax.training.metrics import mean


def evaluate_judge(
  judge: Judge, pairs: Sequence[PreferencePair], scenes: Mapping[str, Trajectory]
) -> dict[str, Any]:
  """Judges every pair in both orders.

  An unread verdict counts as not correct and is reported as `unparsed`. With both orders a
  judge that always names the first candidate is right exactly half of the time.

  Returns:
    `accuracy` over the judgements of pairs with a winner, `by_kind`, `tie_accuracy` for the
    pairs labelled tie, `flip_rate` (share of pairs whose two verdicts contradict each other),
    `first_share` (how often the first candidate wins, among verdicts that name one),
    `length_correlation` (Pearson's, of how much longer candidate 1 is with its winning 1, tying
    0 or losing −1: near 0 for a judge that length does not sway), `unparsed`, and counts. A rate with nothing to average is None.
  """
  comparisons = []
  for pair in pairs:
    scene = scenes[pair.scene]
    one, two = pair.candidate_1, pair.candidate_2
    comparisons += [
      Comparison(scene, pair.turn, one, two),
      Comparison(scene, pair.turn, two, one),
    ]
  winners = [verdict.winner for verdict in judge.compare(comparisons)]
  correct: dict[str, list[bool]] = defaultdict(list)
  tie_correct: list[bool] = []
  flips: list[bool] = []
  for i, pair in enumerate(pairs):
    straight, swapped = winners[2 * i], winners[2 * i + 1]
    right = [straight == pair.winner, swapped == swap(pair.winner)]
    if pair.winner == "tie":
      tie_correct += right
    else:
      correct[pair.kind] += right
    if straight and swapped:
      flips.append(straight != swap(swapped))
  everything = [c for kind in correct.values() for c in kind]
  named = [winner for winner in winners if winner in ("cand_1", "cand_2")]
  return {
    "accuracy": mean(everything),
    "judgements": len(everything),
    "pairs": len(everything) // 2,
    "by_kind": {
      kind: {"accuracy": mean(values), "judgements": len(values)}
      for kind, values in sorted(correct.items())
    },
    "tie_accuracy": mean(tie_correct),
    "tie_pairs": len(tie_correct) // 2,
    "flip_rate": mean(flips),
    "first_share": mean([winner == "cand_1" for winner in named]),
    "length_correlation": _length_correlation(comparisons, winners),
    "unparsed": sum(winner is None for winner in winners) / max(len(winners), 1),
  }


def _length_correlation(
  comparisons: Sequence[Comparison], winners: Sequence[str | None]
) -> float | None:
  """None where lengths or verdicts are all alike."""
  sides = {"cand_1": 1.0, "tie": 0.0, "cand_2": -1.0}
  points = [
    (len(c.candidate_1) - len(c.candidate_2), sides[winner])
    for c, winner in zip(comparisons, winners, strict=True)
    if winner
  ]
  if any(len(set(values)) < 2 for values in zip(*points, strict=True)) or not points:
    return None
  return float(np.corrcoef(np.asarray(points).T)[0, 1])


def judged_pairs(
  judge: Judge, pairs: Sequence[PreferencePair], scenes: Mapping[str, Trajectory]
) -> list[JudgedPair]:
  """The judgement on each pair, in the order it is stored in, for people to read."""
  verdicts = judge.compare(
    [
      Comparison(scenes[pair.scene], pair.turn, pair.candidate_1, pair.candidate_2)
      for pair in pairs
    ]
  )
  return [
    JudgedPair(
      scene=pair.scene,
      turn=pair.turn,
      speaker=scenes[pair.scene].turns[pair.turn].speaker,
      candidate_1=pair.candidate_1,
      candidate_2=pair.candidate_2,
      label=pair.winner,
      winner=verdict.winner,
      judgement=verdict.text or verdict.status,
    )
    for pair, verdict in zip(pairs, verdicts, strict=True)
  ]
