"""A judge is taught the label of every pair of a mix, whatever made it."""

from collections import Counter
import dataclasses

import pytest

from data_pipeline.preferences import balance
from data_pipeline.preferences.hard_negatives import LENGTHENED, RELABELLED, SPOILT
from data_pipeline.preferences.inputs import Refused, Scenes
from data_pipeline.preferences.mix import Options
from data_pipeline.preferences.taught import taught
from her_jax.errors import ConfigError
from her_jax.roleplay import judging, schema
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import Finding, Judgement, PreferencePair
from tests.data_pipeline.preferences.preference_runs import ALL, make_candidates, make_labels

LANGUAGE = {scene.id: scene.language for scene in ALL}


def _label(said):
  winner = judging.parse_verdict(said.text).winner
  return swap(winner) if said.swapped else winner


@pytest.mark.parametrize("flip", [SPOILT, RELABELLED])
def test_every_pair_of_a_balanced_mix_is_taught_its_label(tmp_path, flip):
  path, _ = make_candidates(tmp_path, tuple(s for s in ALL if s.split == "train")[:10])
  labelled, _ = make_labels(tmp_path, path, pairs_per_context=12)
  out = tmp_path / "pairs.jsonl"
  scenes = Scenes([str(tmp_path / "scenes.jsonl")], Refused())
  balance.run(
    [labelled], [f"{labelled}.judgements.jsonl"], scenes, str(out), 0, 0, Options(flip=flip),
    Refused(),
  )  # fmt: skip
  judgements = {}
  for judgement in schema.read_judgements(f"{out}.judgements.jsonl"):
    judgements.setdefault(judgement.pair, []).append(judgement)
  kinds = Counter()
  for pair in schema.read_pairs(out):
    found = taught(pair, judgements.get(pair.id, ()), (), LANGUAGE[pair.scene])
    assert {said.swapped for said in found} == {False, True}
    assert [_label(said) for said in found] == [pair.winner] * 2
    for said in found:
      read, other = judging.parse_verdict(said.text), judging.parse_verdict(said.other)
      assert read.principles and other.winner == swap(read.winner)
      assert other.principles == tuple((p, swap(w)) for p, w in read.principles)
    kinds[pair.kind, pair.id in judgements] += 1
  assert kinds["labelled", True] > 100 and kinds[flip, False] > 2
  assert kinds[LENGTHENED, False] > 2


def test_a_fault_that_was_set_in_is_named():
  pair = PreferencePair(
    "p", "s", 1, "a", "b", "cand_2", kind=SPOILT,
    extra={"her": {"principles": [["vivid", "cand_1"]], "breaks": ["no-future", "cand_1"]}},
  )  # fmt: skip
  first, second = taught(pair, (), (), "en")
  assert judging.parse_verdict(first.text).principles[1][1] == "cand_2"
  assert judging.parse_verdict(second.text).principles[1][1] == "cand_1"


def test_a_judgement_that_came_to_another_label_is_not_taught():
  pair = PreferencePair("p", "s", 1, "a", "b", "cand_1", violates_2=("vivid",))
  agrees = Judgement("1", "p", "cand_1", (Finding("vivid", "cand_1", "one image"),))
  wrong = Judgement("2", "p", "cand_1", (Finding("vivid", "cand_1"),), swapped=True)
  assert [said.swapped for said in taught(pair, [agrees, wrong], (), "en")] == [False]
  # None of them left: what follows from the violations.
  assert [_label(said) for said in taught(pair, [wrong], (), "en")] == ["cand_1"] * 2
  with pytest.raises(ConfigError, match="'p': the winner is tie, but .* it is cand_1"):
    taught(dataclasses.replace(pair, winner="tie"), [wrong], (), "en")
