"""What each stage asks, and what of an answer it takes."""

import dataclasses
import json

import pytest

from data_pipeline.asking.question import Rejected
from data_pipeline.synthesis import prepare, prompts, setting
from data_pipeline.synthesis.role_thinking import RoleThinking, varied
from data_pipeline.synthesis.role_thinking import Settings as ThinkingSettings
from data_pipeline.synthesis.setting import SettingCompletion
from data_pipeline.synthesis.setting import Settings as SettingSettings
from data_pipeline.synthesis.stage import Guide
from data_pipeline.synthesis.system_thinking import Backward, Forward
from data_pipeline.synthesis.system_thinking import Settings as PlanSettings
from her_jax.llm.client import Reply
from tests.data_pipeline.synthesis.synthesis_runs import prepared, scene
from tests.teachers.synthesis import Teacher

_LINES = [
  ("Ada", "<role_action>sits</role_action> Good morning to you, Bo."),
  ("Bo", "Is it? He shrugs. It has been raining since four."),
  ("Environment", "A bucket overflows."),
  ("Ada", "Then empty that bucket."),
  ("Bo", "In a minute. In one minute."),
]


_GUIDE = Guide({"used": {}})


def _ask(stage, trajectory, *answers, guide=_GUIDE):
  """Runs all jobs of a scene with the given answers (or a teacher); requests and outcome."""
  asked, given = [], iter(answers)
  results = []
  for job in stage.jobs(trajectory, guide):
    try:
      request = next(job)
      while True:
        asked.append(request)
        answer = next(given, None)
        if callable(answer):
          answer = answer(request)
        request = job.send(answer or Teacher()(request))
    except StopIteration as end:
      results.append(end.value)
  return asked, stage.finish(trajectory, results)


def _edits(*rows):
  rows = [dict(zip(("turn", "text", "reason"), row, strict=True)) for row in rows]
  return Reply(json.dumps({"turns": rows}))


_GOOD = [
  ("0", "<role_action>sits</role_action> <role_thinking>Wet.</role_thinking> Good morning to you, Bo.", "r"),
  ("1", "<role_thinking>Hm.</role_thinking> Is it? <role_action>shrugs</role_action> It has been raining since four.", "r"),
  ("3", "<role_thinking>Still here.</role_thinking> Then empty that bucket.", "r"),
  ("4", "In a minute. <role_thinking>Or two.</role_thinking> In one minute.", "r"),
]  # fmt: skip


def test_edits_are_taken_with_original_reason_and_layout():
  asked, outcome = _ask(
    RoleThinking(ThinkingSettings()), prepared(scene(*_LINES)), _edits(*_GOOD)
  )
  turns = outcome.scene.turns
  assert [t.reply for t in turns] == [
    _GOOD[0][1],
    _GOOD[1][1],
    _LINES[2][1],
    _GOOD[2][1],
    _GOOD[3][1],
  ]
  assert [t.extra["her"].get("layout") for t in turns] == ["ATS", "TSAS", None, "TS", "STS"]
  assert turns[1].extra["her"]["original"] == _LINES[1][1]
  assert turns[1].extra["her"]["reason"] == "r"
  assert not outcome.faults and len(asked) == 1
  assert "raining since four" in asked[0].messages[1].content
  assert "Edit the turns with these ids, each once: 0, 1, 3, 4" in asked[0].messages[1].content


def _changed(number, **row):
  rows = [dict(zip(("turn", "text", "reason"), r, strict=True)) for r in _GOOD]
  rows[number] |= row
  return Reply(json.dumps({"turns": [r for r in rows if r["turn"] is not None]}))


