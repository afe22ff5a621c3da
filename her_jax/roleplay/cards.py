"""Character cards: V1, V2 and V3, out of JSON and PNG, and the scene that a card opens.

    V1   {"name": …, "first_mes": …}                             one flat object
    V2   {"spec": "chara_card_v2", "data": {…}}                  PNG: text chunk "chara"
    V3   {"spec": "chara_card_v3", "data": {…, "nickname": …}}   PNG: text chunk "ccv3"

A PNG holds the same JSON in base64. `{{char}}` and `{{user}}` stay in the card as they are and
are filled where a prompt is made. Cards are strangers' files: what is broken is a `DataError`
with the mend, and nothing in them becomes a layer of a reply or a control token.
"""

import base64
from collections.abc import Mapping
import dataclasses
import io
import json
import os
import pathlib
import re
from typing import Any

from her_jax.roleplay import grammar, notations
from her_jax.roleplay import lorebook as lore
from her_jax.roleplay.grammar import SPEECH, Segment
from her_jax.roleplay.lorebook import Lorebook
from her_jax.roleplay.schema import ENVIRONMENT, Character, DataError, Trajectory, Turn

_SPECS = {"chara_card_v2": "v2", "chara_card_v3": "v3"}
_SPEC_NAMES = {spec: name for name, spec in _SPECS.items()}
_SPEC_VERSIONS = {"v2": "2.0", "v3": "3.0"}

_V1 = ("name", "description", "personality", "scenario", "first_message", "example_messages")
_V2 = (
  *(*_V1, "creator_notes", "system_prompt", "post_history_instructions", "creator"),
  *("character_version", "alternate_greetings", "tags"),
)
# What must stand in a card of each spec, even if it is empty.
_MANDATORY = {"v1": _V1, "v2": _V2, "v3": (*_V2, "group_only_greetings")}
_FIELDS = (*_MANDATORY["v3"], "nickname")
_LISTS = ("alternate_greetings", "group_only_greetings", "tags")
_KEYS = {field: field for field in _FIELDS}
_KEYS |= {"first_message": "first_mes", "example_messages": "mes_example"}

_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_OTHER_FILES = {
  b"\xff\xd8\xff": "a JPEG, which holds no card; use the PNG or the JSON",
  b"RIFF": "a WebP, which holds no card that this reads; use the PNG or the JSON",
  b"GIF8": "a GIF, which holds no card; use the PNG or the JSON",
  b"PK\x03\x04": "a zip archive (CHARX); unpack it and read its card.json",
}

_PLACEHOLDER = re.compile(r"\{\{\s*(char|user)\s*\}\}|<(char|bot|user)>", re.IGNORECASE)
_START = re.compile(r"<START>", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”|«([^«»]+)»|「([^「」]+)」')

_NEUTRAL = {
  "en": {
    "char": "{char} is a character of whom no more is known.",
    "user": "{user} talks with {char}.",
    "scenario": "{char} and {user} meet and talk.",
  },
  "zh": {
    "char": "{char}，其他情况不详。",
    "user": "{user}正在与{char}交谈。",
    "scenario": "{char}与{user}相遇并交谈。",
  },
}


@dataclasses.dataclass(frozen=True)
class Card:
  """A character as a card describes it, placeholders and all.

  Attributes:
    creator_notes: for people; it belongs into no prompt, as do tags, creator and version.
    group_only_greetings: further greetings for scenes with several characters.
    nickname: what a V3 card calls the character in a scene.
    spec: "v1", "v2" or "v3", by which `write` chooses the form.
    extra: fields that are not known here and `extensions`, as the card has them.
    outer: what stands beside `data`, without the copies of its fields that editors leave
      there for readers of V1. Neither of both holds a known name.
  """

  name: str
  description: str = ""
  personality: str = ""
  scenario: str = ""
  first_message: str = ""
  example_messages: str = ""
  creator_notes: str = ""
  system_prompt: str = ""
  post_history_instructions: str = ""
  alternate_greetings: tuple[str, ...] = ()
  group_only_greetings: tuple[str, ...] = ()
  nickname: str = ""
  tags: tuple[str, ...] = ()
  creator: str = ""
  character_version: str = ""
  lorebook: Lorebook | None = None
  spec: str = "v3"
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)
  outer: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def greetings(self) -> tuple[str, ...]:
    """The first message and its alternatives, without those that are blank."""
    return tuple(g for g in (self.first_message, *self.alternate_greetings) if g.strip())

  @property
  def char(self) -> str:
    """The name in a scene, which `{{char}}` stands for: V3's nickname or the name."""
    nickname = self.nickname if self.spec == "v3" else ""
    return _scene_name(nickname if nickname.strip() else self.name)


