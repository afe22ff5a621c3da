"""CoSER's notation and chat's asterisks: there and back, and no thought ever shown."""

import re

from hypothesis import example, given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar, notations
from her_jax.roleplay.grammar import ACTION, SPEECH, THINKING, Segment

# No brackets, and nothing that tags are made of.
_PLAIN = st.text(
  st.characters(blacklist_characters="[]()<>＜＞&【】［］（）_", blacklist_categories=("Cs",)),
  max_size=12,
)
_LINES = st.sampled_from(["", " ", "\n", "\n\n", "a\nb", "他想。", "So, *well*: ", "'"])
_SMALL = _PLAIN | _LINES


def _nested(opening: str, closing: str) -> st.SearchStrategy[str]:
  """Text in which brackets of one kind are balanced, nested ones too."""
  wrapped = lambda inner: st.lists(_SMALL | inner.map(lambda t: f"{opening}{t}{closing}"))
  return st.recursive(_SMALL, lambda t: wrapped(t).map("".join), max_leaves=5)


# A thought may hold parentheses without partners, an action none, speech none either.
_THOUGHT_TEXT = st.tuples(_nested("[", "]"), st.sampled_from(["", "(", ")", "(b) ", ":)"])).map(
  "".join
)
_BALANCED = st.lists(
  _SMALL
  | _THOUGHT_TEXT.map(lambda t: f"[{t}]")
  | _nested("(", ")").map(lambda t: f"({t})")
  | st.just("[]")
  | st.just("()"),
  max_size=6,
).map("".join)


@given(_BALANCED)
@example("[He lies (again) [as ever].\n\nSo.] (bows (low))\nSir. [] ()")
@example("[:)] So (nods)")
def test_balanced_text_comes_back_to_the_letter(text):
  reply = notations.from_coser(text)
  assert (reply.status, reply.problems) == ("ok", ())
  assert notations.to_coser(reply) == text


@given(_BALANCED, st.sampled_from(["1) and 2)", ":(", ") or (", "((", ":-)"]))
def test_parentheses_without_partner_come_back_too(text, lone):
  # Behind a lone parenthesis that opens nothing may close it.
  text = f"{lone} {text}" if lone.endswith(")") else f"{text} {lone}"
  reply = notations.from_coser(text)
  assert reply.status == "repaired"
  assert notations.to_coser(reply) == text


def _hidden(text: str) -> set[int]:
  """The places of `text` within, or before or behind, brackets that make them a thought.

  Written from the rule alone, by counting: deep inside, behind an opening bracket that is
  never closed, and between the last thought and a closing one that closes nothing.
  """
  hidden: set[int] = set()
  depth, opened, since = 0, 0, 0
  for i, sign in enumerate(text):
    if sign in "[［【":
      opened = opened if depth else i
      depth += 1
    elif sign in "]］】" and depth == 0:
      hidden |= set(range(since, i))
      since = i + 1
    elif sign in "]］】":
      depth -= 1
      if depth == 0:
        hidden |= set(range(opened, i))
        since = i + 1
  return hidden | set(range(opened, len(text))) if depth else hidden


_SIGNS = [
  "[",
  "]",
  "(",
  ")",
  *"【】［］（）",
  "@",
  "@",
  "@",
  " ",
  "\n",
  "so ",
  "<",
  ">",
  "_",
  "*",
  "role_thinking",
]


@given(st.lists(st.sampled_from([*_SIGNS, "<role_action>", "</role_thinking>", "[/", "x=["])))
@example(list("(@[@)@"))
@example(list("@(@]@)@"))
@example(list("[@[@]@"))
@example(["[", "<", "role_thinking", " ", "x=[", ">", "@", "]", "@"])
def test_what_brackets_hide_is_never_shown(signs):
  """Whatever the text: each `@` is a word of its own, and hidden exactly where it must be.

  The words are long, so that none is taken for a slip within a tag's name.
  """
  pieces = [f" WORD{i}FOR_IT " if sign == "@" else sign for i, sign in enumerate(signs)]
  text = "".join(pieces)
  hidden = _hidden(text)
  reply = notations.from_coser(text)
  views = {viewer: reply.view_for(viewer) for viewer in ("other", "user", "judge", "self")}
  for match in re.finditer(r"WORD\d+FOR_IT", text):
    shown = match.start() not in hidden
    assert (match[0] in views["other"]) == (match[0] in views["user"]) == shown
    # Nothing is lost: who sees thoughts sees all.
    assert match[0] in views["judge"] and match[0] in views["self"]


