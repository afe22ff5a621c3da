"""Copied text is found however it was changed; texts that only look alike are not."""

import dataclasses
import random
import re

import numpy as np
import pytest

from data_pipeline import near_duplicates, samples
from data_pipeline.near_duplicates import (
  Finder,
  Match,
  Nearest,
  Settings,
  Sketcher,
)
from data_pipeline.titles import normal_title
from her_jax.roleplay import schema

SCENES = schema.read_trajectories(samples.SCENES)
SKETCH = Sketcher(Settings())


def _renamed(scene, renames):
  def swap(text):
    for old, new in renames.items():
      text = text.replace(old, new)
    return text

  return dataclasses.replace(
    scene,
    characters=tuple(dataclasses.replace(c, name=swap(c.name)) for c in scene.characters),
    turns=tuple(
      dataclasses.replace(t, speaker=swap(t.speaker), reply=swap(t.reply)) for t in scene.turns
    ),
  )


def _edited(scene, share, seed):
  """Each word (sign, in Chinese) is replaced with this probability; tags stay."""
  rng = random.Random(seed)
  token = r"<[^>]*>|[\u4e00-\u9fff]" if scene.language == "zh" else r"<[^>]*>|\w+"
  other = "雾灯钟桥" if scene.language == "zh" else ("fog", "lantern", "clock", "bridge")

  def edit(match):
    keep = match[0].startswith("<") or rng.random() >= share
    return match[0] if keep else rng.choice(other)

  turns = [dataclasses.replace(t, reply=re.sub(token, edit, t.reply)) for t in scene.turns]
  return dataclasses.replace(scene, turns=tuple(turns))


def _planted(scene, seed=0):
  """A scene with a tenth of its words replaced and every character renamed."""
  english = ("Quentin Ashgrove", "Ottoline", "Mr. Zebedee", "Peregrine Vance", "Ludmila")
  names = ("欧阳锋", "慕容复", "司徒空", "上官云") if scene.language == "zh" else english
  renames = {}
  for character, new in zip(scene.characters, names, strict=False):
    renames[character.name] = new
    for part in character.name.split():
      if len(part) > 2:
        renames.setdefault(part, new.split()[0])
  return _edited(_renamed(scene, renames), 0.1, seed)


def _conversation_matches(scenes):
  settings = Settings()
  with Finder(settings) as finder:
    for book, scene in enumerate(scenes):
      finder.add(SKETCH(scene), book)
    return {
      (m.first, m.second): m.similarity
      for m in finder.conversations()
      if m.similarity >= settings.threshold
    }


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_edited_and_renamed_copy_is_found(language):
  scenes = [scene for scene in SCENES if scene.language == language][:24]
  copies = [_planted(scene, seed) for seed, scene in enumerate(scenes)]
  assert all(a.turns != b.turns for a, b in zip(scenes, copies, strict=True))
  found = _conversation_matches([*scenes, *copies])
  assert found.keys() == {(i, i + len(scenes)) for i in range(len(scenes))}


def test_scenes_of_one_world_are_no_copies():
  """Same author, same places, same characters in many of them: look-alikes, each its own."""
  assert not _conversation_matches(SCENES)


