"""What is built comes back as it was written: without TensorFlow, checked, and shuffled by Grain."""

import json
import os
import pickle
import subprocess
import sys
import tracemalloc

import grain
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow_datasets as tfds

from data_pipeline import export, proof, records, splits
from data_pipeline.builders import build, card
from data_pipeline.builders import source as sources
from data_pipeline.builders.source import Source
from her_jax.errors import ConfigError
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError

EVEN = dict.fromkeys(sources.KINDS["trajectories"], 1.0)


def _pairs(rows):
  return [
    {
      "id": f"pair {row['id']}",
      "scene": row["id"],
      "turn": 2,
      "candidate_1": row["turns"][2]["reply"],
      "candidate_2": "又是你。\u0001",
      "winner": "cand_1",
      "violates_2": ["too-short"],
      "note": {"by": "hand"},
    }
    for row in rows[::-1]
  ]


@pytest.fixture
def built(corpus, written, tmp_path):
  """Rows, pairs, source and folder of a small corpus that was split and built."""
  rows = corpus(20)
  pairs = _pairs(rows)
  path, pair_path = written(rows), written(pairs, "pairs.jsonl")
  made = splits.split([path], tmp_path / "splits", purposes=EVEN)
  source = Source([path], made, [pair_path])
  build.build(source, tmp_path / "built")
  return rows, pairs, source, tmp_path / "built"


def _expected(rows, source, purpose):
  made = []
  for row in rows:
    if source.proof.purpose(row["source"]) == purpose:
      row = json.loads(json.dumps(row))
      row["her"]["purpose"] = purpose
      made.append(schema.trajectory_from_dict(row))
  return made


def test_conversations_come_back_as_written(built):
  rows, _, source, out = built
  total = 0
  for purpose in EVEN:
    read = list(records.Trajectories(out, purpose))
    assert read == _expected(rows, source, purpose)
    total += len(read)
  assert total == len(rows)


def test_tfds_reads_them_without_this_project(built):
  rows, _, source, out = built
  folder = out / "her_trajectories" / "1.0.0"
  builder = tfds.builder_from_directory(str(folder))
  data = builder.as_data_source()
  assert set(data) == set(EVEN)
  for purpose, expected in ((p, _expected(rows, source, p)) for p in EVEN):
    assert len(data[purpose]) == len(expected) == builder.info.splits[purpose].num_examples
    for record, scene in zip(data[purpose], expected, strict=True):
      assert record["id"].decode() == scene.id
      assert record["turns"] == len(scene.turns)
      assert schema.trajectory_from_dict(json.loads(record["row"])) == scene
  assert builder.info.metadata["proof"] == source.proof.seal
  named = tfds.data_source("her_trajectories", split="sft", data_dir=str(out))
  assert len(named) == len(data["sft"])
  assert "tensorflow" not in sys.modules


def test_turns_and_prompts_are_cut_where_they_stand(built):
  rows, _, source, out = built
  for purpose in ("sft", "test"):
    scenes = _expected(rows, source, purpose)
    read = list(records.SftTurns(out, purpose))
    assert [r.id for r in read] == [f"{s.id}#{i}" for s in scenes for i in s.trained_turns()]
    for reply in read:
      whole = next(s for s in scenes if s.id == reply.scene.id)
      assert len(reply.scene.turns) == reply.turn + 1
      assert reply.scene.turns[-1] == whole.turns[reply.turn]
      assert [t.reply for t in reply.scene.turns] == [t.reply for t in whole.turns][
        : reply.turn + 1
      ]
      assert not any(t.plan for t in reply.scene.turns[:-1])
  for purpose in ("rl", "test"):
    scenes = {s.id: s for s in _expected(rows, source, purpose)}
    read = list(records.RlPrompts(out, purpose))
    assert len(read) == sum(len(s.trained_turns()) for s in scenes.values())
    for prompt in read:
      whole = scenes[prompt.scene.id]
      assert prompt.speaker == whole.turns[prompt.turn].speaker
      assert len(prompt.scene.turns) == prompt.turn
      assert not any(t.plan for t in prompt.scene.turns)
  with pytest.raises(DataError, match="no split 'sft'; choose one of rl, test"):
    records.RlPrompts(out, "sft")


def test_pairs_come_back_with_their_scene_and_the_others_are_counted(built):
  rows, pairs, source, out = built
  read = []
  for purpose in ("judge_sft", "judge_rl", "test"):
    data = records.PreferencePairs(out, purpose)
    for i in range(len(data)):
      scene = data.scene(i)
      assert scene.id == data[i].scene
      schema.check_pair(data[i], {scene.id: scene})
      read.append(data[i])
  other = {r["id"] for r in rows if source.proof.purpose(r["source"]) in ("sft", "rl")}
  wanted = [schema.pair_from_dict(p) for p in pairs if p["scene"] not in other]
  assert sorted(read, key=lambda p: p.id) == sorted(wanted, key=lambda p: p.id)
  assert sum(source.pair_faults.values()) == len(pairs) - len(wanted) > 0
  assert "Pairs left out" in (out / build.CARD).read_text("utf-8")


