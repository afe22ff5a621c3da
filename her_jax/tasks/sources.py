"""Several sources of scenes in one config field, each with its weight.

    --config.data.scenes=out/built:0.7,samples:0.3

parse("a.jsonl")             -> [Named("a.jsonl", 1.0)]
parse("a.jsonl:7,samples:3") -> [Named("a.jsonl", 7.0), Named("samples", 3.0)]
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import itertools
import math
import os

from absl import logging

from data_pipeline import samples
from data_pipeline.titles import normal_title
from her_jax.errors import ConfigError
from her_jax.roleplay.schema import DataError, Trajectory

_FIELD = "config.data.scenes"


@dataclasses.dataclass(frozen=True)
class Named:
  """A source as the config names it: "samples", a file or a folder, and its weight."""

  name: str
  weight: float


def parse(text: str) -> list[Named]:
  """The sources that a config's `data.scenes` names; one alone needs no weight.

  Raises:
    ConfigError: a weight is missing or none, or a source is named twice.
  """
  if os.path.exists(text) or ("," not in text and not _ends_with_number(text)):
    return [Named(text, 1.0)]
  parts = [part.strip() for part in text.split(",")]
  if len(parts) == 1:
    name = text.rpartition(":")[0]
    raise ConfigError(f"{_FIELD}={text}: one source alone takes no weight; pass {name}")
  found = [_named(part, text) for part in parts]
  for one, two in itertools.combinations(found, 2):
    if _place(one.name) == _place(two.name):
      raise ConfigError(f"{_FIELD} names {one.name} twice: give it one weight")
  return found


def _named(part: str, text: str) -> Named:
  name, _, weight = part.rpartition(":")
  if not name or not _ends_with_number(part):
    raise ConfigError(
      f"{_FIELD}={text}: {part!r} has no weight; of several sources each has one:"
      f" first.jsonl:0.7,second.jsonl:0.3"
    )
  value = float(weight)
  if not (value > 0 and math.isfinite(value)):
    raise ConfigError(
      f"{_FIELD}={text}: the weight of {name} is {weight}; it must be a number above 0 (leave"
      f" out what is not to be trained)"
    )
  return Named(name, value)


def _ends_with_number(text: str) -> bool:
  _, colon, weight = text.rpartition(":")
  try:
    float(weight)
  except ValueError:
    return False
  return bool(colon)


def _place(name: str) -> str:
  return os.path.realpath(samples.SCENES if name == "samples" else name)


def refuse_overlap(
  train: Mapping[str, Sequence[Trajectory]],
  heldout: Mapping[str, Sequence[Trajectory]],
  proven: Collection[str],
) -> None:
  """Holds sources against each other, each of which trains nothing that it holds out itself.

  Args:
    train, heldout: by name of the source, its scenes.
    proven: the sources with a proof that no book is on both sides. Others may divide a book.

  Raises:
    DataError: one trains a conversation that another holds out, or of a book that one with a
      proof does; or two are the same.
  """
  said = {name: {_said(scene) for scene in scenes} for name, scenes in train.items()}
  for one, two in itertools.combinations(said, 2):
    if said[one] == said[two]:
      raise DataError(
        f"{one} and {two} train the same {len(said[one])} conversations; name one of them alone"
      )
    if both := len(said[one] & said[two]):
      logging.info("%s and %s have %d conversations in common", one, two, both)
  for one, two in itertools.permutations(said, 2):
    books = {_book(scene) for scene in train[one]} - {""}
    same_book = [scene for scene in heldout[two] if _book(scene) in books]
    same = [scene for scene in heldout[two] if _said(scene) in said[one]]
    refused = same + (same_book if two in proven else [])
    if refused:
      names = Counter(scene.source or scene.id for scene in refused)
      shown = ", ".join(repr(name) for name, _ in names.most_common(3))
      raise DataError(
        f"{one} trains what {two} holds out, {'conversations' if same else 'books'}: {shown}"
        f"{' and more' if len(names) > 3 else ''}. The held-out loss would be of data that were"
        f" trained; split the one as the other was: `python -m data_pipeline.splits"
        f" --previous=PROOF` keeps books where a proof has them"
      )
    if same_book:
      logging.info("%s trains books of which %s holds out %d scenes", one, two, len(same_book))


def _book(scene: Trajectory) -> str:
  return normal_title(scene.source) if scene.source else ""


def refuse_equal_ids(scenes: Mapping[str, Sequence[Trajectory]]) -> None:
  """Pairs name their scenes by id: no two sources may have one in common (DataError)."""
  owner: dict[str, str] = {}
  for name, own in scenes.items():
    for scene in own:
      if owner.setdefault(scene.id, name) != name:
        raise DataError(
          f"{owner[scene.id]} and {name} both have a scene {scene.id!r}, and pairs name scenes by"
          f" id; give the scenes of one of them other ids"
        )


def _said(scene: Trajectory) -> tuple[tuple[str, str], ...]:
  return tuple((turn.speaker, turn.reply) for turn in scene.turns)
