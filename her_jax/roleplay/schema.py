"""Scenes and preference pairs as dataclasses, with JSON Lines in and out.

Every reader reports a fault as `file:line: field: what is wrong; how to mend it` and stops
there: a broken line is never skipped in silence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import json
import os
import pathlib
from typing import Any, TypeVar

from her_jax.roleplay import grammar

ENVIRONMENT = {"en": "Environment", "zh": "环境"}
SPLITS = ("train", "heldout")
WINNERS = ("cand_1", "cand_2", "tie")

_T = TypeVar("_T")


class DataError(ValueError):
  """Input that breaks the data's contract. The message names the place and the mend."""


@dataclasses.dataclass(frozen=True)
class Character:
  """One person of a scene, as the sheet describes them."""

  name: str
  profile: str
  background: str = ""
  motivation: str = ""


@dataclasses.dataclass(frozen=True)
class Turn:
  """One message. `plan` is the third-person system thinking that leads to `reply`.

  `reply` holds the character's own layers (`<role_thinking>`, `<role_action>`, bare speech)
  and neither the plan nor the `Name: ` prefix.
  """

  speaker: str
  reply: str
  plan: str = ""


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """A scene with its dialogue, the unit of data and of splitting."""

  id: str
  scenario: str
  characters: tuple[Character, ...]
  turns: tuple[Turn, ...]
  language: str = "en"
  source: str = ""
  genre: str = ""
  mood: str = ""
  split: str = "train"

  @property
  def environment(self) -> str:
    """The speaker name of environment lines in this scene's language."""
    return ENVIRONMENT[self.language]

  def character(self, name: str) -> Character:
    for character in self.characters:
      if character.name == name:
        return character
    raise KeyError(f"{name!r} is not a character of scene {self.id!r}")

  def trained_turns(self, name: str | None = None) -> list[int]:
    """Indices of the turns that carry a plan, of `name` alone if given."""
    return [
      i
      for i, turn in enumerate(self.turns)
      if turn.plan and (name is None or turn.speaker == name)
    ]

  def trained_characters(self) -> list[str]:
    """Names with at least one planned turn, in order of first appearance."""
    return list(dict.fromkeys(self.turns[i].speaker for i in self.trained_turns()))


@dataclasses.dataclass(frozen=True)
class PreferencePair:
  """Two candidate replies for turn `turn` of scene `scene`, with the better one's label.

  `violates_1` and `violates_2` are the ids of the principles that each candidate breaks.
  """

  id: str
  scene: str
  turn: int
  candidate_1: str
  candidate_2: str
  winner: str
  kind: str = ""
  violates_1: tuple[str, ...] = ()
  violates_2: tuple[str, ...] = ()
  split: str = "train"


def trajectory_from_dict(row: dict[str, Any]) -> Trajectory:
  """Builds and checks a trajectory.

  Raises:
    DataError: names the field and the mend.
  """
  _known(row, Trajectory)
  characters = tuple(
    _build(Character, entry, f"characters[{i}]", required=("name", "profile"))
    for i, entry in enumerate(_list(row, "characters"))
  )
  turns = tuple(
    _build(Turn, entry, f"turns[{i}]", required=("speaker", "reply"))
    for i, entry in enumerate(_list(row, "turns"))
  )
  fields = {**row, "characters": characters, "turns": turns}
  _strings(fields, Trajectory, "", required=("id", "scenario"))
  trajectory = Trajectory(**fields)
  if trajectory.language not in ENVIRONMENT:
    raise DataError(f"language: {trajectory.language!r} is not one of {list(ENVIRONMENT)}")
  _one_of(trajectory.split, SPLITS, "split")
  names = {character.name for character in characters}
  if len(names) < len(characters):
    raise DataError("characters: a name stands twice; give every character a name of its own")
  for i, turn in enumerate(turns):
    where = f"turns[{i}]"
    if turn.speaker != trajectory.environment and turn.speaker not in names:
      raise DataError(
        f"{where}.speaker: {turn.speaker!r} is not among the characters {sorted(names)};"
        f" correct the name or add the character"
      )
    if turn.plan and any(s.kind != grammar.SPEECH for s in grammar.parse(turn.plan).segments):
      raise DataError(f"{where}.plan: holds a layer's tag; write the plan as plain text")
    if turn.reply.lstrip().startswith((f"{turn.speaker}:", f"{turn.speaker}：")):
      raise DataError(
        f"{where}.reply: begins with the speaker's name; leave it to the renderer"
      )
    if turn.plan and turn.speaker == trajectory.environment:
      raise DataError(f"{where}.plan: the environment has no plan; remove it")
    parsed = grammar.parse(turn.reply)
    if parsed.status != "ok":
      raise DataError(f"{where}.reply: {parsed.problems[0]}; balance the tags")
    if parsed.plan is not None:
      raise DataError(
        f"{where}.reply: holds <system_thinking>; put the plan's text into the field 'plan'"
      )
    if parsed.is_empty:
      raise DataError(f"{where}.reply: neither speech nor action; write what others perceive")
  return trajectory


