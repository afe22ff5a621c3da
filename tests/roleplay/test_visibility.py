"""P6: who sees what, whatever the tags of a turn look like.

The oracle is the text as it was put together. Only for the text outside of tags is the scanner
asked, whose own tests are in `test_tags`.
"""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar, tags
from her_jax.roleplay.grammar import ACTION, PLAN, SPEECH, THINKING

_NAMES = {
  PLAN: (
    *("system_thinking", "System_Thinking", "system_think", "sys_thinking", "SYSTEM THINKING"),
    *("system-thinking", "sytem_thinking", "systemthinking", "systm thinking", "SystemPlan"),
    *("系统思考", "planning", "s\u200bystem_thinking"),
  ),
  THINKING: (
    *(
      "role_thinking",
      "ROLE_THINKING",
      "role_think",
      "long_role_thinking",
      "thought",
      "Thoughts",
    ),
    *("role thinking", "role_thinkng", "roleThinking", "inner_monologue", "inner thoughts"),
    *("内心独白", "心声", "pensée", "pense\u0301e", "Gedanken", "role\\_thinking"),
  ),
  ACTION: ("role_action", "Role_Action", "role_acton", "action", "动作", "role action"),
  SPEECH: ("role_speech", "speech", "says"),
  "other": ("b", "smile", "I think so", "小说"),
}
_BRACKETS = (
  *("<{}{}>", "<{} {}>", "< {}{} >", "＜{}{}＞", "&lt;{}{}&gt;", "&amp;lt;{}{}&amp;gt;"),
  *("<|{}{}|>", "＜{}{}&gt;", "\\<{}{}\\>"),
)
_OPENING = ('<{}{} mood="low">', "<{}{} mood=low who='Una'>")
# A bracket is missing, or it is another: only names that are no words are known then.
_BROKEN = (
  "<{}{} ",
  "<{}{}\n",
  "&lt;{}{}。",
  " {}{}>",
  "。{}{}&gt;",
  "[{}{}]",
  "【{}{}】",
  "<{}{}: ",
)
_HEARERS = ("other", "user", "environment", "next_speaker", "critic", "log")
_THOUGHT_READERS = ("self", "judge", "critic_with_thoughts")


@st.composite
def _tags(draw) -> tuple[str, str, bool]:
  """A layer, a tag for it in any spelling, and whether it closes."""
  layer = draw(st.sampled_from([*_NAMES, PLAN, THINKING]))
  name, closing = draw(st.sampled_from(_NAMES[layer])), draw(st.booleans())
  brackets = _BRACKETS if closing else _BRACKETS + _OPENING
  if name.lower() in (*grammar.TAGGED, "role_think", "role_speech"):
    brackets += _BROKEN
  return layer, draw(st.sampled_from(brackets)).format("/" if closing else "", name), closing


@st.composite
def _texts(draw) -> str:
  """Random tags: behind each that opens a hidden layer a secret, and before each that closes."""
  text = draw(st.sampled_from(["", "Una: ", "Hm. "]))
  for i, (layer, tag, closing) in enumerate(draw(st.lists(_tags(), max_size=8))):
    piece = {PLAN: f" PLAN{i}. ", THINKING: f" MIND{i}. "}.get(layer, f" said{i}. ")
    text += piece + tag if closing else tag + piece
    text += draw(st.sampled_from(["", " Go. ", "\n\n", "\nJoost: No. ", "好。", "<", ">"]))
  return text


def _assert_nothing_leaks(reply: grammar.Reply):
  for viewer in _HEARERS:
    seen = reply.view_for(viewer)
    assert "PLAN" not in seen and "MIND" not in seen, viewer
  for viewer in _THOUGHT_READERS:
    assert "PLAN" not in reply.view_for(viewer), viewer


@given(_texts(), st.sampled_from([None, "Una"]))
def test_p6_no_secret_reaches_a_viewer_it_is_hidden_from(text, speaker):
  reply = grammar.parse(text, speaker)
  _assert_nothing_leaks(reply)
  for word in ("PLAN", "MIND", "said"):
    assert reply.view_for("trainer").count(word) == text.count(word)


@given(_texts(), st.sampled_from([None, "Una"]))
def test_p6_a_view_hides_as_much_when_it_is_read_once_more(text, speaker):
  """What is written to a file and read again, or repaired, or cut short, leaks no more."""
  reply = grammar.parse(text, speaker)
  _assert_nothing_leaks(grammar.parse(grammar.repair(text, speaker), speaker))
  _assert_nothing_leaks(grammar.parse(grammar.render(reply), speaker))
  _assert_nothing_leaks(grammar.parse(grammar.cut_before(text, ["Joost"]), speaker))
  for viewer in _THOUGHT_READERS:
    _assert_nothing_leaks(grammar.parse(reply.view_for(viewer)))


