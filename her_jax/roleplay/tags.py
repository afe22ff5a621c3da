"""Finding layer tags in text that models and people wrote, however they spelt them.

`scan` walks a text once and returns every tag with its place, the layer it means, and what is
odd about it. Read are the four regular names, the legacy ones, upper case, blanks, attributes,
slips of spelling, a missing bracket, escaped and full-width brackets, and names in other
languages. A tag that means no layer is reported and stays text.
"""

from collections.abc import Iterator
import dataclasses
import difflib
import functools
import re

PLAN, THINKING, ACTION, SPEECH = "system_thinking", "role_thinking", "role_action", "speech"
TAGGED = (PLAN, THINKING, ACTION)
# The most hidden first: where two layers could be meant, the earlier one is.
RANK = (PLAN, THINKING, ACTION, SPEECH)
THINK = "think"  # Qwen's own block: a plan in front of a reply, a thought within one.

_LEGACY = {
  "system_think": PLAN,
  "sys_thinking": PLAN,
  "role_think": THINKING,
  "long_role_thinking": THINKING,
  "thought": THINKING,
  "thoughts": THINKING,
  "role_speech": SPEECH,
}
_NAMES = {name: name for name in TAGGED} | _LEGACY | {THINK: THINK}
# Names that are no words of any language, so that they are known without their brackets.
_PLAIN = "|".join(sorted((n for n in _NAMES if "_" in n), key=len, reverse=True))

# What a word in an invented name says of its layer.
_WORDS = {
  PLAN: {"system", "sys", "plan", "planning", "reasoning", "analysis", "reflection", "scratchpad"},
  THINKING: {
    *("think", "thinking", "thinks", "thought", "thoughts", "mind", "inner", "internal"),
    *("monologue", "feeling", "feelings", "gedanke", "gedanken", "denken", "pensee", "pensée"),
    *("pensées", "pensamiento", "pensamientos", "pensamento", "pensiero", "pensieri", "мысль"),
    *("мысли", "думает"),
  },
  ACTION: {
    *("action", "actions", "act", "gesture", "movement", "behavior", "behaviour", "aktion"),
    *("handlung", "acción", "accion", "acciones", "ação", "azione", "geste", "действие"),
    *("действия",),
  },
  SPEECH: {"speech", "say", "says", "speak", "speaks", "dialogue", "dialog", "talk", "utterance"},
}  # fmt: skip
# In scripts without blanks a part of the name is enough.
_PARTS = {
  PLAN: ("系统", "系統", "计划", "計劃", "规划", "謀划", "谋划", "分析", "推理", "계획"),
  THINKING: ("思", "想", "心", "独白", "獨白", "생각", "내면", "독백"),
  ACTION: ("动作", "動作", "行动", "行動", "行为", "行為", "举止", "행동", "동작"),
  SPEECH: ("说", "說", "对白", "對白", "台词", "对话", "話", "话语", "대사", "발화"),
}

