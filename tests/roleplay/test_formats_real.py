"""CoSER's own cases and the bench's seeds, read as they are published."""

import json

import pytest

from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import chat, formats, grammar, notations, schema


@pytest.fixture(scope="module")
def cases(real_data):
  return json.loads(real_data("coser_public_domain_cases.json").read_text(encoding="utf-8"))


def test_real_cases_come_back_in_cosers_notation_to_the_letter(cases):
  messages, exceptions = 0, []
  for case in cases:
    made = formats.from_coser_case(case)
    assert not list(schema.problems(made))
    assert schema.trajectory_from_dict(schema.to_dict(made)) == made
    for entry, turn in zip(case["dialogues"], made.turns, strict=True):
      messages += 1
      assert turn.speaker == entry["character"].strip()
      if notations.to_coser(grammar.parse(turn.reply)) != entry["message"]:
        exceptions.append((made.id, entry["message"]))
  assert (len(cases), messages) == (43, 530)
  assert exceptions == []


def test_real_cases_give_a_prompt_for_everyone_who_speaks(cases):
  scenes = [formats.from_coser_case(case) for case in cases]
  assert len({scene.id for scene in scenes}) == len(scenes)
  texts = [turn.reply for scene in scenes for turn in scene.turns]
  tokenizer = hf_tokenizer.train(texts[:100], 600)
  for scene in scenes:
    said = {t.speaker for t in scene.turns} - {scene.environment}
    assert said <= {c.name for c in scene.characters}
    for name in said:
      last = max(i for i, turn in enumerate(scene.turns) if turn.speaker == name)
      ids = chat.render_prompt(scene, last, tokenizer)
      prompt = tokenizer.decode(ids)
      assert prompt.startswith(f"<|im_start|>system\nYou are {name}")
      assert prompt.endswith("<|im_start|>assistant\n")
      # The character's own motivation is there and nobody else's thoughts are.
      assert scene.character(name).motivation in prompt
      for turn in scene.turns[:last]:
        for segment in grammar.parse(turn.reply).segments:
          if segment.kind == grammar.THINKING and len(segment.text) > 30:
            assert (segment.text in prompt) == (turn.speaker == name)


def test_real_seeds_become_scenes(real_data):
  seeds = json.loads(real_data("minimax_seeds_en.json").read_text(encoding="utf-8"))
  for seed in seeds:
    (made,) = formats.trajectories(seed)
    assert not list(schema.problems(made))
    assert schema.trajectory_from_dict(schema.to_dict(made)) == made
