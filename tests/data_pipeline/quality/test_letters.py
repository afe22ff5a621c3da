"""What looks the same is compared as the same, and a leak in disguise is one."""

import dataclasses
import json
import pathlib
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
import pytest

from data_pipeline import quality
from data_pipeline.quality import letters, view
from data_pipeline.synthesis import checks
from her_jax.roleplay import grammar
from tests.data_pipeline.quality import test_flags

_CASES = [
  json.loads(line)
  for line in (pathlib.Path(__file__).parent / "cases/reply_in_plan.jsonl")
  .read_text(encoding="utf-8")
  .splitlines()
]
_LIKE = str.maketrans("aeopcyxABEKMHOPCTX", "аеорсухАВЕКМНОРСТХ")  # Cyrillic
_GREEK = str.maketrans("aioABEHIKMNOPTX", "αιοΑΒΕΗΙΚΜΝΟΡΤΧ")
_DISGUISES = {
  "zero width": lambda text: "\u200b".join(text),
  "joiners": lambda text: "\u2060".join(text),
  "soft hyphens": lambda text: "\u00ad".join(text),
  "fillers": lambda text: "\u3164".join(text),
  "strokes": lambda text: "".join(f"{s}\u0336" for s in text),
  "Cyrillic": lambda text: text.translate(_LIKE),
  "Greek": lambda text: text.translate(_GREEK),
  "full width": lambda text: "".join(
    chr(ord(s) + 0xFEE0) if s.isascii() and s.isalpha() else s for s in text
  ),
  "bold": lambda text: "".join(
    chr(0x1D41A + ord(s) - 97) if "a" <= s <= "z" else s for s in text
  ),
  "accents apart": lambda text: unicodedata.normalize("NFD", text),
}


@pytest.mark.parametrize("name", _DISGUISES)
def test_a_leak_in_disguise_is_one_and_shows_what_stands_there(name):
  for case in _CASES:
    if not case["fault"]:
      continue
    scene, _ = test_flags._scene(case)
    at = len(case.get("before", []))
    turn = scene.turns[at]
    marks = "“”‘’\"'「」"  # A disguise may not take a quotation's marks apart from it.
    plan = "".join(s if s in marks else _DISGUISES[name](s) for s in turn.plan)
    turns = (*scene.turns[:at], dataclasses.replace(turn, plan=plan), *scene.turns[at + 1 :])
    flags = list(quality.check(dataclasses.replace(scene, turns=turns)))
    mine = [f for f in flags if f.turn == at and f.name == "reply_in_plan"]
    assert mine, plan
    assert all(plan[f.start : f.end] == f.evidence for f in mine)


@pytest.mark.parametrize("name", _DISGUISES)
@pytest.mark.parametrize(
  ("language", "reply"),
  [
    ("en", "You have charged me for every café and each exotic spice box."),
    ("zh", "你等了他一夜，今天早上才走的。"),
  ],
)
def test_synthesis_measures_a_disguised_plan_as_the_plain_one(name, language, reply):
  for disguise in (_DISGUISES[name], lambda text: f"So: {_DISGUISES[name](text)}"):
    measured = checks.overlap(disguise(reply), reply, "", language)
    assert measured == checks.overlap(reply, reply, "", language) and measured.share == 1


def test_a_look_alike_in_the_speech_is_another_letter():
  """The speech has to stay as it is: here nothing is made one."""
  old, new = grammar.parse("Pay the ace."), grammar.parse("Pay the аce.")
  assert checks.speech_change(old, new).lost == 1


@given(st.text(max_size=40))
def test_folding_is_total_and_places_fit(text):
  plain, places = letters.folded(text)
  assert len(plain) == len(places) and list(places) == sorted(places)
  assert plain == "".join(letters.folded_sign(sign) for sign in text)
  assert view.plain_words(text) == [word for _, _, word in view.words_of(text)]


def test_letters_of_other_scripts_stay_apart():
  assert view.plain_words("が か") == ["が", "か"]
  assert view.plain_words("İstanbul Ünal") == ["istanbul", "unal"]
  assert view.words_of("Don’t, 佘满") == [(0, 5, "don't"), (7, 8, "佘"), (8, 9, "满")]