@given(st.lists(st.sampled_from(_SIGNS)).map("".join))
def test_what_was_read_is_regular_in_our_notation(text):
  segments = notations.from_coser(text).segments
  read = grammar.parse(grammar.render(grammar.Reply(segments)))
  assert read.status == "ok"
  assert read.segments == segments


# Our own turns may hold any bracket in any layer.
_OURS = st.text(st.sampled_from("[]()ab ,。［］（）【】\n"), max_size=8)
_SEGMENTS = st.lists(st.tuples(st.sampled_from([THINKING, ACTION, SPEECH]), _OURS), max_size=6)


@given(_SEGMENTS)
@example([(SPEECH, "1( so"), (THINKING, "odd :)"), (ACTION, "nods")])
@example([(SPEECH, "("), (ACTION, "a"), (SPEECH, ")")])
@example([(THINKING, "]"), (SPEECH, "x["), (THINKING, "[")])
def test_our_layers_survive_the_way_through_cosers(layers):
  turn = grammar.parse(grammar.render(grammar.Reply(tuple(Segment(*s) for s in layers))))
  assert turn.status == "ok"
  back = notations.from_coser(notations.to_coser(turn))
  assert [s.kind for s in back.segments] == [s.kind for s in turn.segments]
  assert back.layout() == turn.layout()
  assert back.status != "malformed"
  # Texts are as they were but for brackets that had to be replaced.
  narrow = str.maketrans("［］（）【】〔〕﹙﹚", "[]()[][]()")
  for one, other in zip(back.segments, turn.segments, strict=True):
    assert one.text.translate(narrow) == other.text.translate(narrow)


@given(_SEGMENTS.map(lambda layers: [(k, t + "MIND" * (k == THINKING)) for k, t in layers]))
def test_no_thought_leaves_its_brackets(layers):
  written = notations.to_coser(grammar.Reply(tuple(Segment(*s) for s in layers)))
  minds = sum(kind == THINKING for kind, _ in layers)
  assert written.count("MIND") == minds
  # By the rule, and by the plainest reader: innermost brackets cut out until none is left.
  assert all(m.start() in _hidden(written) for m in re.finditer("MIND", written))
  seen, rest = None, written
  while seen != rest:
    seen, rest = rest, re.sub(r"[\[【［][^\[\]【】［］]*[\]】］]", "", rest)
  assert "MIND" not in rest and not re.search(r"[\[\]【】［］]", rest)


def test_a_plan_is_left_out():
  turn = grammar.parse(
    "<system_thinking>PLAN</system_thinking>Una: <role_action>nods</role_action>"
  )
  assert "PLAN" not in notations.to_coser(turn)


