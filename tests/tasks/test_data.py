"""Scenes and pairs are read by purpose, and only as their proof knows them."""

import dataclasses
import json
import shutil

import pytest

from configs import evaluate, genrm, rl, sft
from data_pipeline import samples, splits
from data_pipeline.builders import build
from data_pipeline.builders.source import Source
from data_pipeline.preferences import corruptions
from her_jax.errors import ConfigError
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from her_jax.tasks import data

SHARES = {"sft": 3, "rl": 1, "judge_sft": 1, "test": 1}
CONFIGS = {"sft": sft, "genrm": genrm, "rl": rl, "evaluate": evaluate}


def _config(task, **settings):
  config = CONFIGS[task].get_config("tiny")
  config.data.update({name: str(value) for name, value in settings.items()})
  return config


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """The sample scenes under 24 titles, split, with pairs, and built; scenes by purpose."""
  out = tmp_path_factory.mktemp("data")
  scenes = [
    dataclasses.replace(scene, source=f"Book {i % 24}", split="train")
    for i, scene in enumerate(schema.read_trajectories(samples.SCENES))
  ]
  schema.write_jsonl(out / "all.jsonl", scenes)
  proof = splits.split([out / "all.jsonl"], out / "splits", purposes=SHARES)
  schema.write_jsonl(out / "pairs.jsonl", corruptions.make_pairs(scenes, 0, 1))
  source = Source([out / "all.jsonl"], proof, [out / "pairs.jsonl"])
  build.build(source, out / "built")
  purposes = {p: {s.id for s in scenes if proof.purpose(s.source) == p} for p in SHARES}
  assert all(purposes.values())
  return out, purposes


@pytest.mark.parametrize("folder", ["splits", "built"])
@pytest.mark.parametrize("task", CONFIGS)
def test_a_task_reads_its_own_purpose_and_measures_on_test(corpus, folder, task):
  out, purposes = corpus
  needed = "heldout" if task == "evaluate" else "train"
  found = data.load_scenes(_config(task, scenes=out / folder), needed)
  own = set() if task == "evaluate" else purposes[data.PURPOSES[task]]
  assert {s.id for s in found.train} == own
  assert {s.id for s in found.heldout} == purposes["test"]
  assert {s.split for s in found.train} <= {"train"}
  assert {s.split for s in found.heldout} == {"heldout"}
  whole = {s.id: s for s in schema.read_trajectories(out / "all.jsonl")}
  assert all(s.turns == whole[s.id].turns for s in found.all)


@pytest.mark.parametrize(
  ("scenes", "pairs"),
  [
    ("splits", "pairs.jsonl"),
    ("splits", "built"),
    ("built", "pairs.jsonl"),
    ("built", "built"),
    ("built", None),  # They lie beside the scenes.
  ],
)
def test_pairs_follow_their_scenes(corpus, scenes, pairs):
  out, purposes = corpus
  config = _config("genrm", scenes=out / scenes, **({"pairs": out / pairs} if pairs else {}))
  found = data.load_pairs(config, data.load_scenes(config))
  every = schema.read_pairs(out / "pairs.jsonl")
  for split, purpose in (("train", "judge_sft"), ("heldout", "test")):
    own = {pair.id for pair in found if pair.split == split}
    assert own == {pair.id for pair in every if pair.scene in purposes[purpose]} != set()


def test_one_file_of_a_split_is_held_to_its_proof(corpus, tmp_path):
  out, purposes = corpus
  found = data.load_scenes(_config("sft", scenes=out / "splits" / "sft.jsonl"))
  assert {s.id for s in found.train} == purposes["sft"]
  with pytest.raises(DataError, match=r"rl.jsonl: is for rl, not sft; pass sft.jsonl"):
    data.load_scenes(_config("sft", scenes=out / "splits" / "rl.jsonl"))


