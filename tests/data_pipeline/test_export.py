"""Parquet and JSON Lines hold the same rows, and `datasets` loads them from the folder."""

import json

import datasets
import pytest

from data_pipeline import export, proof, splits
from data_pipeline.builders import card
from data_pipeline.builders import source as sources
from data_pipeline.builders.source import Source
from her_jax.errors import ConfigError
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError

EVEN = dict.fromkeys(sources.KINDS["trajectories"], 1.0)


@pytest.fixture
def exported(corpus, written, tmp_path):
  rows = corpus(20)
  rows[0]["turns"][0] |= {"reply": "她说：“🙂”\u2028", "her": {"origin_ids": ["7"]}}
  rows[0]["characters"][0]["experience"] = "fell\x01 down"
  pairs = [
    {
      "id": f"pair {row['id']}",
      "scene": row["id"],
      "turn": 1,
      "candidate_1": "One.",
      "candidate_2": "Two.",
      "winner": "tie",
      "violates_1": ["a", "b"],
      "teacher": {"name": "x"},
    }
    for row in rows
  ]
  path, pair_path = written(rows), written(pairs, "pairs.jsonl")
  made = splits.split([path], tmp_path / "splits", purposes=EVEN)
  source = Source([path], made, [pair_path])
  about = card.About('The "Low" Light\\', "apache-2.0", "Written by hand.")
  return rows, pairs, source, export.export(source, tmp_path / "out", about=about)


@pytest.mark.parametrize("form", [0, 1])
def test_datasets_loads_every_config_and_split(exported, tmp_path, form):
  rows, pairs, source, folders = exported
  folder, cache = str(folders[form]), str(tmp_path / "cache")

  def load(kind):
    return datasets.load_dataset(folder, kind, cache_dir=cache)

  scenes = load("trajectories")
  assert set(scenes) == set(EVEN)
  for purpose, data in scenes.items():
    expected = [r for r in rows if source.proof.purpose(r["source"]) == purpose]
    assert [export.trajectory_from_columns(row) for row in data] == [
      schema.trajectory_from_dict({**r, "her": {**r["her"], "purpose": purpose}})
      for r in expected
    ]
  for kind in ("sft_turns", "rl_prompts"):
    for purpose, data in load(kind).items():
      assert len(data) == card.counts(source)[kind][purpose]
      for row in data:
        scene = scenes[purpose][row["record"]]
        assert scene["id"] == row["conversation"]
        turn = scene["turns"][row["turn"]]
        assert turn["speaker"] == row["speaker"]
        if kind == "sft_turns":
          assert (turn["plan"], turn["reply"]) == (row["plan"], row["reply"])
        else:
          assert "reply" not in row and "plan" not in row
  read = [row for data in load("preference_pairs").values() for row in data]
  by_id = {pair["id"]: schema.pair_from_dict(pair) for pair in pairs}
  assert read
  for row in read:
    assert export.pair_from_columns(row) == by_id[row["id"]]
  default = datasets.load_dataset(folder, split="test", cache_dir=cache)
  assert default.column_names == scenes["test"].column_names


def test_the_proof_and_checksums_go_with_the_files(exported):
  _, _, source, folders = exported
  for folder in folders:
    assert splits.require_proof(folder).seal == source.proof.seal
    text = (folder / "README.md").read_text("utf-8")
    assert 'pretty_name: "The \\"Low\\" Light\\\\"' in text
    assert 'license: "apache-2.0"' in text
    sums = json.loads((folder / proof.CHECKSUMS).read_text("utf-8"))["files"]
    assert len(sums) == 5 + 2 + 2 + 3
    victim = folder / next(iter(sums))
    victim.write_bytes(victim.read_bytes() + b"\n")
    with pytest.raises(DataError, match="changed since it was built"):
      splits.require_proof(folder)


def test_row_groups_are_bounded(corpus, written, tmp_path, monkeypatch):
  import pyarrow.parquet as pq

  rows = corpus(30)
  path = written(rows)
  made = splits.split([path], tmp_path / "s", purposes={"rl": 1})
  monkeypatch.setattr(export, "_GROUP_BYTES", 4000)
  (folder,) = export.export(Source([path], made), tmp_path / "out", ["parquet"])
  file = pq.ParquetFile(folder / "trajectories" / "rl.parquet")
  assert file.num_row_groups > 5
  read = [r["id"] for r in file.read(["id"]).to_pylist()]
  assert read == [row["id"] for row in rows]


def test_settings_and_folders_are_refused(exported, tmp_path):
  _, _, source, _ = exported
  with pytest.raises(ConfigError, match="'csv' is not one of parquet, jsonl"):
    export.export(source, tmp_path / "x", ["csv"])
  with pytest.raises(ConfigError, match="'turns' is not one of"):
    export.export(source, tmp_path / "x", kinds=["turns"])
  with pytest.raises(ConfigError, match="is there already"):
    export.export(source, tmp_path / "out")
  export.export(source, tmp_path / "out", overwrite=True, kinds=["rl_prompts"])
  assert not (tmp_path / "out" / "jsonl" / "trajectories").exists()
  bare = Source(source.paths, source.proof)
  with pytest.raises(DataError, match="preference_pairs: no records"):
    export.export(bare, tmp_path / "x", kinds=["preference_pairs"])