@pytest.mark.parametrize(
  ("answer", "cause"),
  [
    (_changed(2, text="<role_thinking>Hm.</role_thinking> Then leave that bucket."), "speech_changed"),
    (_changed(2, text="<role_thinking>Then empty that bucket.</role_thinking> "), "bad_tags"),
    (_changed(2, text="<role_action>Then empty that bucket.</role_action>"), "speech_changed"),
    (_changed(2, text="<role_thinking>Hm. Then empty that bucket."), "bad_tags"),
    (_changed(2, text="<system_thinking>P</system_thinking>Then empty that bucket."), "bad_tags"),
    (_changed(0, text="<role_thinking>Wet.</role_thinking> Good morning to you, Bo."), "layer_lost"),
    (_changed(2, text=""), "bad_tags"),
    (_changed(2, text=7), "bad_tags"),
    (_changed(2, reason=" "), "no_reason"),
    (_changed(2, text=f"<role_thinking>{'Hm. ' * 300}</role_thinking> Then empty that bucket."), "too_much"),
    (_changed(2, turn="1"), "turns"),
    (_changed(2, turn="2"), "turns"),
    (_changed(2, turn=None), "turns"),
    (Reply('{"turns": "none"}'), "malformed"),
    (Reply('{"turns": [1]}'), "malformed"),
    (Reply('{"turns": [{"turn": "0"'), "truncated"),
    (Reply("I'm sorry, I can't."), "refusal"),
  ],
)  # fmt: skip
def test_an_edit_that_goes_wrong_is_asked_for_again_and_then_left(answer, cause):
  given = prepared(scene(*_LINES))
  asked, outcome = _ask(RoleThinking(ThinkingSettings()), given, answer, answer)
  assert [f.cause for f in outcome.faults] == [cause] and not outcome.faults[0].kept
  assert [t.reply for t in outcome.scene.turns] == [t.reply for t in given.turns]
  assert [t.extra["her"].get("flags") for t in outcome.scene.turns] == [
    ["not_edited"], ["not_edited"], None, ["not_edited"], ["not_edited"],
  ]  # fmt: skip
  assert asked[1].id == "role_thinking/s/0/retry1"
  asked, outcome = _ask(RoleThinking(ThinkingSettings()), given, answer, _edits(*_GOOD))
  assert not outcome.faults and len(asked) == 2


def test_a_name_in_front_of_an_edit_is_taken_off():
  answer = _changed(2, text="Ada: <role_thinking>Hm.</role_thinking> Then empty that bucket.")
  _, outcome = _ask(RoleThinking(ThinkingSettings()), prepared(scene(*_LINES)), answer)
  assert not outcome.faults
  assert outcome.scene.turns[3].reply.startswith("<role_thinking>Hm.")


def test_layouts_that_vary_too_little_are_asked_for_again_then_taken_and_listed():
  lines = [("Ada", "Go on."), ("Bo", "I am."), ("Ada", "Good."), ("Bo", "Quite.")]
  rows = [
    (str(i), f"<role_thinking>Hm.</role_thinking> {t}", "r") for i, (_, t) in enumerate(lines)
  ]
  asked, outcome = _ask(
    RoleThinking(ThinkingSettings()), prepared(scene(*lines)), _edits(*rows), _edits(*rows)
  )
  assert len(asked) == 2 and "TS" in asked[1].messages[3].content
  assert [(f.cause, f.kept) for f in outcome.faults] == [("layout_run", True)]
  assert all("<role_thinking>" in t.reply for t in outcome.scene.turns)


@pytest.mark.parametrize(
  ("before", "made", "least", "cause"),
  [
    ([], ["TS", "TS", "AS"], 2, None),
    ([], ["TS", "TS", "TS"], 1, "layout_run"),
    (["TS", "TS"], ["TS", "AS"], 1, "layout_run"),
    (["AS", "TS"], ["TS", "AS"], 1, None),
    ([], ["TS", "AS", "TS", "AS"], 3, "few_layouts"),
  ],
)
def test_variety_is_held_across_windows(before, made, least, cause):
  complaint = varied(before, made, least)
  assert (complaint.cause if complaint else None) == cause