def test_grain_shuffles_resumes_and_sends_them(built):
  _, _, _, out = built
  data = pickle.loads(pickle.dumps(records.SftTurns(out, "sft")))
  iterator = iter(
    grain.MapDataset.source(data).seed(0).shuffle().map(lambda r: r.id).to_iter_dataset()
  )
  first = [next(iterator) for _ in range(5)]
  state = iterator.get_state()
  rest = list(iterator)
  assert sorted(first + rest) == sorted(r.id for r in data)
  iterator.set_state(state)
  assert list(iterator) == rest
  assert data[np.int64(1)] == data[1] == data[1 - len(data)]
  with pytest.raises(IndexError):
    data[len(data)]


def test_a_changed_shard_or_another_proof_is_refused(built, corpus, written, tmp_path):
  _, _, _, out = built
  folder = out / "her_trajectories" / "1.0.0"
  shard = next(folder.glob("*test.array_record*"))
  raw = bytearray(shard.read_bytes())
  raw[len(raw) // 2] ^= 1
  whole = shard.read_bytes()
  shard.write_bytes(raw)
  with pytest.raises(DataError, match=r"test\.array_record.*changed since it was built; build"):
    records.Trajectories(out, "sft")
  shard.unlink()
  with pytest.raises(DataError, match="missing; build the data set again"):
    records.Trajectories(out, "sft")
  shard.write_bytes(whole)
  assert splits.require_proof(folder, "sft")
  other = splits.split([written(corpus(20), "o.jsonl")], tmp_path / "o", purposes=EVEN, seed=9)
  (folder / proof.PROOF).write_bytes(other.path.read_bytes())
  with pytest.raises(DataError, match="built by another proof"):
    records.Trajectories(out, "sft")
  (folder / proof.PROOF).unlink()
  with pytest.raises(DataError, match="no proof of the splits"):
    records.Trajectories(out, "sft")


def test_sets_of_two_proofs_do_not_go_together(built, corpus, written, tmp_path):
  _, _, _, out = built
  path = written(corpus(20), "o.jsonl")
  other = splits.split([path], tmp_path / "o", purposes=EVEN, seed=9)
  build.build(Source([path], other), out, ["sft_turns"], overwrite=True)
  with pytest.raises(DataError, match="built by two proofs"):
    records.SftTurns(out, "sft")


@pytest.mark.parametrize(
  "text",
  ["", "{", "[]", "null", "\udcff", "[" * 100_000, "9" * 5000]
  + ['{"splits": 3}', '{"splits": [3]}', '{"splits": [{"name": "sft"}]}']
  + ['{"splits": [{"name": "sft", "shardLengths": ["x"]}]}'],
)
@pytest.mark.parametrize("name", ["dataset_info.json", "checksums.json", proof.PROOF])
def test_a_damaged_description_of_a_set_is_named(built, text, name):
  _, _, _, out = built
  path = out / "her_trajectories" / "1.0.0" / name
  whole = path.read_bytes()
  try:
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=f"{name}: .*; "):
      records.Trajectories(out, "sft")
  finally:
    path.write_bytes(whole)


def test_a_missing_set_is_told_of(tmp_path):
  with pytest.raises(DataError, match="no such data set; build it with"):
    records.Trajectories(tmp_path, "sft")


# Odd texts.

_texts = st.text(
  st.characters(
    exclude_categories=("Cs",), exclude_characters="\0<>＜＞&[]{}【】《》«»‹›〈〉｛｝"
  ),
  min_size=1,
  max_size=40,
).filter(lambda text: text.strip())


