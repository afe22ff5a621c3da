"""Candidates: the model's own prompt, clean replies, and nothing lost without a count."""

import dataclasses
import json

import pytest

from data_pipeline.asking.question import Rejected
from data_pipeline.preferences import candidates
from data_pipeline.preferences.inputs import Refused, Scenes, placed_rows
from her_jax.errors import ConfigError
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.llm.client import Failure, Reply, Sampling
from her_jax.llm.guarded import Stopped
from her_jax.roleplay import chat, schema
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.preferences import scripted
from tests.data_pipeline.preferences.preference_runs import (
  FEW,
  call,
  make_candidates,
  rows,
  runner,
  scene_file,
)


@pytest.fixture(scope="module")
def tokenizer():
  return hf_tokenizer.train((t.reply for s in FEW for t in s.turns), 500)


@pytest.mark.parametrize("variant", [Variant(), Variant("natural", "coser", "off")])
def test_the_messages_are_the_prompt_that_is_trained(tokenizer, variant):
  for scene in FEW:
    for turn in candidates.turns_of(scene, "all"):
      messages = candidates.prompt_messages(scene, turn, variant)
      ids = [i for m in messages for i in chat.message(m.role, m.content, tokenizer)]
      ids += chat.open_message("assistant", tokenizer)
      assert ids == chat.render_prompt(scene, turn, tokenizer, variant=variant)


def test_every_planned_turn_gets_its_candidates_without_plans(tmp_path):
  path, report = make_candidates(tmp_path, n=3)
  text = (tmp_path / "candidates.jsonl").read_text()
  assert scripted.SECRET not in text and "system_thinking" not in text
  contexts = [candidates.context_from_dict(row) for row in rows(path)]
  assert [(c.scene, c.turn) for c in contexts] == [
    (scene.id, turn) for scene in FEW for turn in scene.trained_turns()
  ]
  assert all(
    [c.id for c in context.candidates] == [f"{context.id}/{k}" for k in range(3)]
    for context in contexts
  )
  assert {c.split for c in contexts} == {"train", "heldout"} and all(c.source for c in contexts)
  assert report["counts"]["candidates"] == 3 * len(contexts)


def test_all_turns_are_those_of_characters():
  scene = FEW[0]
  turns = candidates.turns_of(scene, "all")
  assert turns == [i for i, t in enumerate(scene.turns) if t.speaker != scene.environment]
  assert set(scene.trained_turns()) < set(turns)


def test_each_call_has_a_seed_of_its_own():
  asked = candidates.questions(FEW[0], 1, candidates.Settings(n=4, sampling=Sampling(seed=10)))
  assert [q.sampling.seed for q in asked] == [10, 11, 12, 13]
  assert len({q.id for q in asked}) == 4 and len({q.messages for q in asked}) == 1


PLAN = "<system_thinking>She bides her time.</system_thinking>"


@pytest.mark.parametrize(
  ("text", "reply", "repairs"),
  [
    (f"{PLAN}NAME: Sit.", "Sit.", ()),
    ("Sit. <role_action>nods</role_action>", "Sit. <role_action>nods</role_action>", ()),
    (f"{PLAN}Sit.\nOTHER: I shall not.", "Sit.", ("cut where it speaks for others",)),
    ("Sit.\nEnvironment: Rain.", "Sit.", ("cut where it speaks for others",)),
    (
      "<ROLE_THINKING>Hm.</ROLE_THINKING>Sit.",
      "<role_thinking>Hm.</role_thinking>Sit.",
      ("tags repaired",),
    ),
    (
      "Sit. <role_action>nods",
      "Sit. <role_action>nods</role_action>",
      ("tags guessed",),
    ),
    ("<think>Plot.</think>Sit.", "Sit.", None),
    ("plot first </system_thinking>Sit.", "Sit.", ("tags guessed",)),
    (f"{PLAN}{PLAN}Sit.", "Sit.", ("tags guessed",)),
  ],
)
def test_what_can_be_mended_is_and_is_said(text, reply, repairs):
  scene = FEW[0]
  turn = scene.trained_turns()[0]
  name = scene.turns[turn].speaker
  text = text.replace("NAME", name).replace("OTHER", scene.others(name)[0])
  found = candidates.cleaned(text, scene, turn)
  assert found[0] == reply
  if repairs is not None:
    assert found[1] == repairs


@pytest.mark.parametrize(
  "text", ["", "  \n", PLAN, "<role_thinking>Only this.</role_thinking>"]
)
def test_a_reply_that_nobody_perceives_is_none(text):
  with pytest.raises(Rejected, match="empty"):
    candidates.cleaned(text, FEW[0], FEW[0].trained_turns()[0])