def test_a_long_conversation_goes_in_windows_with_edited_context():
  lines = [(("Ada", "Bo")[i % 2], f"This, then, is line number {i}.") for i in range(25)]
  stage = RoleThinking(ThinkingSettings(window=10, context=3))
  asked, outcome = _ask(stage, prepared(scene(*lines)))
  assert [r.id for r in asked] == [f"role_thinking/s/{n}" for n in range(3)]
  assert not outcome.faults and outcome.counts["turns edited"] == 25
  assert "<<<BEFORE" not in asked[0].messages[1].content
  before = asked[1].messages[1].content.partition("<<<BEFORE")[2].partition("BEFORE>>>")[0]
  assert before.count('"turn"') == 3 and "<role_thinking>" in before
  # A window that fails leaves the others alone.
  bad = Reply("No.")
  _, outcome = _ask(stage, prepared(scene(*lines)), None, bad, bad)
  assert [f.unit for f in outcome.faults] == ["role_thinking/s/1"]
  assert outcome.counts["turns edited"] == 16


def test_what_is_longer_than_a_prompt_may_be_is_counted_and_not_asked():
  given = prepared(scene(("Ada", "Well. " * 350_000), ("Bo", "Yes.")))
  for stage, count in (
    (RoleThinking(ThinkingSettings()), 1),
    (Forward(PlanSettings()), 0),
    (Backward(PlanSettings()), 1),
  ):
    asked, outcome = _ask(stage, given)
    assert [f.cause for f in outcome.faults] == ["too_long"] * count, stage.name
    assert all(len(r.messages[1].content) < 100_000 for r in asked)


def test_a_draft_is_the_reasoning_of_one_who_does_not_know_the_turn():
  given = prepared(scene(*_LINES))
  asked, outcome = _ask(
    Forward(PlanSettings()),
    given,
    Reply("Well.", reasoning="Bo <role_thinking>is</role_thinking> wet."),
  )
  assert [r.id for r in asked] == [f"forward/s/{k}" for k in "0134"]
  for request, key in zip(asked, "0134", strict=True):
    said = next(t.reply for t in given.turns if prepare.key_of(t) == key)
    assert said.rpartition(">")[2].strip() not in request.messages[1].content
  assert (
    outcome.scene.turns[0].extra["her"]["draft"] == "Bo (role_thinking)is(/role_thinking) wet."
  )
  assert "opens the scene" in asked[0].messages[1].content


def test_history_is_what_the_character_has_lived():
  lines = [
    ("Ada", "<role_thinking>SECRET_A</role_thinking> Hello."),
    ("Bo", "<role_thinking>SECRET_B</role_thinking> Hello."),
    ("Ada", "<role_thinking>SECRET_C</role_thinking> Well?"),
  ]
  for stage in (Forward(PlanSettings()), Backward(PlanSettings())):
    asked, _ = _ask(stage, prepared(scene(*lines)))
    first, second, third = (r.messages[1].content for r in asked)
    history = third.partition("<<<HISTORY")[2].partition("HISTORY>>>")[0]
    assert "SECRET_A" in history and "SECRET_B" not in history
    history = second.partition("<<<HISTORY")[2].partition("HISTORY>>>")[0]
    assert "SECRET_A" not in history
    assert "HISTORY" not in first


@pytest.mark.parametrize("turns", [1, 4, 30])
def test_history_is_limited_in_turns(turns):
  lines = [(("Ada", "Bo")[i % 2], f"Line {i}, and so on.") for i in range(40)]
  asked, _ = _ask(Forward(PlanSettings(turns=turns)), prepared(scene(*lines)))
  assert asked[-1].messages[1].content.count('"turn"') == turns
  assert '"turn": "38"' in asked[-1].messages[1].content


def test_history_is_limited_in_tokens():
  lines = [(("Ada", "Bo")[i % 2], f"Line {i}. " * 100) for i in range(40)]
  limited = Forward(PlanSettings(input_tokens=2000))
  asked, outcome = _ask(limited, prepared(scene(*lines)))
  assert not outcome.faults
  for request in asked:
    texts = [m.content for m in request.messages]
    assert prompts.estimated_tokens(texts, "en") <= 2000
  assert '"turn": "38"' in asked[-1].messages[1].content
  counted = dataclasses.replace(
    limited, count=lambda texts, _: sum(len(t.split()) for t in texts)
  )
  more, _ = _ask(counted, prepared(scene(*lines)))
  assert len(more[-1].messages[1].content) > len(asked[-1].messages[1].content)


