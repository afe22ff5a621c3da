"""Balancing files: the pairs that were made are right, and the files fit each other."""

from collections import Counter
import dataclasses
import json
import random

import pytest

from data_pipeline import samples
from data_pipeline.preferences import balance, corruptions, hard_negatives
from data_pipeline.preferences.balance import Material
from data_pipeline.preferences.hard_negatives import LENGTHENED, RELABELLED, SPOILT
from data_pipeline.preferences.inputs import Refused, Scenes
from data_pipeline.preferences.mix import Options
from data_pipeline.preferences.verdicts import class_of
from her_jax.errors import ConfigError
from her_jax.roleplay import grammar, principles, schema
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.preferences.preference_runs import (
  ALL,
  FEW,
  call,
  make_candidates,
  make_labels,
  rows,
  scene_file,
)

MANY = (
  tuple(s for s in ALL if s.split == "train")[:12]
  + tuple(s for s in ALL if s.split == "heldout")[:4]
)
BY_ID = {scene.id: scene for scene in ALL}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
  """Pairs of sixteen sample scenes as the scripted teacher labels them."""
  folder = tmp_path_factory.mktemp("labelled")
  path, _ = make_candidates(folder, MANY)
  out, _ = make_labels(folder, path, pairs_per_context=20)
  return out


def _run(labelled, out, total=0, seed=0, options=Options(), scenes=None):  # noqa: B008
  folder = labelled.rpartition("/")[0]
  known = Scenes([scenes or f"{folder}/scenes.jsonl"], Refused())
  return balance.run(
    [labelled], [f"{labelled}.judgements.jsonl"], known, str(out), total, seed, options,
    Refused(),
  )  # fmt: skip


def test_the_whole_mix_of_labelled_pairs(labelled, tmp_path):
  out = tmp_path / "pairs.jsonl"
  report = _run(labelled, out)
  pairs = schema.read_pairs(out, MANY, principles.library())
  assert len(pairs) == report["taken"] > 200
  for split, table in report["splits"].items():
    mine = [p for p in pairs if p.split == split]
    assert table["missing"] == [] and len(mine) > 40
    kinds = Counter(class_of(p.winner, hard_negatives.principles_of(p)) for p in mine)
    assert kinds == {row["class"]: sum(row["taken"]) for row in table["rows"]}
    shares = {kind: n / len(mine) for kind, n in kinds.items()}
    wanted = {"mixed": 0.6, "all": 0.24, "tie": 0.1, "flipped": 0.06}
    assert shares == pytest.approx(wanted, abs=0.02)
    labels = Counter(p.winner for p in mine)
    assert abs(labels["cand_1"] - labels["cand_2"]) <= 3  # One a class at most.
  assert (
    abs(report["after"]["length_correlation"]) < 0.05 < report["before"]["length_correlation"]
  )
  assert abs(report["after"]["longer_wins"] - report["after"]["longer_loses"]) <= 2
  assert len({p.id for p in pairs}) == len(pairs)
  sides = {(p.scene, p.turn): {q.split for q in pairs if q.scene == p.scene} for p in pairs}
  assert all(len(splits) == 1 for splits in sides.values())


def test_judgements_follow_the_order_of_their_pair(labelled, tmp_path):
  out = tmp_path / "pairs.jsonl"
  _run(labelled, out)
  pairs = {p.id: p for p in schema.read_pairs(out)}
  before = {p.id: p for p in schema.read_pairs(labelled)}
  judgements = schema.read_judgements(f"{out}.judgements.jsonl")
  plain = {name for name, p in pairs.items() if p.kind == "labelled"}
  assert {j.pair for j in judgements} == plain and len(judgements) == 2 * len(plain)
  for judgement in judgements:
    pair = pairs[judgement.pair]
    assert judgement.winner == (swap(pair.winner) if judgement.swapped else pair.winner)
    texts = [pair.candidate_1, pair.candidate_2]
    old = before[pair.id]
    assert sorted(texts) == sorted((old.candidate_1, old.candidate_2))
  assert any(pairs[name].candidate_1 != before[name].candidate_1 for name in plain)


def test_the_same_seed_gives_the_same_files(labelled, tmp_path):
  files = []
  for name, seed in (("a", 0), ("b", 0), ("c", 1)):
    _run(labelled, tmp_path / name, 100, seed)
    files.append(
      [(tmp_path / f"{name}{end}").read_bytes() for end in ("", ".judgements.jsonl")]
    )
  assert files[0] == files[1] != files[2]


