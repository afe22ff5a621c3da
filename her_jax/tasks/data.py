"""The data of a stage: its scenes, judge pairs and judgements, as `config.data` names them.

`data.scenes` is "samples", a file of JSON Lines, or a folder: of split files, as
`data_pipeline.splits` writes them, or of built data sets, as `data_pipeline.builders` does. Of a
folder each task reads the purpose that is its own and measures on `test`. Wherever there is a
proof of the splits, the data are held to it before anything is read. SFT and the judge take
several of these, each with a weight and a comma between: `out/built:0.7,samples:0.3`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import pathlib

from absl import logging
import ml_collections

from data_pipeline import records, samples
from data_pipeline.proof import PROOF, Proof, require_proof
from her_jax.errors import ConfigError
from her_jax.roleplay import principles, schema
from her_jax.roleplay.schema import DataError, Judgement, PreferencePair, Trajectory
from her_jax.tasks import sources

PURPOSES = {"sft": "sft", "genrm": "judge_sft", "rl": "rl", "evaluate": "test"}
MIXED = ("sft", "genrm")
_HELDOUT = "test"


@dataclasses.dataclass(frozen=True)
class Source:
  """What one source has to train.

  Attributes:
    name: as the config has it.
    weight: its share of the tokens, as a ratio to those of the others, see `mixing`.
    proven: whether there is a proof that no book is in `train` and in `heldout`.
  """

  name: str
  weight: float
  train: list[Trajectory]
  heldout: list[Trajectory]
  proven: bool = False

  @property
  def all(self) -> list[Trajectory]:
    return [*self.train, *self.heldout]


@dataclasses.dataclass(frozen=True)
class Scenes:
  """The scenes by split, of all sources together, and the sources, in the config's order."""

  train: list[Trajectory]
  heldout: list[Trajectory]
  sources: tuple[Source, ...] = ()

  @property
  def all(self) -> list[Trajectory]:
    return [*self.train, *self.heldout]


def load_scenes(config: ml_collections.ConfigDict, needed: str = "train") -> Scenes:
  """Reads `config.data.scenes`: one source, or several with weights where they are trained.

  Raises:
    ConfigError: several sources are none, or are for a task that mixes none.
    DataError: a line is broken, no scene of a source is of the split `needed`, the data are not
      what their proof speaks of, or a source trains what another holds out.
  """
  named = sources.parse(config.data.scenes)
  if len(named) > 1 and config.task not in MIXED:
    raise ConfigError(
      f"config.data.scenes={config.data.scenes}: {config.task} reads one source; only"
      f" {' and '.join(MIXED)} mix several"
    )
  found = [_load(one, config.task, needed) for one in named]
  sources.refuse_overlap(
    {one.name: one.train for one in found},
    {one.name: one.heldout for one in found},
    [one.name for one in found if one.proven],
  )
  return Scenes(
    [scene for source in found for scene in source.train],
    [scene for source in found for scene in source.heldout],
    tuple(found),
  )


def _load(named: sources.Named, task: str, needed: str) -> Source:
  name = named.name
  path = samples.SCENES if name == "samples" else pathlib.Path(name)
  purpose = PURPOSES[task]
  proven = path.is_dir() or (path.parent / PROOF).is_file()
  if path.is_dir():
    train, heldout = _of_folder(path, purpose, needed)
  else:
    if proven:
      require_proof(path, purpose)
    scenes = schema.read_trajectories(path)
    train, heldout = ([s for s in scenes if s.split == split] for split in ("train", "heldout"))
  if not (train or heldout):
    raise DataError(f"{path}: holds no scene; pass a file with one JSON object a line")
  if not (train if needed == "train" else heldout):
    raise DataError(
      f"{path}: no scene has split {needed!r}, which {task} needs; set the field 'split'"
    )
  return Source(name, named.weight, train, heldout, proven)


def _of_folder(
  folder: pathlib.Path, purpose: str, needed: str
) -> tuple[list[Trajectory], list[Trajectory]]:
  """A purpose of split or built data for training, and `test` to measure on, if it is there."""
  proof = _proof_of(folder, "trajectories")
  wanted = purpose if needed == "train" else _HELDOUT
  if wanted not in proof.row["purposes"]:
    raise DataError(
      f"{proof.path}: has no split for {wanted}; choose one of"
      f" {', '.join(proof.row['purposes'])} or give it a share"
    )
  train = _read(folder, purpose, "train") if purpose != _HELDOUT else []
  held = _HELDOUT in proof.row["purposes"]
  return train, _read(folder, _HELDOUT, "heldout") if held else []