def read(path: str | os.PathLike[str]) -> Card:
  """Reads a card from JSON or PNG; the content tells which, not the file's ending.

  Of a PNG with both chunks, "ccv3" counts.

  Raises:
    DataError: names the file, the field and the mend.
  """
  try:
    if not os.path.isfile(path):
      raise DataError("no such file; pass a character card in JSON or PNG")
    data = pathlib.Path(path).read_bytes()
    for start, what in _OTHER_FILES.items():
      if data.startswith(start):
        raise DataError(what)
    if data.startswith(_PNG):
      return _from_png(data)
    return _from_json(data, "")
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror}); mend the access") from None
  except DataError as error:
    raise DataError(f"{path}: {error}") from None


def write(card: Card, path: str | os.PathLike[str]) -> None:
  """Writes a card as JSON in the form of its spec; `read` gives the same card back.

  Raises:
    DataError: the spec is unknown, or `extra` holds what JSON cannot say.
  """
  if card.spec not in _MANDATORY:
    raise DataError(f"{path}: spec: {card.spec!r} is not one of {', '.join(_MANDATORY)}")
  known: dict[str, Any] = {}
  for field, key in _KEYS.items():
    if getattr(card, field) or field in _MANDATORY[card.spec]:
      known[key] = getattr(card, field)
  if card.lorebook is not None:
    known["character_book"] = lore.lorebook_to_dict(card.lorebook)
  row = {**known, **card.extra, **known}
  if card.spec != "v1":
    version = {"spec": _SPEC_NAMES[card.spec], "spec_version": _SPEC_VERSIONS[card.spec]}
    row = {**version, **card.outer, "data": row}
  try:
    data = json.dumps(row, ensure_ascii=False, indent=2).encode()
  except (TypeError, ValueError, RecursionError) as error:
    raise DataError(f"{path}: the card does not fit into JSON ({error}); mend extra") from None
  pathlib.Path(path).write_bytes(data)


def fill(text: str, char: str, user: str) -> str:
  """Puts names in place of `{{char}}`, `{{user}}` and the legacy `<BOT>`, `<CHAR>`, `<USER>`.

  In one pass: a name that looks like a placeholder is not filled again. Other macros stay.

  Example:
    fill("{{ User }} greets <BOT>, {{roll:6}}", "Una", "Joost") == "Joost greets Una, {{roll:6}}"
  """
  return _PLACEHOLDER.sub(
    lambda match: user if (match[1] or match[2]).lower() == "user" else char, text
  )


