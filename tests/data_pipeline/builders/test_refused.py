"""What is built of which files: others, and faulty ones, are refused with the mend."""

import pytest

from data_pipeline import proof, records, splits
from data_pipeline.builders import build
from data_pipeline.builders.source import Source
from her_jax.errors import ConfigError
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.builders.corpora import EVEN, pairs_of


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
  pairs = pairs_of(rows)
  pairs[1]["candidate_1"] += "\0"
  with pytest.raises(DataError, match=r"pairs\.jsonl:2: candidate_1: holds a NUL"):
    Source([path], made, [written(pairs, "pairs.jsonl")])


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
  pairs = pairs_of(rows)
  pairs[3] |= change
  with pytest.raises(DataError, match=rf"pairs\.jsonl:4: {message}"):
    Source([path], made, [written(pairs, "pairs.jsonl")])
