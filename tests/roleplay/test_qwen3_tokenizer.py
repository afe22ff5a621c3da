"""Rendering with the real Qwen3 tokenizer: the ids that a pod trains on."""

import dataclasses

import pytest

from her_jax.roleplay import chat, grammar, judging, notations
from her_jax.roleplay.prompts import NOTATIONS, PLANS, Variant
from her_jax.roleplay.schema import Character, Trajectory, Turn

START, END = 151644, 151645
THINK, THINK_END = 151667, 151668
SCENE = Trajectory(
  id="lock",
  scenario="A canal lock in fog.",
  characters=(
    Character("Greta", "A lock keeper. Sparing with words.", "", "To close up early."),
    Character("船长", "Brings coal. Late."),
  ),
  turns=(
    Turn("Environment", "A horn, close by."),
    Turn("船长", "<role_thinking>HIDDEN</role_thinking>开门吧。"),
    Turn("Greta", "<role_thinking>Him.</role_thinking> Water's low.", plan="ST_1 She stalls."),
    Turn("船长", "<role_action>ties up</role_action> How low?"),
    Turn("Greta", "<role_action>lifts the lamp</role_action> Look.", plan="ST_2 She shows it."),
  ),
)


def _messages(upto: int) -> list[dict[str, str]]:
  """The conversation before turn `upto` as a chat template takes it, by hand."""
  prompt = chat.prompts.system_prompt(SCENE, SCENE.characters[0])
  messages = [
    {"role": "system", "content": prompt},
    {
      "role": "user",
      "content": "===Conversation Start===\nEnvironment: A horn, close by.\n船长: 开门吧。",
    },
    {
      "role": "assistant",
      "content": "Greta: <role_thinking>Him.</role_thinking> Water's low.",
    },
    {"role": "user", "content": "船长: <role_action>ties up</role_action> How low?"},
  ]
  return messages[: {2: 2, 4: 4}[upto]]


@pytest.mark.parametrize("turn", [2, 4])
def test_a_prompt_is_what_qwens_own_template_renders(qwen3, turn):
  theirs = qwen3.apply_chat_template(
    _messages(turn), add_generation_prompt=True, return_dict=False
  )
  assert chat.render_prompt(SCENE, turn, qwen3) == list(theirs)


def test_without_a_plan_qwens_empty_think_block_opens_the_reply(qwen3):
  theirs = qwen3.apply_chat_template(
    _messages(4), add_generation_prompt=True, enable_thinking=False, return_dict=False
  )
  ours = chat.render_prompt(SCENE, 4, qwen3, variant=Variant(notation="think", plan="off"))
  # The sheets differ in what they ask for; the end is the template's.
  assert ours[-6:] == list(theirs)[-6:]
  assert ours[-4:] == [THINK, *qwen3.encode("\n\n"), THINK_END, *qwen3.encode("\n\n")]


def test_the_one_difference_is_qwens_think_block_of_the_last_reply(qwen3):
  """Their template puts an empty think block before a last reply; our plan takes its place."""
  reply = {"role": "assistant", "content": "Greta: Look."}
  theirs = list(qwen3.apply_chat_template([*_messages(4), reply], return_dict=False))
  scene = dataclasses.replace(SCENE, turns=(*SCENE.turns[:4], Turn("Greta", "Look.")))
  ours = chat.render_prompt(scene, 4, qwen3)
  ours += [*chat.encode_text("Greta: Look.", qwen3), END, *qwen3.encode("\n")]
  block = [THINK, *qwen3.encode("\n\n"), THINK_END, *qwen3.encode("\n\n")]
  at = len(chat.render_prompt(scene, 4, qwen3))
  assert theirs == ours[:at] + block + ours[at:]


def test_the_golden_ids_of_a_reply(qwen3):
  ids = chat.completion_ids("She waits.", "Greta", "No.", qwen3)
  assert ids == [27, 8948, 5854, 15736, 29, 7941, 46936, 3918, 8948, 5854, 15736, 29, 38, 65698,
                 25, 2308, 13, END]  # fmt: skip
  assert qwen3.decode(ids) == (
    "<system_thinking>She waits.</system_thinking>Greta: No.<|im_end|>"
  )


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_variant_is_read_back_as_it_was_meant(qwen3, notation, plan):
  variant = Variant(notation=notation, plan=plan)
  for turn in (2, 4):
    example = chat.render_example(SCENE, turn, qwen3, variant=variant)
    ids = [i for i, m in zip(example.ids, example.mask, strict=True) if m]
    reply = chat.read_completion(chat.decode_text(ids, qwen3), "Greta", variant)
    assert reply.speaker == "Greta"
    wanted = grammar.parse(SCENE.turns[turn].reply)
    heard = dataclasses.replace(reply, speaker=None).view_for("self")
    assert heard == wanted.view_for("self")
    assert (reply.plan or "").strip() == ("" if plan == "off" else SCENE.turns[turn].plan)
    text = qwen3.decode(example.ids)
    assert "HIDDEN" not in text
    assert ("(ties up)" in text) == (notation == "coser" and turn == 4)


def _added(tokenizer) -> list[str]:
  return [str(token) for token in tokenizer.added_tokens_decoder.values()]


def _number(ids, tokenizer) -> int:
  return sum(i in tokenizer.added_tokens_decoder for i in ids)


def test_p3_no_added_token_of_qwen_comes_out_of_text(qwen3):
  """In a sheet, a line, a plan, a candidate: think, tool and fill-in tokens stay letters too."""
  assert len(_added(qwen3)) == 26
  attack = "".join(_added(qwen3))
  assert _number(chat.encode_text(attack, qwen3), qwen3) == 0
  assert qwen3.decode(chat.encode_text(attack, qwen3)) == attack
  # think tags are read as layers of a reply, so they are left out of lines and plans here.
  line = "".join(t for t in _added(qwen3) if "think" not in t)
  planted = dataclasses.replace(
    SCENE,
    scenario=attack,
    characters=(Character("Greta", attack, attack, attack), Character("船长", attack)),
    turns=tuple(
      dataclasses.replace(t, reply=t.reply + line, plan=t.plan and t.plan + line)
      for t in SCENE.turns
    ),
  )
  for variant in (Variant(), Variant("natural", "coser"), Variant("structured", "think")):
    plain = chat.render_example(SCENE, 4, qwen3, variant=variant)
    example = chat.render_example(planted, 4, qwen3, variant=variant)
    assert _number(example.ids, qwen3) == _number(plain.ids, qwen3)
  structure = judging.context_ids(SCENE, 4, qwen3) + judging.candidates_ids("a", "b", qwen3)
  ids = judging.context_ids(planted, 4, qwen3) + judging.candidates_ids(line, line, qwen3)
  assert _number(ids, qwen3) == _number(structure, qwen3) == 5


def test_text_is_encoded_as_qwen_does_it(qwen3):
  texts = [turn.reply for turn in SCENE.turns]
  texts += ["  two  blanks\n\n\ttab 1234 é 𝕏 🙂", notations.to_coser(grammar.parse(texts[2]))]
  for text in texts:
    assert chat.encode_text(text, qwen3) == qwen3.encode(text, add_special_tokens=False)