def to_trajectory(
  card: Card,
  user: str,
  *,
  greeting: int = 0,
  user_profile: str = "",
  language: str = "en",
) -> Trajectory:
  """The scene that a card opens: the character, the user, and the greeting as first turn.

  `*…*` in the greeting becomes an action; the rest is speech, without its quotation marks
  where all of it stands in such. Tags of any kind in it become parentheses.

  Args:
    user: the user's name.
    greeting: index into `card.greetings`; a card without greetings has no turns.
    user_profile: who the user is, if the character should know.
    language: "en" or "zh", of the neutral sentences for what the card leaves empty.

  Raises:
    DataError: no such greeting or language, or the user has no name of their own.
  """
  if language not in ENVIRONMENT:
    raise DataError(f"language: {language!r} is not one of {', '.join(ENVIRONMENT)}")
  char, user = card.char, _scene_name(user)
  for who, name in (("name", char), ("user", user)):
    if not name:
      raise DataError(f"{who}: missing or empty; give a name")
  if user == char:
    raise DataError(f"user: {user!r} is the character's name too; choose another")
  if ENVIRONMENT[language] in (char, user):
    raise DataError(
      f"name: {ENVIRONMENT[language]!r} speaks the lines of the surroundings; choose another"
    )
  count = len(card.greetings)
  if not 0 <= greeting < max(count, 1):
    raise DataError(
      f"greeting: {greeting}, but the card has {count}; pass an index from 0 to"
      f" {max(count - 1, 0)}"
    )
  neutral = {k: v.format(char=char, user=user) for k, v in _NEUTRAL[language].items()}
  told = [fill(t, char, user).strip() for t in (card.description, card.personality)]
  reply = _as_reply(fill(card.greetings[greeting], char, user), char) if count else ""
  return Trajectory(
    id=f"card:{char}",
    scenario=fill(card.scenario, char, user).strip() or neutral["scenario"],
    characters=(
      Character(name=char, profile="\n\n".join(filter(None, told)) or neutral["char"]),
      Character(name=user, profile=fill(user_profile, char, user).strip() or neutral["user"]),
    ),
    turns=(Turn(speaker=char, reply=reply),) if reply else (),
    language=language,
  )


def example_dialogues(card: Card, user: str) -> list[list[tuple[str, str]]]:
  """The example messages as exchanges of (speaker, text), names filled in.

  A message begins with a line `Name:` of the character, the user or a macro such as
  `{{random_user_1}}` and goes on to the next one. Text in front of the first is the
  character's, whose manner the examples show.

  Example:
    "<START>\\n{{user}}: Hi\\n{{char}}: *nods*\\nSit." gives, for Una and Joost,
    [[("Joost", "Hi"), ("Una", "*nods*\\nSit.")]]
  """
  char, user = card.char, _scene_name(user)
  names = sorted({char, card.name.strip(), user}, key=len, reverse=True)
  spoken = "|".join(re.escape(name) for name in names if name)
  begins = re.compile(
    rf"^[ \t]*(\{{\{{[^{{}}\n]+\}}\}}|<(?:char|bot|user)>|{spoken})[ \t]*[:：]",
    re.IGNORECASE | re.MULTILINE,
  )
  exchanges = []
  for part in _START.split(card.example_messages):
    pieces = begins.split(part)
    messages = [(char, pieces[0])]
    for named, text in zip(pieces[1::2], pieces[2::2], strict=True):
      is_user = named.casefold() == user.casefold()
      is_own = named.casefold() in (char.casefold(), card.name.strip().casefold())
      speaker = user if is_user else char if is_own else fill(named, char, user)
      messages.append((speaker, text))
    said = [(speaker, fill(text, char, user).strip()) for speaker, text in messages]
    exchanges.append([(speaker, text) for speaker, text in said if text])
  return [exchange for exchange in exchanges if exchange]


def _from_png(data: bytes) -> Card:
  if _PNG_END not in data:
    raise DataError("the PNG is cut short; fetch it again")
  try:
    from PIL import Image  # Takes longer to import than a card to read.
  except ImportError:
    raise DataError("a PNG needs Pillow; pip install pillow, or use the JSON") from None
  try:
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
      animated = image.get_format_mimetype() == "image/apng"
      chunks = (
        {} if animated else {k.lower(): str(v) for k, v in getattr(image, "text", {}).items()}
      )
  except Exception as error:  # Each damage of a file has its own class in Pillow.
    raise DataError(f"the PNG is damaged ({error}); fetch it again") from None
  if animated:
    raise DataError("an animated PNG; save the card as a still PNG or as JSON")
  for chunk in ("ccv3", "chara"):
    if chunk in chunks:
      return _from_json(_decode_base64(chunks[chunk], chunk), chunk)
  raise DataError(
    "the PNG holds no card (text chunk ccv3 or chara); export it again, as sites that"
    " re-encode pictures remove it"
  )


def _decode_base64(text: str, chunk: str) -> bytes:
  text = "".join(text.split()).rstrip("=")
  try:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
  except ValueError:
    raise DataError(f"{chunk}: not base64; export the card again") from None