def test_pairs_that_were_made_are_right(labelled, tmp_path):
  out = tmp_path / "pairs.jsonl"
  _run(labelled, out)
  before = {p.id: p for p in schema.read_pairs(labelled)}
  made = [p for p in schema.read_pairs(out) if p.kind != "labelled"]
  assert {p.kind for p in made} == {SPOILT, LENGTHENED}
  for pair in made:
    of = before[pair.extra["her"]["of"]]
    assert pair.id == f"{of.id}/{pair.kind}"
    principle, side = pair.extra["her"]["breaks"]
    assert side == swap(pair.winner)
    changed = pair.candidate_1 if side == "cand_1" else pair.candidate_2
    kept = pair.candidate_2 if side == "cand_1" else pair.candidate_1
    assert kept in (of.candidate_1, of.candidate_2)
    assert changed not in (of.candidate_1, of.candidate_2)
    assert principle in (pair.violates_1 if side == "cand_1" else pair.violates_2)
    assert "verdicts" not in pair.extra["her"]
    assert grammar.parse(changed).status == "ok"
    old_winner = of.candidate_1 if of.winner == "cand_1" else of.candidate_2
    if pair.kind == LENGTHENED:
      assert principle == "no-repetition" and kept == old_winner and len(changed) > len(kept)
    else:
      # What won by all principles has a fault that none of them is about.
      assert kept != old_winner
      assert principle not in {p for p, _ in of.extra["her"]["principles"]}
      found = {w for _, w in hard_negatives.principles_of(pair)}
      assert found == {side}


def test_lengthening_adds_what_the_character_has_said(labelled):
  pairs = [p for p in schema.read_pairs(labelled) if p.winner != "tie"]
  done = 0
  for pair in pairs:
    scene = BY_ID[pair.scene]
    made = hard_negatives.lengthened(pair, scene, random.Random(0))
    if made is None:
      continue
    done += 1
    losing = pair.candidate_2 if pair.winner == "cand_1" else pair.candidate_1
    text = made.candidate_2 if pair.winner == "cand_1" else made.candidate_1
    assert text.startswith(losing) and made.winner == pair.winner
    speaker = scene.turns[pair.turn].speaker
    said = [
      sentence
      for t in (*scene.turns[: pair.turn], schema.Turn(speaker, losing))
      if t.speaker == speaker
      for s in grammar.parse(t.reply).segments
      if s.kind == grammar.SPEECH
      for sentence in hard_negatives._sentences(s.text)
    ]
    rest = text[len(losing) :]
    for piece in sorted(said, key=len, reverse=True):
      rest = rest.replace(piece, "")
    assert not rest.strip()
    longer = (
      made.candidate_1 if len(made.candidate_1) > len(made.candidate_2) else made.candidate_2
    )
    assert longer == text
  assert done > 100


def test_relabelled_pairs_are_marked(labelled, tmp_path):
  out = tmp_path / "pairs.jsonl"
  report = _run(labelled, out, options=Options(flip=RELABELLED))
  flipped = [p for p in schema.read_pairs(out) if p.kind == RELABELLED]
  before = {p.id: p for p in schema.read_pairs(labelled)}
  taken = sum(row["taken"][0] + row["taken"][1] for t in report["splits"].values()
              for row in t["rows"] if row["class"] == "flipped")  # fmt: skip
  assert len(flipped) == taken > 0
  for pair in flipped:
    of = before[pair.id.removesuffix(f"/{RELABELLED}")]
    texts = {"cand_1": of.candidate_1, "cand_2": of.candidate_2}
    winning = pair.candidate_1 if pair.winner == "cand_1" else pair.candidate_2
    assert winning == texts[swap(of.winner)]