@given(_texts())
def test_p6_every_character_outside_of_tags_is_in_one_segment_in_order(text):
  bare, done = "", 0
  for tag in tags.scan(text):
    if tag.layer:
      bare += text[done : tag.start]
      done = tag.end
  reply = grammar.parse(text)
  assert "".join(segment.text for segment in reply.segments) == bare + text[done:]


@given(_texts())
def test_p6_what_was_said_and_is_hidden_by_a_guess_is_told_of(text):
  reply = grammar.parse(text)
  if reply.view_for("other").count("said") < text.count("said"):
    assert reply.status != "ok" and reply.problems


@given(st.lists(st.sampled_from([PLAN, THINKING, ACTION, SPEECH]), max_size=8))
def test_each_viewer_sees_the_layers_of_the_table_and_no_other(kinds):
  text = "".join(
    f"w{i}. " if kind == SPEECH else f"<{kind}>w{i}.</{kind}>" for i, kind in enumerate(kinds)
  )
  reply = grammar.parse(text)
  for viewers, hidden in (
    (_HEARERS, (PLAN, THINKING)),
    (_THOUGHT_READERS, (PLAN,)),
    (("trainer",), ()),
  ):
    for viewer in viewers:
      shown = {f"w{i}." for i, kind in enumerate(kinds) if kind not in hidden}
      seen = reply.view_for(viewer)
      assert {f"w{i}." for i in range(len(kinds)) if f"w{i}." in seen} == shown
  assert {*_HEARERS, *_THOUGHT_READERS, "trainer"} == set(grammar.VIEWS)


@pytest.mark.parametrize(
  "text",
  [
    "<role_thinking: SECRET> Go.",
    "<thought: SECRET> Go.",
    "[role_thinking: SECRET] Go.",
    "<inner thoughts>SECRET</inner thoughts> Go.",
    '<thought mood="low">SECRET <role_action>nods</role_action> Go.',
    "<pense\u0301e>SECRET</pense\u0301e> Go.",
    "<innerMonologue>SECRET</innerMonologue> Go.",
    "你好role_thinking>SECRET</role_thinking>好。",
    "<role_thinking他SECRET <role_action>点头</role_action>好。",
    "&amp;lt;role_thinking&amp;gt;SECRET <role_action>nods</role_action> Go.",
    "<role_action>SECRET</role_thinking> Go.",
    "<role_action>nods</role_action> SECRET</role_thinking> Go.",
    "<role_action>nods <role_thinking>SECRET</role_action> Go.",
    "<role_thinking>Hm. <role_action>SECRET</role_action></role_thinking> Go.",
    "<role_thinking>Hm. </role_speech>SECRET</role_thinking> Go.",
    "<role_speech>SECRET</role_thinking> Go.",
    "Hm. <think>SECRET</think> Go.",
    "<role_thinking><b>SECRET</b></role_thinking> Go.",
  ],
)
def test_p6_a_thought_of_any_shape_is_hidden(text):
  reply = grammar.parse(text)
  assert reply.status != "ok" or "within" in text or "<b>" in text
  for viewer in _HEARERS:
    assert "SECRET" not in reply.view_for(viewer)
  assert "SECRET" in reply.view_for("judge")


@pytest.mark.parametrize(
  "text",
  [
    "<sytem_thinking>SECRET</sytem_thinking>Go.",
    "<ſystem_thinking>SECRET</ſystem_thinking>Go.",
    "SECRET</system_thinking>Go.",
    "<think>SECRET</think>Go.",
    "SECRET</think>Go.",
    "\n <think>SECRET</role_thinking>Go.",
    "<role_thinking>SECRET</system_thinking>Go.",
    "<system_thinking>SECRET</role_thinking>Go.",
    "<system_thinking>A <role_thinking>SECRET</role_thinking></system_thinking>Go.",
    "<role_thinking>A <system_thinking>SECRET</role_thinking>Go.",
    "<system_thinking>A</system_thinking><system_thinking>SECRET</system_thinking>Go.",
    "Go. <system_thinking>SECRET",
  ],
)
def test_p6_a_plan_of_any_shape_is_hidden_from_the_judge(text):
  reply = grammar.parse(text)
  for viewer in (*_HEARERS, *_THOUGHT_READERS):
    assert "SECRET" not in reply.view_for(viewer)
    assert "Go." in reply.view_for(viewer)
  assert "SECRET" in reply.view_for("trainer")
