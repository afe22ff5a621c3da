"""ShareGPT and chat messages: a talk of two, one of whom a model plays.

    {"conversations": [{"from": "system" | "human" | "gpt", "value": …}], "system": …}
    {"messages": [{"role": "system" | "user" | "assistant", "content": …}]}

Who is who comes from the row's fields, else from the names that stand before every line, else
from the system prompt where that says it ("You are …", "Name: …", "你是……"). A name is never
made up: a row that tells none is a fault, unless the caller gives one. The system prompt
becomes the character's profile as it stands.
"""

from collections.abc import Sequence
import json
import re
from typing import Any

from data_pipeline.sources.names import cleaned
from her_jax.roleplay import cards, grammar, notations, prompts, rows
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory, Turn

_ROLES = {
  **dict.fromkeys(("human", "user", "prompter"), "user"),
  **dict.fromkeys(("gpt", "assistant", "bot", "model", "chatgpt", "bing", "bard"), "assistant"),
  "system": "system",
}
_LISTS = ("conversations", "conversation", "messages")
_CHARACTER = ("character", "char_name", "character_name", "ai_name", "bot_name", "name")
_USER = ("user_name", "user", "human_name")
_USER_NAME = {"en": "User", "zh": "用户"}

_PREFIX = re.compile(
  r"\s*(?:\*\*)?([^\s:：*<>\[\]()（）][^:：\n<>]{0,39}?)(?:\*\*)?\s?[:：](?!//)\s*"
)
# A name as it is written after "You are": capitalised words, titles and particles.
_NAME = (
  r"(?:(?:Dr|Mr|Mrs|Ms|St|Sir|Lady|Lord|Captain|Professor)\.?[^\S\n]+)?[A-ZÀ-Þ][\w'’\-]*"
  r"(?:[^\S\n]+(?:(?:of|the|de|da|von|van|der|la|le|du)[^\S\n]+)*[A-ZÀ-Þ][\w'’\-]*){0,4}"
)
_SAYS = (
  re.compile(rf"(?m)^\W*(?i:character(?:'s)? name|name|character|persona)\W*[:=]\W*({_NAME})"),
  re.compile(
    rf"\b(?i:you are(?: now)?(?: playing| acting as)?|you(?:'re| will be| play)|"
    rf"(?:role-?\s?play|act|respond|reply|play(?: the (?:role|part))?) (?:as|of))\s+"
    rf"(?:the character\s+)?({_NAME})(?!\s*(?i:assistant|AI\b|model|chatbot))"
  ),
  re.compile(r"(?:姓名|名字|角色名|角色名称|角色)\s*[:：]\s*([\w·•\-]{1,20})"),
  re.compile(
    r"(?:请你?扮演|你将扮演|你扮演|扮演|你(?:现在)?是|你叫)(?:角色)?[“「《]?([\w·•\-]{1,12}?)(?=[”」》，。,.；;\s（(!！]|$)"
  ),
)
_NO_NAMES = {
  *("assistant", "ai", "chatgpt", "a", "an", "the", "chatbot", "gpt", "model", "claude", "in"),
  *("一个", "一名", "一位", "助手", "人工智能", "谁"),
}


def from_row(row: Row, character: str = "", user: str = "") -> list[Trajectory]:
  """A talk as a scene of two.

  Actions between stars, tags and bracketed thoughts become layers; a reply's own plan (in
  `<think>` or `<system_thinking>`) becomes the turn's plan.

  Args:
    character: whom the model plays, where the row does not say it; `user` likewise. Without
      either the user is called "User" or, in Chinese, "用户", which is a role and no name.

  Raises:
    DataError: names the field and the mend.
  """
  field = next((f for f in _LISTS if row.get(f)), _LISTS[0])
  messages = row.get(field)
  if isinstance(messages, str):
    messages = _unpacked(messages, field)
  read = [
    _message(entry, f"{field}[{i}]")
    for i, entry in enumerate(rows.objects_of({field: messages}, field))
  ]
  sheet = [text for f in ("system", "system_prompt") if (text := rows.text_of(row, f).strip())]
  sheet += [text.strip() for role, text, _ in read if role == "system" and text.strip()]
  told = "\n\n".join(dict.fromkeys(sheet))
  talk = [(role, text, where) for role, text, where in read if role != "system"]
  if not any(role == "assistant" for role, _, _ in talk):
    raise DataError(f"{field}: nothing that the model says; leave the row out")
  language = rows.language_of(told or talk[0][1])
  own, other = _names(row, talk, told, language, character, user)
  turns = [
    _turn(own if role == "assistant" else other, text, where)
    for role, text, where in talk
    if text.strip() != prompts.MARKER
  ]
  people = rows.People("sharegpt")
  people.describe(own, {"profile": cards.fill(told, own, other)}, "")
  people.entry(other)
  used = {field, "id", "system", "system_prompt", *_CHARACTER, *_USER, "scenario", "topic"}
  scenario = rows.text_of(row, "scenario").strip()
  made = rows.gather(
    "sharegpt",
    people,
    turns,
    rows.rest_of(row, used),
    id=str(row.get("id") or row.get("conversation_id") or ""),
    scenario=scenario or _meeting(own, other, language),
    source=rows.text_of(row, "source") or rows.text_of(row, "book"),
    topic=rows.text_of(row, "topic"),
  )
  made.extra["sharegpt"].pop("source", None)
  return [made]


