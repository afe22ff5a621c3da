"""Stage 0: cleaning, names, notation, merging, language."""

from collections import Counter
import dataclasses
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from data_pipeline import samples
from data_pipeline.synthesis import prepare
from data_pipeline.synthesis.prepare import Settings
from her_jax.roleplay import grammar, notations, schema
from her_jax.roleplay.schema import Character, Trajectory, Turn
from tests.data_pipeline.synthesis.synthesis_runs import real_cases, scene


def _prepare(trajectory, **how):
  counts = Counter()
  return prepare.prepare(trajectory, Settings(**how), counts), counts


def test_consecutive_turns_of_one_speaker_become_one_with_all_its_ids():
  given = scene(("Ada", "One."), ("Ada", "Two."), ("Bo", "Three."), ("Ada", "Four."))
  made, counts = _prepare(given)
  assert [(t.speaker, t.reply) for t in made.turns] == [
    ("Ada", "One.\nTwo."), ("Bo", "Three."), ("Ada", "Four."),
  ]  # fmt: skip
  assert [t.extra["her"]["origin_ids"] for t in made.turns] == [["0", "1"], ["2"], ["3"]]
  assert counts["turn: merged into the one before"] == 1


def test_ids_of_the_source_are_kept_and_numbers_are_texts():
  given = scene(("Ada", "One."), ("Ada", "Two."), ("Bo", "Three."))
  ids = [{"origin_id": [4, 5]}, {"origin_id": 9}, {"origin_id": ["x"]}]
  turns = [
    dataclasses.replace(t, extra={"her": i}) for t, i in zip(given.turns, ids, strict=True)
  ]
  made, _ = _prepare(dataclasses.replace(given, turns=tuple(turns)))
  assert [t.extra["her"]["origin_ids"] for t in made.turns] == [["4", "5", "9"], ["x"]]


def test_ids_that_stand_twice_are_replaced_and_counted():
  given = scene(("Ada", "One."), ("Bo", "Three."))
  turns = [dataclasses.replace(t, extra={"coser": {"origin_id": 7}}) for t in given.turns]
  made, counts = _prepare(dataclasses.replace(given, turns=tuple(turns)))
  assert [t.extra["her"]["origin_ids"] for t in made.turns] == [["0"], ["1"]]
  assert counts["conversation: turns numbered anew"] == 1


@pytest.mark.parametrize(
  ("notation", "text", "expected"),
  [
    ("auto", "[Not him.] (bows) Sir.", "<role_thinking>Not him.</role_thinking> <role_action>bows</role_action> Sir."),
    ("auto", "<ROLE_THINKING>Hm</ROLE_THINKING> Sir.", "<role_thinking>Hm</role_thinking> Sir."),
    ("auto", "<role_thinking>Hm</role_thinking> (bows) Sir.", "<role_thinking>Hm</role_thinking> <role_action>bows</role_action> Sir."),
    ("auto", "Ada: Sir.", "Sir."),
    ("her", "Call (again).", "Call (again)."),
    ("coser", "Ada: (bows) Sir.", "<role_action>bows</role_action> Sir."),
    ("asterisks", "*bows* Sir.", "<role_action>bows</role_action> Sir."),
    ("auto", "  Sir.  ", "Sir."),
  ],
)  # fmt: skip
def test_notations_become_ours(notation, text, expected):
  made, _ = _prepare(scene(("Ada", text), ("Bo", "Yes.")), notation=notation)
  assert made.turns[0].reply == expected


def test_a_plan_within_a_reply_goes_where_it_belongs():
  text = "<system_thinking>She waits.</system_thinking>Ada: Sir."
  made, _ = _prepare(scene(("Ada", text), ("Bo", "Yes.")))
  assert (made.turns[0].plan, made.turns[0].reply) == ("She waits.", "Sir.")


def test_turns_that_say_nothing_are_dropped_by_reason():
  made, counts = _prepare(
    scene(("Ada", " "), ("Bo", "[Only a thought.]"), ("Ada", "Yes."), ("Bo", "(nods)"))
  )
  assert [t.extra["her"]["origin_ids"] for t in made.turns] == [["2"], ["3"]]
  assert counts["turn: empty"] == 1 and counts["turn: neither speech nor action"] == 1


@pytest.mark.parametrize(
  ("broken", "reason"),
  [
    ({"turns": ()}, "conversation: empty"),
    ({"scenario": " "}, "conversation: no scenario"),
    ({"characters": ()}, "conversation: no characters"),
    ({"turns": (Turn("Ada", "[Hm.]"), Turn("Bo", " "))}, "conversation: empty"),
    ({"split": "dev"}, "conversation: breaks the contract (split)"),
    (
      {"turns": (Turn("Ada", "Yes."), Turn("Bo", "No.")), "id": "s",
       "characters": (Character("Ada\u0085:x"),)}, None),
  ],
)  # fmt: skip
def test_what_cannot_be_used_is_counted_by_reason(broken, reason):
  made, counts = _prepare(dataclasses.replace(scene(("Ada", "Yes."), ("Bo", "No.")), **broken))
  if reason is None:
    assert made is not None
  else:
    assert made is None and counts[reason] == 1
    assert sum(n for r, n in counts.items() if r.startswith("conversation")) == 1


def test_a_scene_of_one_speaker_is_one_turn_or_too_short():
  given = scene(("Ada", "One."), ("Ada", "Two."))
  assert len(_prepare(given)[0].turns) == 1
  made, counts = _prepare(given, min_turns=2)
  assert made is None and counts["conversation: too few turns"] == 1


