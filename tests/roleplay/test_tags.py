"""Tags are found however they are spelt, and ordinary prose has none."""

import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar, tags
from her_jax.roleplay.tags import ACTION, PLAN, SPEECH, TAGGED, THINK, THINKING

# Pieces from which tags, halves of tags and near misses come together.
_PIECES = st.sampled_from([
  *("<", ">", "＜", "＞", "&lt;", "&gt;", "&amp;", "lt;", "[", "]", "【", "】", "{", "《", "》"),
  *("/", "\\", " ", "\n", "\t", "=", '"', ":", "_", "-", "!", "a", "é", "他", "\u200b", "\0"),
  *("system_thinking", "ROLE_THINKING", "role_action", "role_", "thinking", "plan", "think"),
  *("role_speech", "内心", "says", "b", "<role_action>", "</role_thinking>", "<b>", "Una: "),
])  # fmt: skip
_ANY = st.text() | st.lists(_PIECES, max_size=30).map("".join)


def _layers(text: str) -> list[tuple[str | None, bool]]:
  return [(tag.layer, tag.closing) for tag in tags.scan(text)]


@given(_ANY)
def test_tags_stand_in_order_and_never_overlap(text):
  end = 0
  for tag in tags.scan(text):
    assert end <= tag.start < tag.end <= len(text)
    assert tag.layer in (*TAGGED, SPEECH, THINK, None)
    assert tag.fault or text[tag.start : tag.end] in grammar.TAGS
    end = tag.end


@given(_ANY)
def test_what_is_defused_holds_no_tag(text):
  assert tags.scan(tags.defuse(text)) == []


@given(st.text(st.characters(exclude_characters="<＜&_", codec="utf-8")))
def test_a_text_without_brackets_or_names_is_left_alone(text):
  assert tags.scan(text) == []
  assert tags.defuse(text) == text


@pytest.mark.parametrize(
  "text, defused",
  [
    ("a <role_action>b", "a (role_action)b"),
    ("a</ROLE_ACTION>", "a(/role_action)"),
    ("[role_thinking] x", "(role_thinking) x"),
    ("<b>x</b> a < b", "(b)x(/b) a < b"),
    ("<ro<b>le_action>", "(ro(b)le_action)"),
    ("<<plan>>", "((plan))"),
    ("<role_<role_thinking>thinking>", "(role_(role_thinking)thinking)"),
  ],
)
def test_defuse_makes_parentheses_of_brackets(text, defused):
  assert tags.defuse(text) == defused


@pytest.mark.parametrize("kind", TAGGED)
@pytest.mark.parametrize(
  "spelling",
  [
    *("<{}>", "< {} >", "<\t{}>", "<{}\u200b>", "＜{}＞", "＜{}>", "&lt;{}&gt;", "&LT;{}&GT;"),
    *(
      "&amp;lt;{}&amp;gt;",
      "&#60;{}&#x3E;",
      "<|{}|>",
      "<*{}*>",
      "\\<{}\\>",
      "<{}:>",
      "<{}...>",
    ),
    *(
      "<{} mood='sad'>",
      '<{} mood="sad" who = "Una">',
      "<{}",
      "&lt;{}",
      "{}>",
      "。{}>",
      "好{}>",
    ),
    *("[{}]", "[ {} ]", "【{}】", "《{}》", "{{{}}}", "[{}:", "<{}, sad", "<{}他", "<{}\n"),
  ],
)
def test_a_regular_name_is_known_in_whatever_brackets(kind, spelling):
  for name in (kind, kind.upper(), kind.title()):
    assert _layers(f"Yes. {spelling.format(name)} Sit.") == [(kind, False)]
    assert _layers(f"Yes. {spelling.format('/' + name)} Sit.") == [(kind, True)]


@pytest.mark.parametrize(
  "name, layer",
  [
    *((name, PLAN) for name in ("system_think", "sys_thinking", "systemthinking", "plan")),
    *((name, PLAN) for name in ("System Thinking", "SystemThoughts", "系统思考", "inner_plan")),
    # A mistyped plan is no thought, though it has "thinking" in it.
    *((name, PLAN) for name in ("sytem_thinking", "systm_thinking", "sistem thinking")),
    *((name, PLAN) for name in ("ſystem_thinking", "ｓystem_thinking", "s\u200bystem_thinking")),
    *((name, THINKING) for name in ("role_think", "long_role_thinking", "thought", "Thoughts")),
    *((name, THINKING) for name in ("role_thinkng", "rol_thinking", "roleThinking", "his_mind")),
    *((name, THINKING) for name in ("inner_monologue", "Inner Monologue", "innerMonologue")),
    *((name, THINKING) for name in ("inner thoughts", "my thoughts", "Role-Thinking", "role.think")),
    *((name, THINKING) for name in ("内心独白", "她心想", "心声", "内心 独白", "思考", "心の声")),
    *((name, THINKING) for name in ("pensée", "pense\u0301e", "Gedanken", "мысли", "생각")),
    *((name, ACTION) for name in ("action", "role_acton", "动作", "Handlung", "acción")),
    *((name, SPEECH) for name in ("role_speech", "speech", "says", "说")),
    ("think", THINK),
    *((name, None) for name in ("b", "smile", "roleplay", "role", "I think", "I think so")),
    *((name, None) for name in ("though", "through", "thorough", "thoughtful", "rethink")),
    *((name, None) for name in ("the plan is set", "Mind the gap", "Act I", "开心", "中心", "小说")),
    *((name, None) for name in ("mind.jones@x.com", "https://my.mind.org", "www.mind.org", "!--plan")),
  ],
)  # fmt: skip
def test_a_name_means_a_layer(name, layer):
  assert tags.layer_of(name) == layer
  found = [tag.layer for tag in tags.scan(f"Yes. <{name}> Sit.")]
  assert found == [layer] or (layer is None and not found)


