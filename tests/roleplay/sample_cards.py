"""One character as a card of every spec, and files of it."""

import base64
import dataclasses
import json

from PIL import Image, PngImagePlugin
import pytest

from her_jax.roleplay.cards import Card
from her_jax.roleplay.lorebook import Lorebook, LoreEntry

V1 = {
  "name": "Una",
  "description": "{{char}} keeps the light.",
  "personality": "dry",
  "scenario": "A quay at night.",
  "first_mes": '*looks up* "You are late, {{user}}."',
  "mes_example": "<START>\n{{user}}: Hi\n{{char}}: Sit.",
}
DATA = {
  **V1,
  "creator_notes": "For stormy evenings.",
  "system_prompt": "Write as {{char}}.",
  "post_history_instructions": "Stay terse.",
  "alternate_greetings": ["Again?", " "],
  "tags": ["sea", "drama"],
  "creator": "me",
  "character_version": "1.2",
  "extensions": {"studio": {"depth": [1, 2.5, None]}},
  "character_book": {
    "name": "Coast",
    "scan_depth": 4,
    "token_budget": 200,
    "recursive_scanning": False,
    "extensions": {},
    "entries": [
      {
        "keys": ["light"],
        "content": "It burns oil.",
        "extensions": {"depth": 4},
        "enabled": True,
        "insertion_order": 10,
        "id": 1,
      }
    ],
  },
}
V2 = {"spec": "chara_card_v2", "spec_version": "2.0", "data": DATA}
V3 = {
  "spec": "chara_card_v3",
  "spec_version": "3.0",
  "data": {
    **DATA,
    "nickname": "Oon",
    "group_only_greetings": ["All here?"],
    "creation_date": 1700000000,
    "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
  },
}
UNA = Card(
  name="Una",
  description="{{char}} keeps the light.",
  personality="dry",
  scenario="A quay at night.",
  first_message='*looks up* "You are late, {{user}}."',
  example_messages="<START>\n{{user}}: Hi\n{{char}}: Sit.",
  spec="v1",
)
UNA_2 = dataclasses.replace(
  UNA,
  spec="v2",
  creator_notes="For stormy evenings.",
  system_prompt="Write as {{char}}.",
  post_history_instructions="Stay terse.",
  alternate_greetings=("Again?", " "),
  tags=("sea", "drama"),
  creator="me",
  character_version="1.2",
  lorebook=Lorebook(
    name="Coast",
    scan_depth=4,
    token_budget=200,
    entries=(
      LoreEntry(
        ("light",),
        "It burns oil.",
        id=1,
        insertion_order=10,
        extra={"extensions": {"depth": 4}},
      ),
    ),
    extra={"extensions": {}},
  ),
  extra={"extensions": {"studio": {"depth": [1, 2.5, None]}}},
)
UNA_3 = dataclasses.replace(
  UNA_2,
  spec="v3",
  nickname="Oon",
  group_only_greetings=("All here?",),
  extra={**UNA_2.extra, **{k: V3["data"][k] for k in ("creation_date", "assets")}},
)
SPECS = pytest.mark.parametrize(("row", "card"), [(V1, UNA), (V2, UNA_2), (V3, UNA_3)])


def json_file(path, row) -> str:
  path.write_text(row if isinstance(row, str) else json.dumps(row), encoding="utf-8")
  return path


def base64_of(row) -> str:
  return base64.b64encode(json.dumps(row, ensure_ascii=False).encode()).decode()


def png_file(path, chunks, international=False, **options):
  info = PngImagePlugin.PngInfo()
  for key, text in chunks.items():
    if international:
      info.add_itxt(key, text, zip=True)
    else:
      info.add_text(key, text)
  Image.new("RGB", (8, 12), "teal").save(path, "PNG", pnginfo=info, **options)
  return path