def pair_from_dict(row: dict[str, Any]) -> PreferencePair:
  """Builds and checks a preference pair.

  Raises:
    DataError: names the field and the mend.
  """
  row = dict(row)
  for field in ("violates_1", "violates_2"):
    value = row.get(field, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
      raise DataError(f"{field}: expected a list of principle ids, got {value!r}")
    row[field] = tuple(value)
  if type(row.get("turn")) is not int or row["turn"] < 0:
    raise DataError(f"turn: expected the index of a turn, got {row.get('turn')!r}")
  required = ("id", "scene", "candidate_1", "candidate_2", "winner")
  pair = _build(PreferencePair, row, "", required=required)
  _one_of(pair.winner, WINNERS, "winner")
  _one_of(pair.split, SPLITS, "split")
  return pair


def read_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
  """Reads a JSON Lines file of scenes; see `trajectory_from_dict` for what is checked."""
  return list(_read(path, trajectory_from_dict))


def read_pairs(
  path: str | os.PathLike[str], scenes: Iterable[Trajectory] | None = None
) -> list[PreferencePair]:
  """Reads a JSON Lines file of preference pairs; each must fit its scene if `scenes` is given."""
  if scenes is None:
    return list(_read(path, pair_from_dict))
  by_id = {scene.id: scene for scene in scenes}

  def build(row: dict[str, Any]) -> PreferencePair:
    pair = pair_from_dict(row)
    _fits_scene(pair, by_id)
    return pair

  return list(_read(path, build))


def _fits_scene(pair: PreferencePair, scenes: Mapping[str, Trajectory]) -> None:
  if pair.scene not in scenes:
    raise DataError(f"scene: {pair.scene!r} is not among the scenes that were read with it")
  scene = scenes[pair.scene]
  if pair.turn >= len(scene.turns):
    raise DataError(
      f"turn: {pair.turn}, but scene {scene.id!r} has {len(scene.turns)} turns; count from 0"
    )
  if scene.turns[pair.turn].speaker == scene.environment:
    raise DataError(f"turn: {pair.turn} is the environment's; a pair compares a character's")
  if pair.split != scene.split:
    raise DataError(f"split: {pair.split!r}, but that of scene {scene.id!r} is {scene.split!r}")


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Any]) -> None:
  """Writes dataclasses as JSON Lines; empty optional fields are left out."""
  with open(path, "w", encoding="utf-8") as f:
    for row in rows:
      f.write(json.dumps(_compact(dataclasses.asdict(row)), ensure_ascii=False) + "\n")


def _read(path: str | os.PathLike[str], build: Callable[[dict], _T]) -> Iterator[_T]:
  path = pathlib.Path(path)
  if not path.is_file():
    raise DataError(f"{path}: no such file; pass an existing JSON Lines file")
  first_line: dict[str, int] = {}
  with path.open("rb") as f:
    for number, raw in enumerate(f, 1):
      try:
        line = raw.decode("utf-8")
      except UnicodeDecodeError:
        raise DataError(f"{path}:{number}: not UTF-8; save the file in that encoding") from None
      if not line.strip():
        continue
      try:
        row = json.loads(line)
        if not isinstance(row, dict):
          raise DataError(f"expected one JSON object a line, got {type(row).__name__}")
        made = build(row)
        if row["id"] in first_line:
          raise DataError(
            f"id: stands twice, in line {first_line[row['id']]} too; ids must be unique"
          )
        first_line[row["id"]] = number
        yield made
      except json.JSONDecodeError as error:
        raise DataError(
          f"{path}:{number}: not valid JSON at column {error.colno} ({error.msg});"
          f" each line must be one whole JSON object"
        ) from None
      except DataError as error:
        name = f" (id {row['id']!r})" if isinstance(row, dict) and row.get("id") else ""
        raise DataError(f"{path}:{number}{name}: {error}") from None


def _build(cls: type[_T], row: Any, where: str, required: tuple[str, ...]) -> _T:
  if not isinstance(row, dict):
    raise DataError(f"{where}: expected an object, got {type(row).__name__}")
  _known(row, cls, where)
  _strings(row, cls, where, required)
  return cls(**row)


def _known(row: dict[str, Any], cls: type, where: str = "") -> None:
  names = [field.name for field in dataclasses.fields(cls)]
  unknown = sorted(set(row) - set(names))
  if unknown:
    raise DataError(f"{_at(where, unknown[0])}: unknown field; known are {', '.join(names)}")


def _strings(row: dict[str, Any], cls: type, where: str, required: tuple[str, ...]) -> None:
  for field in dataclasses.fields(cls):
    if field.type is not str:
      continue
    if field.name in required and not (
      isinstance(row.get(field.name), str) and row[field.name].strip()
    ):
      raise DataError(f"{_at(where, field.name)}: missing or empty; give it a text")
    if field.name in row and not isinstance(row[field.name], str):
      raise DataError(f"{_at(where, field.name)}: expected a text, got {row[field.name]!r}")


def _list(row: dict[str, Any], field: str) -> list[Any]:
  value = row.get(field)
  if not isinstance(value, list) or not value:
    raise DataError(f"{field}: missing or empty; give a list of objects")
  return value


def _one_of(value: str, allowed: tuple[str, ...], field: str) -> None:
  if value not in allowed:
    raise DataError(f"{field}: {value!r} is not one of {', '.join(allowed)}")


def _at(where: str, field: str) -> str:
  return f"{where}.{field}" if where else field


def _compact(value: Any) -> Any:
  if isinstance(value, dict):
    return {k: _compact(v) for k, v in value.items() if v not in ("", (), [])}
  if isinstance(value, (list, tuple)):
    return [_compact(v) for v in value]
  return value
