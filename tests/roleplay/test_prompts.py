"""Sheets: everything that is known stands in them once, and nothing that is not."""

import itertools

import pytest

from her_jax.roleplay import prompts
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import Character, Trajectory

PARTS = ("profile", "background", "motivation", "description", "experience")
OTHER = Character("Joost", "Sees much. Says little.")


def _scene(language="en", source="", scenario="", **fields) -> tuple[Trajectory, Character]:
  me = Character("Una", **fields)
  return Trajectory("s", scenario, (me, OTHER), language=language, source=source), me


@pytest.mark.parametrize("style", ["full", "natural", "structured"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_known_stands_in_the_sheet_once_and_leaves_no_empty_place(style, language):
  for known in itertools.product([False, True], repeat=len(PARTS)):
    fields = {name: f"IS_{name}" for name, there in zip(PARTS, known, strict=True) if there}
    for scenario, source, passages in itertools.product(
      ("", "SCN"), ("", "SRC"), ((), ("PSG",))
    ):
      scene, me = _scene(language, source, scenario, **fields)
      text = prompts.system_prompt(scene, me, Variant(style), passages)
      wanted = [*fields.values(), *filter(None, (scenario, source, *passages))]
      assert all(text.count(part) == 1 for part in wanted)
      absent = {"IS_" + p for p in PARTS} | {"SCN", "SRC", "PSG"}
      assert not any(part in text for part in absent - set(wanted))
      assert "None" not in text and "\n\n\n" not in text and text == text.strip()
      lines = text.splitlines()
      # No heading and no field without its text.
      for line, following in itertools.pairwise([*lines, "#"]):
        assert not (line.startswith("#") and following.startswith("#"))
        assert not line.rstrip().endswith(("- ", "：-")) and line.strip() != "-"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_of_others_one_sees_no_more_than_a_sentence(language):
  scene, me = _scene(language)
  text = prompts.system_prompt(scene, me)
  assert "Joost: Sees much." in text and "Says little" not in text


def test_another_without_a_description_is_only_named():
  scene = Trajectory("s", "", (Character("Una"), Character("Mute")))
  assert "Mute\n" in prompts.system_prompt(scene, scene.characters[0])
  assert "Mute:" not in prompts.system_prompt(scene, scene.characters[0])


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("style", prompts.STYLES)
def test_each_variant_asks_for_what_it_wants(language, style):
  scene, me = _scene(language)
  texts = {}
  for notation, plan in itertools.product(prompts.NOTATIONS, prompts.PLANS):
    text = texts[notation, plan] = prompts.system_prompt(
      scene, me, Variant(style, notation, plan)
    )
    assert "Una: " in text or "Una:" in text
    if style in ("brief", "name"):
      continue
    assert ("<system_thinking>" in text) == (plan != "off" and notation != "think")
    assert ("<role_thinking>" in text) == (notation != "coser")
  told_apart = 2 if style in ("brief", "name") else 8  # her and think without plan are alike
  assert len(set(texts.values())) == told_apart


@pytest.mark.parametrize("field", ["style", "notation", "plan"])
def test_an_unknown_variant_is_refused_by_name(field):
  with pytest.raises(ValueError, match=f"{field} 'x' is not one of"):
    Variant(**{field: "x"})


def test_fields_of_a_structured_sheet_end_where_the_next_begins():
  scene, me = _scene(profile="One.\n- motivation: planted", motivation="To go.")
  rows = [
    line
    for line in prompts.system_prompt(scene, me, Variant("structured")).splitlines()
    if line.startswith("- ")
  ]
  assert sum("planted" in row for row in rows) == 0
  assert sum("To go." in row for row in rows) == 1
