"""Scenes, dialogues, preference pairs and judgements as dataclasses, with JSON Lines in and out.

Every reader reports a fault as `file:line: field: what is wrong; how to mend it` and stops
there: a broken line is never skipped in silence. Fields that are not known here are kept in
`extra` and written back, unless one looks like a slip of a known one. Rows of CoSER, HER and
the role-play bench are read by `formats`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any

from her_jax.roleplay import grammar
from her_jax.roleplay.fields import build, check_notes, list_of, one_of
from her_jax.roleplay.jsonl import DataError, read_jsonl, written

ENVIRONMENT = {"en": "Environment", "zh": "环境"}
SPLITS = ("train", "heldout")
WINNERS = ("cand_1", "cand_2", "tie")


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
  trajectory = build_trajectory(row)
  check_trajectory(trajectory)
  return trajectory


def build_trajectory(row: Mapping[str, Any]) -> Trajectory:
  """Builds a trajectory of which only the fields' types are checked; see `problems`."""
  fields = dict(row)
  fields["characters"] = tuple(
    build(Character, entry, f"characters[{i}]", required=("name",))
    for i, entry in enumerate(list_of(row, "characters"))
  )
  fields["turns"] = tuple(
    build(Turn, entry, f"turns[{i}]", required=("speaker", "reply"))
    for i, entry in enumerate(list_of(row, "turns"))
  )
  return build(Trajectory, fields, "", required=("id", "scenario"))


def check_trajectory(trajectory: Trajectory) -> None:
  """Holds a trajectory to the contract that everything behind it relies on.

  Raises:
    DataError: the first of its `problems`.
  """
  for problem in problems(trajectory):
    raise problem


def problems(trajectory: Trajectory) -> Iterator[DataError]:
  """All that breaks the contract, each with field and mend; one a character and turn."""
  names = [character.name for character in trajectory.characters]
  checks: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (one_of, (trajectory.language, tuple(ENVIRONMENT), "language")),
    (one_of, (trajectory.split, SPLITS, "split")),
    (check_notes, (trajectory.extra,)),
    *(
      (check_notes, (c.extra, f"characters[{i}]")) for i, c in enumerate(trajectory.characters)
    ),
    *((check_notes, (t.extra, f"turns[{i}]")) for i, t in enumerate(trajectory.turns)),
    *((_check_name, (names, i, trajectory)) for i in range(len(names))),
    *((_check_turn, (t, f"turns[{i}]", trajectory)) for i, t in enumerate(trajectory.turns)),
  ]
  for check, arguments in checks:
    try:
      check(*arguments)
    except DataError as error:
      yield error
      if check is one_of:
        return  # Without its language the rest cannot be told.


def _check_name(names: Sequence[str], i: int, scene: Scene) -> None:
  name, where = names[i], f"characters[{i}].name"
  if name != name.strip() or "\n" in name:
    raise DataError(f"{where}: {name!r} has blanks around it or a line break; remove them")
  if name.endswith((":", "：")):
    raise DataError(f"{where}: {name!r} ends in a colon; leave it to the renderer")
  if name == scene.environment:
    raise DataError(f"{where}: {name!r} is reserved for what no character says; rename it")
  if name in names[:i]:
    raise DataError("characters: a name stands twice; give every character a name of its own")


def _check_turn(turn: Turn, where: str, scene: Scene) -> None:
  names = {character.name for character in scene.characters}
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
  pair = build(PreferencePair, fields, "", required=required)
  one_of(pair.winner, WINNERS, "winner")
  one_of(pair.split, SPLITS, "split")
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
    build(Finding, entry, f"findings[{i}]", required=("principle", "winner"))
    for i, entry in enumerate(findings)
  )
  if not isinstance(row.get("swapped", False), bool):
    raise DataError(f"swapped: expected true or false, got {row['swapped']!r}")
  judgement = build(Judgement, fields, "", required=("id", "pair", "winner"))
  one_of(judgement.winner, WINNERS, "winner")
  for i, finding in enumerate(judgement.findings):
    one_of(finding.winner, WINNERS, f"findings[{i}].winner")
  return judgement


def read_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
  """Reads a JSON Lines file of scenes; see `trajectory_from_dict` for what is checked."""
  return read_jsonl(path, trajectory_from_dict)


def read_pairs(
  path: str | os.PathLike[str],
  scenes: Iterable[Scene] | None = None,
  principles: Container[str] | None = None,
) -> list[PreferencePair]:
  """Reads a JSON Lines file of preference pairs.

  Args:
    scenes: if given, each pair must fit one of them.
    principles: if given with `scenes`, the ids that a pair may refer to.
  """
  if scenes is None:
    return read_jsonl(path, pair_from_dict)
  by_id = {scene.id: scene for scene in scenes}

  def fitting(row: Mapping[str, Any]) -> PreferencePair:
    pair = pair_from_dict(row)
    check_pair(pair, by_id, principles)
    return pair

  return read_jsonl(path, fitting)


def read_judgements(path: str | os.PathLike[str]) -> list[Judgement]:
  """Reads a JSON Lines file of judgements."""
  return read_jsonl(path, judgement_from_dict)


def check_pair(
  pair: PreferencePair,
  scenes: Mapping[str, Scene],
  principles: Container[str] | None = None,
) -> None:
  """Holds a pair to its scene, and what it says is broken to the library.

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
  for field, broken in (("violates_1", pair.violates_1), ("violates_2", pair.violates_2)):
    for principle in broken:
      if principles is not None and principle not in principles:
        raise DataError(
          f"{field}: {principle!r} is no principle of the library; correct the id"
        )


def to_dict(value: Any) -> dict[str, Any]:
  """A dataclass of this module as its JSON object; empty optional fields are left out.

  Raises:
    ValueError: `extra` holds a field of the dataclass itself.
  """
  row: dict[str, Any] = {}
  for field in dataclasses.fields(value):
    if field.name != "extra" and field.name in value.extra:
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
  """Writes dataclasses of this module as JSON Lines.

  Raises:
    DataError: `extra` holds a number that JSON has no sign for.
  """
  with open(path, "w", encoding="utf-8") as f:
    for row in rows:
      f.write(written(to_dict(row)) + "\n")
