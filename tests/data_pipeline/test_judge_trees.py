"""Trees of judgements: both orders of a pair, and where they weigh."""

import numpy as np
import pytest

from data_pipeline import rendering
from her_jax.errors import ConfigError
from her_jax.roleplay import judging, schema
from tests.data_pipeline.tree_rows import SCENES, completions, tokenizer_of_scenes


@pytest.fixture(scope="module")
def tokenizer():
  return tokenizer_of_scenes()


def test_a_judge_tree_holds_both_orders(tokenizer):
  scene = SCENES[0]
  turn = scene.trained_turns()[1]
  pair = schema.PreferencePair(
    "p", scene.id, turn, "Good.", "Bad.", "cand_1", violates_2=("vivid",)
  )
  (row,), counts = rendering.judge_trees([pair], [scene], tokenizer, 4096, 1, seed=0)
  assert counts.samples == 2
  context = judging.context_ids(scene, turn, tokenizer, 1)
  starts = [
    context + judging.candidates_ids(*order, tokenizer)
    for order in (("Good.", "Bad."), ("Bad.", "Good."))
  ]
  verdicts = []
  for judgement, prompt in zip(completions(row, tokenizer), starts, strict=True):
    slot = next(
      i
      for i in np.flatnonzero(row["loss_weights"])
      if [int(t) for t in row["targets"][i : i + len(judgement)]] == judgement
    )
    seen = [int(row["tokens"][j]) for j in range(slot + 1) if slot < row["visible_until"][j]]
    assert seen == prompt
    verdicts.append(judging.parse_verdict(tokenizer.decode(judgement[:-1])).winner)
  assert verdicts == ["cand_1", "cand_2"]


def test_judge_pairs_that_do_not_fit_are_refused_by_name(tokenizer):
  pair = schema.PreferencePair("p", SCENES[0].id, 1, "a", "b", "tie")
  with pytest.raises(ValueError, match="pair 'p' takes .* lower judge.history"):
    rendering.judge_trees([pair], SCENES, tokenizer, 32, 1, seed=0)


def test_the_verdict_weight_falls_on_what_the_two_orders_say_differently(tokenizer):
  scene = SCENES[0]
  turn = scene.trained_turns()[1]

  def row(winner, **broken):
    pair = schema.PreferencePair("p", scene.id, turn, "Good.", "Bad.", winner, **broken)
    rows, _ = rendering.judge_trees(
      [pair], [scene], tokenizer, 4096, 1, seed=0, verdict_weight=9.0
    )
    return rows[0]

  made = row("cand_1", violates_2=("vivid",))
  heavy = tokenizer.decode(made["targets"][made["loss_weights"] == 9])
  assert heavy.replace(" ", "") == "cand_2cand_1cand_1cand_1cand_2cand_2"
  assert set(made["loss_weights"]) == {0, 1, 9}
  # Both orders of a tie read the same.
  assert set(row("tie")["loss_weights"]) == {0, 1}
  with pytest.raises(ConfigError, match="winner is cand_2, but .* it is cand_1"):
    row("cand_2", violates_2=("vivid",))


def _judged(pair, scene, tokenizer, *judgements, **more):
  return rendering.judge_trees(
    [pair], [scene], tokenizer, 4096, 1, seed=0, judgements={pair.id: judgements}, **more
  )


def test_a_judge_is_taught_what_the_teacher_said_of_each_order(tokenizer):
  scene = SCENES[0]
  # Mixed, and decided against the one principle that is broken: no violations give this label.
  pair = schema.PreferencePair(
    "p", scene.id, scene.trained_turns()[1], "Good.", "Bad.", "cand_1", violates_1=("vivid",)
  )

  def said(winner, other, swapped):
    findings = (
      schema.Finding("vivid", other, "one image, worn"),
      schema.Finding("own-voice", winner, "her dry manner"),
    )
    return schema.Judgement("j", "p", winner, findings, "", "Voice outweighs.", swapped=swapped)

  first, second = said("cand_1", "cand_2", False), said("cand_2", "cand_1", True)
  (row,), counts = _judged(pair, scene, tokenizer, first, second, verdict_weight=9.0)
  assert counts.samples == 2
  texts = [tokenizer.decode(ids[:-1]) for ids in completions(row, tokenizer)]
  assert texts == [judging.write(j, scene.language) for j in (first, second)]
  assert [judging.parse_verdict(text).winner for text in texts] == ["cand_1", "cand_2"]
  heavy = tokenizer.decode(row["targets"][row["loss_weights"] == 9])
  assert heavy.replace(" ", "") == "cand_2cand_1cand_1cand_1cand_2cand_2"
  # The order in which the teacher came to another label teaches nothing.
  (row,), counts = _judged(pair, scene, tokenizer, first, said("cand_1", "cand_2", True))
  assert counts.samples == 1
  assert [tokenizer.decode(i[:-1]) for i in completions(row, tokenizer)] == texts[:1]
  with pytest.raises(ConfigError, match="winner is cand_1, but .*data.judgements"):
    rendering.judge_trees([pair], [scene], tokenizer, 4096, 1, seed=0)
