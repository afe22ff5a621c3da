"""Mining: planted clusters are found, in both languages, and drafts wait for a person."""

from collections import Counter
import itertools
import json
import random

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from data_pipeline.asking.runner import Runner
from data_pipeline.preferences import clusters, mining, reasons
from data_pipeline.preferences.inputs import Refused, Scenes
from data_pipeline.preferences.mining import Settings
from data_pipeline.preferences.reasons import Reason
from her_jax.llm.client import Client, Reply, Sampling
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import judging, principles, schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.preferences import scripted
from tests.data_pipeline.preferences.preference_runs import (
  FEW,
  call,
  make_candidates,
  make_labels,
  rows,
  scene_file,
)

LIBRARY = principles.library()
# Theme → the words of which its reasons are put together; no theme shares a word with another.
THEMES = {
  "en": {
    "smell": ("the smell of brine", "a smell of smoke", "smell and damp wool", "a faint smell"),
    "debt": ("old debts", "debts repaid", "debts between them", "unpaid debts"),
    "silence": ("a long silence", "silence as an answer", "silence kept", "watchful silence"),
    "weapon": ("the knife drawn", "a hidden knife", "the knife laid down", "knife and hand"),
  },
  "zh": {
    "smell": ("海腥气味", "潮湿的气味", "炉烟的气味", "空气里的气味", "羊毛的气味"),
    "debt": ("旧日的债务", "欠下的债务", "偿还债务", "债务与承诺", "未清的债务"),
    "silence": ("沉默以对", "长久沉默", "用沉默作答", "一阵沉默", "沉默之中"),
    "weapon": ("刀锋逼近", "刀锋出鞘", "收起刀锋", "刀锋之下", "握紧刀锋"),
  },
}
_FRAMES = {
  "en": (
    "It shows {}.",
    "Makes use of {} and {}.",
    "{} carry the moment.",
    "Weaves in {}, {}.",
  ),
  "zh": ("写出了{}。", "借{}与{}推进。", "{}撑起了这一刻。", "写到{}、{}。"),
}


def _planted(language: str, each: int = 20, seed: int = 0) -> list[tuple[str, str]]:
  """(theme, reason), each reason another."""
  rng = random.Random(seed)
  made: dict[str, str] = {}
  for theme, words in THEMES[language].items():
    while sum(t == theme for t in made.values()) < each:
      text = rng.choice(_FRAMES[language]).format(*rng.sample(words, 2))
      if rng.random() < 0.5:
        text = text.capitalize() + " " + rng.choice(words).capitalize() + "."
      made.setdefault(reasons.normal(text), theme)
  return [(theme, text) for text, theme in made.items()]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_planted_clusters_are_found_and_their_number_too(language):
  planted = _planted(language)
  random.Random(1).shuffle(planted)
  found = clusters.cluster([text for _, text in planted], language, most=10)
  assert found.count == 4 and max(found.silhouettes, key=found.silhouettes.get) == 4
  for number in range(4):
    assert len({planted[i][0] for i in found.members(number)}) == 1
  sizes = [len(found.members(number)) for number in range(4)]
  assert sizes == sorted(sizes, reverse=True) and sum(sizes) == len(planted)
  again = clusters.cluster([text for _, text in planted], language, most=10)
  assert np.array_equal(found.labels, again.labels)


@pytest.mark.parametrize(
  ("texts", "count"),
  [
    ([], 0),
    (["one thing"], 1),
    (["one thing", "another matter"], 1),
    (["the of", "and it"], 1),
  ],
)
def test_too_few_or_wordless_texts_are_one_cluster(texts, count):
  assert clusters.cluster(texts, "en").count == count


def test_a_fixed_number_of_clusters():
  texts = [text for _, text in _planted("en")]
  assert clusters.cluster(texts, "en", fixed=7).count == 7
  assert clusters.cluster(texts[:3], "en", fixed=7).count == 3


def _reasons(planted, language) -> list[Reason]:
  return [Reason(f"{i}", f"p{i}", text, language) for i, (_, text) in enumerate(planted)]


def test_candidates_are_drafts_with_what_to_write_them_from():
  everything = [r for lang in THEMES for r in _reasons(_planted(lang), lang)]
  everything = [
    Reason(f"{lang}{r.id}", r.pair, r.text, r.language)
    for lang, r in zip(itertools.cycle("ab"), everything, strict=False)
  ]
  drafts, report = mining.mine(everything, Settings(LIBRARY, most=8, per_cluster=1))
  assert [row["clusters"] and len(row["clusters"]) for row in report["languages"].values()] == [
    4,
    4,
  ]
  assert len(drafts) == report["candidates"] == 8
  for row in drafts:
    her = row["her"]
    assert her["count"] == her["different"] == 20 and her["share"] == 0.25
    assert len(her["exemplars"]) == 5 and her["terms"] and her["pairs"]
    themes = THEMES[her["language"]]
    of = {
      theme
      for theme, words in themes.items()
      if any(w.casefold() in text for w in words for text in her["exemplars"])
    }
    assert len(of) == 1
  assert drafts == mining.mine(everything, Settings(LIBRARY, most=8, per_cluster=1))[0]


