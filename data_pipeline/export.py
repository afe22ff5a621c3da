"""Writes data sets as JSON Lines and Parquet, for `datasets.load_dataset`.

    python -m data_pipeline.export --trajectories=all.jsonl \
        --splits=out/splits/splits_proof.json --out=out/export [--pairs=pairs.jsonl]

Writes `out/parquet/` and `out/jsonl/` (`--formats`), each with `KIND/SPLIT.EXTENSION`, the proof
of the splits, the files' SHA-256 and the data card as README.md, whose header tells `datasets`
where they are:

    datasets.load_dataset("out/parquet", "trajectories", split="sft")

Both formats hold the same columns: fields that a schema cannot hold (`extra`, of a conversation,
character or turn) are JSON texts; `trajectory_from_columns` makes a row whole again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import json
import os
import pathlib
import shutil
import sys
from typing import Any

from absl import app, flags

from data_pipeline import own_inputs
from data_pipeline.builders import card
from data_pipeline.builders.source import KINDS, Reader, Source
from data_pipeline.proof import CHECKSUMS, PROOF, sha256_of
from her_jax.errors import ConfigError
from her_jax.roleplay import jsonl
from her_jax.roleplay.schema import Character, DataError, PreferencePair, Trajectory, Turn

FORMATS = ("parquet", "jsonl")
_GROUP_BYTES = 8 << 20  # Text of a Parquet row group, which is in memory while it is written.
_HOW = """\
```python
import datasets

data = datasets.load_dataset("FOLDER", "{kind}", split="{split}")
```

