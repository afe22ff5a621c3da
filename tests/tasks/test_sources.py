"""Several sources with weights: how they are named, and what is refused."""

import dataclasses
import shutil

import pytest

from configs import genrm, rl, sft
from data_pipeline import samples, splits
from data_pipeline.preferences import corruptions
from her_jax.errors import ConfigError
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from her_jax.tasks import data, sources
from her_jax.tasks.sources import Named


def _config(scenes, module=sft):
  config = module.get_config("tiny")
  config.data.scenes = str(scenes)
  return config


@pytest.fixture(scope="module")
def scenes():
  """Of other books each, some held out."""
  found = schema.read_trajectories(samples.SCENES)[:12]
  return [
    dataclasses.replace(s, source=f"Book {i}", split="heldout" if i % 4 == 3 else "train")
    for i, s in enumerate(found)
  ]


def _write(path, scenes):
  schema.write_jsonl(path, scenes)
  return path


@pytest.mark.parametrize(
  "text, expected",
  [
    ("samples", [Named("samples", 1.0)]),
    ("my.jsonl", [Named("my.jsonl", 1.0)]),
    ("a:7,b.jsonl:3", [Named("a", 7.0), Named("b.jsonl", 3.0)]),
    ("a:1e-3, b:2 ,c:.5", [Named("a", 0.001), Named("b", 2.0), Named("c", 0.5)]),
    ("gs:x/a:0.5,b:0.5", [Named("gs:x/a", 0.5), Named("b", 0.5)]),
  ],
)
def test_sources_are_named_with_weights(text, expected):
  assert sources.parse(text) == expected


def test_a_file_whose_name_looks_like_several_is_one(tmp_path):
  path = tmp_path / "a:1,b:2"
  path.write_text("")
  assert sources.parse(str(path)) == [Named(str(path), 1.0)]


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "-inf", "0.0"])
def test_a_weight_that_is_none_is_refused(weight):
  with pytest.raises(ConfigError, match=rf"the weight of a is {weight}; it must be a number"):
    sources.parse(f"a:{weight},b:1")


@pytest.mark.parametrize(
  "text, told",
  [
    ("a,b", "'a' has no weight"),
    ("a:1,b", "'b' has no weight"),
    ("a:1,:2", "':2' has no weight"),
    ("a:1,", "'' has no weight"),
    ("a:1,b:much", "'b:much' has no weight"),
    ("a:0.7", "one source alone takes no weight; pass a$"),
    ("a:1,b:2,./a:3", "names a twice"),
    ("samples:1,samples:2", "names samples twice"),
    (f"samples:1,{samples.SCENES}:2", "names samples twice"),
  ],
)
def test_what_names_no_mixture_is_refused(text, told):
  with pytest.raises(ConfigError, match=told):
    sources.parse(text)


def test_each_source_is_read_as_one_alone(scenes, tmp_path):
  one, two = (_write(tmp_path / f"{i}.jsonl", scenes[i::2]) for i in range(2))
  found = data.load_scenes(_config(f"{one}:3,{two}:1"))
  alone = [data.load_scenes(_config(path)) for path in (one, two)]
  assert [(s.name, s.weight) for s in found.sources] == [(str(one), 3.0), (str(two), 1.0)]
  for source, expected in zip(found.sources, alone, strict=True):
    assert source.train == expected.train and source.heldout == expected.heldout
  assert found.train == alone[0].train + alone[1].train
  assert found.heldout == alone[0].heldout + alone[1].heldout
  assert [s.weight for s in alone[0].sources] == [1.0]


def test_each_source_is_held_to_its_own_proof(scenes, tmp_path):
  plain = [dataclasses.replace(s, split="train") for s in scenes]
  _write(tmp_path / "all.jsonl", plain[:8])
  splits.split([tmp_path / "all.jsonl"], tmp_path / "splits", purposes={"sft": 2, "test": 1})
  other = _write(tmp_path / "other.jsonl", plain[8:])
  config = _config(f"{tmp_path / 'splits'}:1,{other}:1")
  found = data.load_scenes(config)
  assert len(found.sources[0].train) + len(found.sources[0].heldout) == 8
  changed = tmp_path / "splits" / "sft.jsonl"
  changed.write_bytes(changed.read_bytes()[:-1] + b" ")
  with pytest.raises(DataError, match="sft.jsonl: changed since"):
    data.load_scenes(config)


def test_a_source_without_training_scenes_is_refused_by_name(scenes, tmp_path):
  one = _write(tmp_path / "one.jsonl", scenes[:4])
  none = _write(tmp_path / "none.jsonl", [s for s in scenes[4:] if s.split == "heldout"])
  with pytest.raises(DataError, match="none.jsonl: no scene has split 'train'"):
    data.load_scenes(_config(f"{one}:1,{none}:1"))


