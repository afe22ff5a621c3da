"""Every token of a reply is told to the layer in which it stands."""

import pytest

from data_pipeline import samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import chat, grammar, schema, token_layers
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.tags import ACTION, PLAN, SPEECH, THINKING

SCENES = schema.read_trajectories(samples.SCENES)


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train((f"{t.plan} {t.reply}" for s in SCENES for t in s.turns), 2560)


def _pieces(ids, layers, tokenizer):
  """Layer -> its text, in order."""
  found = {}
  for layer in dict.fromkeys(layers):
    some = [i for i, one in zip(ids, layers, strict=True) if one == layer]
    found[layer] = chat.decode_text(some, tokenizer)
  return found


@pytest.mark.parametrize("notation", ["her", "coser", "think"])
def test_the_layers_of_all_samples_come_back(tokenizer, notation):
  variant = Variant("brief", notation)
  for scene in SCENES:
    for turn in (scene.turns[i] for i in scene.trained_turns()):
      ids, layers = chat.completion_and_layers(
        turn.plan, turn.speaker, turn.reply, tokenizer, variant
      )
      assert ids == chat.completion_ids(turn.plan, turn.speaker, turn.reply, tokenizer, variant)
      found = _pieces(ids, layers, tokenizer)
      assert found.pop(0).strip() == f"{turn.speaker}:"
      assert turn.plan in found.pop(token_layers.LAYERS.index(PLAN) + 1)
      parsed = grammar.parse(turn.reply)
      for kind in (THINKING, ACTION, SPEECH):
        said = [s.text for s in parsed.segments if s.kind == kind]
        text = found.pop(token_layers.LAYERS.index(kind) + 1, "")
        if notation == "her" or kind == SPEECH:
          assert all(part.strip() in text for part in said)
        letters = lambda t: [c for c in t if c.isalpha()]
        if notation == "coser":  # Without tags, whose names are letters too.
          assert letters(text) == letters("".join(said))
      assert not found


def test_a_turn_without_a_plan_has_none(tokenizer):
  _, layers = chat.completion_and_layers(
    "", "Una", "<role_thinking>Hm.</role_thinking>No.", tokenizer, Variant(plan="off")
  )
  assert set(layers) == {0, 2, 4}