def test_what_is_missing_is_counted_by_cause_and_asked_for_once_more(tmp_path):
  asked = []

  def policy(request):
    asked.append((request.id, request.sampling.max_tokens))
    number = int(request.id.split("/")[3])
    if number == 0:
      return Reply("Cut in the mid", finish_reason="length")
    if number == 1:
      return Reply(PLAN)
    if number == 2:
      return Reply("No.", finish_reason="refusal")
    if number == 3:
      return Failure("server", "down")
    if number == 4 and "retry" not in request.id:
      return Reply("   ")
    return Reply("The same.")

  scene = FEW[0]
  path, report = make_candidates(
    tmp_path, [scene], policy, n=6, sampling=Sampling(max_tokens=8)
  )
  missing = {"empty": 1, "length": 1, "refusal": 1, "same as another": 1, "server": 1}
  assert all(row["missing"] == missing and len(row["candidates"]) == 1 for row in rows(path))
  contexts = len(rows(path))
  assert report["counts"]["missing: length"] == contexts
  assert report["counts"]["contexts with fewer than two candidates"] == contexts
  tries = dict(asked)
  first = f"candidates/{scene.id}/{scene.trained_turns()[0]}"
  assert tries[f"{first}/0"] == 8 and tries[f"{first}/0/retry1"] == 16
  assert f"{first}/1/retry1" in tries and tries[f"{first}/4/retry1"] == 8
  assert f"{first}/2/retry1" not in tries and f"{first}/3/retry1" not in tries


def test_a_spent_budget_ends_the_run_without_a_file(tmp_path):
  count = iter(range(10_000))

  def policy(request):
    return scripted.reply(request) if next(count) < 5 else Failure("budget", "all is spent")

  with pytest.raises(Stopped, match="all is spent.*start the same command again"):
    make_candidates(tmp_path, function=policy)
  assert not (tmp_path / "candidates.jsonl").exists()


def test_an_endpoint_that_is_down_ends_the_run_soon(tmp_path):
  asked = []

  def policy(request):
    asked.append(request.id)
    return Failure("connection", "refused")

  with pytest.raises(Stopped, match="calls in a row failed.*connection"):
    make_candidates(tmp_path, function=policy)
  assert len(asked) < 60


def test_a_scene_without_plans_says_what_to_pass(tmp_path):
  bare = dataclasses.replace(
    FEW[0], turns=tuple(dataclasses.replace(t, plan="") for t in FEW[0].turns)
  )
  with pytest.raises(DataError, match="--turns=all"):
    make_candidates(tmp_path, [bare])
  _, report = make_candidates(tmp_path, [bare], turns="all", n=1)
  assert report["counts"]["candidates"] == len(candidates.turns_of(bare, "all"))


@pytest.mark.parametrize("settings", [{"n": 0}, {"turns": "some"}])
def test_settings_that_mean_nothing_are_refused(settings):
  with pytest.raises(ConfigError, match=next(iter(settings))):
    candidates.Settings(**settings)


def _good() -> dict:
  scene = FEW[0]
  return {
    "id": "c", "scene": scene.id, "turn": scene.trained_turns()[0], "split": scene.split,
    "candidates": [{"id": "c/0", "reply": "One."}, {"id": "c/1", "reply": "Two."}],
  }  # fmt: skip


BAD_ROWS = [
  (b"\xff\xfe", "not UTF-8"),
  (b"{", "not valid JSON"),
  (b"[1]", "one JSON object a line"),
  ({"id": ""}, "id: missing or empty"),
  ({"turn": "1"}, "turn: expected the index"),
  ({"turn": True}, "turn: expected the index"),
  ({"turn": 99}, "count from 0"),
  ({"scene": "nowhere"}, "not among the scenes"),
  ({"split": "test"}, "split: 'test' is not one of"),
  ({"split": "heldout"}, "split: 'heldout', but that of scene"),
  ({"candidates": "One."}, "candidates: expected a list"),
  ({"candidates": ["One."]}, r"candidates\[0\]: expected an object"),
  ({"candidates": [{"id": "c/0"}]}, r"candidates\[0\].reply: missing"),
  ({"candidates": [{"id": "c/0", "reply": "A <role_action>b"}]}, "repair the reply"),
  ({"candidates": [{"id": "c/0", "reply": "<role_thinking>x</role_thinking>"}]}, "neither"),
  ({"candidates": [{"id": "x", "reply": "A"}, {"id": "x", "reply": "B"}]}, "stands twice"),
  ({"candidates": [{"id": "x", "reply": "A", "repairs": "none"}]}, "expected a list of texts"),
  ({"missing": {"length": "3"}}, "missing: expected counts"),
  ({"candidate": []}, "no such field; is it 'candidates'"),
]


