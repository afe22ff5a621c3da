"""Every flag fires on planted faults and on no clean look-alike."""

from collections import Counter
import dataclasses
import json
import pathlib
import re
import time

import hypothesis
from hypothesis import strategies as st
import pytest

from data_pipeline import quality, samples
from data_pipeline.quality import future, letters, view, wordings
from her_jax.roleplay import formats, schema, tags

CASES = pathlib.Path(__file__).parent / "cases"
PEOPLE = {"en": ["Una Marrack", "Joost Verhey"], "zh": ["佘满仓", "蔺七斤"]}
SCENARIO = {"en": "A kitchen by the harbour, late in April.", "zh": "深秋夜雨，山中小店。"}


def _cases():
  for path in sorted(CASES.glob("*.jsonl")):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
      yield pytest.param(path.stem, json.loads(line), id=f"{path.stem}:{number}")


def _scene(case):
  """The trajectory of a case, checked by the schema, and its book; the case is turn len(before)."""
  language = case.get("lang", "en")
  people = case.get("people", PEOPLE[language])
  speaker = case.get("speaker", people[0])
  characters = [{"name": name} for name in people]
  for character in characters:
    if character["name"] == speaker:
      character |= {f: case[f] for f in ("profile", "motivation") if f in case}
  turn = {"speaker": speaker, "reply": case.get("reply", "…"), "plan": case.get("plan", "")}
  others = [
    [{"speaker": s, "reply": r} for s, r in case.get(key, [])] for key in ("before", "after")
  ]
  row = {
    "id": "case",
    "scenario": case.get("scenario", SCENARIO[language]),
    "language": language,
    "source": "A Book",
    "characters": characters,
    "turns": [*others[0], {k: v for k, v in turn.items() if v}, *others[1]],
  }
  if "passage" in case:
    row["her"] = {"passage": case["passage"], "chapter": case["chapter"]}
  scene = schema.trajectory_from_dict(row)
  if "book" not in case:
    return scene, None
  names = tuple(case.get("book_people", ()))
  rest = [future.Passage(chapter, text, names, language) for chapter, text in case["book"]]
  return scene, quality.Book([future.passage_of(scene), *rest])


@pytest.mark.parametrize("name, case", list(_cases()))
def test_a_flag_fires_on_faults_and_not_on_look_alikes(name, case):
  scene, book = _scene(case)
  turn = len(case.get("before", []))
  flags = [f for f in quality.check(scene, book) if f.turn == turn]
  mine = [f for f in flags if f.name == name]
  assert bool(mine) == case["fault"], flags
  for flag in mine:
    text = getattr(scene.turns[flag.turn], flag.field)
    assert flag.evidence and text[flag.start : flag.end] == flag.evidence
    assert case.get("evidence", "") in flag.evidence and flag.why
  if not case["fault"]:
    assert not flags, "a clean case raises no other flag either"


@pytest.mark.parametrize("name", quality.NAMES)
def test_there_are_twelve_of_each_in_both_languages(name):
  cases = [case for at, case in (p.values for p in _cases()) if at == name]
  for fault in (True, False):
    languages = Counter(c.get("lang", "en") for c in cases if c["fault"] is fault)
    assert languages.total() >= 12 and min(languages["en"], languages["zh"]) >= 4


def test_the_sample_scenes_are_clean():
  """No flag may fire on more than one in a hundred turns; today none fires at all."""
  scenes = schema.read_trajectories(samples.SCENES)
  counts = Counter(flag.name for scene in scenes for flag in quality.check(scene))
  turns = sum(len(scene.turns) for scene in scenes)
  assert turns > 900 and all(count <= 0.01 * turns for count in counts.values()), counts


def test_what_fires_on_real_dialogues_is_right(real_data):
  """43 conversations of CoSER, 530 turns; every flag was held against its text by hand."""
  rows = json.loads(real_data("coser_public_domain_cases.json").read_text(encoding="utf-8"))
  found = Counter(
    (flag.name, scene.source, flag.turn)
    for row in rows
    for scene in formats.trajectories(row)
    for flag in quality.check(scene)
  )
  # Thoughts that stand word for word in the motivation, and an action that is another's.
  right = {
    ("reply_in_prompt", "Anna Karenina", 2),
    ("reply_in_prompt", "Anna Karenina", 4),
    ("speaks_for_other", "Wuthering Heights", 11),
  }
  assert set(found) == right


def test_a_whole_novel_has_no_fault_of_a_model(real_data):
  """Real speech and narration of 1813, in turns of two people: none talks as an assistant."""
  text = real_data("pride_and_prejudice.txt").read_text(encoding="utf-8")
  text = re.sub(r"[<>\[\]_]", "", text[text.index("It is a truth") :])
  parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
  parts = [part for part in parts if 40 < len(part) < 1500]
  assert len(parts) > 5000
  people = (schema.Character("Elizabeth Bennet"), schema.Character("Mr. Darcy"))
  found = Counter()
  for layer in ("{}", "<role_thinking>{}</role_thinking> Well."):
    for at in range(0, len(parts), 10):
      turns = tuple(
        schema.Turn(people[i % 2].name, layer.format(part))
        for i, part in enumerate(parts[at : at + 10])
      )
      scene = schema.Trajectory("x", "A house in the country.", people, turns=turns)
      found.update((flag.name, flag.evidence) for flag in quality.check(scene))
  narrated = {name for name, _ in found} - {"thought_not_first_person"}
  # Narration as a thought tells of its thinker, and is the only thing that may be flagged.
  assert not narrated, found