_PLAN = "Ada wants the bucket seen to and means to spend no patience on it. " * 13


def _one_turn():
  made = prepared(scene(("Ada", "Then empty that bucket before we all drown in here.")))
  return dataclasses.replace(
    made, turns=(prepare.with_notes(made.turns[0], draft="She might scold."),)
  )


def test_a_plan_is_taken_with_its_overlap():
  asked, outcome = _ask(Backward(PlanSettings()), _one_turn(), Reply(f"<plan>{_PLAN}</plan>"))
  assert outcome.scene.turns[0].plan == _PLAN.strip()
  assert outcome.scene.turns[0].extra["her"]["overlap"] == 0.0
  prompt = asked[0].messages[1].content
  assert "She might scold." in prompt and "Then empty that bucket" in prompt
  assert "800 to 1500 characters" in asked[0].messages[0].content


@pytest.mark.parametrize(
  ("plan", "cause"),
  [
    (f"{_PLAN} She says to empty that bucket before we all drown in here.", "leak"),
    (f"{_PLAN} Then I decide.", "first_person"),
    (_PLAN[:500], "too_short"),
    (_PLAN * 2, "too_long"),
    ("", "empty"),
    (f"{_PLAN} <role_action>sits</role_action>", "malformed"),
  ],
)
def test_a_plan_that_breaks_a_rule_is_rewritten_once_and_then_counted(plan, cause):
  bad = Reply(f"<plan>{plan}</plan>")
  asked, outcome = _ask(Backward(PlanSettings()), _one_turn(), bad, bad)
  assert [f.cause for f in outcome.faults] == [cause]
  assert outcome.scene.turns[0].plan == "" and len(asked) == 2
  assert "can't be used" in asked[1].messages[3].content
  asked, outcome = _ask(
    Backward(PlanSettings()), _one_turn(), bad, Reply(f"<plan>{_PLAN}</plan>")
  )
  assert not outcome.faults and outcome.scene.turns[0].plan == _PLAN.strip()


def test_an_empty_draft_is_written_from_nothing():
  given = prepared(scene(("Ada", "Then empty that bucket."), ("Bo", "Yes, in a minute.")))
  asked, outcome = _ask(Backward(PlanSettings()), given)
  assert "There is no draft." in asked[0].messages[1].content
  assert outcome.counts["written from nothing"] == 2


def test_chinese_plans_have_bounds_of_their_own():
  given = prepared(
    scene(("阿达", "把那只桶倒了。"), ("阿波", "这就去，这就去。"), language="zh")
  )
  asked, outcome = _ask(Backward(PlanSettings()), given)
  assert "280 到 600 字" in asked[0].messages[0].content
  assert all(280 <= len(t.plan) <= 600 for t in outcome.scene.turns)
  bad = Reply(f"<plan>{'她要他把桶倒了。' * 20}</plan>")
  _, outcome = _ask(Backward(PlanSettings()), given, bad, bad)
  assert outcome.faults[0].cause == "too_short"


def test_who_gets_a_plan():
  given = prepared(scene(*_LINES))
  nobody = dataclasses.replace(given.characters[1], profile="")
  given = dataclasses.replace(given, characters=(given.characters[0], nobody))
  asked, _ = _ask(Backward(PlanSettings()), given)
  assert [r.id for r in asked] == ["backward/s/0", "backward/s/3"]
  asked, _ = _ask(Backward(PlanSettings(speakers="all")), given)
  assert len(asked) == 4


_PASSAGE = "It had rained since four. Ada Finch kept bees in the loft, nine hives of them, and Bo kept out of the way."


def _facts(*facts):
  whole = {
    "character": "Ada", "field": "background", "text": "Ada keeps nine hives in the loft.",
    "quote": "kept bees in the loft, nine hives of them", "turn": "0", "shown": "the hives",
  }  # fmt: skip
  return Reply(json.dumps({"additions": [whole | fact for fact in facts]}))


