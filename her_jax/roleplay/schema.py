"""Scenes, dialogues, preference pairs and judgements as dataclasses, with JSON Lines in and out.

Every reader reports a fault as `file:line: field: what is wrong; how to mend it` and stops
there: a broken line is never skipped in silence. Fields that are not known here are kept in
`extra` and written back, unless one looks like a slip of a known one. Rows of CoSER, HER and
the role-play bench are read by `formats`.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import difflib
import json
import os
from typing import Any, TypeVar

from her_jax.roleplay import grammar
from her_jax.roleplay.jsonl import DataError, read_jsonl

ENVIRONMENT = {"en": "Environment", "zh": "环境"}
SPLITS = ("train", "heldout")
WINNERS = ("cand_1", "cand_2", "tie")

_T = TypeVar("_T")


def _extra() -> Any:
  return dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Character:
  """One person of a scene, as the sheet describes them; what is empty is left out of it.

  Attributes:
    profile: who they are. `description` says it in a sentence, `experience` what they did in
      this story.
    motivation: what they want in this scene, known to them alone.
  """

  name: str
  profile: str = ""
  background: str = ""
  motivation: str = ""
  description: str = ""
  experience: str = ""
  extra: Mapping[str, Any] = _extra()


@dataclasses.dataclass(frozen=True)
class Turn:
  """One message. `plan` is the third-person system thinking that leads to `reply`.

  `reply` holds the character's own layers (`<role_thinking>`, `<role_action>`, bare speech)
  and neither the plan nor the `Name: ` prefix.
  """

  speaker: str
  reply: str
  plan: str = ""
  extra: Mapping[str, Any] = _extra()


@dataclasses.dataclass(frozen=True)
class Scene:
  """Where a dialogue begins: who is there, and in what situation."""

  id: str
  scenario: str
  characters: tuple[Character, ...]
  language: str = "en"
  source: str = ""
  genre: str = ""
  mood: str = ""
  topic: str = ""
  summary: str = ""
  split: str = "train"
  extra: Mapping[str, Any] = _extra()

  @property
  def environment(self) -> str:
    """The speaker name of environment lines in this scene's language."""
    return ENVIRONMENT[self.language]

  def character(self, name: str) -> Character:
    for character in self.characters:
      if character.name == name:
        return character
    raise KeyError(f"{name!r} is not a character of scene {self.id!r}")

  def others(self, name: str) -> list[str]:
    """Names of the characters but `name`."""
    return [c.name for c in self.characters if c.name != name]


@dataclasses.dataclass(frozen=True)
class Trajectory(Scene):
  """A scene with its dialogue, the unit of data and of splitting."""

  turns: tuple[Turn, ...] = ()

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
  extra: Mapping[str, Any] = _extra()


@dataclasses.dataclass(frozen=True)
class Finding:
  """How two candidates compare by one principle; `evidence` quotes or describes it."""

  principle: str
  winner: str
  evidence: str = ""
  extra: Mapping[str, Any] = _extra()


@dataclasses.dataclass(frozen=True)
class Judgement:
  """What a judge said of a pair.

  Attributes:
    pair: the pair's id.
    swapped: whether the judge saw candidate 2 first; `winner` and `findings` are then of that
      order, with cand_1 the one shown first.
    reasoning: thought before the comparison; `analysis` sums it up.
  """

  id: str
  pair: str
  winner: str
  findings: tuple[Finding, ...] = ()
  reasoning: str = ""
  analysis: str = ""
  judge: str = ""
  swapped: bool = False
  extra: Mapping[str, Any] = _extra()


def trajectory_from_dict(row: Mapping[str, Any]) -> Trajectory:
  """Builds and checks a trajectory.

  Raises:
    DataError: names the field and the mend.
  """
  fields = dict(row)
  fields["characters"] = tuple(
    _build(Character, entry, f"characters[{i}]", required=("name",))
    for i, entry in enumerate(_list(row, "characters"))
  )
  fields["turns"] = tuple(
    _build(Turn, entry, f"turns[{i}]", required=("speaker", "reply"))
    for i, entry in enumerate(_list(row, "turns"))
  )
  trajectory = _build(Trajectory, fields, "", required=("id", "scenario"))
  check_trajectory(trajectory)
  return trajectory