def test_planted_faults_in_the_sample_scenes_are_found():
  """A reply pasted into its plan, and spoilt replies of the preference pairs, in every scene."""
  scenes = schema.read_trajectories(samples.SCENES)
  leaked = [_with(s, i, plan=f"{s.turns[i].plan} {_speech(s, i)}") for s, i in _planned(scenes)]
  assert _share(leaked, "reply_in_plan") > 0.97
  by_id = {scene.id: scene for scene in scenes}
  spoilt: dict[str, list] = {}
  for pair in schema.read_pairs(samples.PAIRS):
    bad = pair.candidate_2 if pair.winner == "cand_1" else pair.candidate_1
    if pair.winner != "tie":
      spoilt.setdefault(pair.kind, []).append(_with(by_id[pair.scene], pair.turn, reply=bad))
  assert _share(spoilt["speaks_for_user"], "speaks_for_other") > 0.95
  assert _share(spoilt["repeats_itself"], "repetition") > 0.95
  assert _share(spoilt["breaks_character"], "prompt_words", "analyst_voice") > 0.95


def _planned(scenes):
  return [(scene, i) for scene in scenes for i in scene.trained_turns()]


def _speech(scene, i):
  layers = view.layers_of(scene.turns[i].reply)
  return " ".join(layer.text for layer in layers if layer.kind == tags.SPEECH)


def _with(scene, i, **fields):
  turns = list(scene.turns)
  turns[i] = dataclasses.replace(turns[i], **fields)
  return dataclasses.replace(scene, turns=tuple(turns)), i


def _share(scenes, *names):
  found = [any(f.name in names and f.turn == i for f in quality.check(s)) for s, i in scenes]
  return sum(found) / len(found)


def test_only_some_flags_and_unknown_ones():
  scene, _ = _scene({"plan": "I should refuse.", "reply": "As an AI, I refuse."})
  assert {f.name for f in quality.check(scene)} == {"plan_first_person", "prompt_words"}
  assert [f.name for f in quality.check(scene, only=["prompt_words"])] == ["prompt_words"]
  with pytest.raises(ValueError, match="no flag plan_in_reply; known are reply_in_plan"):
    quality.check(scene, only=["plan_in_reply"])


_TEXT = st.text(
  st.sampled_from(list("aAI mUnaJost.:?!\"'“”‘’-,\n我他她说佘满仓：。，（）<>/_ İß·1")),
  max_size=60,
)
_LAYER = st.sampled_from(
  ["{}", "<role_thinking>{}</role_thinking>", "<role_action>{}</role_action>"]
)


@hypothesis.given(
  st.lists(st.tuples(_LAYER, _TEXT), min_size=1, max_size=4), _TEXT, st.booleans()
)
def test_whatever_the_text_the_evidence_stands_at_its_place(parts, plan, chinese):
  reply = "".join(layer.format(text) for layer, text in parts)
  language = "zh" if chinese else "en"
  people = tuple(schema.Character(name) for name in PEOPLE[language])
  turns = tuple(schema.Turn(people[i % 2].name, reply, plan) for i in range(3))
  scene = schema.Trajectory("x", reply or "x", people, language, turns=turns)
  for flag in quality.check(scene):
    text = getattr(turns[flag.turn], flag.field)
    assert 0 <= flag.start < flag.end <= len(text)
    assert text[flag.start : flag.end] == flag.evidence


@hypothesis.given(st.lists(st.tuples(_LAYER, _TEXT), max_size=5))
def test_layers_stand_where_they_say(parts):
  reply = "".join(layer.format(text) for layer, text in parts)
  for layer in view.layers_of(reply):
    assert reply[layer.start : layer.start + len(layer.text)] == layer.text


@hypothesis.given(_TEXT)
def test_words_stand_where_they_say(text):
  for start, end, word in view.words_of(text):
    assert word in "".join(map(letters.folded_sign, text[start:end]))
    assert all(letters.folded_sign(sign) for sign in (text[start], text[end - 1]))


@pytest.mark.parametrize("turns, words", [(1, 40_000), (4000, 20)])
def test_costs_grow_with_the_length_and_not_with_its_square(turns, words):
  """A row of a megabyte, in one turn or in thousands: neither takes long."""
  case = {"reply": "nay " * words + "<role_action>nods to Wickham</role_action>"}
  scene, _ = _scene({**case, "plan": "nay " * words})
  scene = dataclasses.replace(scene, turns=scene.turns * turns)
  start = time.process_time()
  found = {flag.name for flag in quality.check(scene)}
  assert time.process_time() - start < 20
  assert {"repetition", "reply_in_plan"} <= found


@pytest.mark.parametrize(
  "heading, numbers",
  [
    ("Chapter XII", (12,)), ("Volume II, Chapter 3", (2, 3)), ("第十二章", (12,)),
    ("第二十一回", (21,)), ("卷三 第一百零五回", (3, 105)), ("The Letter", ()), ("CHAPTER iv.", (4,)),
  ],
)  # fmt: skip
def test_numbers_of_headings(heading, numbers):
  assert future._numbers(heading) == numbers


@pytest.mark.parametrize(
  "names, forms",
  [
    (["Una Marrack", "Davy Marrack"], {"Una Marrack": ("Una Marrack", "Una"), "Davy Marrack": ("Davy Marrack", "Davy")}),
    (["Mr. Bennet", "Mrs. Bennet"], {"Mr. Bennet": ("Mr. Bennet",), "Mrs. Bennet": ("Mrs. Bennet",)}),
    (["佘满仓", "环儿"], {"佘满仓": ("佘满仓", "满仓"), "环儿": ("环儿",)}),
  ],
)  # fmt: skip
def test_forms_of_names_mean_one_person(names, forms):
  assert view.name_forms(names) == forms


def test_first_persons_that_are_numbers():
  assert wordings.first_person("In World War I she was a nurse.", "en") is None
  assert wordings.first_person("In World War I, I was a nurse.", "en").start() == 16