def test_the_library_refuses_a_draft_until_a_person_has_filled_it_in(tmp_path):
  drafts, _ = mining.mine(
    _reasons(_planted("en"), "en"), Settings(LIBRARY, most=8, per_cluster=1)
  )
  path = tmp_path / "library.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in drafts))
  with pytest.raises(DataError, match=r"library\.jsonl:1.*dimension: ''"):
    principles.load(path)
  row = {
    **drafts[0], "id": "place-smells", "level": "sentence", "polarity": "positive",
    "dimension": "atmosphere and environment",
    "en": {"name": "Lets the place smell", "definition": "The air of the place is there."},
    "zh": {"name": "写出气味", "definition": "闻得到环境。"},
  }  # fmt: skip
  path.write_text(json.dumps(row) + "\n")
  assert list(principles.load(path)) == ["place-smells"]


def test_what_the_library_already_says_is_called_near():
  known = LIBRARY["felt-place"].definitions["en"].rstrip(".")
  near = [f"{known} {word}." for word in ("here", "throughout", "indeed", "clearly")]
  far = [text for theme, text in _planted("en", 8) if theme == "debt"]
  planted = [("near", text) for text in near] + [("far", text) for text in far]
  drafts, report = mining.mine(
    _reasons(planted, "en"), Settings(LIBRARY, clusters=2, per_cluster=1)
  )
  by_theme = {
    "near" if known in row["her"]["exemplars"][0] else "far": row["her"] for row in drafts
  }
  assert by_theme["near"]["near"] == ["felt-place"] and by_theme["far"]["near"] == []
  assert by_theme["near"]["dimension_of_nearest"] == LIBRARY["felt-place"].dimension
  assert report["near_the_library"] == 1


def test_a_cluster_is_parted_and_rare_parts_are_counted():
  planted = _planted("en", 12)
  drafts, report = mining.mine(
    _reasons(planted, "en"), Settings(LIBRARY, clusters=2, per_cluster=4)
  )
  told = report["languages"]["en"]
  assert len(told["clusters"]) == 2 < len(drafts)
  assert all(row["her"]["count"] >= 3 for row in drafts)
  taken = sum(row["her"]["count"] for row in drafts)
  assert taken + told["reasons_in_candidates_too_rare"] == len(planted)


def test_reasons_that_say_the_same_are_one_and_the_commonest_wording_stands():
  texts = [
    "It stays in role.", "it stays in role", "It stays in role.", "Cand_1: it stays in role!",
    "The better reply: It stays in role", "It stays ＩＮ role", "It leaves the role.",
  ]  # fmt: skip
  made = reasons.unique([Reason(str(i), f"p{i}", t) for i, t in enumerate(texts)])
  assert [(entry.text, entry.count) for entry in made["en"]] == [
    ("It leaves the role.", 1), ("It stays in role.", 6)
  ]  # fmt: skip
  zh = [Reason("a", "p", "更好的回应没有出戏。", "zh"), Reason("b", "p", "没有出戏", "zh")]
  assert reasons.unique(zh)["zh"][0].count == 2


@pytest.mark.parametrize(
  ("text", "found"),
  [
    ("- One.\n- Two.\n- Three.", ["One.", "Two.", "Three."]),
    ("1. One\n2) Two\n(3) Three", ["One", "Two", "Three"]),
    ("Here they are:\n* One\n• Two\n\n① 三", ["One", "Two", "三"]),
    ("<think>\n- draft\n</think>\n- One", ["One"]),
    ("- One\n- One\n- ...\n-", ["One"]),
    ("1880 was a cold year", []),
    ("No list at all.", []),
    (f"- {'x' * 700}\n- One", ["One"]),
  ],
)
def test_lists_are_read_as_models_write_them(text, found):
  assert reasons.listed(text) == found


@hypothesis.given(st.text())
def test_any_text_is_read_and_normal_once_is_normal(text):
  for reason in reasons.listed(text):
    assert reasons.normal(reason)
  assert reasons.normal(reasons.normal(text)) == reasons.normal(text)


def test_names_are_taken_out():
  names = ["Una Marrack", "Joost van Verhey", "Ed"]
  text = "Una's anger at Joost Verhey and Una Marrack; unabated, edited, van Ed."
  assert reasons.without_names(text, names, "en") == (
    "the character's anger at the character and the character; unabated, edited, van the character."
  )
  assert reasons.without_names("沈砚与陆遥争执", ["沈砚", "陆遥"], "zh") == "角色与角色争执"


