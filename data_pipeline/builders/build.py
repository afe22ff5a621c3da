"""Builds data sets in ArrayRecord from split trajectories.

    python -m data_pipeline.builders.build --trajectories=all.jsonl \
        --splits=out/splits/splits_proof.json --out=out/built [--pairs=pairs.jsonl]

`--trajectories` are the files that were split, or those of the purposes; a file that the proof
does not know is refused. Writes `her_<kind>/<version>/` in TFDS' layout, each with the proof
and the SHA-256 of its files (`checksums.json`), and `DATA_CARD.md`. Flags: `--kinds` (default
all of which there are records), `--overwrite`, `--name`, `--license`, `--origin` for the card.
Read with `data_pipeline.records` or `tfds.data_source`; no TensorFlow is needed.
"""

from collections.abc import Iterator, Sequence
import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
import tempfile

from absl import app, flags, logging

from data_pipeline import own_inputs
from data_pipeline.builders import card
from data_pipeline.builders.source import KINDS, Source
from data_pipeline.proof import CHECKSUMS, PROOF, sha256_of
from her_jax.errors import ConfigError
from her_jax.roleplay.schema import DataError

CARD = "DATA_CARD.md"
_HOW = """\
```python
from data_pipeline import records

conversations = records.Trajectories("FOLDER", "{split}")  # len(), [i] -> Trajectory
```

or without this project: `tfds.builder_from_directory("FOLDER/her_trajectories/{version}")`
`.as_data_source("{split}")`. Records are in the order of the input; shuffle by index."""


def build(
  source: Source,
  out: str | os.PathLike[str],
  kinds: Sequence[str] = (),
  overwrite: bool = False,
  about: card.About | None = None,
) -> dict[str, pathlib.Path]:
  """Writes the data sets and gives their folders by kind.

  Args:
    kinds: of KINDS; all of which the source has records if empty.
    overwrite: whether a data set that is there is replaced.

  Raises:
    ConfigError: a kind is unknown, or a data set is there already.
    DataError: the source has no record of a kind that was asked for.
  """
  from data_pipeline.builders import datasets  # TFDS starts slowly.

  out = pathlib.Path(out)
  for kind in kinds:
    if kind not in KINDS:
      raise ConfigError(f"kinds: {kind!r} is not one of {', '.join(KINDS)}")
    if not source.splits(kind):
      raise DataError(f"{kind}: no records; {_why(source, kind)}")
  chosen = [kind for kind in kinds or KINDS if source.splits(kind)]
  own_inputs.refuse(
    [out / CARD, *(out / datasets.BUILDERS[kind].name for kind in chosen)],
    [*source.paths, *source.pair_paths, source.proof.path],
  )
  made: dict[str, pathlib.Path] = {}
  for kind in chosen:
    cls = datasets.BUILDERS[kind]
    folder = out / cls.name / str(cls.VERSION)
    if folder.exists():
      if not overwrite:
        raise ConfigError(f"{folder}: is there already; pass --overwrite or another --out")
      shutil.rmtree(folder)
    builder = cls(source=source, data_dir=out, file_format="array_record")
    with tempfile.TemporaryDirectory() as nothing, _quiet():
      # TFDS says that it downloads, and makes a folder for it.
      builder.download_and_prepare(download_dir=nothing)
    shutil.copyfile(source.proof.path, folder / PROOF)
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != CHECKSUMS)
    sums = {"proof": source.proof.seal, "files": {p.name: sha256_of(p) for p in files}}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", "utf-8")
    made[kind] = folder
  split = (source.splits("trajectories") or source.purposes)[0]
  how = _HOW.format(split=split, version=datasets.LAYOUT)
  text = card.markdown(source, chosen, about or card.About(), how)
  (out / CARD).write_text(text, "utf-8")
  return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps TFDS from telling of each step."""
  level = logging.get_verbosity()
  logging.set_verbosity(min(level, logging.WARNING))  # In absl, less is quieter.
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logging.set_verbosity(level)


def _why(source: Source, kind: str) -> str:
  if kind == "preference_pairs" and not source.pair_paths:
    return "pass --pairs=FILE"
  if kind == "preference_pairs":
    return f"of the pairs given none is usable: {dict(source.pair_faults)}"
  needed = [p for p in KINDS[kind] if p in source.purposes]
  if needed and kind in ("sft_turns", "rl_prompts"):
    return f"no turn for {', '.join(needed)} carries a plan; synthesise plans first"
  return f"no conversation is for {' or '.join(KINDS[kind])}"


if __name__ == "__main__":
  _TRAJECTORIES = flags.DEFINE_list("trajectories", None, "JSON Lines files", required=True)
  _SPLITS = flags.DEFINE_string("splits", None, "Proof of the splits", required=True)
  _OUT = flags.DEFINE_string("out", None, "Folder for the data sets", required=True)
  _PAIRS = flags.DEFINE_list("pairs", [], "JSON Lines files of preference pairs")
  _KINDS = flags.DEFINE_list("kinds", [], f"Of {', '.join(KINDS)}; empty: all there are")
  _OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace what is there")
  _NAME = flags.DEFINE_string("name", card.About.name, "Title of the card")
  _LICENSE = flags.DEFINE_string("license", "", "For the card")
  _ORIGIN = flags.DEFINE_string("origin", "", "Where the data come from, for the card")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Pass --trajectories, --splits and --out.")
  about = card.About(_NAME.value, _LICENSE.value, _ORIGIN.value)
  try:
    source = Source(_TRAJECTORIES.value, _SPLITS.value, _PAIRS.value)
    made = build(source, _OUT.value, _KINDS.value, _OVERWRITE.value, about)
  except (DataError, ConfigError, OSError) as error:
    sys.exit(f"build: {error}")
  found = card.counts(source)
  for kind, folder in made.items():
    told = ", ".join(f"{split} {number}" for split, number in found[kind].items())
    print(f"{folder}: {told}")
  print(pathlib.Path(_OUT.value) / CARD)


if __name__ == "__main__":
  app.run(main)