def _unpacked(text: str, field: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    raise DataError(f"{field}: a text that is no JSON; give the list itself") from None


def _message(entry: Row, where: str) -> tuple[str, str, str]:
  """Role, text and place of a message."""
  who = "from" if "from" in entry else "role"
  what = "value" if "value" in entry else "content"
  name = entry.get(who)
  role = _ROLES.get(name.casefold()) if isinstance(name, str) else None
  if role is None:
    raise DataError(
      f"{where}.{who}: {str(name)[:40]!r} is no role; a talk has system, human and gpt, or"
      f" system, user and assistant"
    )
  content = entry.get(what)
  if isinstance(content, list):  # As endpoints write it: parts, of which a text has one.
    parts = [p.get("text") if isinstance(p, dict) else None for p in content]
    if not all(isinstance(p, str) for p in parts):
      raise DataError(f"{where}.{what}: holds other parts than text; leave the row out")
    return role, "".join(str(p) for p in parts), f"{where}.{what}"
  text = rows.text_of(entry, what, f"{where}.")
  if not text.strip():
    raise DataError(f"{where}.{what}: missing or empty; remove the message")
  return role, text, f"{where}.{what}"


def _names(
  row: Row,
  talk: Sequence[tuple[str, str, str]],
  told: str,
  language: str,
  character: str,
  user: str,
) -> tuple[str, str]:
  """The names of whom the model plays and of whom it talks with."""
  said = {role: _before_every_line(talk, role, told) for role in ("assistant", "user")}
  own = _field(row, _CHARACTER) or said["assistant"] or _in_sheet(told) or character
  if not own:
    raise DataError(
      "character: nothing says whom the model plays; give the row a field 'character', or pass"
      " --character"
    )
  other = _field(row, _USER) or said["user"] or user or _USER_NAME[language]
  own, other = cleaned(own), cleaned(other)
  if own == other:
    raise DataError(f"user_name: {other!r} is the character's name too; choose another")
  return own, other


def _field(row: Row, names: Sequence[str]) -> str:
  return next((v.strip() for n in names if isinstance(v := row.get(n), str) and v.strip()), "")


def _before_every_line(talk: Sequence[tuple[str, str, str]], role: str, told: str) -> str:
  """The name that each message of a role begins with; "" if one has another or none.

  One message is not enough to tell a name from "Note:", unless the prompt knows it or the other
  side's messages begin with names as well.
  """
  found = {
    r: {_named(text) for who, text, _ in talk if who == r} for r in ("assistant", "user")
  }
  if len(found[role]) != 1:
    return ""
  (name,) = found[role]
  many = sum(who == role for who, _, _ in talk) > 1
  both = all(len(names) == 1 and "" not in names for names in found.values())
  return name if many or both or (name and name in told) else ""


def _named(text: str) -> str:
  """What stands before a message's first colon, if it is written as a name is."""
  match = _PREFIX.match(_after_plan(text))
  if not match:
    return ""
  name = match[1].strip()
  words = [
    w for w in re.findall(r"[^\W\d_]+", name) if w not in ("of", "the", "de", "von", "van")
  ]
  return name if words and all(not w[0].islower() for w in words) else ""


def _after_plan(text: str) -> str:
  parsed = grammar.parse(text)
  return parsed.view_for("self") if parsed.plan is not None else text


def _in_sheet(told: str) -> str:
  for pattern in _SAYS:
    for match in pattern.finditer(told):
      name = match[1].strip()
      if name.split()[0].casefold() not in _NO_NAMES and name[:2] not in _NO_NAMES:
        return name
  return ""


def _turn(speaker: str, text: str, where: str) -> Turn:
  parsed = grammar.parse(grammar.repair(text, speaker), speaker)
  plan = rows.plain_plan(parsed.plan or "")
  body = parsed.view_for("self").strip()
  for colon in ":：":
    body = body.removeprefix(f"**{speaker}**{colon}").removeprefix(f"{speaker}{colon}").lstrip()
  if grammar.parse(body).layout().strip("S"):
    reply = notations.from_either(body)
  elif re.search(r"\*[^*\s]", body):
    reply = notations.from_asterisks(body)
  else:
    reply = notations.from_coser(body)
  return Turn(speaker, rows.spoken(reply, where), plan)


def _meeting(own: str, other: str, language: str) -> str:
  return f"{own}与{other}交谈。" if language == "zh" else f"{own} and {other} talk."
