"""The shipped corpus keeps its promises."""

from collections import Counter
import dataclasses
import json
import re
import subprocess
import sys

import pytest

from data_pipeline import samples
from data_pipeline.preferences import corruptions, make_pairs
from her_jax.roleplay import grammar, principles, schema

SCENES = schema.read_trajectories(samples.SCENES)
PAIRS = schema.read_pairs(samples.PAIRS)
# Wordings that belong to no scene: the same in training and held-out pairs.
CANNED = {text for texts in corruptions._FLAT.values() for text in texts}


def _where(scene, turn) -> str:
  return f"{scene.id}, turn {turn}"


def _replies():
  """(scene, index, turn) of every reply of a character."""
  for scene in SCENES:
    for i, turn in enumerate(scene.turns):
      if turn.speaker != scene.environment:
        yield scene, i, turn


def _trained():
  for scene in SCENES:
    for i in scene.trained_turns():
      yield scene, i, scene.turns[i]


def test_there_are_enough_scenes_of_six_to_twelve_turns():
  assert len(SCENES) >= 60
  odd = [scene.id for scene in SCENES if not 6 <= len(scene.turns) <= 12]
  assert not odd


def test_the_characters_are_many_and_complete():
  whole = set()
  for scene in SCENES:
    for character in scene.characters:
      assert character.profile and character.background and character.motivation, (
        f"{scene.id}: {character.name}"
      )
      whole.add(character.name)
  assert len(whole) >= 15


def test_genres_and_languages_vary():
  assert len({scene.genre for scene in SCENES} - {""}) >= 5
  languages = Counter(scene.language for scene in SCENES)
  assert min(languages["en"], languages["zh"]) >= 6
  for split in schema.SPLITS:
    assert {scene.language for scene in SCENES if scene.split == split} == {"en", "zh"}


def test_every_reply_thinks_acts_and_speaks():
  lacking = [
    _where(scene, i)
    for scene, i, turn in _replies()
    if not {"T", "A", "S"} <= set(grammar.parse(turn.reply).layout())
  ]
  assert not lacking


def test_layouts_vary():
  layouts = Counter(grammar.parse(turn.reply).layout() for _, _, turn in _trained())
  assert len(layouts) >= 15
  # No layout dominates, or a model would learn it as the format.
  assert max(layouts.values()) < 0.2 * sum(layouts.values())


def test_every_scene_trains_a_reply():
  assert all(scene.trained_turns() for scene in SCENES)


def test_plans_are_in_the_third_person():
  first = re.compile(r"\b(I|[Mm]e|[Mm]y|[Mm]ine|[Mm]yself)\b")
  faults = [
    _where(scene, i)
    for scene, i, turn in _trained()
    if (first.search(turn.plan) if scene.language == "en" else "我" in turn.plan)
  ]
  assert not faults


def _runs(text: str, length: int) -> set[tuple[str, ...]]:
  words = re.findall(r"[\w']+", text.lower())
  return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def _characters(text: str, length: int) -> set[str]:
  signs = "".join(re.findall(r"\w", text))
  return {signs[i : i + length] for i in range(len(signs) - length + 1)}


def test_a_plan_does_not_give_its_reply_away():
  """No six words in a row (ten signs in Chinese) stand in both."""
  faults = []
  for scene, i, turn in _trained():
    if scene.language == "en":
      shared = _runs(turn.plan, 6) & _runs(turn.reply, 6)
    else:
      shared = _characters(turn.plan, 10) & _characters(turn.reply, 10)
    if shared:
      faults.append(_where(scene, i))
  assert not faults


def test_no_text_breaks_the_grammar_where_it_is_rendered():
  """Plans and names hold no tag: they are written between tags as they are."""
  tag = re.compile(r"<\s*/?\s*(system_thinking|role_)", re.IGNORECASE)
  for scene, i, turn in _trained():
    assert not tag.search(turn.plan), _where(scene, i)
    completion = f"<{grammar.PLAN}>{turn.plan}</{grammar.PLAN}>{turn.speaker}: {turn.reply}"
    others = [c.name for c in scene.characters if c.name != turn.speaker]
    assert grammar.is_valid_turn(completion, turn.speaker, others), _where(scene, i)


def test_there_are_enough_pairs_of_every_kind():
  assert len(PAIRS) >= 400
  kinds = Counter(pair.kind for pair in PAIRS)
  assert set(corruptions.CORRUPTIONS) <= set(kinds)
  assert min(kinds[kind] for kind in corruptions.CORRUPTIONS) >= 20
  assert set(kinds) <= {
    *corruptions.CORRUPTIONS,
    *(f"tie_{k}" for k in corruptions.CORRUPTIONS),
  }
  assert any(pair.winner == "tie" for pair in PAIRS)


@pytest.mark.parametrize("split", schema.SPLITS)
def test_winners_are_balanced_by_position(split):
  winners = Counter(pair.winner for pair in PAIRS if pair.split == split)
  first = winners["cand_1"] / (winners["cand_1"] + winners["cand_2"])
  assert 0.45 <= first <= 0.55


