"""Verdicts: read from a judgement, and two orders combined to one label."""

import hypothesis
from hypothesis import strategies as st
import pytest

from data_pipeline.preferences import verdicts
from data_pipeline.preferences.verdicts import Names, Told
from her_jax.roleplay import principles
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import WINNERS, Finding

LIBRARY = principles.library()
NAMES = Names(LIBRARY)
_NAMED = st.lists(
  st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(WINNERS)),
  max_size=4,
  unique_by=lambda entry: entry[0],
)
_TOLD = st.builds(
  lambda winner, found: Told(winner, tuple(Finding(*entry) for entry in found)),
  st.sampled_from(WINNERS),
  _NAMED,
)


@hypothesis.given(_TOLD, _TOLD)
def test_a_label_does_not_depend_on_which_candidate_is_called_the_first(one, two):
  here, there = verdicts.combine(one, two), verdicts.combine(two, one)
  assert there.winner == swap(here.winner) and there.agreement == here.agreement
  assert dict(there.principles) == {p: swap(w) for p, w in here.principles}
  assert set(there.flipped) == set(here.flipped)
  assert (here.winner != "tie") <= (here.agreement == "same")
  there_class = verdicts.class_of(there.winner, there.principles)
  assert there_class == verdicts.class_of(here.winner, here.principles)


@pytest.mark.parametrize(
  ("winner", "named", "kind"),
  [
    ("tie", ["cand_1", "cand_1"], "tie"),
    ("cand_1", ["cand_1", "cand_1"], "all"),
    ("cand_1", ["cand_1", "tie"], "mixed"),
    ("cand_1", ["cand_1", "cand_2"], "mixed"),
    ("cand_1", ["cand_2", "cand_2"], "flipped"),
    ("cand_1", ["cand_2", "tie"], "flipped"),
    ("cand_1", ["tie"], "undecided"),
    ("cand_1", [], "undecided"),
  ],
)
def test_the_class_of_a_pair(winner, named, kind):
  assert verdicts.class_of(winner, [(str(i), w) for i, w in enumerate(named)]) == kind


def test_what_is_read_of_a_judgement():
  text = (
    "<think>- Is vivid and specific: draft, winner cand_2\nVerdict: cand_2</think>\n"
    "- Is vivid and specific: 'the bread, still warm', winner cand_1\n"
    "- **Speaks for itself alone**: cand_2 breaks it; it answers for Joost, winner cand_1.\n"
    "- is vivid and specific: but not at the end, winner cand_2\n"
    "**Analysis:** the bread.\nVerdict: cand_1"
  )
  said, why = verdicts.told(text, NAMES)
  assert said is not None and not why and said.winner == "cand_1"
  assert said.analysis == "the bread."
  assert said.findings == (
    Finding("vivid", "tie", "'the bread, still warm' but not at the end"),
    Finding("own-voice", "cand_1", "cand_2 breaks it; it answers for Joost"),
  )
  found = verdicts.broken([("own-voice", "cand_1"), ("felt-place", "cand_1")], LIBRARY)
  assert found == ((), ("own-voice",))
