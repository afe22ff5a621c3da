"""The dual-layer turn: nothing hidden is shown, nothing said is lost."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar
from her_jax.roleplay.grammar import ACTION, PLAN, SPEECH, THINKING

# Any text without a character that could begin or end a tag, or a name's prefix.
_TEXT = st.text(
  st.characters(blacklist_characters="<>:：", blacklist_categories=("Cs",)), max_size=20
)
_WORDS = st.text("abc xyz\n\t，。", min_size=1, max_size=12)


def _tag(kind: str, text: str) -> str:
  return f"<{kind}>{text}</{kind}>"


@st.composite
def _valid_turns(draw) -> str:
  """A plan (or none), then layers in any order."""
  plan = draw(st.none() | _TEXT)
  kinds = draw(st.lists(st.sampled_from([THINKING, ACTION, SPEECH]), min_size=1, max_size=6))
  text = "" if plan is None else _tag(PLAN, plan)
  for kind in kinds:
    layer = draw(_TEXT)
    text += layer if kind == SPEECH else _tag(kind, layer)
  return text


@given(_valid_turns())
def test_a_valid_turn_is_rendered_as_it_was(text):
  reply = grammar.parse(text)
  assert (reply.status, reply.problems) == ("ok", ())
  assert grammar.render(reply) == text


@given(_valid_turns().filter(lambda text: PLAN not in text), _TEXT)
def test_a_name_in_front_is_taken_off_and_written_back(layers, plan):
  text = f"{_tag(PLAN, plan)}Una: {layers}"
  reply = grammar.parse(text, "Una")
  assert reply.speaker == "Una"
  assert grammar.render(reply) == text
  assert "Una" not in reply.view_for("judge")


@given(st.text(st.sampled_from("<>/_abcthinkgroleysm ATION:\n"), max_size=60), st.booleans())
def test_any_text_is_parsed_without_loss(text, named):
  """Whatever the tags look like: all text outside of tags is in a segment, in order."""
  reply = grammar.parse(text)
  bare = re.sub(
    r"<\s*/?\s*(system_thinking|role_thinking|role_action)\s*>", "", text, flags=re.IGNORECASE
  )
  assert "".join(segment.text for segment in reply.segments) == bare
  for viewer in grammar.VIEWS:
    grammar.parse(text, "a" if named else None).view_for(viewer)


def _spelt(draw, kind: str, close: bool) -> str:
  """A tag in regular or irregular spelling."""
  name = draw(st.sampled_from([kind, kind.upper(), kind.title()]))
  blank = draw(st.sampled_from(["", " "]))
  return f"<{blank}{'/' if close else ''}{name}{blank}>"


@st.composite
def _secretive_turns(draw) -> str:
  """Blocks with a secret in every plan (`PLANn`) and thought (`MINDn`).

  Each block is balanced, left unclosed before the next tag or the end, nested in its own
  kind, or closed without having been opened. Before an orphan close stands a whole layer, so
  that it is plain which text it belongs to.
  """
  text = ""
  for i in range(draw(st.integers(1, 5))):
    kind = draw(st.sampled_from([PLAN, THINKING]))
    secret = f"{'PLAN' if kind == PLAN else 'MIND'}{i}"
    opened, closed = _spelt(draw, kind, False), _spelt(draw, kind, True)
    shown = draw(st.sampled_from(["", _tag(ACTION, "nods")]))
    form = draw(st.sampled_from(["balanced", "unclosed", "nested", "orphaned"]))
    if form == "balanced":
      text += f"{shown}{opened}{secret}{closed} Good day. "
    elif form == "unclosed":
      text += f"{shown}{opened}{secret}{_tag(ACTION, 'waves')}"
    elif form == "nested":
      text += f"{opened}{secret}a{opened}{secret}b{closed}{secret}c{closed} Hm. "
    else:
      text += f"{_tag(ACTION, 'sits')}{secret}{closed} So. "
  if draw(st.booleans()):
    kind = draw(st.sampled_from([PLAN, THINKING]))
    text += f"<{kind}>{'PLAN' if kind == PLAN else 'MIND'}9"
  return text


@pytest.mark.parametrize("kind", [THINKING, ACTION])
def test_what_is_closed_as_a_plan_is_hidden_as_one(kind):
  reply = grammar.parse(f"<{kind}>Hm. {_tag(ACTION, 'nods')} She lies.</{PLAN}> Sit.")
  for viewer in ("other", "judge", "self"):
    assert "She lies" not in reply.view_for(viewer)
  assert "She lies" in reply.view_for("trainer") and "Sit." in reply.view_for("other")


@given(_secretive_turns())
def test_others_see_no_secret_and_the_judge_no_plan(text):
  for speaker in (None, "Una"):
    reply = grammar.parse(text, speaker)
    others = reply.view_for("other")
    assert "PLAN" not in others and "MIND" not in others
    assert "PLAN" not in reply.view_for("judge") + reply.view_for("self")
    # What was done stays visible, unless it may as well be part of a hidden layer.
    nested = any(" within " in problem for problem in reply.problems)
    assert nested or others.count(_tag(ACTION, "waves")) == text.count(_tag(ACTION, "waves"))


@given(st.lists(st.sampled_from(grammar.TAGS), max_size=8), st.integers(0, 10**6))
def test_what_an_open_hidden_layer_holds_stays_hidden_whatever_follows(tags, seed):
  """Random tags; text right behind an opening plan or thought is never shown."""
  rng = random.Random(seed)
  text = ""
  for i, tag in enumerate(tags):
    if rng.random() < 0.3:
      tag = tag.upper()
    text += tag
    if tag.lower() in (f"<{PLAN}>", f"<{THINKING}>"):
      text += f"{'PLAN' if PLAN in tag.lower() else 'MIND'}{i}"
    else:
      text += "word "
  reply = grammar.parse(text)
  assert "PLAN" not in reply.view_for("other") and "MIND" not in reply.view_for("other")
  assert "PLAN" not in reply.view_for("judge")


@pytest.mark.parametrize(
  "text, status, problem",
  [
    ("Good day.", "ok", None),
    ("<system_thinking>p</system_thinking>Good day.", "ok", None),
    ("<role_thinking>t</role_thinking><role_action>a</role_action>", "ok", None),
    ("<ROLE_ACTION>a</ROLE_ACTION> Hi.", "repaired", "irregular tag '<ROLE_ACTION>'"),
    ("< role_action >a</role_action> Hi.", "repaired", "irregular tag"),
    ("<role_thinking>t<role_action>a</role_action>", "repaired", "not closed before"),
    ("<role_thinking>t</role_action> Hi.", "repaired", "is closed by </role_action>"),
    ("<role_thinking>t", "malformed", "never closed"),
    ("t</role_thinking> Hi.", "malformed", "closes nothing"),
    (_tag(PLAN, "a") + _tag(PLAN, "b") + "Hi.", "malformed", "2 plans instead of one"),
    ("Hi." + _tag(PLAN, "a"), "malformed", "the plan is not first"),
  ],
)
def test_status_and_problem(text, status, problem):
  reply = grammar.parse(text)
  assert reply.status == status
  if problem is None:
    assert not reply.problems
  else:
    assert any(problem in found for found in reply.problems)


@pytest.mark.parametrize(
  "text, layout",
  [
    ("<role_action>nods</role_action> Go.", "AS"),
    ("<role_action>nods</role_action> \n ", "A"),
    ("<role_thinking> </role_thinking>Go.", "S"),
    ("<system_thinking>p</system_thinking>", ""),
    (_tag(THINKING, "t") + _tag(ACTION, "a") + "S" + _tag(ACTION, "b"), "TASA"),
  ],
)
def test_layout_leaves_out_plans_and_blanks(text, layout):
  assert grammar.parse(text).layout() == layout


def test_paragraphs_survive_in_every_view():
  text = "One.\n\nTwo.<role_thinking>x</role_thinking>\nThree."
  assert grammar.parse(text).view_for("other") == "One.\n\nTwo.\nThree."


def test_a_hidden_layer_leaves_no_double_blank():
  reply = grammar.parse("One. <role_thinking>x</role_thinking> Two.")
  assert reply.view_for("other") == "One. Two."


def test_the_log_shows_all_and_each_viewer_its_layers():
  text = _tag(PLAN, "P") + "Una: " + _tag(THINKING, "T") + _tag(ACTION, "A") + "S"
  reply = grammar.parse(text, "Una")
  assert reply.view_for("trainer") == text
  assert reply.view_for("judge") == _tag(THINKING, "T") + _tag(ACTION, "A") + "S"
  assert reply.view_for("other") == _tag(ACTION, "A") + "S"
  assert reply.plan == "P"


def test_an_unknown_viewer_is_refused_by_name():
  with pytest.raises(ValueError, match="unknown viewer 'everybody'.*judge"):
    grammar.parse("x").view_for("everybody")


@pytest.mark.parametrize(
  "text, speaker, rest",
  [
    ("Una: Hello.", "Una", "Hello."),
    ("Una：你好。", "Una", "你好。"),
    ("  Una: Hello.", "Una", "Hello."),
    (_tag(PLAN, "p") + "\nUna: Hello.", "Una", "Hello."),
    ("Unas: Hello.", None, "Unas: Hello."),
    ("Joost: Hello.", None, "Joost: Hello."),
    (_tag(ACTION, "nods") + "Una: Hello.", None, _tag(ACTION, "nods") + "Una: Hello."),
    ("Una: " + _tag(ACTION, "nods"), "Una", _tag(ACTION, "nods")),
  ],
)
def test_speaker_prefix(text, speaker, rest):
  reply = grammar.parse(text, "Una")
  assert reply.speaker == speaker
  assert reply.view_for("other") == rest


def test_without_a_speaker_the_prefix_is_speech():
  reply = grammar.parse("Una: Hello.")
  assert reply.speaker is None
  assert reply.view_for("other") == "Una: Hello."


def test_a_name_with_signs_of_regular_expressions_is_taken_literally():
  assert grammar.parse("D. (Sir): Yes.", "D. (Sir)").speaker == "D. (Sir)"
  assert grammar.parse("DX (Sir): Yes.", "D. (Sir)").speaker is None


_GOOD = _tag(PLAN, "Una waits.") + "Una: " + _tag(THINKING, "Hm.") + "Good day."


@pytest.mark.parametrize(
  "text, valid",
  [
    (_GOOD, True),
    (_tag(PLAN, "Una waits.") + "Una: " + _tag(ACTION, "nods"), True),  # A silent deed.
    (_GOOD.replace("Una waits.", "  "), False),
    (_GOOD.replace(_tag(PLAN, "Una waits."), ""), False),
    (_tag(PLAN, "Again.") + _GOOD, False),
    ("Good. " + _GOOD, False),
    (_GOOD.replace("Una: ", ""), False),
    (_GOOD.replace("Una: ", "Joost: "), False),
    (_tag(PLAN, "Una waits.") + "Una: " + _tag(THINKING, "Hm."), False),
    (_tag(PLAN, "Una waits."), False),
    (_GOOD.replace("</role_thinking>", ""), False),
    (_GOOD.replace("role_thinking", "Role_Thinking"), False),
    (_GOOD + "\nJoost: I will go.", False),
    (_GOOD + "\nEnvironment, Joost: is what she says.", True),
    ("", False),
  ],
)
def test_is_valid_turn(text, valid):
  assert grammar.is_valid_turn(text, "Una", ["Joost"]) is valid


def test_a_line_for_another_inside_a_thought_is_no_speech_for_them():
  text = _tag(PLAN, "p") + "Una: " + _tag(THINKING, "\nJoost: he will say no\n") + "Go."
  assert grammar.is_valid_turn(text, "Una", ["Joost"])


@pytest.mark.parametrize(
  "text, speaks",
  [
    ("Joost: yes", True),
    ("Good.\n  Joost : yes", True),
    ("约斯特：好", True),
    ("I told Joost: no.", False),
    ("Joostina: yes", False),
    ("", False),
  ],
)
def test_speaks_for(text, speaks):
  assert grammar.speaks_for(text, ["Joost", "约斯特"]) is speaks


def test_speaks_for_nobody_where_there_is_nobody():
  assert not grammar.speaks_for(": yes", [])


@pytest.mark.parametrize(
  "text, empty",
  [
    ("", True),
    (" \n", True),
    (_tag(PLAN, "p"), True),
    (_tag(PLAN, "p") + "Una: ", True),
    (_tag(THINKING, "t"), True),
    (_tag(ACTION, " "), True),
    ("<system_thinking>cut off in the plan", True),
    (_tag(ACTION, "nods"), False),
    ("Hm.", False),
  ],
)
def test_a_reply_that_nobody_could_perceive_is_empty(text, empty):
  assert grammar.parse(text, "Una").is_empty is empty