def test_labels_follow_from_violations():
  for pair in PAIRS:
    one, two = set(pair.violates_1), set(pair.violates_2)
    assert one | two <= set(principles.library())
    expected = "tie" if len(one) == len(two) else "cand_1" if len(one) < len(two) else "cand_2"
    assert pair.winner == expected, pair.id
    assert pair.candidate_1 != pair.candidate_2, pair.id


def test_the_better_candidate_is_the_true_reply():
  scenes = {scene.id: scene for scene in SCENES}
  for pair in PAIRS:
    reply = scenes[pair.scene].turns[pair.turn].reply
    is_true = [candidate == reply for candidate in (pair.candidate_1, pair.candidate_2)]
    assert is_true == [pair.winner == "cand_1", pair.winner == "cand_2"], pair.id


def test_no_candidate_shows_its_kind_by_broken_tags():
  for pair in PAIRS:
    for candidate in (pair.candidate_1, pair.candidate_2):
      reply = grammar.parse(candidate)
      assert reply.status == "ok" and reply.plan is None, pair.id


def test_splits_are_by_scene():
  split_of = {scene.id: scene.split for scene in SCENES}
  assert len(split_of) == len(SCENES)
  assert set(split_of.values()) == set(schema.SPLITS)
  assert [pair.id for pair in PAIRS if pair.split != split_of[pair.scene]] == []
  # The same dialogue under two ids would be in both splits all the same.
  said = {split: set() for split in schema.SPLITS}
  for scene, _, turn in _replies():
    said[scene.split].add(turn.reply)
  assert not said["train"] & said["heldout"]


def test_heldout_text_never_occurs_in_training_pairs():
  training = "\n".join(
    text for p in PAIRS if p.split == "train" for text in (p.candidate_1, p.candidate_2)
  )
  leaked = []
  for scene, i, turn in _replies():
    if scene.split == "heldout":
      for segment in grammar.parse(turn.reply).segments:
        # A shorter stretch ("Yes.", "nods once") can stand in two scenes by chance.
        if len(segment.text) >= 25 and segment.text.strip() in training:
          leaked.append((_where(scene, i), segment.text))
  assert not leaked
  candidates = {split: set() for split in schema.SPLITS}
  for pair in PAIRS:
    candidates[pair.split] |= {pair.candidate_1, pair.candidate_2}
  assert candidates["train"] & candidates["heldout"] <= CANNED


def test_the_shipped_pairs_are_those_of_the_generator(tmp_path):
  built = corruptions.make_pairs(SCENES, make_pairs.SEED, make_pairs.PER_REPLY)
  assert built == PAIRS
  schema.write_jsonl(tmp_path / "pairs.jsonl", built)
  assert (tmp_path / "pairs.jsonl").read_bytes() == samples.PAIRS.read_bytes()


def test_other_seeds_make_other_pairs():
  few = SCENES[:4]
  assert corruptions.make_pairs(few, 0, 2) == corruptions.make_pairs(few, 0, 2)
  assert corruptions.make_pairs(few, 0, 2) != corruptions.make_pairs(few, 1, 2)


def test_strangers_come_from_the_same_split():
  """Two stories, each in a split of its own: no reply may cross over."""
  one, two = SCENES[0], next(s for s in SCENES if s.source != SCENES[0].source)
  scenes = [
    dataclasses.replace(one, split="train"),
    dataclasses.replace(two, split="heldout", language=one.language),
  ]
  text = {scene.split: json.dumps([t.reply for t in scene.turns]) for scene in scenes}
  for pair in corruptions.make_pairs(scenes, 0, 7):
    other = "heldout" if pair.split == "train" else "train"
    for candidate in (pair.candidate_1, pair.candidate_2):
      assert json.dumps(candidate)[1:-1] not in text[other], pair.id


@pytest.mark.parametrize(
  "reply",
  [
    "<role_action>nods</role_action>",
    "<role_thinking>No.</role_thinking><role_action>nods</role_action>",
    "Yes.",
    "<role_thinking>No.</role_thinking> Yes.",
  ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_only_what_a_reply_holds_is_spoilt(reply, alone):
  """Whatever layers a user's replies have: no crash, and no pair of two equal candidates."""
  scene = SCENES[0]
  speaker = scene.turns[scene.trained_turns()[0]].speaker
  scene = dataclasses.replace(
    scene,
    characters=tuple(c for c in scene.characters if not alone or c.name == speaker),
    turns=tuple(schema.Turn(speaker, reply, "A plan.") for _ in range(3)),
  )
  for seed in range(20):
    pairs = corruptions.make_pairs([scene], seed, 7)
    assert pairs
    assert all(pair.candidate_1 != pair.candidate_2 for pair in pairs)


def test_pairs_of_a_users_own_scenes_are_made_by_one_command(tmp_path):
  schema.write_jsonl(tmp_path / "my.jsonl", SCENES[:3])
  command = [sys.executable, "-m", "data_pipeline.preferences.make_pairs"]
  command += [f"--scenes={tmp_path}/my.jsonl"]
  refused = subprocess.run(command, capture_output=True, text=True)
  assert refused.returncode and "--pairs=FILE" in refused.stderr
  done = subprocess.run(
    [*command, f"--pairs={tmp_path}/pairs.jsonl"], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  pairs = schema.read_pairs(tmp_path / "pairs.jsonl", SCENES[:3])
  assert pairs and f"{len(pairs)} pairs" in done.stdout
