"""Stage 0: cleans conversations, without a model, one at a time.

Layers come into our notation, spellings of one name become one, consecutive turns of a
speaker one turn that keeps the ids of all its messages. What cannot be used is dropped and
counted by reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from data_pipeline.synthesis import names
from her_jax.roleplay import grammar, notations, rows, schema
from her_jax.roleplay.schema import ENVIRONMENT, Character, Trajectory, Turn

NOTATIONS = ("auto", "her", "coser", "asterisks")
_TEXTS = ("profile", "background", "motivation", "description", "experience")


@dataclasses.dataclass(frozen=True)
class Settings:
  """How conversations are cleaned.

  Attributes:
    notation: of the replies; "auto" reads our tags and CoSER's brackets, also side by side.
    min_turns: conversations with fewer, counted after merging, are dropped.
  """

  notation: str = "auto"
  min_turns: int = 1


def prepare(scene: Trajectory, settings: Settings, counts: Counter[str]) -> Trajectory | None:
  """A conversation as the later stages take it, or None where nothing of it can be used.

  Args:
    counts: what was dropped or changed, by reason, is added to it.
  """
  reason = _unusable(scene)
  if reason:
    counts[reason] += 1
    return None
  turns = _converted(scene, settings, counts)
  characters, turns = _named(scene, turns, counts)
  turns = _merged(turns, counts)
  if not turns:
    counts["conversation: empty"] += 1
    return None
  if len(turns) < settings.min_turns:
    counts["conversation: too few turns"] += 1
    return None
  language = rows.language_of(" ".join([scene.scenario, *(t.reply for t in turns)]))
  if language != scene.language:
    counts["conversation: language corrected"] += 1
  here = dict.fromkeys(ENVIRONMENT.values(), ENVIRONMENT[language])
  turns = [dataclasses.replace(t, speaker=here.get(t.speaker, t.speaker)) for t in turns]
  made = dataclasses.replace(
    scene,
    characters=tuple(c for c in characters if c.name not in here),
    turns=tuple(turns),
    language=language,
  )
  problem = next(schema.problems(made), None)
  if problem is not None:
    field = str(problem).partition(":")[0]
    counts[f"conversation: breaks the contract ({_without_numbers(field)})"] += 1
    return None
  counts["conversations kept"] += 1
  counts["turns kept"] += len(turns)
  return made


def key_of(turn: Turn) -> str:
  """What a turn is known by through all stages: the first of its origin ids."""
  return turn.extra["her"]["origin_ids"][0]


def with_notes(turn: Turn, **notes: Any) -> Turn:
  """`turn` with further entries in `extra["her"]`."""
  kept = {**turn.extra.get("her", {}), **notes}
  return dataclasses.replace(turn, extra={**turn.extra, "her": kept})


def _unusable(scene: Trajectory) -> str | None:
  if not scene.turns:
    return "conversation: empty"
  if not scene.scenario.strip():
    return "conversation: no scenario"
  if not any(c.name.strip() for c in scene.characters):
    return "conversation: no characters"
  return None


def _converted(scene: Trajectory, settings: Settings, counts: Counter[str]) -> list[Turn]:
  """The turns in our notation, each with its origin ids; those that say nothing are gone."""
  ids = [_origins(turn) for turn in scene.turns]
  flat = [origin for own in ids for origin in own]
  if not all(ids) or len(set(flat)) < len(flat):
    if any(ids):
      counts["conversation: turns numbered anew"] += 1
    ids = [[str(i)] for i in range(len(scene.turns))]
  made = []
  for turn, own in zip(scene.turns, ids, strict=True):
    if not turn.reply.strip():
      counts["turn: empty"] += 1
      continue
    reply, plan = _read(turn, settings.notation)
    if grammar.parse(reply).is_empty:
      counts["turn: neither speech nor action"] += 1
      continue
    if reply != turn.reply:
      counts["turn: notation converted"] += 1
    turn = Turn(turn.speaker.strip(), reply, plan, turn.extra)
    made.append(with_notes(turn, origin_ids=own))
  return made


def _read(turn: Turn, notation: str) -> tuple[str, str]:
  """Reply and plan in our notation."""
  text = turn.reply.strip()
  if notation in ("coser", "asterisks") and _has_layers(grammar.repair(text, turn.speaker)):
    notation = (
      "auto"  # Our tags say what is hidden; read as another notation they would be spoken.
    )
  if notation == "coser":
    parsed = notations.from_coser(_nameless(text, turn.speaker))
  elif notation == "asterisks":
    parsed = notations.from_asterisks(_nameless(text, turn.speaker))
  else:
    text = grammar.repair(text, turn.speaker)
    if notation == "auto" and any(sign in text for sign in notations.BRACKETS):
      parsed = notations.from_either(text, turn.speaker)
    else:
      parsed = grammar.parse(text, turn.speaker)
  plan = turn.plan.strip() or (parsed.plan or "").strip()
  spoken = grammar.render(grammar.Reply(parsed.seen_by("self").segments)).strip()
  return spoken, rows.plain_plan(plan) if plan else ""


def _has_layers(text: str) -> bool:
  parsed = grammar.parse(text)
  return bool(parsed.plan) or any(s.kind != grammar.SPEECH for s in parsed.segments)


def _nameless(text: str, speaker: str) -> str:
  for colon in ":：":
    text = text.removeprefix(f"{speaker}{colon}")
  return text.strip()


def _origins(turn: Turn) -> list[str]:
  """The ids of the messages that a turn was made of, as its source gave them."""
  for origin in turn.extra.values():
    if isinstance(origin, Mapping):
      for field in ("origin_ids", "origin_id"):
        if (found := origin.get(field)) not in (None, [], ""):
          return [str(one) for one in (found if isinstance(found, list) else [found])]
  return []


def _named(
  scene: Trajectory, turns: Sequence[Turn], counts: Counter[str]
) -> tuple[list[Character], list[Turn]]:
  """Cast and turns with one name a person; a speaker without a sheet gets an empty one."""
  places = {name.casefold(): name for name in ENVIRONMENT.values()}
  cast = [dataclasses.replace(c, name=_tidy(c.name)) for c in scene.characters]
  cast = [c for c in cast if c.name]
  spoken = [_tidy(t.speaker) for t in turns]
  spoken = [places.get(name.casefold(), name) for name in spoken]
  all_names = [n for n in [*(c.name for c in cast), *spoken] if n not in places.values()]
  described = {c.name for c in cast if any(getattr(c, f).strip() for f in _TEXTS)}
  other = names.aliases(all_names, described)
  if other:
    counts["name: spellings made one"] += len(other)
  people: dict[str, Character] = {}
  for character in cast:
    name = other.get(character.name, character.name)
    mine = dataclasses.replace(character, name=name)
    people[name] = _joined(people[name], mine) if name in people else mine
  named = []
  for turn, speaker in zip(turns, spoken, strict=True):
    speaker = other.get(speaker, speaker)
    if not speaker:
      counts["turn: no speaker"] += 1
      continue
    if speaker not in people and speaker not in places.values():
      people[speaker] = Character(speaker)
      counts["name: speaker added to the cast"] += 1
    named.append(dataclasses.replace(turn, speaker=speaker))
  return list(people.values()), named


def _tidy(name: str) -> str:
  return " ".join(name.split()).rstrip(":：").strip()


def _joined(one: Character, other: Character) -> Character:
  """Two entries of one person: what the first leaves empty, the second fills in."""
  fields = {f: getattr(one, f) or getattr(other, f) for f in _TEXTS}
  left = {f: v for f in _TEXTS if (v := getattr(other, f)) and v != fields[f]}
  extra = {**other.extra, **one.extra}
  if left:
    extra["her"] = {**extra.get("her", {}), "second_entry": left}
  return Character(one.name, **fields, extra=extra)


def _merged(turns: Sequence[Turn], counts: Counter[str]) -> list[Turn]:
  """Turns of which no two in a row are one speaker's."""
  made: list[Turn] = []
  for turn in turns:
    if not made or made[-1].speaker != turn.speaker:
      made.append(turn)
      continue
    last = made.pop()
    counts["turn: merged into the one before"] += 1
    both = [*last.extra["her"]["origin_ids"], *turn.extra["her"]["origin_ids"]]
    extra = {**turn.extra, **last.extra}
    # The plan was written for the message that it leads to: with the first of them it goes on.
    joined = Turn(last.speaker, f"{last.reply}\n{turn.reply}", last.plan or turn.plan, extra)
    made.append(with_notes(joined, origin_ids=both))
  return made


def _without_numbers(field: str) -> str:
  return "".join(sign for sign in field if not sign.isdigit())
