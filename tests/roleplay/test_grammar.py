"""The dual-layer turn: nothing hidden is shown, nothing said is lost."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar
from her_jax.roleplay.grammar import ACTION, PLAN, SPEECH, THINKING

# Any text without a character that could begin or end a tag, or a name's prefix.
_TEXT = st.text(
  st.characters(exclude_characters="<>＜＞&_:：", exclude_categories=("Cs",)), max_size=20
)


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
def test_p6_a_valid_turn_is_rendered_as_it_was(text):
  reply = grammar.parse(text)
  assert (reply.status, reply.problems) == ("ok", ())
  assert grammar.render(reply) == text == grammar.repair(text)


@given(_valid_turns().filter(lambda text: PLAN not in text), _TEXT)
def test_a_name_in_front_is_taken_off_and_written_back(layers, plan):
  text = f"{_tag(PLAN, plan)}Una: {layers}"
  reply = grammar.parse(text, "Una")
  assert reply.speaker == "Una"
  assert grammar.render(reply) == text
  assert "Una" not in reply.view_for("judge")


# Pieces from which tags, halves of tags and near misses come together.
_PIECES = st.sampled_from([
  *("<", ">", "＜", "&lt;", "&gt;", "[", "]", "/", " ", "\n", ":", "_", "a", "他", "\0", "Una: "),
  *("system_thinking", "role_", "thinking", "plan", "内心", "b", "Joost: no.", "\nJoost: no."),
  *(f"<{close}{name}>" for name in (*grammar.TAGGED, "think", "role_speech", "b") for close in "/ "),
  *grammar.TAGS,
])  # fmt: skip
_ANY = st.text() | st.lists(_PIECES, max_size=30).map("".join)


@given(_ANY, st.sampled_from([None, "Una", "a"]))
def test_p6_any_text_is_read_and_shown_without_an_error(text, speaker):
  reply = grammar.parse(text, speaker)
  assert (reply.status == "ok") == (not reply.problems)
  assert all(isinstance(reply.view_for(viewer), str) for viewer in grammar.VIEWS)
  assert set(reply.layout()) <= set("TAS")
  grammar.is_valid_turn(text, "Una", ["Joost"])


@given(_ANY, st.sampled_from([None, "Una"]))
def test_p6_a_repaired_text_is_regular_and_stays_as_it_is(text, speaker):
  """It never is malformed: where a piece cut out would leave a new tag, that is defused."""
  once = grammar.repair(text, speaker)
  reply = grammar.parse(once, speaker)
  assert reply.status != "malformed"
  assert all("kept as text" in problem for problem in reply.problems)
  assert reply.segments == grammar.parse(grammar.repair(once, speaker), speaker).segments


@given(_ANY)
def test_p6_a_regular_text_is_written_as_it_was_read(text):
  reply = grammar.parse(text)
  if reply.status == "ok":
    assert grammar.render(reply) == text == grammar.repair(text)


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
    ("<b>Hi.", "repaired", "unknown tag '<b>', kept as text"),
    ("<role_thinkng>t</role_thinking>Hi.", "repaired", "mistyped tag <role_thinkng>"),
    ("<role_speech>Hi.</role_speech>", "repaired", "legacy tag <role_speech>"),
    ("<role_action>a<role_action>b</role_action></role_action>", "repaired", "within"),
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


_OPENS = {
  THINKING: ("<role_thinking>", "<thought>", "<Role Thinking>"),
  PLAN: ("<system_thinking>",),
}


@pytest.mark.parametrize("kind", [THINKING, PLAN])
@given(st.data())
def test_a_hidden_layer_opened_again_and_closed_less_often_hides_what_follows(kind, data):
  """By counting: what stands behind fewer closing than opening tags is in none that closed."""
  times = data.draw(st.integers(2, 4))
  opens = [data.draw(st.sampled_from(_OPENS[kind])) for _ in range(times)]
  inner = "".join(f"{tag}{data.draw(st.sampled_from(['', 'Hm. ']))}" for tag in opens)
  closing = f"S{opens[-1].replace('<', '</')} and S" * data.draw(st.integers(1, times - 1))
  tail = data.draw(st.sampled_from(["", "<role_action>S</role_action> S", "<b>S"]))
  text = f"Hi. {inner}{closing}{tail}"
  reply = grammar.parse(text)
  assert reply.status == "malformed"
  assert "S" not in reply.view_for("other")
  assert "S" not in grammar.parse(grammar.repair(text)).view_for("other")
  whole = (
    f"{inner}{'</role_thinking>' * times if kind == THINKING else '</system_thinking>' * times}"
  )
  assert grammar.parse(f"Hi. {whole}Go.").view_for("other").endswith("Go.")


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


@pytest.mark.parametrize(
  "text, repaired",
  [
    ("<ROLE_THINKING>Hm <role_action>nods", _tag(THINKING, "Hm ") + _tag(ACTION, "nods")),
    ("<role_speech>Hi.</role_speech> <b>No.", "Hi. <b>No."),
    ("Hi. " + _tag(PLAN, " a ") + "So." + _tag(PLAN, "b"), _tag(PLAN, "a\nb") + "Hi. So."),
    ("<think>p</think>Hi. <think>t</think>", _tag(PLAN, "p") + "Hi. " + _tag(THINKING, "t")),
    ("<think>\n\n</think>\n\nHi.", "\n\nHi."),
    # What the tags between held apart must not become one.
    ("<role_<role_speech>action>Hi.", "(role_action)Hi."),
    (_tag(PLAN, "") + _tag(PLAN, "p") + "Hi.", _tag(PLAN, "p") + "Hi."),
    (f"Hi. <role_{_tag(PLAN, 'p')}thinking>", _tag(PLAN, "p") + "Hi. (role_thinking)"),
  ],
)
def test_repair_writes_the_regular_notation(text, repaired):
  assert grammar.repair(text) == repaired


def test_p6_what_a_hidden_layer_held_apart_makes_no_tag_in_a_view():
  reply = grammar.parse(f"Go. <role_{_tag(THINKING, 'x')}action> Sit.")
  assert reply.view_for("other") == "Go. (role_action) Sit."


def test_p6_paragraphs_survive_in_every_view():
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
    (_tag(ACTION, "") + " <role_speech> </role_speech>", True),
    (_tag(PLAN, "p") + "<think>\n</think>", True),
    ("<system_thinking>cut off in the plan", True),
    (_tag(PLAN, "p") + _tag(ACTION, "nods"), False),
    ("<ROLE_ACTION>nods", False),
    ("Hm.", False),
    ("<b>", False),
  ],
)
def test_p8_a_reply_that_nobody_could_perceive_is_empty(text, empty):
  assert grammar.parse(text, "Una").is_empty is empty


@pytest.mark.parametrize("between", ["", "\n", "Una: Yes.", _tag(THINKING, "t")])
def test_p7_two_plans_are_counted(between):
  """Also where one is spelt in another way, and both are kept by a repair."""
  for first, second in (
    (_tag(PLAN, "a"), _tag(PLAN, "b")),
    (_tag(PLAN, "a"), "<SYSTEM_THINKING>b</system_think>"),
    ("<think>a</think>", _tag(PLAN, "b")),
    (_tag(PLAN, "a"), f"<{PLAN}>b"),
  ):
    text = f"{first}{between}{second}"
    reply = grammar.parse(text, "Una")
    assert "2 plans instead of one" in reply.problems
    assert reply.status == "malformed"
    assert not grammar.is_valid_turn(f"{text}Una: Yes.", "Una")
    assert grammar.parse(grammar.repair(text)).plan == "a\nb"


@pytest.mark.parametrize(
  "text, kept",
  [
    ("Sit.\nJoost: No.", "Sit."),
    ("Sit.\n\n  Joost : No.\nUna: Yes.", "Sit."),
    ("Joost: No.", ""),
    ("Sit.\n约斯特：不。", "Sit."),
    ("I told Joost: no.\nJoostina: No.", "I told Joost: no.\nJoostina: No."),
    (_tag(PLAN, "\nJoost: may ask.\n") + "Sit.\nJoost: No.", None),
    (_tag(THINKING, "\nJoost: will go.") + "Sit.\nJoost: No.", None),
    (_tag(ACTION, "nods") + "\nJoost: No.", _tag(ACTION, "nods")),
    # He begins a line for those who see no thoughts.
    ("Sit.\n" + _tag(THINKING, "t") + "Joost: No.", "Sit.\n" + _tag(THINKING, "t")),
    ("Sit.\n<role_speech>Joost: No.</role_speech>", "Sit.\n<role_speech>"),
    ("Sit.\n" + _tag(ACTION, "nods") + "Joost: No.", "Sit.\n" + _tag(ACTION, "nods") + "Joost: No."),
    # What a later tag hides is nobody's line, and the cut would show the text before it.
    ("Hm.\nJoost: will go.\n</system_thinking>Sit.", "Hm.\nJoost: will go.\n</system_thinking>Sit."),
    ("Joost: a\nJoost: b</role_action>", ""),
    ("<role_thinking>Hm.\nJoost: will go.", "<role_thinking>Hm.\nJoost: will go."),
  ],
)  # fmt: skip
def test_p44_a_reply_is_cut_where_it_speaks_for_another(text, kept):
  cut = grammar.cut_before(text, ["Joost", "约斯特"])
  assert cut == (text.partition("\nJoost: No.")[0] if kept is None else kept)


@given(_ANY)
def test_p44_what_is_cut_speaks_for_nobody_else_and_shows_no_more(text):
  cut = grammar.cut_before(text, ["Joost"])
  assert text.startswith(cut)
  assert not grammar.parse(cut).speaks_for(["Joost"])
  heard = grammar.parse(text).view_for("other").replace(_tag(ACTION, ""), "")
  assert grammar.speaks_for(heard, ["Joost"]) or cut == text


@given(_ANY)
def test_p44_without_others_nothing_is_cut(text):
  assert grammar.cut_before(text, []) == text
  assert grammar.cut_before(text, [""]) == text