def test_a_copy_under_another_name_is_the_same_source(scenes, tmp_path):
  one = _write(tmp_path / "one.jsonl", scenes)
  shutil.copyfile(one, tmp_path / "two.jsonl")
  with pytest.raises(DataError, match="train the same 9 conversations; name one"):
    data.load_scenes(_config(f"{one}:1,{tmp_path / 'two.jsonl'}:1"))
  # A part of it may weigh more.
  few = [s for s in scenes if s.split == "train"][:3]
  part = _write(tmp_path / "part.jsonl", few)
  assert len(data.load_scenes(_config(f"{one}:1,{part}:1")).sources) == 2


def test_a_conversation_that_another_source_holds_out_is_not_trained(scenes, tmp_path):
  held = next(s for s in scenes if s.split == "heldout")
  one = _write(tmp_path / "one.jsonl", scenes)
  leak = dataclasses.replace(held, id="leak", split="train", source="")
  two = _write(tmp_path / "two.jsonl", [leak])
  for text in (f"{one}:1,{two}:1", f"{two}:1,{one}:1"):
    with pytest.raises(DataError, match=r"two.jsonl trains what .*one.jsonl holds out, conv"):
      data.load_scenes(_config(text))


def test_a_book_that_a_proof_holds_out_is_not_trained(scenes, tmp_path):
  plain = [dataclasses.replace(s, split="train") for s in scenes]
  _write(tmp_path / "all.jsonl", plain[1:])
  proof = splits.split(
    [tmp_path / "all.jsonl"], tmp_path / "splits", purposes={"sft": 2, "test": 1}
  )
  for scene in plain[1:]:
    same_book = dataclasses.replace(plain[0], source=f"{scene.source.upper()} (Annotated)")
    two = _write(tmp_path / "two.jsonl", [same_book])
    config = _config(f"{two}:1,{tmp_path / 'splits'}:1")
    if proof.purpose(scene.source) == "sft":
      data.load_scenes(config)
      continue
    with pytest.raises(DataError, match=r"two.jsonl trains what .*splits holds out, books: 'B"):
      data.load_scenes(config)
  # Files without a proof may divide a book.
  for name, own in (("a", scenes[:4]), ("b", scenes[4:])):
    _write(tmp_path / f"{name}.jsonl", [dataclasses.replace(s, source="One") for s in own])
  data.load_scenes(_config(f"{tmp_path / 'a.jsonl'}:1,{tmp_path / 'b.jsonl'}:1"))


@pytest.mark.parametrize("module", [rl])
def test_other_tasks_read_one_source(module):
  with pytest.raises(ConfigError, match="rl reads one source; only"):
    data.load_scenes(_config("samples:1,b.jsonl:2", module))


def _pairs(path, scenes):
  return _write(path, corruptions.make_pairs(scenes, 0, 1))


def test_each_source_has_its_pairs(scenes, tmp_path):
  files = [_write(tmp_path / f"{i}.jsonl", scenes[i::2]) for i in range(2)]
  pairs = [_pairs(tmp_path / f"pairs{i}.jsonl", scenes[i::2]) for i in range(2)]
  config = _config(f"{files[0]}:1,{files[1]}:2", genrm)
  config.data.pairs = f"{pairs[0]},{pairs[1]}"
  loaded = data.load_scenes(config)
  expected = [pair for path in pairs for pair in schema.read_pairs(path)]
  assert data.load_pairs(config, loaded) == expected
  config.data.pairs = f"{pairs[1]},{pairs[0]}"
  with pytest.raises(DataError, match="pairs1.jsonl.*scene"):
    data.load_pairs(config, loaded)
  config.data.pairs = str(pairs[0])
  with pytest.raises(ConfigError, match="names 1 files, config.data.scenes 2 sources"):
    data.load_pairs(config, loaded)
  config.data.pairs = "samples"
  with pytest.raises(ConfigError, match="0.jsonl has no pairs"):
    data.load_pairs(config, loaded)


def test_the_samples_bring_their_pairs(scenes, tmp_path):
  own = [dataclasses.replace(s, id=f"own-{s.id}") for s in scenes]
  own = [dataclasses.replace(s, turns=s.turns[1:]) for s in own]
  _write(tmp_path / "own.jsonl", own)
  _pairs(tmp_path / "pairs.jsonl", own)
  config = _config(f"samples:1,{tmp_path / 'own.jsonl'}:2", genrm)
  config.data.pairs = f"samples,{tmp_path / 'pairs.jsonl'}"
  found = data.load_pairs(config, data.load_scenes(config))
  both = [schema.read_pairs(path) for path in (samples.PAIRS, tmp_path / "pairs.jsonl")]
  assert len(found) == sum(map(len, both))


def test_pairs_need_ids_that_one_source_has(scenes, tmp_path):
  other = dataclasses.replace(scenes[0], turns=scenes[0].turns[1:], source="Another")
  files = [_write(tmp_path / "0.jsonl", scenes), _write(tmp_path / "1.jsonl", [other])]
  config = _config(f"{files[0]}:1,{files[1]}:2", genrm)
  with pytest.raises(DataError, match=f"both have a scene '{scenes[0].id}'"):
    data.load_pairs(config, data.load_scenes(config))
