"""Text that is given piece by piece is the text of the whole."""

import hypothesis
from hypothesis import strategies as st
import pytest

from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import chat
from her_jax.serving.text import Detokenizer, StopTexts


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train(["Una waits. Una: Sit. 心 🙂"], 320)


@hypothesis.given(ids=st.lists(st.integers(0, 319), max_size=40))
def test_pieces_are_the_text_of_all_ids(tokenizer, ids):
  ids = [i for i in ids if i < len(tokenizer)]
  reader = Detokenizer(tokenizer)
  pieces = [reader.feed(i) for i in ids]
  assert "".join(pieces) + reader.finish() == chat.decode_text(ids, tokenizer)


def test_a_character_comes_whole(tokenizer):
  reader = Detokenizer(tokenizer)
  ids = chat.encode_text("🌊ñ", tokenizer)
  assert len(ids) > 4
  assert [p for p in map(reader.feed, ids) if p] == ["🌊", "ñ"]
  assert reader.finish() == ""


def test_what_ends_within_a_character_says_so(tokenizer):
  reader = Detokenizer(tokenizer)
  assert [reader.feed(i) for i in chat.encode_text("🌊", tokenizer)[:2]] == ["", ""]
  assert reader.finish() == "\ufffd"


def test_layout_marked_as_special_stays_text(tokenizer):
  import tokenizers

  state = hf_tokenizer.train(["Una waits."], 300)
  state.add_special_tokens(
    {"additional_special_tokens": [tokenizers.AddedToken("</think>", special=True)]}
  )
  reader = Detokenizer(state)
  ids = [state.convert_tokens_to_ids(t) for t in ("<|im_start|>", "</think>")]
  assert [reader.feed(i) for i in ids] == ["", "</think>"]


@hypothesis.given(
  st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
  st.lists(st.integers(1, 5), max_size=20),
)  # fmt: skip
def test_a_stop_text_is_never_given_in_part(text, stops, sizes):
  reader, given, at = StopTexts(stops), "", 0
  for size in [*sizes, len(text)]:
    given += reader.feed(text[at : at + size])
    at += size
  given += reader.finish()
  found = [text.find(stop) for stop in stops if stop in text]
  if not found:
    assert given == text and not reader.met
  else:
    assert reader.met and not any(stop in given for stop in stops)
    assert text.startswith(given)


def test_stop_texts_across_pieces():
  reader = StopTexts(["\nPerran:"])
  assert [reader.feed(p) for p in ("Sit.", "\nPer", "haps. \nPe", "rran: no")] == [
    "Sit.", "", "\nPerhaps. ", "",
  ]  # fmt: skip
  assert reader.met