`record` of a row is the index of its conversation within the same split of `trajectories`, and
`extra` is JSON. The splits are those of the proof, `splits_proof.json`; SHA-256 of the files are
in `checksums.json`."""

_CHARACTER = ("name", "profile", "background", "motivation", "description", "experience")
_TURN = ("speaker", "reply", "plan")
_SCENE = ("id", "source", "language", "genre", "mood", "topic", "summary", "split", "scenario")
_PAIR = ("id", "scene", "candidate_1", "candidate_2", "winner", "kind", "split")
_VIOLATES = ("violates_1", "violates_2")


def trajectory_columns(scene: Trajectory, purpose: str) -> dict[str, Any]:
  """A conversation with one type a column; see `trajectory_from_columns`."""
  return {
    **{name: getattr(scene, name) for name in _SCENE},
    "purpose": purpose,
    "characters": [_columns(c, _CHARACTER) for c in scene.characters],
    "turns": [_columns(t, _TURN) for t in scene.turns],
    "extra": _json(scene.extra),
  }


def trajectory_from_columns(row: Mapping[str, Any]) -> Trajectory:
  """The trajectory of an exported row, equal to the one that was written."""
  return Trajectory(
    **{name: row[name] for name in _SCENE},
    characters=tuple(Character(**_fields(c)) for c in row["characters"]),
    turns=tuple(Turn(**_fields(t)) for t in row["turns"]),
    extra=json.loads(row["extra"] or "{}"),
  )


def pair_columns(pair: PreferencePair, record: int) -> dict[str, Any]:
  return {
    **{name: getattr(pair, name) for name in _PAIR},
    "turn": pair.turn,
    "record": record,
    **{name: list(getattr(pair, name)) for name in _VIOLATES},
    "extra": _json(pair.extra),
  }


def pair_from_columns(row: Mapping[str, Any]) -> PreferencePair:
  """The pair of an exported row, equal to the one that was written."""
  fields: dict[str, Any] = {name: row[name] for name in (*_PAIR, "turn")}
  fields |= {name: tuple(row[name]) for name in _VIOLATES}
  return PreferencePair(**fields, extra=json.loads(row["extra"] or "{}"))


def _columns(value: Any, names: Sequence[str]) -> dict[str, str]:
  return {**{name: getattr(value, name) for name in names}, "extra": _json(value.extra)}


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
  return {**row, "extra": json.loads(row["extra"] or "{}")}


def _json(extra: Mapping[str, Any]) -> str:
  return jsonl.written(extra) if extra else ""


def rows(source: Source, kind: str, purpose: str) -> Iterator[dict[str, Any]]:
  """The rows of one split, streamed."""
  with source.open() as reader:
    if kind == "preference_pairs":
      for number in range(source.pairs(purpose)):
        pair, _, record = reader.pair(purpose, number)
        yield pair_columns(pair, record)
      return
    yield from _conversation_rows(source, reader, kind, purpose)


def _conversation_rows(
  source: Source, reader: Reader, kind: str, purpose: str
) -> Iterator[dict[str, Any]]:
  for entry in reader.entries(purpose, range(source.conversations(purpose))):
    scene = entry.scene()
    if kind == "trajectories":
      yield trajectory_columns(scene, purpose)
      continue
    for i in scene.trained_turns():
      turn = scene.turns[i]
      row = {"id": f"{scene.id}#{i}", "conversation": scene.id, "source": scene.source}
      row |= {"language": scene.language, "speaker": turn.speaker}
      numbers = {"record": entry.record, "turn": i}
      texts = {"plan": turn.plan, "reply": turn.reply} if kind == "sft_turns" else {}
      yield {**row, **texts, **numbers}


def _arrow_schema(kind: str) -> Any:
  import pyarrow as pa

  text, number = pa.string(), pa.int64()
  if kind == "trajectories":
    people = pa.list_(pa.struct([(name, text) for name in (*_CHARACTER, "extra")]))
    turns = pa.list_(pa.struct([(name, text) for name in (*_TURN, "extra")]))
    columns = [(name, text) for name in (*_SCENE, "purpose")]
    return pa.schema([*columns, ("characters", people), ("turns", turns), ("extra", text)])
  if kind == "preference_pairs":
    columns = [*((n, text) for n in _PAIR), ("turn", number), ("record", number)]
    columns += [(name, pa.list_(text)) for name in _VIOLATES]
    return pa.schema([*columns, ("extra", text)])
  texts = ["id", "conversation", "source", "language", "speaker"]
  texts += ["plan", "reply"] if kind == "sft_turns" else []
  return pa.schema([*((n, text) for n in texts), ("record", number), ("turn", number)])


def _write_parquet(path: pathlib.Path, kind: str, made: Iterator[dict[str, Any]]) -> None:
  import pyarrow as pa
  import pyarrow.parquet as pq

  form = _arrow_schema(kind)
  with pq.ParquetWriter(path, form, compression="zstd") as writer:
    held: list[dict[str, Any]] = []
    size = 0

    def flush() -> None:
      writer.write_table(pa.Table.from_pylist(held, form))
      held.clear()

    for row in made:
      held.append(row)
      size += _size(row)
      if size >= _GROUP_BYTES:
        flush()
        size = 0
    if held:
      flush()


def _size(value: Any) -> int:
  if isinstance(value, str):
    return len(value)
  if isinstance(value, dict):
    return sum(map(_size, value.values()))
  return sum(map(_size, value)) if isinstance(value, list) else 8


def _write_jsonl(path: pathlib.Path, kind: str, made: Iterator[dict[str, Any]]) -> None:
  del kind
  with path.open("w", encoding="utf-8") as file:
    for row in made:
      file.write(jsonl.written(row) + "\n")


_WRITERS: Mapping[str, Callable[[pathlib.Path, str, Iterator[dict[str, Any]]], None]] = {
  "parquet": _write_parquet,
  "jsonl": _write_jsonl,
}


def export(
  source: Source,
  out: str | os.PathLike[str],
  formats: Sequence[str] = FORMATS,
  kinds: Sequence[str] = (),
  overwrite: bool = False,
  about: card.About | None = None,
) -> list[pathlib.Path]:
  """Writes a folder a format and gives these.

  Raises:
    ConfigError: a format or kind is unknown, or the folder is there already.
    DataError: the source has no records of the kinds.
  """
  for form in formats:
    if form not in FORMATS:
      raise ConfigError(f"formats: {form!r} is not one of {', '.join(FORMATS)}")
  for kind in kinds:
    if kind not in KINDS:
      raise ConfigError(f"kinds: {kind!r} is not one of {', '.join(KINDS)}")
  chosen = {kind: splits for kind in kinds or KINDS if (splits := source.splits(kind))}
  if missing := [kind for kind in kinds if kind not in chosen]:
    raise DataError(f"{', '.join(missing)}: no records in {', '.join(map(str, source.paths))}")
  own_inputs.refuse(
    [pathlib.Path(out) / form for form in formats],
    [*source.paths, *source.pair_paths, source.proof.path],
  )
  about = about or card.About()
  made = []
  for form in formats:
    folder = pathlib.Path(out) / form
    if folder.exists():
      if not overwrite:
        raise ConfigError(f"{folder}: is there already; pass --overwrite or another --out")
      shutil.rmtree(folder)
    sums, configs = {}, {}
    for kind, splits in chosen.items():
      (folder / kind).mkdir(parents=True)
      configs[kind] = {split: f"{kind}/{split}.{form}" for split in splits}
      for split, name in configs[kind].items():
        _WRITERS[form](folder / name, kind, rows(source, kind, split))
        sums[name] = sha256_of(folder / name)
    shutil.copyfile(source.proof.path, folder / PROOF)
    text = json.dumps({"proof": source.proof.seal, "files": sums}, indent=1) + "\n"
    (folder / CHECKSUMS).write_text(text, "utf-8")
    kind, splits = next(iter(chosen.items()))
    how = _HOW.format(kind=kind, split=splits[0])
    text = card.header(about, source, configs)
    text += card.markdown(source, list(chosen), about, how)
    (folder / "README.md").write_text(text, "utf-8")
    made.append(folder)
  return made


if __name__ == "__main__":
  _TRAJECTORIES = flags.DEFINE_list("trajectories", None, "JSON Lines files", required=True)
  _SPLITS = flags.DEFINE_string("splits", None, "Proof of the splits", required=True)
  _OUT = flags.DEFINE_string("out", None, "Folder for the data sets", required=True)
  _PAIRS = flags.DEFINE_list("pairs", [], "JSON Lines files of preference pairs")
  _FORMATS = flags.DEFINE_list("formats", list(FORMATS), "What to write")
  _KINDS = flags.DEFINE_list("kinds", [], f"Of {', '.join(KINDS)}; empty: all there are")
  _OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace what is there")
  _NAME = flags.DEFINE_string("name", card.About.name, "Title of the card")
  _LICENSE = flags.DEFINE_string("license", "", "Identifier for the card, e.g. apache-2.0")
  _ORIGIN = flags.DEFINE_string("origin", "", "Where the data come from, for the card")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Pass --trajectories, --splits and --out.")
  about = card.About(_NAME.value, _LICENSE.value, _ORIGIN.value)
  try:
    source = Source(_TRAJECTORIES.value, _SPLITS.value, _PAIRS.value)
    made = export(source, _OUT.value, _FORMATS.value, _KINDS.value, _OVERWRITE.value, about)
  except (DataError, ConfigError, OSError) as error:
    sys.exit(f"export: {error}")
  for folder in made:
    print(folder)


if __name__ == "__main__":
  app.run(main)