def _setting_scene(passage=_PASSAGE):
  return prepared(
    scene(
      ("Ada", "Mind the hives, Bo."),
      ("Bo", "I mind them."),
      passage=passage,
      sheet="A neighbour.",
    )
  )


def test_a_proven_fact_is_added_and_noted():
  asked, outcome = _ask(SettingCompletion(SettingSettings()), _setting_scene(), _facts({}))
  assert outcome.scene.characters[0].background == "Ada keeps nine hives in the loft."
  (note,) = outcome.scene.extra["her"]["settings_added"]
  assert {"character", "field", "text", "quote"} <= note.keys()
  sampling = asked[0].sampling
  assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 0.9, 8192)


def test_facts_go_behind_what_is_there_and_into_the_scenario():
  fact = {"field": "profile"}
  place = {"character": "", "field": "scenario", "text": "It has rained since four.",
           "quote": "It had rained since four.", "turn": "0", "shown": "Mind the hives"}  # fmt: skip
  _, outcome = _ask(SettingCompletion(SettingSettings()), _setting_scene(), _facts(fact, place))
  assert outcome.scene.characters[0].profile == "A neighbour. Ada keeps nine hives in the loft."
  assert outcome.scene.scenario == "A kitchen in winter. It has rained since four."


@pytest.mark.parametrize(
  ("fact", "cause"),
  [
    ({"quote": "kept bees in the cellar, nine hives of them"}, "quote not in the passage"),
    ({"quote": "kept bees"}, "quote too short"),
    ({"quote": ""}, "quote too short"),
    ({"quote": None}, "quote too short"),
    ({"shown": "the honey"}, "not shown by the dialogue"),
    ({"shown": ""}, "not shown by the dialogue"),
    ({"turn": "1"}, "not shown by the dialogue"),
    ({"turn": "7"}, "no such turn"),
    ({"field": "secret"}, "no such field"),
    ({"field": "name"}, "no such field"),
    ({"character": "Eve"}, "no such character"),
    ({"text": ""}, "empty or too long"),
    ({"text": "x" * 500}, "empty or too long"),
    ({"text": "A neighbour", "field": "profile"}, "already there"),
    ({"text": "Ada learnt it from old Quibble."}, "unsupported name"),
    ({"text": "Ada keeps 90 hives in the loft."}, "unsupported figure"),
  ],
)
def test_a_fact_without_proof_is_dropped_by_cause(fact, cause):
  _, outcome = _ask(SettingCompletion(SettingSettings()), _setting_scene(), _facts(fact))
  assert outcome.counts[f"fact dropped: {cause}"] == 1 and not outcome.faults
  assert outcome.scene == _setting_scene()


def test_the_same_fact_is_added_once_and_good_ones_beside_bad_ones():
  answer = _facts({}, {"field": "experience"}, {"quote": "never written by anybody here"})
  _, outcome = _ask(SettingCompletion(SettingSettings()), _setting_scene(), answer)
  assert outcome.counts["facts added"] == 1
  assert outcome.counts["fact dropped: stands twice"] == 1


def test_a_scene_without_a_passage_is_counted_and_not_asked():
  asked, outcome = _ask(SettingCompletion(SettingSettings()), _setting_scene(passage=""))
  assert not asked and outcome.counts["without a passage"] == 1


def test_a_quote_from_beyond_what_was_shown_is_none():
  passage = "Rain fell.\n" * 20_000 + _PASSAGE
  stage = SettingCompletion(SettingSettings(input_tokens=5000))
  asked, outcome = _ask(stage, _setting_scene(passage), _facts({}))
  assert prompts.estimated_tokens([asked[0].messages[1].content], "en") <= 5000
  assert outcome.counts["fact dropped: quote not in the passage"] == 1


def test_said_is_the_share_of_words():
  assert setting.said("nine hives", "There are nine hives.") == 1.0
  assert setting.said("nine hives", "nine") == 0.5


def test_rejections_tell_their_detail():
  assert str(Rejected("leak", "word")) == "leak: word"
