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

from data_pipeline import export, records, splits
from data_pipeline.builders import build, card
from data_pipeline.builders import source as sources
from data_pipeline.builders.source import Source
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.builders.corpora import EVEN, pairs_of


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
  source = Source([path], made, [written(pairs_of(rows), "pairs.jsonl")])
  whole = source.shards("trajectories", "judge_sft")
  monkeypatch.setattr(sources.Source.shards, "__defaults__", (5000,))
  parts = source.shards("trajectories", "judge_sft")
  assert len(parts) > 5 and [i for p in parts for i in p] == [i for p in whole for i in p]
  build.build(source, tmp_path / "b")
  assert len(list((tmp_path / "b/her_trajectories/1.0.0").glob("*array_record*"))) == len(parts)
  read = [t.id for t in records.Trajectories(tmp_path / "b", "judge_sft")]
  assert read == [row["id"] for row in rows]
  read = [p.id for p in records.PreferencePairs(tmp_path / "b", "judge_sft")]
  assert read == [p["id"] for p in pairs_of(rows)]


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