@hypothesis.settings(
  max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
  texts=st.lists(_texts, min_size=4, max_size=12),
  extra=st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")),
    lambda inner: (
      st.lists(inner, max_size=3)
      | st.dictionaries(st.text("añ中😀", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
  ),
)
def test_any_text_comes_back(tmp_path_factory, texts, extra):
  texts = [*texts, "🙂‍↔️ 她说：“好。”", "e\u0301\u200b\u2028\r\n\t\x7f", "\ufeff|\U0010ffff"]
  folder = tmp_path_factory.mktemp("odd")
  row = {
    "id": texts[0],
    "source": texts[1],
    "scenario": texts[2],
    "characters": [{"name": "A", "profile": texts[3], "told": extra}],
    "turns": [
      {"speaker": "A", "reply": f"x{t}", "plan": f"p{t}", "note": extra} for t in texts
    ],
    "kept": extra,
  }
  scene = schema.trajectory_from_dict(row)
  schema.write_jsonl(folder / "all.jsonl", [scene])
  made = splits.split([folder / "all.jsonl"], folder / "s", purposes={"sft": 1})
  source = Source([folder / "all.jsonl"], made)
  build.build(source, folder / "b")
  (read,) = records.Trajectories(folder / "b", "sft")
  assert read == schema.trajectory_from_dict({**row, "her": {"purpose": "sft"}})
  turns = records.SftTurns(folder / "b", "sft")
  assert [r.scene.turns[-1] for r in turns] == list(scene.turns)


@pytest.mark.parametrize("place", ["reply", "extra", "name of a field"])
def test_nul_is_refused_with_its_place(corpus, written, tmp_path, place):
  rows = corpus(6)
  if place == "reply":
    rows[3]["turns"][1]["reply"] += "\0"
  elif place == "extra":
    rows[3]["her"] = {"deep": [{"er": "a\0b"}]}
  else:
    rows[3]["her"] = {"a\0": 1}
  path = written(rows)
  with pytest.raises(DataError, match=r"all\.jsonl:4: .*holds a NUL character.*; remove it"):
    splits.split([path], tmp_path / "s", purposes={"sft": 1})
  rows[3] = {**corpus(6)[3], "note": "\\u0000 as six signs"}
  splits.split([written(rows)], tmp_path / "s", purposes={"sft": 1})


def test_nul_in_a_pair_is_refused(corpus, written, tmp_path):
  rows = corpus(6)
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"test": 1})
  pairs = _pairs(rows)
  pairs[1]["candidate_1"] += "\0"
  with pytest.raises(DataError, match=r"pairs\.jsonl:2: candidate_1: holds a NUL"):
    Source([path], made, [written(pairs, "pairs.jsonl")])


def test_a_row_of_two_megabytes_comes_back(corpus, written, tmp_path):
  rows = corpus(6)
  rows[2]["turns"][1]["reply"] = "雨 and rain. " * 150_000
  assert len(json.dumps(rows[2], ensure_ascii=False).encode()) > 2_000_000
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"sft": 1})
  build.build(Source([path], made), tmp_path / "b")
  read = list(records.Trajectories(tmp_path / "b", "sft"))
  assert read[2].turns[1].reply == rows[2]["turns"][1]["reply"]
  turn = next(r for r in records.SftTurns(tmp_path / "b", "sft") if r.id == "1/0#1")
  assert turn.scene.turns[-1].reply == rows[2]["turns"][1]["reply"]


def test_several_shards_are_one_sequence(corpus, written, tmp_path, monkeypatch):
  rows = corpus(12, each=3)
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"judge_sft": 1})
  source = Source([path], made, [written(_pairs(rows), "pairs.jsonl")])
  whole = source.shards("trajectories", "judge_sft")
  monkeypatch.setattr(sources.Source.shards, "__defaults__", (5000,))
  parts = source.shards("trajectories", "judge_sft")
  assert len(parts) > 5 and [i for p in parts for i in p] == [i for p in whole for i in p]
  build.build(source, tmp_path / "b")
  assert len(list((tmp_path / "b/her_trajectories/1.0.0").glob("*array_record*"))) == len(parts)
  read = [t.id for t in records.Trajectories(tmp_path / "b", "judge_sft")]
  assert read == [row["id"] for row in rows]
  read = [p.id for p in records.PreferencePairs(tmp_path / "b", "judge_sft")]
  assert read == [p["id"] for p in _pairs(rows)]


def test_memory_does_not_grow_with_the_texts(corpus, written, tmp_path, monkeypatch):
  monkeypatch.setattr(sources.Source.shards, "__defaults__", (500_000,))

  def peak(each):
    rows = corpus(10, each=each)
    for row in rows:
      row["scenario"] = " ".join([row["id"]] * 10_000)
    path = written(rows, f"{each}.jsonl")
    made = splits.split([path], tmp_path / f"s{each}", purposes=EVEN, write_files=False)
    tracemalloc.start()
    source = Source([path], made)
    build.build(source, tmp_path / f"b{each}")
    export.export(source, tmp_path / f"e{each}", ["jsonl"])
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held, path.stat().st_size

  peak(1)  # What is imported and cached once.
  (little, _), (much, size) = peak(10), peak(40)
  assert size > 10_000_000
  assert much < little + size / 20


# Refusals.