@pytest.mark.parametrize(
  "text, segments, status, problem",
  [
    ("Sir.", [(SPEECH, "Sir.")], "ok", None),
    ("[a] (b) c", [(THINKING, "a"), (SPEECH, " "), (ACTION, "b"), (SPEECH, " c")], "ok", None),
    ("[a (b) c]", [(THINKING, "a (b) c")], "ok", None),
    ("[a\nb\n\nc]d", [(THINKING, "a\nb\n\nc"), (SPEECH, "d")], "ok", None),
    ("(a (b) c)", [(ACTION, "a (b) c")], "ok", None),
    (
      "(a [b :)] c)",
      [(ACTION, "a "), (THINKING, "b :)"), (ACTION, " c")],
      "repaired",
      "within",
    ),
    ("([b])", [(THINKING, "b")], "repaired", "a thought within an action"),
    ("1) go", [(SPEECH, "1) go")], "repaired", "')' has no partner"),
    ("a [b", [(SPEECH, "a "), (THINKING, "b")], "malformed", "'[' is never closed"),
    ("(a [b) c", [(SPEECH, "(a "), (THINKING, "b) c")], "malformed", "'[' is never closed"),
    ("(a) b] c", [(THINKING, "(a) b"), (SPEECH, " c")], "malformed", "']' closes nothing"),
    ("<role_action>a", [(SPEECH, "(role_action)a")], "repaired", "tags of the other notation"),
    ("【a】（b）c", [(THINKING, "a"), (ACTION, "b"), (SPEECH, "c")], "ok", None),
    ("［他在说谎（又一次）］（点头）好。", [(THINKING, "他在说谎（又一次）"), (ACTION, "点头"), (SPEECH, "好。")], "ok", None),
    ("[a】(b）c", [(THINKING, "a"), (ACTION, "b"), (SPEECH, "c")], "ok", None),
    ("【a [b] c】d", [(THINKING, "a [b] c"), (SPEECH, "d")], "ok", None),
    ("a 【b", [(SPEECH, "a "), (THINKING, "b")], "malformed", "'【' is never closed"),
    ("a］b", [(THINKING, "a"), (SPEECH, "b")], "malformed", "'］' closes nothing"),
    ("1）走", [(SPEECH, "1）走")], "repaired", "'）' has no partner"),
    ("", [], "ok", None),
  ],
)  # fmt: skip
def test_what_becomes_of_a_message(text, segments, status, problem):
  reply = notations.from_coser(text)
  assert [(s.kind, s.text) for s in reply.segments] == segments
  assert reply.status == status
  assert any(problem in p for p in reply.problems) if problem else not reply.problems


def test_a_long_row_of_brackets_is_read_in_no_time():
  for signs in ("(" * 20_000, "[" * 20_000, "()" * 10_000, "[]" * 10_000, "[(" * 10_000):
    notations.to_coser(notations.from_coser(signs))


@pytest.mark.parametrize(
  "text, segments",
  [
    ("*nods* Go.", [(ACTION, "nods"), (SPEECH, " Go.")]),
    ("Go. *nods\nslowly*", [(SPEECH, "Go. "), (ACTION, "nods\nslowly")]),
    ("*he **never** smiles*", [(ACTION, "he **never** smiles")]),
    ("You **must** go.", [(SPEECH, "You **must** go.")]),
    ("5 * 3 * 2", [(SPEECH, "5 * 3 * 2")]),
    ("*nods\n\nGo. *waves*", [(SPEECH, "*nods\n\nGo. "), (ACTION, "waves")]),
    ("Star * alone", [(SPEECH, "Star * alone")]),
    ("*a*b*c*", [(ACTION, "a"), (SPEECH, "b"), (ACTION, "c")]),
    ("*点头*好。", [(ACTION, "点头"), (SPEECH, "好。")]),
    ("*<role_thinking>x*", [(ACTION, "(role_thinking)x")]),
    ("", []),
  ],
)
def test_actions_between_asterisks(text, segments):
  assert [(s.kind, s.text) for s in notations.from_asterisks(text).segments] == segments


_CHAT = ["*", "*", "**", "@", "@", " ", "\n", "<", ">", "role_action", "<role_thinking>"]


@given(st.lists(st.sampled_from([*_CHAT, "[", "]", "</b>"])))
def test_any_chat_message_becomes_regular_and_loses_no_word(signs):
  text = "".join(f" WORD{i}FOR_IT " if sign == "@" else sign for i, sign in enumerate(signs))
  reply = notations.from_asterisks(text)
  read = grammar.parse(grammar.render(reply))
  assert read.status == "ok"
  assert read.segments == reply.segments
  kept = "".join(segment.text for segment in reply.segments)
  assert re.findall(r"WORD\d+FOR_IT", kept) == re.findall(r"WORD\d+FOR_IT", text)