def test_names_of_cast_and_turns_become_one_and_sheets_are_joined():
  given = Trajectory(
    id="s",
    scenario="A ball.",
    characters=(
      Character("Mr Bennet ", "A father."),
      Character("Mr. Bennet", background="Longbourn."),
      Character("Mrs Bennet", "A mother."),
      Character("Bennet"),
    ),
    turns=(
      Turn("MR. BENNET", "Well."), Turn("Mrs. Bennet:", "Oh!"), Turn("Bennet", "Hm."),
      Turn("environment", "A door slams."), Turn("Mr Bennet's", "So."), Turn("Jane", "Yes."),
    ),
  )  # fmt: skip
  made, counts = _prepare(given)
  assert [t.speaker for t in made.turns] == [
    "Mr Bennet", "Mrs Bennet", "Bennet", "Environment", "Mr Bennet", "Jane",
  ]  # fmt: skip
  people = {c.name: c for c in made.characters}
  assert set(people) == {"Mr Bennet", "Mrs Bennet", "Bennet", "Jane"}
  assert people["Mr Bennet"].profile == "A father."
  assert people["Mr Bennet"].background == "Longbourn."
  assert counts["name: speaker added to the cast"] == 1


def test_language_is_that_of_the_text():
  made, counts = _prepare(
    dataclasses.replace(
      scene(("佘满仓", "坐，坐。"), ("Environment", "门响了。"), language="zh"), language="en"
    )
  )
  assert made.language == "zh" and made.turns[1].speaker == "环境"
  assert counts["conversation: language corrected"] == 1


_LINES = st.lists(
  st.tuples(
    st.sampled_from(["Ada", "ada ", "Mr. Ash", "Ash", "Environment", "Bo's", "Bo", ""]),
    st.lists(
      st.sampled_from(["Yes.", "[Hm.]", "(nods)", "<role_thinking>", "</role_action>", "\n", " ",
                       "<system_thinking>P</system_thinking>", "*waves*", "[", ")", "Ada: ", "是"]),
      max_size=6,
    ).map("".join),
  ),
  max_size=7,
)  # fmt: skip


@given(_LINES)
@settings(max_examples=300)
def test_whatever_comes_in_what_goes_out_keeps_the_contract(lines):
  given = scene(*[line for line in lines if line[0].strip()] or [("Ada", "Yes.")])
  given = dataclasses.replace(given, turns=tuple(Turn(*line) for line in lines))
  made, counts = _prepare(given)
  if made is None:
    assert any(r.startswith("conversation:") for r in counts)
    return
  schema.check_trajectory(made)
  assert all(a.speaker != b.speaker for a, b in zip(made.turns, made.turns[1:], strict=False))
  kept = [o for t in made.turns for o in t.extra["her"]["origin_ids"]]
  assert kept == sorted(set(kept), key=int)
  dropped = sum(n for r, n in counts.items() if r in (
    "turn: empty", "turn: neither speech nor action", "turn: no speaker"))  # fmt: skip
  assert len(kept) + dropped == len(lines)
  again, _ = _prepare(made)
  assert again == made


def test_real_cases_come_through_whole(real_data):
  given = real_cases(real_data("coser_public_domain_cases.json"))
  counts = Counter()
  made = [prepare.prepare(s, Settings(), counts) for s in given]
  assert None not in made
  ids = sum(len(t.extra["her"]["origin_ids"]) for s in made for t in s.turns)
  assert ids == sum(len(s.turns) for s in given)


@pytest.mark.slow
def test_two_thousand_turns_a_second():
  """From our own samples in CoSER's notation, on one core; a third of what is measured idle."""
  given = []
  for number in range(12):
    for whole in schema.read_trajectories(samples.SCENES):
      turns = tuple(
        Turn(t.speaker, notations.to_coser(grammar.parse(f"{t.reply} {number}")))
        for t in whole.turns
      )
      given.append(dataclasses.replace(whole, turns=turns))
  start = time.process_time()
  for trajectory in given:
    assert _prepare(trajectory)[0] is not None
  assert sum(len(s.turns) for s in given) / (time.process_time() - start) > 2000


@pytest.mark.parametrize("notation", prepare.NOTATIONS)
def test_our_own_tags_stay_hidden_in_every_notation(notation):
  text = "<role_thinking>SECRET</role_thinking> Hello. <role_action>nods</role_action>"
  made, _ = _prepare(scene(("Una", text), ("Ben", "Hello.")), notation=notation)
  heard = grammar.parse(made.turns[0].reply)
  assert "SECRET" not in heard.view_for("other") and "SECRET" in heard.view_for("self")


@pytest.mark.parametrize("notation", ["auto", "coser"])
@pytest.mark.parametrize(
  "text",
  [
    "【SECRET】你好。（点头）",
    "［SECRET］你好。(点头)",
    "[SECRET】你好。（点头)",
    "<role_thinking><role_thinking>SECRET</role_thinking> and SECRET",
  ],
)
def test_thoughts_in_brackets_of_any_width_are_hidden(notation, text):
  made, _ = _prepare(scene(("Una", text + "。"), ("Ben", "(nods) Hello.")), notation=notation)
  replies = [grammar.parse(turn.reply) for turn in made.turns]
  assert not any("SECRET" in reply.view_for("other") for reply in replies)
  if "你好" in text:
    assert replies[0].layout() == "TSAS"
    assert [s.text for s in replies[0].segments if s.kind == "role_action"] == ["点头"]
  else:
    assert made.turns[0].speaker == "Ben"  # Nothing that others perceive is left of the first.