def check_trajectory(trajectory: Trajectory) -> None:
  """Holds a trajectory to the contract that everything behind it relies on.

  Raises:
    DataError: names the field and the mend.
  """
  _one_of(trajectory.language, tuple(ENVIRONMENT), "language")
  _one_of(trajectory.split, SPLITS, "split")
  names = [character.name for character in trajectory.characters]
  for i, name in enumerate(names):
    where = f"characters[{i}].name"
    if name != name.strip() or "\n" in name:
      raise DataError(f"{where}: {name!r} has blanks around it or a line break; remove them")
    if name.endswith((":", "：")):
      raise DataError(f"{where}: {name!r} ends in a colon; leave it to the renderer")
    if name == trajectory.environment:
      raise DataError(f"{where}: {name!r} is reserved for what no character says; rename it")
    if name in names[:i]:
      raise DataError("characters: a name stands twice; give every character a name of its own")
  for i, turn in enumerate(trajectory.turns):
    _check_turn(turn, f"turns[{i}]", trajectory, names)


def _check_turn(turn: Turn, where: str, scene: Scene, names: list[str]) -> None:
  if turn.speaker != scene.environment and turn.speaker not in names:
    raise DataError(
      f"{where}.speaker: {turn.speaker!r} is not among the characters {sorted(names)};"
      f" correct the name or add the character"
    )
  if turn.plan and not turn.plan.strip():
    raise DataError(f"{where}.plan: nothing but blanks; write the plan or remove the field")
  if turn.plan and any(s.kind != grammar.SPEECH for s in grammar.parse(turn.plan).segments):
    raise DataError(f"{where}.plan: holds a layer's tag; write the plan as plain text")
  if turn.reply.lstrip().startswith((f"{turn.speaker}:", f"{turn.speaker}：")):
    raise DataError(f"{where}.reply: begins with the speaker's name; leave it to the renderer")
  if turn.plan and turn.speaker == scene.environment:
    raise DataError(f"{where}.plan: the environment has no plan; remove it")
  parsed = grammar.parse(turn.reply)
  if parsed.plan is not None:
    raise DataError(
      f"{where}.reply: holds <system_thinking>; put the plan's text into the field 'plan'"
    )
  if parsed.status != "ok":
    raise DataError(
      f"{where}.reply: {parsed.problems[0]}; write tags as {' '.join(grammar.TAGS[2:])}, each"
      f" closed"
    )
  if parsed.is_empty:
    raise DataError(f"{where}.reply: neither speech nor action; write what others perceive")


def pair_from_dict(row: Mapping[str, Any]) -> PreferencePair:
  """Builds and checks a preference pair.

  Raises:
    DataError: names the field and the mend.
  """
  fields = dict(row)
  for field in row.keys() & {"violates_1", "violates_2"}:
    value = row[field]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
      raise DataError(f"{field}: expected a list of principle ids, got {value!r}")
    fields[field] = tuple(value)
  if type(row.get("turn")) is not int or row["turn"] < 0:
    raise DataError(f"turn: expected the index of a turn, got {row.get('turn')!r}")
  required = ("id", "scene", "candidate_1", "candidate_2", "winner")
  pair = _build(PreferencePair, fields, "", required=required)
  _one_of(pair.winner, WINNERS, "winner")
  _one_of(pair.split, SPLITS, "split")
  return pair


def judgement_from_dict(row: Mapping[str, Any]) -> Judgement:
  """Builds and checks a judgement.

  Raises:
    DataError: names the field and the mend.
  """
  fields = dict(row)
  findings = row.get("findings", [])
  if not isinstance(findings, list):
    raise DataError(f"findings: expected a list of objects, got {findings!r}")
  fields["findings"] = tuple(
    _build(Finding, entry, f"findings[{i}]", required=("principle", "winner"))
    for i, entry in enumerate(findings)
  )
  if not isinstance(row.get("swapped", False), bool):
    raise DataError(f"swapped: expected true or false, got {row['swapped']!r}")
  judgement = _build(Judgement, fields, "", required=("id", "pair", "winner"))
  _one_of(judgement.winner, WINNERS, "winner")
  for i, finding in enumerate(judgement.findings):
    _one_of(finding.winner, WINNERS, f"findings[{i}].winner")
  return judgement


def read_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
  """Reads a JSON Lines file of scenes; see `trajectory_from_dict` for what is checked."""
  return read_jsonl(path, trajectory_from_dict)