@pytest.mark.parametrize(("change", "message"), BAD_ROWS, ids=[m for _, m in BAD_ROWS])
def test_a_faulty_row_is_named_or_counted(tmp_path, change, message):
  scenes = Scenes([scene_file(tmp_path)], Refused())
  good = {**_good(), "id": "good"}
  bad = change if isinstance(change, bytes) else json.dumps({**_good(), **change}).encode()
  if isinstance(change, dict) and "candidate" in change:
    bad = bad.replace(b'"candidates"', b'"left"')
  path = tmp_path / "c.jsonl"
  path.write_bytes(b"\n" + json.dumps(good).encode() + b"\n" + bad + b"\n")

  def make(row):
    context = candidates.context_from_dict(row)
    return context, candidates.check_context(context, scenes)

  with pytest.raises(DataError, match=rf"c\.jsonl:3: .*{message}"):
    list(placed_rows([path], make, Refused()))
  lenient = Refused(True)
  assert [c.id for _, (c, _) in placed_rows([path], make, lenient)] == ["good"]
  assert lenient.kinds.total() == 1 and f"{path}:3" in lenient.lines[0]


def test_ids_stand_once_in_all_files_and_nothing_is_not_enough(tmp_path):
  one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
  schema.write_jsonl(one, FEW)
  schema.write_jsonl(two, FEW[:1])
  with pytest.raises(DataError, match=r"2\.jsonl:1: id: .* stands in .*1\.jsonl:1 too"):
    Scenes([str(one), str(two)], Refused())
  two.write_text("\n")
  with pytest.raises(DataError, match="no usable row"):
    Scenes([str(two)], Refused())
  with pytest.raises(DataError, match="no such file"):
    Scenes([str(tmp_path / "none")], Refused())


def test_a_byte_order_mark_and_a_row_of_two_megabytes_are_read(tmp_path):
  long = dataclasses.replace(FEW[0], scenario="x" * 2_000_000)
  path = tmp_path / "s.jsonl"
  schema.write_jsonl(path, [long, FEW[1]])
  path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
  scenes = Scenes([str(path)], Refused())
  assert len(scenes) == 2 and len(scenes[long.id].scenario) == 2_000_000
  assert [scene.id for scene in scenes] == [long.id, FEW[1].id]


def test_the_command_makes_them_of_recorded_replies(tmp_path):
  scene = FEW[0]
  path, out = scene_file(tmp_path, [scene]), tmp_path / "out.jsonl"
  recorded = tmp_path / "recorded.jsonl"
  replies = [
    {"id": question.id, "text": scripted.line("", k)}
    for turn in scene.trained_turns()
    for k, question in enumerate(candidates.questions(scene, turn, candidates.Settings(n=2)))
  ]
  recorded.write_text("".join(json.dumps(reply) + "\n" for reply in replies[:-1]))
  flags = f"--scenes={path}", f"--out={out}", "--n=2", "--backend=replay"
  done = call("candidates", *flags, f"--recorded={recorded}")
  assert done.returncode == 0, done.stderr
  assert len(rows(out)) == len(scene.trained_turns())
  assert rows(out)[-1]["missing"] == {"missing": 1}
  assert "1 missing: missing" in done.stdout
  first = out.read_bytes()
  assert call("candidates", *flags, f"--recorded={recorded}").returncode == 0
  assert out.read_bytes() == first
  wrong = call("candidates", *flags)
  assert wrong.returncode == 1 and "llm.recorded" in wrong.stderr
  assert "Traceback" not in wrong.stderr


def test_the_flags_are_the_fields_of_the_section_llm():
  from configs.llm import llm
  from data_pipeline.preferences import llm_flags

  assert {name: default for name, (default, _) in llm_flags.FIELDS.items()} == llm().to_dict()


def test_answers_come_in_the_order_asked():
  asked = candidates.questions(FEW[0], 1, candidates.Settings(n=40))
  answers = runner().ask(asked)
  assert [a.value[0] for a in answers] == [
    candidates.cleaned(scripted.line(q.messages[-1].content, k), FEW[0], 1)[0]
    for k, q in enumerate(asked)
  ]
