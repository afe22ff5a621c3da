"""No character of a hidden layer leaves, wherever the text is cut into pieces."""

import hypothesis
from hypothesis import strategies as st
import pytest

from her_jax.roleplay import grammar
from her_jax.serving.layers import Layers, visible

_TAGS = [
  *grammar.TAGS,
  "<think>", "</think>", "<ROLE_THINKING>", "</Role Thinking>", "<role_thinking", "role_action>",
  "[role_thinking]", "<b>", "</b>", "<speech>", "</speech>", "&lt;role_thinking&gt;",
  "&lt;/role_thinking&gt;", "<thought>", "</thoughts>", "<role_thinking/>", "<my plan>", "＜role_thinking＞",
]  # fmt: skip
_PARTS = st.lists(
  st.sampled_from([*_TAGS, *_TAGS, " ", "\n", "<", ">", "<role_", "thinking>", "Una: ", "w", "w x"]),
  max_size=14,
)  # fmt: skip


@st.composite
def _texts(draw):
  """Text in which every word is another one, so that each can be followed."""
  return "".join(
    part.replace("w", f"q{i}q") if part.startswith("w") else part
    for i, part in enumerate(draw(_PARTS))
  )


def _streamed(text, cuts, hidden="withheld", speaker=None, notation="her"):
  layers = Layers(hidden, speaker, notation)
  places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
  given = [layers.feed(text[a:b]) for a, b in zip(places, places[1:], strict=False)]
  return "".join(given) + layers.finish()


_CUTS = st.lists(st.integers(0, 120), max_size=12)
_HIDDEN = st.sampled_from(["withheld", "thoughts"])


@hypothesis.given(_texts(), _CUTS, _HIDDEN, st.sampled_from([None, "Una"]))
def test_any_split_gives_the_same(text, cuts, hidden, speaker):
  whole = _streamed(text, [], hidden, speaker)
  assert _streamed(text, cuts, hidden, speaker) == whole
  assert _streamed(text, range(len(text)), hidden, speaker) == whole


@hypothesis.given(_texts(), _HIDDEN)
def test_nothing_leaves_that_the_grammar_calls_hidden(text, hidden):
  secret = {"withheld": ("system_thinking", "role_thinking"), "thoughts": ("system_thinking",)}
  words = [
    (kind, word)
    for kind, piece in ((s.kind, s.text) for s in grammar.parse(text).segments)
    for word in piece.replace("<", " ").replace(">", " ").split()
    if word.startswith("q") and word.endswith("q")
  ]
  given = _streamed(text, range(len(text)), hidden)
  for kind, word in words:
    if kind in secret[hidden]:
      assert word not in given


_WORDS = st.text("ab .,\n", max_size=6)
_REGULAR = st.lists(st.tuples(st.sampled_from(["role_thinking", "role_action", ""]), _WORDS))


@hypothesis.given(_WORDS, _REGULAR, _HIDDEN)
def test_a_regular_text_gives_what_the_grammar_shows(plan, layers, hidden):
  text = f"<system_thinking>{plan}</system_thinking>Una: "
  text += "".join(f"<{kind}>{words}</{kind}>" if kind else words for kind, words in layers)
  assert grammar.parse(text).status == "ok"
  assert _streamed(text, range(len(text)), hidden).rstrip() == visible(text, hidden).rstrip()


@hypothesis.given(_texts(), _CUTS)
def test_shown_is_the_text_as_it_was_written(text, cuts):
  assert _streamed(text, cuts, "shown") == text


@pytest.mark.parametrize(
  ("text", "given"),
  [
    ("<system_thinking>P</system_thinking>Una: Sit.", "Una: Sit."),
    ("<think>\nP\n</think>\n\nUna: Sit.", "Una: Sit."),
    ("P</system_thinking>Una: Sit.", "Una: Sit."),
    ("<system_thinking>P, as <role_action>would</role_action> be", ""),
    ("<system_thinking>P", ""),
    ("Una: Sit. <role_thinking>No", "Una: Sit."),
    ("Una: Sit. <role_thi", "Una: Sit."),
    ("Una: 3 < 4", "Una: 3 < 4"),
    ("I hate him</role_thinking> Sit.", "Sit."),
    ("<role_action>bows, hating</role_thinking> Sit.", "Sit."),
    ("<ROLE_THINKING>No</ROLE_THINKING> Sit.", "Sit."),
  ],
)
def test_examples(text, given):
  assert _streamed(text, range(len(text))).strip() == given


def test_the_name_is_taken_off_on_demand():
  text = "<system_thinking>P</system_thinking>Una: Sit. <role_action>bows</role_action> Well."
  assert _streamed(text, [], speaker="Una") == "Sit. <role_action>bows</role_action> Well."
  assert _streamed(text, [], speaker="Perran").startswith("Una: Sit.")


def test_text_leaves_at_the_next_tag():
  layers = Layers("withheld")
  assert layers.feed("<system_thinking>P</system_thinking>Una: Sit. ") == ""
  assert layers.feed("<role_action>bows") == ""
  assert layers.feed("</role_action>") == "Una: Sit. <role_action>bows</role_action>"


def test_coser_s_thoughts_are_in_brackets():
  text = "<system_thinking>P</system_thinking>Una: [No.] (bows) Sit. [Nev"
  assert _streamed(text, [9], notation="coser") == "Una: (bows) Sit."
  assert _streamed(text, [9], "thoughts", notation="coser").startswith("Una: [No.] (bows)")


def test_only_tokens_within_visible_text_are_told_of():
  layers = Layers("withheld")
  text = "<role_thinking>No</role_thinking> Aye <role_action>nods</role_action>"
  layers.feed(text)
  assert layers.settled == len(text)
  for word, shown in (("No", False), ("Aye", True), ("nods", True), ("<role_action>", False)):
    at = text.index(word)
    assert layers.shows(at, at + len(word)) == shown