def _proof_of(folder: pathlib.Path, kind: str) -> Proof:
  """The proof of what lies in a folder, which holds for it.

  Raises:
    DataError: the folder holds neither split files nor built data.
  """
  built = records.folder_of(folder, kind)
  if built is None and not (folder / PROOF).is_file():
    inside = next((n for n in ("built", "splits") if (folder / n).is_dir()), None)
    if inside:  # The workdir of synthesis.
      raise DataError(f"{folder}: the data are in {inside}/; pass {folder / inside}")
    raise DataError(
      f"{folder}: holds neither {PROOF} nor her_{kind}; pass a file, the --out of"
      f" `python -m data_pipeline.splits`, or that of `python -m data_pipeline.builders.build`"
    )
  return require_proof(built or folder)


def _read(folder: pathlib.Path, purpose: str, split: str) -> list[Trajectory]:
  """The conversations of a purpose, of data whose proof has been checked."""
  if records.folder_of(folder, "trajectories"):
    scenes: Iterable[Trajectory] = records.Trajectories(folder, purpose, check=False)
  else:
    scenes = schema.read_trajectories(folder / f"{purpose}.jsonl")
  return [dataclasses.replace(scene, split=split) for scene in scenes]


def load_pairs(config: ml_collections.ConfigDict, scenes: Scenes) -> list[PreferencePair]:
  """Reads `config.data.pairs`, which have to belong to `scenes`.

  Of several sources each has its own pairs, named in the same order with a comma between.

  Raises:
    ConfigError: the scenes are the user's own, the pairs still those of the samples; or sources
      and files of pairs do not go together.
    DataError: a line is broken, or a pair does not fit its scene.
  """
  named = config.data.pairs
  if len(scenes.sources) < 2:
    return _load_pairs(config.task, config.data.scenes, named, scenes)
  files = [named] * len(scenes.sources) if named == "samples" else named.split(",")
  if len(files) != len(scenes.sources):
    raise ConfigError(
      f"config.data.pairs={named} names {len(files)} files, config.data.scenes"
      f" {len(scenes.sources)} sources; name the pairs of each source in the same order"
    )
  sources.refuse_equal_ids({one.name: one.all for one in scenes.sources})
  return [
    pair
    for own, file in zip(scenes.sources, files, strict=True)
    for pair in _load_pairs(config.task, own.name, file.strip(), Scenes(own.train, own.heldout))
  ]


def _load_pairs(task: str, own: str, named: str, scenes: Scenes) -> list[PreferencePair]:
  """The pairs that `named` names of the scenes that `own` does."""
  if named == "samples" and own != "samples" and records.folder_of(own, "preference_pairs"):
    named = own  # They were built together.
  if named == "samples" and own != "samples":
    raise ConfigError(
      f"--config.data.scenes={own} has no pairs: --config.data.pairs still names those of the"
      f" sample scenes. Make some (python -m data_pipeline.preferences.make_pairs"
      f" --scenes={own} --pairs=pairs.jsonl) and pass --config.data.pairs"
    )
  path = samples.PAIRS if named == "samples" else pathlib.Path(named)
  if not pathlib.Path(own).is_dir():
    return schema.read_pairs(path, scenes.all, principles.library())
  if path.is_dir():
    proof = _proof_of(path, "preference_pairs")
    parts = [p for p in (PURPOSES[task], _HELDOUT) if p in proof.row["purposes"]]
    found = [
      pair
      for part in parts
      if part in records.splits_of(path, "preference_pairs")
      for pair in records.PreferencePairs(path, part, check=False)
    ]
  else:
    found = schema.read_pairs(path)
  return _placed(found, scenes, path)


def _placed(
  pairs: Iterable[PreferencePair], scenes: Scenes, path: pathlib.Path
) -> list[PreferencePair]:
  """The pairs of these scenes, each held out where its scene is, which a proof decides."""
  by_id = {scene.id: scene for scene in scenes.all}
  made, others = [], 0
  for pair in pairs:
    if pair.scene not in by_id:
      others += 1
      continue
    pair = dataclasses.replace(pair, split=by_id[pair.scene].split)
    try:
      schema.check_pair(pair, by_id, principles.library())
    except DataError as error:
      raise DataError(f"{path}: pair {pair.id!r}: {error}") from None
    made.append(pair)
  if others:
    logging.info("%s: %d pairs are of scenes for other purposes, and not read", path, others)
  return made


def load_judgements(
  config: ml_collections.ConfigDict, pairs: Sequence[PreferencePair]
) -> Mapping[str, Sequence[Judgement]]:
  """Reads `config.data.judgements`: by pair, what a teacher said of it; {} where none is named.

  Raises:
    DataError: a line is broken, or no judgement is of one of the pairs.
  """
  if not config.data.judgements:
    return {}
  known, found, others = {pair.id for pair in pairs}, defaultdict(list), 0
  for judgement in schema.read_judgements(config.data.judgements):
    if judgement.pair in known:
      found[judgement.pair].append(judgement)
    else:
      others += 1
  if not found:
    raise DataError(
      f"{config.data.judgements}: none of its {others} judgements is of a pair in"
      f" {config.data.pairs}; pass the file that lies beside the pairs"
    )
  logging.info("judgements of %d pairs, %d of pairs that are not read", len(found), others)
  return found
