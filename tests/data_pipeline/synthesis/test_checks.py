"""What is measured of texts: speech kept, words given away, first person, quotes."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from data_pipeline.synthesis import checks, layouts
from her_jax.roleplay import grammar


def _change(old, new):
  change = checks.speech_change(grammar.parse(old), grammar.parse(new))
  return change.lost, change.added, change.moved


@pytest.mark.parametrize(
  ("old", "new", "expected"),
  [
    ("Go home, Tom.", "<role_thinking>He must.</role_thinking> Go home, Tom.", (0, 0, 0)),
    ("Go home, Tom.", "Go home <role_action>sits</role_action> – TOM!", (0, 0, 0)),
    ("Don't.", "Don’t.", (0, 0, 0)),
    ("Go home, Tom.", "Go, Tom.", (1, 0, 0)),
    ("Go home, Tom.", "Go home now, Tom.", (0, 1, 0)),
    ("Go home, Tom.", "Tom, go home.", (1, 1, 0)),
    ("Go home, Tom.", "Leave us, Tom.", (2, 2, 0)),
    ("He nods. Go home.", "<role_action>nods</role_action> Go home.", (0, 0, 1)),
    ("He must go home.", "Must go home.", (1, 0, 0)),
    ("She nods. She must go.", "<role_action>nods</role_action> Must go.", (1, 0, 1)),
    ("Go home.", "<role_thinking>Go home.</role_thinking> <role_action>nods</role_action>", (2, 0, 0)),
    ("<role_action>nods</role_action> nods", "<role_action>nods</role_action>", (1, 0, 0)),
    ("凑近看。该走了。", "<role_action>凑近看</role_action> 该走了。", (0, 0, 3)),
    ("该走了。", "该走啦。", (1, 1, 0)),
  ],
)  # fmt: skip
def test_how_speech_changed(old, new, expected):
  assert _change(old, new) == expected


def test_a_long_reply_with_a_small_edit_is_compared_quickly():
  old = " ".join(f"word{i}" for i in range(40_000))
  new = old.replace("word20000 ", "")
  assert _change(old, new) == (1, 0, 0)


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30), st.data())
def test_what_is_lost_and_added_is_counted(words, data):
  kept = [w for w in words if data.draw(st.booleans())]
  lost, added, moved = _change(" ".join(words), " ".join(kept))
  assert (lost, added, moved) == (len(words) - len(kept), 0, 0)
  lost, added, moved = _change(" ".join(kept), " ".join(words))
  assert (lost, added, moved) == (0, len(words) - len(kept), 0)


@pytest.mark.parametrize(
  ("plan", "reply", "known", "language", "run"),
  [
    ("She lets the boy speak first.", "Nine minutes from here to the steps.", "", "en", 0),
    ("He says: nine minutes from here to the steps.", "Nine minutes from here to the steps.", "", "en", 7),
    ("HE SAYS NINE MINUTES, from here", "“Nine minutes from here to the steps.”", "", "en", 4),
    # Words that the scene has said already give nothing away.
    ("He repeats nine minutes from here to the steps.", "Nine minutes from here to the steps.",
     "It is nine minutes from here to the steps, Davy said.", "en", 0),
    ("Nine minutes from here to the quay.", "Nine minutes from here to the steps.",
     "It is nine minutes from here, Davy said.", "en", 6),
    ("他要提那把黄杨木算盘跟了他多少年。", "黄杨木的，跟了我二十年。", "", "zh", 0),
    ("他要说黄杨木的跟了我二十年。", "黄杨木的，跟了我二十年。", "", "zh", 10),
  ],
)  # fmt: skip
def test_what_a_plan_gives_away(plan, reply, known, language, run):
  found = checks.overlap(plan, reply, known, language)
  assert found.run == run
  assert bool(found.share) == bool(run)


@given(st.text(), st.text(), st.text(), st.sampled_from(["en", "zh"]))
def test_overlap_is_a_share_and_the_whole_gives_all_away(plan, reply, known, language):
  found = checks.overlap(plan, reply, known, language)
  assert 0 <= found.share <= 1
  whole = checks.overlap(f"x {reply} y", reply, "", language)
  size = 3 if language == "en" else 4
  assert whole.share == (len(checks.words(reply)) >= size)


@pytest.mark.parametrize(
  ("text", "language", "found"),
  [
    ("I should let him talk.", "en", "I"),
    ("She waits. My guess is that he breaks.", "en", "My"),
    ("I'm to play Una.", "en", "I"),
    ("Una thinks of herself and of him.", "en", None),
    ("He is to say “I never” and mean it.", "en", None),
    ("Part I. of the plan is to wait.", "en", None),
    ("The choice is mine; Miners wait in Maine.", "en", "mine"),
    ("The mine has closed; Miners wait in Maine.", "en", None),
    ("She knows that we are late.", "en", "we"),
    ("My lord will hear of it, she thinks.", "en", None),
    ("He is to say 'I never' and mean it.", "en", None),
    ("Her mimicry is enough; in time the army comes.", "en", None),
    ("我先等等看。", "zh", "我"),
    ("他要让她先开口。", "zh", None),
    ("他想说“我不去”，却说不出口。", "zh", None),
    ("「我」字不可出口。", "zh", None),
  ],
)
def test_first_person(text, language, found):
  assert checks.first_person(text, language) == found


@pytest.mark.parametrize(
  ("quote", "text", "expected"),
  [
    ("dead since  eighty-eight", "It had been dead\nsince eighty–eight.", True),
    ("“Go,” he said", '"Go," he said.', True),
    ("it’s late…", "it's late...", True),
    ("黄杨木的，跟了他 二十年", "那把算盘是黄杨木的，\n跟了他二十年。", True),
    ("dead since eighty-nine", "It had been dead since eighty-eight.", False),
    ("", "anything", False),
    (" ", "anything", False),
    ("Dead since", "dead since", False),
  ],
)
def test_quotes_are_looked_up_apart_from_blanks_and_marks(quote, text, expected):
  assert checks.stands_in(quote, text) is expected


def test_layouts_to_prefer_are_the_least_used():
  used = {layout: 5 for layout in layouts.PALETTE if layout != "TASTS"}
  assert "TASTS" in layouts.targets(used, 6)
  assert len(layouts.targets({}, 6)) == 6
  neighbours = {layouts.targets({}, 6, place) for place in range(3)}
  assert len(neighbours) == 3
  assert layouts.too_often({"TS": 30, "AS": 2, "S": 2}) == ("TS",)
  assert layouts.too_often({"TS": 3}) == ()


def test_palette_has_the_layouts_that_a_turn_can_have():
  assert {"TS", "ST", "TAS", "ATS", "TASTS"} <= set(layouts.PALETTE)
  assert all("S" in layout and "T" in layout for layout in layouts.PALETTE)
  assert len(layouts.PALETTE) == len(set(layouts.PALETTE)) >= 40