def test_a_text_of_which_half_is_new_is_no_copy():
  halves = [s for s in SCENES if s.language == "en"][:20]
  mixed = [
    dataclasses.replace(a, turns=(*a.turns[: len(a.turns) // 4], *b.turns[len(b.turns) // 4 :]))
    for a, b in zip(halves[::2], halves[1::2], strict=True)
  ]
  found = _conversation_matches([*halves[::2], *mixed])
  assert not found


def test_similarity_is_that_of_the_shingles():
  scene, copy = SCENES[0], _edited(SCENES[0], 0.1, 3)
  sets = [
    set(near_duplicates.shingles(near_duplicates.masked_tokens(s), 3).tolist())
    for s in (scene, copy)
  ]
  exact = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
  (estimate,) = _conversation_matches([scene, copy]).values()
  assert estimate == pytest.approx(exact, abs=0.12)  # Three standard deviations of 192 values.


def test_one_book_cut_into_other_conversations_is_found():
  """Turns are shuffled among conversations, so that no two of these resemble each other."""
  scenes = [scene for scene in SCENES if scene.language == "en"][:24]
  turns = [(s, t) for s in scenes[:12] for t in s.turns]
  random.Random(0).shuffle(turns)
  size = len(turns) // 12
  other = [
    dataclasses.replace(scenes[i], turns=tuple(t for _, t in turns[i * size : (i + 1) * size]))
    for i in range(12)
  ]
  with Finder(Settings()) as finder:
    for book, part in enumerate((scenes[:12], scenes[12:], other)):
      for scene in part:
        finder.add(SKETCH(scene), book)
    found = list(finder.shared())
  assert {frozenset((m.book, m.other)) for m in found} == {frozenset((0, 2))}
  assert max(m.share for m in found) > 0.5


def test_pairs_within_a_book_are_not_told_of():
  with Finder(Settings()) as finder:
    for _ in range(3):
      finder.add(SKETCH(SCENES[0]), 7)
    assert not list(finder.conversations())


def test_many_equal_conversations_are_all_linked():
  """More copies than are compared pair by pair still hang together."""
  with Finder(Settings()) as finder:
    for book in range(40):
      finder.add(SKETCH(SCENES[1]), book)
    linked = {m.second for m in finder.conversations() if m.similarity == 1}
    assert linked == set(range(1, 40))
    assert finder.capped


def test_too_short_a_text_is_counted_and_never_a_match():
  turns = (schema.Turn("Una Marrack", "Good morning to you."),)
  short = dataclasses.replace(SCENES[0], turns=turns)
  with Finder(Settings()) as finder:
    finder.add(SKETCH(short), 0)
    finder.add(SKETCH(short), 1)
    assert finder.too_short == 2
    assert not list(finder.conversations())
    assert not list(finder.shared())


@pytest.mark.parametrize(
  ("one", "two"),
  [
    ("The Low Light", "low light, The"),
    ("Pride & Prejudice", "Pride and Prejudice (Annotated)"),
    ("《红楼梦》", "红楼梦（校注本）"),
    ("Don’t Look", "DON'T LOOK"),
    ("Ｄｕｎｅ", "Dune"),
    ("Émile", "Emile"),
    ("Smørbrød", "smorbrod"),
    ("Dune (1965)", "Dune"),
    ("Dune [1965 edition]", "Dune (first edition)"),
    ("The Dyke, Vol. 1", "The Dyke Volume 2"),
    ("The Dyke: Volume Two", "The Dyke (vol. III of IV)"),
    ("The Dyke", "The Dyke — Vol. 12"),
    ("Le Comte, Tome 2", "Le comte"),
    ("Dyke, Vol. 1 (1871)", "The Dyke (Annotated) Vol. 2"),
    ("红楼梦 第二卷", "红楼梦（上）"),
    ("红楼梦（下册）", "红楼梦 卷三"),
    ("Du\u200bne", "Dune"),
  ],
)
def test_editions_have_one_title(one, two):
  assert normal_title(one) == normal_title(two)


@pytest.mark.parametrize(
  ("one", "two"),
  [
    ("Dune", "Dune Messiah"),
    ("Henry IV (Part 1)", "Henry IV (Part 2)"),
    ("The A", "The B"),
    ("三国演义", "三国志"),
    ("!!!", "???"),
    ("Volume 1", "Volume 2"),
    ("第一卷", "第二卷"),
    ("1984", "1985"),
    ("Fahrenheit 451", "Fahrenheit"),
    ("が", "か"),
    ("Apollo (Apollo 11)", "Apollo (Apollo 13)"),
    ("Pump Up the Volume", "Pump Up the"),
    ("上册子", "下册子"),
  ],
)
def test_other_books_have_other_titles(one, two):
  assert normal_title(one) != normal_title(two)


def test_shingles_depend_on_order_and_not_on_case_or_width():
  def made(text):
    return near_duplicates.shingles(near_duplicates.tokens(text), 3).tolist()

  assert made("One two three four") == made("ONE, two — three: ｆｏｕｒ!")
  assert not set(made("one two three")) & set(made("three two one"))
  assert made("one two") == []
  assert len(made("a b c a b c a b c")) == 3


def test_names_are_masked_as_a_run():
  scene = dataclasses.replace(
    SCENES[0],
    characters=(schema.Character("Una Marrack"), schema.Character("Ben")),
    turns=(
      schema.Turn("Ben", "Una Marrack nods to Ben"),
      schema.Turn("Ben", "Una nods to Ben"),
    ),
  )
  made = near_duplicates.masked_tokens(scene)
  assert np.array_equal(made[:4], made[3:7])  # NAME nods to NAME(+NAME) nods to NAME


def test_nearest_keeps_the_best():
  nearest = Nearest(kept=3)
  for i in range(10):
    nearest.add(Match(i, i + 1, i / 10))
    nearest.add(Match(i, i + 1, i / 10))
  assert [m.similarity for m in nearest] == [0.9, 0.8, 0.7]