def read_pairs(
  path: str | os.PathLike[str], scenes: Iterable[Scene] | None = None
) -> list[PreferencePair]:
  """Reads a JSON Lines file of preference pairs; each must fit its scene if `scenes` is given."""
  if scenes is None:
    return read_jsonl(path, pair_from_dict)
  by_id = {scene.id: scene for scene in scenes}

  def build(row: Mapping[str, Any]) -> PreferencePair:
    pair = pair_from_dict(row)
    check_pair(pair, by_id)
    return pair

  return read_jsonl(path, build)


def read_judgements(path: str | os.PathLike[str]) -> list[Judgement]:
  """Reads a JSON Lines file of judgements."""
  return read_jsonl(path, judgement_from_dict)


def check_pair(pair: PreferencePair, scenes: Mapping[str, Scene]) -> None:
  """Holds a pair to its scene.

  Raises:
    DataError: names the field and the mend.
  """
  scene = scenes.get(pair.scene)
  if not isinstance(scene, Trajectory):
    raise DataError(f"scene: {pair.scene!r} is not among the scenes that were read with it")
  if pair.turn >= len(scene.turns):
    raise DataError(
      f"turn: {pair.turn}, but scene {scene.id!r} has {len(scene.turns)} turns; count from 0"
    )
  if scene.turns[pair.turn].speaker == scene.environment:
    raise DataError(f"turn: {pair.turn} is the environment's; a pair compares a character's")
  if pair.split != scene.split:
    raise DataError(f"split: {pair.split!r}, but that of scene {scene.id!r} is {scene.split!r}")


def to_dict(value: Any) -> dict[str, Any]:
  """A dataclass of this module as its JSON object; empty optional fields are left out.

  Raises:
    ValueError: `extra` holds a field of the dataclass itself.
  """
  row: dict[str, Any] = {}
  for field in dataclasses.fields(value):
    if field.name in value.extra:
      raise ValueError(f"extra holds {field.name!r}, which {type(value).__name__} has itself")
    entry = getattr(value, field.name)
    if field.name == "extra":
      continue
    if isinstance(entry, tuple):
      entry = [to_dict(e) if dataclasses.is_dataclass(e) else e for e in entry]
    if entry is not False and entry not in ("", []):
      row[field.name] = entry
  return row | dict(value.extra)


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Any]) -> None:
  """Writes dataclasses of this module as JSON Lines."""
  with open(path, "w", encoding="utf-8") as f:
    for row in rows:
      f.write(json.dumps(to_dict(row), ensure_ascii=False) + "\n")


def _build(cls: type[_T], row: Any, where: str, required: tuple[str, ...]) -> _T:
  """Makes a dataclass of a row; what it has no field for goes into `extra`."""
  if not isinstance(row, Mapping):
    raise DataError(f"{where}: expected an object, got {type(row).__name__}")
  known = {f.name: f for f in dataclasses.fields(cls) if f.name != "extra"}  # type: ignore[arg-type]
  for name, field in known.items():
    if field.type is not str:
      continue
    at = f"{where}.{name}" if where else name
    if name in required and not (isinstance(row.get(name), str) and row[name].strip()):
      raise DataError(f"{at}: missing or empty; give it a text")
    if name in row and not isinstance(row[name], str):
      raise DataError(f"{at}: expected a text, got {row[name]!r}")
  extra = {name: value for name, value in row.items() if name not in known}
  for name in extra:
    if near := _misspelt(name, set(known) - set(row)):
      raise DataError(f"{f'{where}.' if where else ''}{name}: no such field; is it {near!r}?")
  fields = {name: row[name] for name in known if name in row}
  return cls(**fields, extra=extra)  # type: ignore[call-arg]


def _misspelt(name: str, absent: set[str]) -> str | None:
  """The absent field that `name` is a slip for: a plan under `plans` would never be trained."""
  for field in sorted(absent):
    if sorted(field) == sorted(name):
      return field
  return next(iter(difflib.get_close_matches(name, sorted(absent), 1, 0.85)), None)


def _list(row: Mapping[str, Any], field: str) -> list[Any]:
  value = row.get(field)
  if not isinstance(value, list) or not value:
    raise DataError(f"{field}: missing or empty; give a list of objects")
  return value


def _one_of(value: str, allowed: tuple[str, ...], field: str) -> None:
  if value not in allowed:
    raise DataError(f"{field}: {value!r} is not one of {', '.join(allowed)}")