_OPEN, _CLOSE = r"(?:<|＜|&lt;)", r"(?:>|＞|&gt;)"
_CANDIDATE = re.compile(
  # <…> with anything short inside; a missing bracket is found by the name alone.
  rf"{_OPEN}(?P<inside>(?:(?!{_OPEN}|{_CLOSE})[^\n]){{1,80}}){_CLOSE}"
  rf"|{_OPEN}\s*(?P<open_slash>[/／\\]?)\s*(?P<unclosed>{_PLAIN})\b"
  rf"|[\[【]\s*(?P<square_slash>[/／\\]?)\s*(?P<square>{_PLAIN})\s*[\]】]"
  rf"|(?<![\w<＜])(?P<bare_slash>[/／\\]?)(?P<bare>{_PLAIN})\s*{_CLOSE}",
  re.IGNORECASE,
)
_INSIDE = re.compile(
  r"\s*(?P<slash>[/／\\]?)\s*(?P<name>.*?)\s*(?P<empty>[/／]?)\s*", re.DOTALL
)
_FIRST = re.compile(rf"(?P<name>{_PLAIN})(?P<rest>\s.*)", re.IGNORECASE | re.DOTALL)
_INVENTED = re.compile(r"[^\W\d_][\w.:-]{0,39}")
_MAY_HOLD = re.compile(rf"[<＜]|&lt;|{_PLAIN}", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Tag:
  """A tag at `text[start:end]`.

  Attributes:
    layer: PLAN, THINKING, ACTION, SPEECH (a wrapper that says nothing) or THINK; None for a
      tag that means no layer.
    name: as the parser's messages call it.
    closing: `</…>`.
    fault: what is irregular about it, or None.
    empty: `<…/>`, which opens and closes at once.
  """

  start: int
  end: int
  layer: str | None
  name: str
  closing: bool = False
  fault: str | None = None
  empty: bool = False


def scan(text: str) -> list[Tag]:
  """All tags of `text` in order; they do not overlap.

  Example:
    [tag.layer for tag in scan("<Role_Action>nods</role_action>")] == [ACTION, ACTION]
  """
  return list(_scan(text)) if _MAY_HOLD.search(text) else []


def layer_of(name: str) -> str | None:
  """The layer that a tag's name means, or None.

  Example:
    layer_of("Role Thinkng") == THINKING and layer_of("内心") == THINKING
  """
  return _layer(name)[0]


def defuse(text: str) -> str:
  """`text` in which nothing is a tag any more: brackets become parentheses.

  Example:
    defuse("a <role_action>b") == "a (role_action)b"
  """
  pieces, done = [], 0
  for tag in scan(text):
    slash = "/" if tag.closing else ""
    pieces += [text[done : tag.start], f"({slash}{tag.name})"]
    done = tag.end
  return "".join([*pieces, text[done:]])


def _scan(text: str) -> Iterator[Tag]:
  at = 0
  while match := _CANDIDATE.search(text, at):
    tag = _tag(match)
    if tag is None:
      at = match.start() + 1
      continue
    yield tag
    at = tag.end


def _tag(match: re.Match[str]) -> Tag | None:
  start, end, raw = match.start(), match.end(), match[0]
  for group in ("unclosed", "square", "bare"):
    if name := match[group]:
      slash = match[{"unclosed": "open"}.get(group, group) + "_slash"]
      layer, proper, _ = _layer(name)
      return Tag(start, end, layer, proper, bool(slash), f"irregular tag {raw!r}")
  inside = _INSIDE.fullmatch(match["inside"])
  if not inside or not inside["name"]:
    return None
  closing, empty = bool(inside["slash"]), bool(inside["empty"])
  if first := _FIRST.fullmatch(inside["name"]):
    layer, proper, _ = _layer(first["name"])
    # Attributes belong to the tag; other text was meant to stand behind it.
    if "=" not in first["rest"]:
      end = start + raw.index(first["name"]) + len(first["name"])
    return Tag(start, end, layer, proper, closing, f"irregular tag {raw!r}")
  layer, proper, fault = _layer(inside["name"])
  if layer:
    if raw != f"<{'/' if closing else ''}{proper}>":
      fault = fault or f"irregular tag {raw!r}"
    return Tag(start, end, layer, proper, closing, fault, empty and not closing)
  if _INVENTED.fullmatch(inside["name"]) and match["inside"][0] not in " \t":
    return Tag(start, end, None, inside["name"], closing, f"unknown tag {raw!r}")
  return None


@functools.lru_cache(maxsize=4096)
def _layer(name: str) -> tuple[str | None, str, str | None]:
  """Layer, proper name and fault of a tag's name."""
  plain = re.sub(r"[\s.\-_]+", "_", name.strip().lower()).strip("_")
  if plain in _NAMES:
    fault = None if plain in TAGGED else f"legacy tag <{plain}>"
    return _NAMES[plain], plain, fault
  # Of several words with blanks between them, only a known name is one: <I think so> is text.
  words = set(plain.split("_")) if not re.search(r"\s", name) else set()
  for layer in RANK:
    if words & _WORDS[layer] or any(
      part in plain for part in _PARTS[layer] if len(plain) <= 12
    ):
      return layer, plain, f"unknown tag <{plain}>, read as {layer}"
  if len(plain) >= 6 and (near := difflib.get_close_matches(plain, _NAMES, 1, 0.8)):
    return _NAMES[near[0]], near[0], f"mistyped tag <{plain}>"
  return None, name.strip(), None