def test_a_class_without_material_is_said(labelled, tmp_path):
  path = tmp_path / "labelled.jsonl"
  kept = [row for row in rows(labelled) if row["winner"] != "tie"]
  path.write_text("".join(json.dumps(row) + "\n" for row in kept))
  with pytest.raises(ConfigError, match="cannot be filled: tie: .* there were 0; label more"):
    balance.run(
      [str(path)], [], Scenes([scene_file(tmp_path, MANY)], Refused()), str(tmp_path / "o"), 0, 0,
      Options(), Refused(),
    )  # fmt: skip
  assert not (tmp_path / "o").exists()
  done = call(
    "balance", f"--pairs={path}", f"--scenes={tmp_path}/scenes.jsonl", f"--out={tmp_path}/o",
    "--total=200",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert "missing: tie: " in done.stdout and "mixed" in done.stdout
  assert len(rows(tmp_path / "o")) == pytest.approx(180, abs=2)


def test_pairs_of_corruptions_can_be_balanced_too(tmp_path):
  # Known violations stand in for a teacher's principles.
  pairs = corruptions.make_pairs(FEW, 0, 3)
  path = tmp_path / "pairs.jsonl"
  schema.write_jsonl(path, pairs)
  known = Material([str(path)], Refused(), Scenes([scene_file(tmp_path)], Refused()))
  kinds = Counter(k.item.kind for k in known.pairs)
  assert kinds == {
    "all": sum(p.winner != "tie" for p in pairs), "tie": sum(p.winner == "tie" for p in pairs)
  }  # fmt: skip


def test_a_book_in_two_splits_is_named(labelled, tmp_path):
  # The sample corpus holds out scenes, not books.
  report = _run(labelled, tmp_path / "o", 50)
  books = {split: {s.source for s in MANY if s.split == split} for split in schema.SPLITS}
  assert report["books_in_two_splits"] == sorted(books["train"] & books["heldout"]) != []
  assert "stand in two splits" in balance.text_of(report)


def test_the_same_texts_again_count_once(labelled, tmp_path):
  first = rows(labelled)[0]
  again = {**first, "id": "again", "candidate_1": first["candidate_2"],
           "candidate_2": first["candidate_1"], "winner": swap(first["winner"])}  # fmt: skip
  path = tmp_path / "p.jsonl"
  path.write_text(json.dumps(first) + "\n" + json.dumps(again) + "\n")
  known = Material([str(path)], Refused())
  assert len(known.pairs) == known.repeats == 1


BAD = [
  ({"split": "heldout"}, "split: 'heldout', but other pairs of scene .* have 'train'"),
  ({"winner": "cand_3"}, "winner: 'cand_3' is not one of"),
  ({"her": 3}, "her: expected an object"),
  ({"her": {"principles": [["vivid", "both"]]}}, "her.principles: expected a list"),
  ({"her": {"principles": {"vivid": "tie"}}}, "her.principles: expected a list"),
  ({"candidate_1": ""}, "candidate_1: missing or empty"),
  ({"turn": "2"}, "turn: expected the index"),
  ({"violates_1": "vivid"}, "violates_1: expected a list"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[m for _, m in BAD])
def test_a_faulty_pair_is_named_or_counted(labelled, tmp_path, change, message):
  good = next(row for row in rows(labelled) if row.get("split", "train") == "train")
  path = tmp_path / "p.jsonl"
  path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "id": "bad", **change}) + "\n")
  with pytest.raises(DataError, match=rf"p\.jsonl:2: {message}"):
    Material([str(path)], Refused())
  lenient = Refused(True)
  assert len(Material([str(path)], lenient).pairs) == 1 and lenient.kinds.total() == 1


def test_a_pair_is_held_to_its_scene(labelled, tmp_path):
  good = rows(labelled)[0]
  path = tmp_path / "p.jsonl"
  for change, message in (
    ({"scene": "nowhere"}, "not among the scenes"),
    ({"turn": 99}, "count from 0"),
    ({"split": "heldout"}, "split: 'heldout', but that of scene"),
  ):
    path.write_text(json.dumps({**good, **change}) + "\n")
    with pytest.raises(DataError, match=message):
      Material([str(path)], Refused(), Scenes([str(samples.SCENES)], Refused()))


def test_made_pairs_need_their_scenes(labelled, tmp_path):
  with pytest.raises(ConfigError, match="pass --scenes"):
    balance.run([labelled], [], None, str(tmp_path / "o"), 10, 0, Options(), Refused())
  options = Options(lengthen=False, flip="")
  report = balance.run([labelled], [], None, str(tmp_path / "o"), 100, 0, options, Refused())
  assert report["taken"] and not any(
    row["made"] for table in report["splits"].values() for row in table["rows"]
  )


def test_a_spoilt_reply_breaks_what_its_kind_says():
  scene = FEW[0]
  turn = scene.trained_turns()[-1]
  reply = scene.turns[turn].reply
  base = schema.PreferencePair("p", scene.id, turn, reply, "Well.", "cand_1")
  every = {corruptions.CORRUPTIONS[kind][1][0] for kind in hard_negatives._FAULTS}
  seen = set()
  for seed in range(20):
    made = hard_negatives.spoilt(base, scene, random.Random(seed))
    assert made is not None and made.winner == "cand_2" and made.candidate_2 == "Well."
    seen |= set(made.violates_1)
    # What the teacher praised is still there, in its order.
    rest = iter("".join(made.candidate_1.split()))
    spoken = "".join(s.text for s in grammar.parse(reply).segments)
    assert all(sign in rest for sign in "".join(spoken.split()))
  assert len(seen) > 1 and seen <= every
  named = dataclasses.replace(
    base, extra={"her": {"principles": [[p, "cand_1"] for p in sorted(every)]}}
  )
  assert hard_negatives.spoilt(named, scene, random.Random(0)) is None
  tie = dataclasses.replace(base, winner="tie")
  assert hard_negatives.spoilt(tie, scene, random.Random(0)) is None
  assert hard_negatives.lengthened(tie, scene, random.Random(0)) is None
