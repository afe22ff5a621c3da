"""P6: whatever a tag looks like, what it hides reaches nobody it is hidden from.

The oracle is the text as it was put together, not the parser: a secret stands right behind each
tag that opens a hidden layer, and right before each that closes one.
"""

from hypothesis import given
from hypothesis import strategies as st

from her_jax.roleplay import grammar, notations
from her_jax.roleplay.grammar import ACTION, PLAN, THINKING

_SPELLINGS = {
  PLAN: ("system_thinking", "SYSTEM_THINKING", "system_think", "system thinking", "系统思考"),
  THINKING: (
    *("role_thinking", "Role_Thinking", "role thinking", "long_role_thinking", "role_think"),
    *("thought", "role_thinkng", "inner_monologue", "内心独白", "pensée"),
  ),
  ACTION: ("role_action", "ROLE_ACTION", "role_acton", "action", "动作"),
  "other": ("role_speech", "b", "smile"),
}
_BRACKETS = ("<{}>", "< {} >", "＜{}＞", "&lt;{}&gt;", '<{} mood="low">')
_HEARERS = ("other", "user", "environment", "next_speaker", "critic", "log")
_THOUGHT_READERS = ("self", "judge", "critic_with_thoughts")


@st.composite
def _texts(draw) -> str:
  text = ""
  for i in range(draw(st.integers(0, 7))):
    layer = draw(st.sampled_from([*_SPELLINGS]))
    name = draw(st.sampled_from(_SPELLINGS[layer]))
    closing = draw(st.booleans())
    bracket = draw(st.sampled_from(_BRACKETS[:4] if closing else _BRACKETS))
    tag = bracket.format(f"/{name}" if closing else name)
    secret = {PLAN: f" PLAN{i} ", THINKING: f" MIND{i} ", ACTION: f" said{i} "}.get(
      layer, " x "
    )
    text += secret + tag if closing else tag + secret
    text += draw(st.sampled_from(["", "word ", "\n\n", " Joost: no. "]))
  return text


@given(_texts(), st.sampled_from([None, "Una"]))
def test_p6_no_viewer_sees_what_is_hidden_from_it(text, speaker):
  reply = grammar.parse(text, speaker)
  for viewer in _HEARERS:
    seen = reply.view_for(viewer)
    assert "PLAN" not in seen and "MIND" not in seen
  for viewer in _THOUGHT_READERS:
    assert "PLAN" not in reply.view_for(viewer)
  # The trainer sees it all, and a repaired turn hides as much.
  shown = reply.view_for("trainer")
  assert text.count("PLAN") == shown.count("PLAN") and text.count("MIND") == shown.count("MIND")
  again = grammar.parse(grammar.repair(text, speaker), speaker)
  assert "PLAN" not in again.view_for("judge") and "MIND" not in again.view_for("other")
  mixed = notations.from_either(text, speaker)
  assert "PLAN" not in mixed.view_for("judge") and "MIND" not in mixed.view_for("other")


@given(_texts())
def test_p6_speech_is_never_lost_in_silence(text):
  """What stays out of sight though it was said is told of, and every word is somewhere."""
  reply = grammar.parse(text)
  whole = "".join(segment.text for segment in reply.segments)
  for word in ("said", "word", "Joost: no.", "PLAN", "MIND"):
    assert whole.count(word) == text.count(word)
  if reply.view_for("other").count("said") < text.count("said"):
    assert reply.status != "ok" and reply.problems