def _ask(tmp_path, function):
  path, _ = make_candidates(tmp_path, n=4)
  labelled, _ = make_labels(tmp_path, path)
  asked = []

  def teacher(request):
    asked.append(request)
    return function(request)

  counts = mining.ask(
    [labelled], Scenes([scene_file(tmp_path)], Refused()),
    Runner(Client(Scripted("teacher", teacher))), Sampling(), str(tmp_path / "r.jsonl"), Refused(),
  )  # fmt: skip
  return schema.read_pairs(labelled), counts, asked


def test_each_winner_gets_its_reasons(tmp_path):
  pairs, counts, asked = _ask(tmp_path, scripted.reply)
  decided = [p for p in pairs if p.winner != "tie"]
  assert [r.id for r in asked] and {r.id for r in asked} == {f"reasons/{p.id}" for p in decided}
  assert counts["pairs that are ties, not asked"] == len(pairs) - len(decided) > 0
  by_id = {p.id: p for p in decided}
  for request in asked:
    pair = by_id[request.id.removeprefix("reasons/")]
    user = request.messages[1].content
    assert judging.candidates_text(pair.candidate_1, pair.candidate_2) in user
    number = 1 if pair.winner == "cand_1" else 2
    assert f"Candidate {number}\n" in user or f"候选{number}\n" in user
    assert scripted.SECRET not in user and "system_thinking" not in user
  found = [reasons.reason_from_dict(row) for row in rows(tmp_path / "r.jsonl")]
  assert Counter(r.pair for r in found) == {p.id: 3 for p in decided}
  assert {r.language for r in found} == {"en", "zh"}
  drafts, report = mining.mine(found, Settings(LIBRARY))
  assert {k: v["different"] for k, v in report["languages"].items()} == {"en": 3, "zh": 3}
  assert sum(row["her"]["count"] for row in drafts) == len(found)


def test_more_than_five_reasons_are_cut_and_fewer_than_three_are_missing(tmp_path):
  many = "\n".join(f"- reason {word}" for word in "abcdefg")

  def teacher(request):
    if request.id.endswith("/retry1"):
      return Reply("- one alone")
    first = int.from_bytes(request.id.encode()[-3:], "big") % 2
    return Reply(many if first else "I would not know.")

  pairs, counts, _ = _ask(tmp_path, teacher)
  missing = counts["pairs without reasons: fewer than 3 reasons"]
  assert 0 < missing < counts["pairs asked"]
  assert counts["reasons"] == 5 * (counts["pairs asked"] - missing)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"text": ""}, "text: missing or empty"),
    ({"text": "…!"}, "text: holds neither letters nor signs"),
    ({"language": "fr"}, "language: 'fr' is not one of en, zh"),
    ({"pair": None}, "pair: missing or empty"),
    ({"id": "0"}, "id: '0' stands in .*r.jsonl:1 too"),
  ],
)
def test_a_faulty_reason_is_named_or_counted(tmp_path, change, message):
  good = {"id": "0", "pair": "p", "text": "It holds.", "language": "en"}
  path = tmp_path / "r.jsonl"
  path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "id": "1", **change}) + "\n")
  with pytest.raises(DataError, match=rf"r\.jsonl:2: {message}"):
    mining.run(str(path), str(tmp_path), Settings(LIBRARY), {}, Refused())
  report = mining.run(str(path), str(tmp_path), Settings(LIBRARY), {}, Refused(True))
  assert report["refused"]["count"] == 1


def test_the_command_mines_recorded_replies_and_mines_again_without(tmp_path):
  path, _ = make_candidates(tmp_path, n=4)
  labelled, _ = make_labels(tmp_path, path)
  decided = [p for p in schema.read_pairs(labelled) if p.winner != "tie"]
  recorded = tmp_path / "recorded.jsonl"
  language = {scene.id: scene.language for scene in FEW}
  recorded.write_text(
    "".join(
      json.dumps({"id": f"reasons/{p.id}", "text": scripted._REASONS[language[p.scene]]}) + "\n"
      for p in decided
    )
  )
  done = call(
    "mining", f"--pairs={labelled}", f"--scenes={tmp_path}/scenes.jsonl",
    f"--out={tmp_path}/mined", "--backend=replay", f"--recorded={recorded}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert f"{3 * len(decided):8} reasons" in done.stdout
  again = call(
    "mining", f"--reasons={tmp_path}/mined/reasons.jsonl", f"--out={tmp_path}/again"
  )  # fmt: skip
  assert again.returncode == 0, again.stderr
  assert (tmp_path / "again/candidates.jsonl").read_bytes() == (
    tmp_path / "mined/candidates.jsonl"
  ).read_bytes()
  wrong = call("mining", f"--out={tmp_path}/no")
  assert wrong.returncode == 1 and "pass --pairs with --scenes, or --reasons" in wrong.stderr
