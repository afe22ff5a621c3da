"""The wording of requests, from `prompts_en.toml` and `prompts_zh.toml`, and their material.

Everything that comes from a scene stands in a fence whose mark is made of the text itself, so
that no text can end its own fence; dialogue stands there as one JSON object a line.
"""

from collections.abc import Iterable, Sequence
import functools
import hashlib
import json
import pathlib
import re
import tomllib

from data_pipeline.synthesis import prepare
from her_jax.roleplay import grammar
from her_jax.roleplay import prompts as sheets
from her_jax.roleplay.schema import Character, Trajectory, Turn

FOLDER = pathlib.Path(__file__).parent
FIELDS = ("profile", "background", "motivation", "description", "experience")
# Characters that make a token, where no tokenizer counts them. Prose of the two languages has
# 4 to 5 and 1.5 or so in Qwen's vocabulary; these lie on the safe side.
_CHARACTERS_A_TOKEN = {"en": 3.0, "zh": 1.0}


@functools.cache
def wording(language: str) -> dict[str, dict[str, str]]:
  """All texts of a language, by stage."""
  path = FOLDER / f"prompts_{language}.toml"
  texts = tomllib.loads(path.read_text(encoding="utf-8"))
  fences = texts.pop("fences").strip()
  for stage in texts.values():
    for name, text in stage.items():
      stage[name] = text.strip().replace("{{fences}}", fences)
  return texts


def version(*stages: str) -> str:
  """A hash of the wording of these stages in all languages."""
  texts = [wording(language)[stage] for language in ("en", "zh") for stage in stages]
  return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()[:16]


def fill(text: str, **values: object) -> str:
  """`text` with its `{{names}}` filled in, once: what is put in is not looked at again."""
  return re.sub(r"\{\{(\w+)\}\}", lambda found: str(values[found[1]]), text)


def fence(label: str, text: str) -> str:
  """`text` as material that can give no orders."""
  mark, salt = "", 0
  while not mark or mark in text:
    mark = hashlib.sha256(f"{salt}{label}{text}".encode()).hexdigest()[:8]
    salt += 1
  return f"<<<{label} {mark}\n{text}\n{mark} {label}>>>"


def dialogue(turns: Iterable[Turn], own: str | None = None) -> str:
  """Turns, one JSON object a line.

  Args:
    own: if given, what this character has lived: their own thoughts are there, nobody else's.
  """
  lines = []
  for turn in turns:
    text = turn.reply
    if own is not None:
      text = grammar.parse(text).view_for("self" if turn.speaker == own else "other")
    row = {"turn": prepare.key_of(turn), "speaker": turn.speaker, "text": text}
    lines.append(json.dumps(row, ensure_ascii=False))
  return "\n".join(lines)


def sheet(scene: Trajectory, character: Character) -> str:
  """Whom the character is and where they are, as the system prompt of the trained model has it."""
  return sheets.system_prompt(scene, character, sheets.Variant(plan="off"))


def all_sheets(scene: Trajectory) -> str:
  """Scenario and every character's fields, one JSON object a line."""
  lines = [json.dumps({"scenario": scene.scenario}, ensure_ascii=False)]
  for character in scene.characters:
    row = {"character": character.name}
    row |= {f: text for f in FIELDS if (text := getattr(character, f))}
    lines.append(json.dumps(row, ensure_ascii=False))
  return "\n".join(lines)


def estimated_tokens(texts: Sequence[str], language: str) -> int:
  """About how many tokens texts have, from their characters; rather too many than too few."""
  return int(sum(map(len, texts)) / _CHARACTERS_A_TOKEN[language]) + 1


def again(language: str, cause: str, detail: str) -> str:
  """What tells a model why its answer was not taken."""
  texts = wording(language)["again"]
  why = fill(texts.get(cause, texts["malformed"]), detail=detail)
  return fill(texts["start"], why=why)