def test_attributes_belong_to_the_tag_and_other_words_do_not():
  assert [(t.start, t.end) for t in tags.scan('<thought mood="so so">x')] == [(0, 22)]
  assert [(t.start, t.end) for t in tags.scan("<role_thinking I go>x")] == [(0, 14)]
  assert [(t.start, t.end) for t in tags.scan("<role_action 1+1 = 2 she says>")] == [(0, 12)]
  assert [(t.start, t.end) for t in tags.scan("<thought: he lies> x")] == [(0, 8)]
  assert [(t.start, t.end) for t in tags.scan("<role_thinking我不信>")] == [(0, 14)]


def test_only_the_regular_spelling_is_without_fault():
  assert [tag.fault for tag in tags.scan("".join(grammar.TAGS))] == [None] * 6
  assert all(tag.fault for tag in tags.scan("<Role_Action></role_action ><role_think><b>"))


@pytest.mark.parametrize(
  "text",
  [
    *("a < b and c > d", "x<y, y>z", "if (a<b && b>c) return;", "1 &lt; 2 &gt; 0", "p(x|y) < 0.5"),
    *("<3", "I <3 you >.<", "<_<", ">_>", "<- here", "--> there", "=>", "<=", "<>", "< >", "</>"),
    *("<I think so>", "<Mind the gap>", "<https://x>", "<https://my.mind.org>", "<Act II: Plan>"),
    *("Una <una.plan@mind.org>", "From: J. <jo@x.org>", "<!-- the plan -->", "<!--plan-->"),
    *("She had a plan. She thought: no.", "[thought] [plan] (action)", "system thinking", "role"),
    *("《思想录》", "【内心】", "【系统】恭喜升级。", "“我想……”", "（心想）", "〈行动〉"),
    *("R&D; AT&T &c. &amp; &lt;", "C:\\plan\\act", "a/b/c", "{plan}", "$x_{thinking}$", "_thinking_"),
  ],
)  # fmt: skip
def test_ordinary_prose_has_no_tags(text):
  assert tags.scan(text) == []
  assert grammar.parse(text).view_for("other") == text
  assert grammar.parse(text).status == "ok"


@pytest.mark.parametrize(
  "text", ["<b>so</b>", "<smile>", "<div>", "<br/>", "List<Item>", "<开心>", "<Una>"]
)
def test_an_unknown_tag_stays_text_and_is_told_of(text):
  reply = grammar.parse(f"Yes {text} no.")
  assert reply.view_for("other") == f"Yes {text} no."
  assert reply.status == "repaired"
  assert all("kept as text" in problem for problem in reply.problems)


_LONG = {
  "open": "<" * 20_000,
  "close": ">" * 20_000,
  "blanks": "<" + " " * 20_000,
  "square and blanks": "[" + " " * 20_000,
  "name and blanks": "role_thinking" + " " * 20_000,
  "lines": "\n" * 20_000,
  "blank lines": " \n" * 10_000,
  "escaped": "&lt;" * 5_000,
  "half escaped": "&" + "amp;" * 5_000,
  "zeros": "&#" + "0" * 20_000,
  "deep": "<role_action>" * 2_000 + "</role_action>" * 2_000,
  "crossed": "<role_action>" * 999 + "<role_thinking>" * 999 + "</role_action>" * 999,
  "wrapped": "<role_speech>" * 1_000 + "</role_thinking>" * 1_000,
  "orphans": "</role_action>x" * 1_300,
  "square": "[role_thinking" * 1_000,
  "Qwen's": "<think>" * 1_250 + "</think>" * 1_250,
  "Qwen's end": "</think>" * 2_500,
  "names": "".join(f"<abcdef{i}ing>" for i in range(1_300)),
  "mistyped": "".join(f"<systam{i}_act>" for i in range(1_300)),
  "attributes": ("<" + "a =b " * 15 + ">") * 250,
  "blanks within": ("<x" + " " * 76 + "a>") * 250,
  "lines for another": "<role_thinking>" + "Una: no.\n" * 2_000,
  "name at a line's start": "x\nUna" + " " * 20_000,
  "nested name": "<" * 9_000 + "plan" + ">" * 9_000,
}


@pytest.mark.parametrize("text", _LONG.values(), ids=_LONG)
def test_no_text_takes_long(text):
  """Each step within a second; well below, in truth, so that a loaded machine passes too."""
  for step in (
    tags.scan,
    tags.defuse,
    grammar.parse,
    grammar.repair,
    lambda text: grammar.parse(text).view_for("other"),
    lambda text: grammar.cut_before(text, ["Una"]),
    lambda text: grammar.is_valid_turn(text, "Joost", ["Una"]),
  ):
    begin = time.process_time()
    step(text)
    assert time.process_time() - begin < 1