@pytest.mark.parametrize("folder", ["splits", "built"])
def test_changed_data_are_refused(corpus, folder, tmp_path):
  out, _ = corpus
  shutil.copytree(out / folder, tmp_path / folder)
  name = "sft.jsonl" if folder == "splits" else "her_trajectories/**/*.array_record*"
  changed = next((tmp_path / folder).glob(name))
  changed.write_bytes(changed.read_bytes()[:-1] + b" ")
  with pytest.raises(DataError, match=f"{changed.name}: changed since"):
    data.load_scenes(_config("sft", scenes=tmp_path / folder))


def test_the_test_set_under_another_name_is_refused(corpus, tmp_path):
  out, _ = corpus
  shutil.copytree(out / "splits", tmp_path / "splits")
  shutil.copyfile(tmp_path / "splits/test.jsonl", tmp_path / "splits/sft.jsonl")
  with pytest.raises(DataError, match="sft.jsonl: is for test"):
    data.load_scenes(_config("sft", scenes=tmp_path / "splits"))
  shutil.copytree(out / "built", tmp_path / "built")
  (folder,) = (tmp_path / "built/her_trajectories").iterdir()
  (test,) = folder.glob("*-test.array_record*")
  (sft,) = folder.glob("*-sft.array_record*")
  shutil.copyfile(test, sft)
  sums = json.loads((folder / "checksums.json").read_text())
  (folder / "checksums.json").write_text(json.dumps({**sums, "files": {}}))
  with pytest.raises(DataError, match="is not among the checksums"):
    data.load_scenes(_config("sft", scenes=tmp_path / "built"))


def test_a_folder_without_data_or_purpose_says_what_to_pass(corpus, tmp_path):
  out, _ = corpus
  (tmp_path / "empty").mkdir()
  with pytest.raises(DataError, match="empty: holds neither splits_proof.json nor her_traj"):
    data.load_scenes(_config("sft", scenes=tmp_path / "empty"))
  with pytest.raises(DataError, match=f"the data are in built/; pass {out / 'built'}"):
    data.load_scenes(_config("sft", scenes=out))
  splits.split([out / "all.jsonl"], tmp_path / "two", purposes={"sft": 2, "rl": 1})
  with pytest.raises(DataError, match="has no split for judge_sft; choose one of sft, rl"):
    data.load_scenes(_config("genrm", scenes=tmp_path / "two"))
  with pytest.raises(DataError, match="has no split for test"):
    data.load_scenes(_config("evaluate", scenes=tmp_path / "two"), "heldout")
  with pytest.raises(ConfigError, match="has no pairs: "):
    data.load_pairs(_config("genrm", scenes=out / "splits"), data.Scenes([], []))


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_a_file_without_scenes_says_so(tmp_path, text):
  (tmp_path / "none.jsonl").write_text(text)
  with pytest.raises(DataError, match="none.jsonl: holds no scene; pass a file"):
    data.load_scenes(_config("sft", scenes=tmp_path / "none.jsonl"))


def test_judgements_are_read_by_pair(corpus, tmp_path):
  out, _ = corpus
  pairs = schema.read_pairs(out / "pairs.jsonl")
  path = tmp_path / "said.jsonl"
  rows = [
    schema.Judgement(f"{pair.id}/{order}", pair.id, pair.winner, swapped=order == "21")
    for pair in pairs
    for order in ("12", "21")
  ]
  schema.write_jsonl(path, rows)
  assert data.load_judgements(_config("genrm"), pairs) == {}
  found = data.load_judgements(_config("genrm", judgements=path), pairs[:3])
  assert {id: [j.id for j in said] for id, said in found.items()} == {
    pair.id: [f"{pair.id}/12", f"{pair.id}/21"] for pair in pairs[:3]
  }
  path.write_text(json.dumps(schema.to_dict(dataclasses.replace(rows[0], pair="other"))))
  with pytest.raises(DataError, match="none of its 1 judgements is of a pair in"):
    data.load_judgements(_config("genrm", judgements=path), pairs)