def _from_json(data: bytes, chunk: str) -> Card:
  at = f"{chunk}: " if chunk else ""
  try:
    text = data.decode("utf-8-sig")
    row = json.loads(text)
    if re.search(r"\\u[dD][89a-fA-F]", text):
      row = _mend_surrogates(row)
  except UnicodeDecodeError:
    raise DataError(f"{at}not UTF-8; save the card in that encoding") from None
  except json.JSONDecodeError as error:
    raise DataError(
      f"{at}not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); a card is"
      f" one whole JSON object"
    ) from None
  except (RecursionError, MemoryError):
    raise DataError(f"{at}nested too deeply; remove what nests in extensions") from None
  except ValueError as error:  # Python reads no number of thousands of digits.
    raise DataError(f"{at}not valid JSON ({error}); shorten that number") from None
  if not isinstance(row, dict):
    raise DataError(f"{at}expected an object, got {lore.kind(row)}; a card is written as {{…}}")
  try:
    return from_dict(row)
  except DataError as error:
    raise DataError(f"{at}{error}") from None


def _mend_surrogates(row: Any) -> Any:
  """Half an emoji, which editors leave where they cut a text, can never be encoded again."""
  text = json.dumps(row, ensure_ascii=False)
  return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def from_dict(row: Mapping[str, Any]) -> Card:
  """Builds and checks a card from its JSON object.

  Raises:
    DataError: names the field and the mend.
  """
  name, data = row.get("spec"), row.get("data")
  if name in (None, "") and data is None:
    return _build(lore.Fields(dict(row), ""), "v1", {})
  if name in (None, ""):
    spec = "v2"  # As some editors wrote it before the field was agreed on.
  elif isinstance(name, str) and name in _SPECS:
    spec = _SPECS[name]
  else:
    got = repr(name[:40]) if isinstance(name, str) else lore.kind(name)
    raise DataError(f"spec: {got} is unknown; known are {', '.join(_SPECS)}, or none for V1")
  if data is None:
    raise DataError("data: missing; put the card's fields into it, or remove spec for V1")
  outer = {
    k: v for k, v in row.items() if k not in {"spec", "data", "character_book", *_KEYS.values()}
  }
  if outer.get("spec_version") == _SPEC_VERSIONS[spec]:
    del outer["spec_version"]
  return _build(lore.Fields(data, "data"), spec, outer)


def _build(fields: lore.Fields, spec: str, outer: dict[str, Any]) -> Card:
  found: dict[str, Any] = {}
  for field, key in _KEYS.items():
    if field in _LISTS:
      found[field] = fields.texts(key, split=field == "tags")
    else:
      found[field] = fields.text(key, numbers=field == "character_version")
  if not found["name"].strip():
    raise fields.fault("name", "missing or empty", "give the character a name")
  book = fields.take("character_book")
  if book is not None:
    found["lorebook"] = lore.lorebook_from_dict(book, fields.place("character_book"))
  return Card(**found, spec=spec, extra=fields.rest, outer=outer)


def _scene_name(name: str) -> str:
  """A name on one line in which nothing is a tag, as it stands in front of a reply."""
  return notations.without_tags(" ".join(name.split())).rstrip(":： ")


def _without_name(text: str, speaker: str) -> str:
  return re.sub(rf"\A\s*(?:{re.escape(speaker)}[:：]\s*)+", "", text).strip()


def _as_reply(text: str, speaker: str) -> str:
  """A greeting in the layers' notation."""
  segments = notations.from_asterisks(_without_name(text, speaker)).segments
  heard = [s.text for s in segments if s.kind == SPEECH]
  if all(not _QUOTED.sub("", piece).strip() for piece in heard):
    unquote = lambda s: _QUOTED.sub(lambda match: match[match.lastindex or 0], s.text)
    segments = tuple(Segment(s.kind, unquote(s)) if s.kind == SPEECH else s for s in segments)
  # Tags go last: without its stars and quotes a text may spell one that it did not before.
  plain = tuple(Segment(s.kind, notations.without_tags(s.text)) for s in segments)
  return _without_name(grammar.render(grammar.Reply(plain)), speaker)