def test_files_that_the_proof_does_not_know_are_refused(corpus, written, tmp_path):
  path = written(corpus(6))
  made = splits.split([path], tmp_path / "s", purposes={"sft": 1})
  with path.open("a") as f:
    f.write("\n")
  with pytest.raises(DataError, match="changed since it was split"):
    Source([path], made)
  with pytest.raises(DataError, match="not among the files"):
    Source([written(corpus(2), "other.jsonl")], made)
  with pytest.raises(DataError, match="no such file"):
    Source([tmp_path / "none.jsonl"], made)


def test_the_files_of_the_purposes_build_the_same(built, tmp_path):
  _, _, source, out = built
  parts = [tmp_path / "splits" / f"{purpose}.jsonl" for purpose in EVEN]
  build.build(Source(parts, source.proof), tmp_path / "again", ["trajectories"])
  for purpose in EVEN:
    one, two = (records.Trajectories(folder, purpose) for folder in (out, tmp_path / "again"))
    assert list(one) == list(two)


def test_lines_that_the_split_left_out_stay_out(corpus, written, tmp_path):
  rows = corpus(6)
  rows[4]["turns"][0]["speaker"] = "Nobody"
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"sft": 1}, lenient=True)
  build.build(Source([path], made), tmp_path / "b")
  assert len(records.Trajectories(tmp_path / "b", "sft")) == len(rows) - 1
  assert "Conversations left out: 1" in (tmp_path / "b" / build.CARD).read_text("utf-8")


def test_kinds_without_records_are_told_of(corpus, written, tmp_path):
  rows = corpus(6)
  for row in rows:
    for turn in row["turns"]:
      del turn["plan"]
  path = written(rows)
  source = Source([path], splits.split([path], tmp_path / "s", purposes={"sft": 1}))
  with pytest.raises(DataError, match="sft_turns: no records; no turn for sft carries a plan"):
    build.build(source, tmp_path / "b", ["sft_turns"])
  with pytest.raises(DataError, match="preference_pairs: no records; pass --pairs=FILE"):
    build.build(source, tmp_path / "b", ["preference_pairs"])
  with pytest.raises(DataError, match="rl_prompts: no records; no conversation is for rl"):
    build.build(source, tmp_path / "b", ["rl_prompts"])
  with pytest.raises(ConfigError, match="'turns' is not one of trajectories"):
    build.build(source, tmp_path / "b", ["turns"])
  assert list(build.build(source, tmp_path / "b")) == ["trajectories"]
  with pytest.raises(ConfigError, match="is there already; pass --overwrite"):
    build.build(source, tmp_path / "b")
  build.build(source, tmp_path / "b", overwrite=True)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"scene": "nowhere"},
      "scene: 'nowhere' is not among the conversations; pass its file too",
    ),
    ({"turn": 99}, "turn: 99, but scene .* has 4 turns"),
    ({"winner": "both"}, "winner: 'both' is not one of"),
    ({"id": "pair 5/1"}, "id: 'pair 5/1' stands twice"),
  ],
)
def test_faulty_pairs_are_named(corpus, written, tmp_path, change, message):
  rows = corpus(6)
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"test": 1})
  pairs = _pairs(rows)
  pairs[3] |= change
  with pytest.raises(DataError, match=rf"pairs\.jsonl:4: {message}"):
    Source([path], made, [written(pairs, "pairs.jsonl")])


def test_the_card_tells_the_counts(built):
  rows, _, source, out = built
  text = (out / build.CARD).read_text("utf-8")
  for kind, by_split in card.counts(source).items():
    for split, number in by_split.items():
      assert any(
        line.startswith(f"| {kind} |") and line.endswith(f"| {split} | {number} |")
        for line in text.splitlines()
      )
  assert "| test | held out for evaluation | " in text
  assert source.proof.seal in text
  chinese = sum(row["language"] == "zh" for row in rows)
  assert f"zh {chinese} (30.0%)" in text


def test_the_command(corpus, written, tmp_path):
  path = written(corpus(20))
  made = splits.split([path], tmp_path / "s", purposes=EVEN)
  arguments = [f"--trajectories={path}", f"--splits={made.path}", f"--out={tmp_path / 'b'}"]
  # TensorFlow, if there is one, is not to be imported.
  blocked = tmp_path / "blocked"
  blocked.mkdir()
  (blocked / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
  done = subprocess.run(
    [sys.executable, "-m", "data_pipeline.builders.build", *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(blocked), *sys.path])},
  )
  assert done.returncode == 0, done.stderr
  assert "her_rl_prompts/1.0.0: rl " in done.stdout
  assert not (tmp_path / "b" / "downloads").exists()
  assert len(records.Trajectories(tmp_path / "b", "sft")) > 0
