"""A scene as the page shows it: layers and plans in pieces, with the evidence marked."""

from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.diversity import layout_of, original_of
from data_pipeline.quality import MEANINGS, Flag
from data_pipeline.quality.flags import notes
from data_pipeline.quality.scan import Scanned
from data_pipeline.quality.view import layers_of
from her_jax.roleplay.schema import Character, Trajectory, Turn
from her_jax.roleplay.tags import ACTION, SPEECH, THINKING

# Beyond these a page says how much it leaves out: one row of two megabytes must not fill it.
LONGEST_TEXT = 6000
MOST_TURNS = 80
COLOURS = 6  # of speakers, in turn
LAYERS = {THINKING: "thinking", ACTION: "action", SPEECH: "speech"}
_FIELDS = ("description", "profile", "background", "motivation", "experience")


def view_of(scanned: Scanned) -> dict[str, Any]:
  """All that the template of a scene needs, as plain values."""
  scene = scanned.scene
  colours = {c.name: i % COLOURS for i, c in enumerate(scene.characters)}
  by_turn: dict[int, list[Flag]] = {}
  for flag in scanned.flags:
    by_turn.setdefault(flag.turn, []).append(flag)
  her = notes(scene)
  return {
    "id": scene.id,
    "line": scanned.line,
    "book": scene.source,
    "chapter": _text(her.get("chapter")),
    "split": scene.split,
    "purpose": _text(her.get("purpose")),
    "language": scene.language,
    "topic": scene.topic or scene.genre,
    "scenario": _cut(scene.scenario),
    "passage": _cut(_text(her.get("passage"))),
    "characters": [_character(c, colours, her) for c in scene.characters],
    "flags": [name for name in MEANINGS if any(f.name == name for f in scanned.flags)],
    "count": len(scene.turns),
    "turns": [
      _turn(turn, i, scene, by_turn.get(i, ()), colours)
      for i, turn in enumerate(scene.turns[:MOST_TURNS])
    ],
    "turns_left": max(0, len(scene.turns) - MOST_TURNS),
  }


def _character(
  character: Character, colours: Mapping[str, int], her: Mapping[str, Any]
) -> dict[str, Any]:
  added = her.get("settings_added")
  facts = [
    {key: _cut(_text(fact.get(key))) for key in ("field", "text", "quote")}
    for fact in (added if isinstance(added, list) else ())
    if isinstance(fact, Mapping) and fact.get("character") == character.name
  ]
  fields = {field: _cut(text) for field in _FIELDS if (text := getattr(character, field))}
  return {
    "name": character.name,
    "colour": colours[character.name],
    "fields": fields,
    "added": facts,
  }


def _turn(
  turn: Turn, i: int, scene: Trajectory, flags: Sequence[Flag], colours: Mapping[str, int]
) -> dict[str, Any]:
  in_reply = [flag for flag in flags if flag.field == "reply"]
  in_plan = [flag for flag in flags if flag.field == "plan"]
  layers = [
    {
      "kind": LAYERS.get(layer.kind, "thinking"),
      "pieces": pieces(layer.text.strip(), _start(layer.text, layer.start), in_reply),
    }
    for layer in layers_of(turn.reply[:LONGEST_TEXT])
  ]
  her = turn.extra.get("her")
  told = her if isinstance(her, Mapping) else {}
  return {
    "index": i,
    "speaker": turn.speaker,
    "environment": turn.speaker == scene.environment,
    "colour": colours.get(turn.speaker, 0),
    "layout": layout_of(turn.reply),
    "layers": layers,
    "left": max(0, len(turn.reply) - LONGEST_TEXT),
    "plan": pieces(turn.plan[:LONGEST_TEXT], 0, in_plan) if turn.plan else [],
    "plan_flagged": bool(in_plan),
    "flags": [{"name": f.name, "why": f.why, "field": f.field} for f in flags],
    "original": _cut(original_of(turn) or ""),
    "reason": _cut(_text(told.get("reason"))),
    "draft": _cut(_text(told.get("draft"))),
  }


def _start(text: str, place: int) -> int:
  return place + len(text) - len(text.lstrip())


def pieces(text: str, place: int, flags: Sequence[Flag]) -> list[dict[str, Any]]:
  """A text cut where evidence begins and ends, each piece with the flags that it is of.

  Args:
    place: of the text in its field, by which flags count.

  Example:
    pieces("I go.", 10, [flag of 10 to 11]) == [{"text": "I", "flags": [its name]},
      {"text": " go.", "flags": []}]
  """
  end = place + len(text)
  cuts = {place, end}
  for flag in flags:
    cuts |= {min(max(at, place), end) for at in (flag.start, flag.end)}
  ordered = sorted(cuts)
  return [
    {
      "text": text[start - place : stop - place],
      "flags": [f.name for f in flags if f.start < stop and start < f.end],
    }
    for start, stop in zip(ordered, ordered[1:], strict=False)
  ]


def _text(value: Any) -> str:
  return value if isinstance(value, str) else "" if value is None else str(value)


def _cut(text: str) -> str:
  if len(text) <= LONGEST_TEXT:
    return text
  return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT:,} more characters)"
