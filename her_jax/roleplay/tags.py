"""Finding layer tags in text that models and people wrote, however they spelt them.

`scan` walks a text once and returns every tag with its place, the layer it means, and what is
odd about it. Read are the four regular names, the legacy ones, upper case, blanks, attributes,
slips of spelling, a missing bracket, escaped, full-width and other brackets, and names in
other languages. A tag that means no layer is reported and stays text.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import difflib
import functools
import re
import unicodedata

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
    *("monologue", "monolog", "monólogo", "монолог", "feeling", "feelings", "gedanke", "gedanken", "denken", "pensee", "pensée"),
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

# Everyday words with such a part in them, and English ones that look like a slip of a name.
_EVERYDAY = re.compile(
  "[中小开開伤傷担擔关關関放安爱愛耐专專核信决決粗恶惡点點甜良]心|意思|[理梦夢幻]想"
  "|[小传傳听聽]说|[小傳聽]說|[電电神童笑]話"
)
_NO_SLIPS = {"though", "through", "thorough", "thoughtful", "thinker", "rethink"}
# What stands beside a layer's word in a name with blanks: <my inner thoughts>.
_BESIDE = {"role", "character", "my", "her", "his", "their"}

_OPEN = r"(?:<|＜|&(?:amp;)*(?:lt|#0*60|#x0*3c);)"
_CLOSE = r"(?:>|＞|&(?:amp;)*(?:gt|#0*62|#x0*3e);)"
# Of blanks only so many, that a page of them costs no time. Letters of other scripts may touch
# a name: what follows <role_thinking without its bracket need not begin with a blank.
_SLASH, _ENDS = r"\s{0,9}(?P<%s_slash>[/／\\]?)\s{0,9}", r"(?![A-Za-z0-9_])"
_CANDIDATE = re.compile(
  # <…> with anything short inside; a missing bracket is found by the name alone.
  rf"{_OPEN}(?P<inside>(?:(?!{_OPEN}|{_CLOSE})[^\n]){{1,80}}){_CLOSE}"
  rf"|{_OPEN}{_SLASH % 'unclosed'}(?P<unclosed>{_PLAIN}){_ENDS}"
  rf"|[\[【{{｛《〈«‹]{_SLASH % 'other'}(?P<other>{_PLAIN}){_ENDS}(?:\s{{0,9}}[\]】}}｝》〉»›])?"
  rf"|(?<![A-Za-z0-9_<＜])(?P<bare_slash>[/／\\]?)(?P<bare>{_PLAIN})\s{{0,9}}{_CLOSE}",
  re.IGNORECASE,
)
_INSIDE = re.compile(
  r"[|*]*(?P<slash>[/／\\]?)\s*(?P<name>.*?)(?<!\s)\s*(?P<empty>[/／]?)\\?", re.DOTALL
)
_ATTRIBUTES = re.compile(
  r"""(?:(?<!\s)\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[“”][^“”]*[“”]|[^\s"'“”]+))+$"""
)
# A name with words behind it, which were meant to stand behind the tag.
_FIRST = re.compile(
  rf"(?P<name>{_PLAIN}|thoughts?(?=\s*[:：])|think(?=\s*[:：])){_ENDS}.*\w", re.I | re.S
)
_INVENTED = re.compile(r"[^\W\d_][\w.:-]{0,39}")
# Addresses and comments of HTML.
_NO_NAME = re.compile(r"@|//|^(?:www\.|!|\?)")
_ANY_OPEN = re.compile(rf"{_OPEN}|[\[【{{｛《〈«‹]", re.IGNORECASE)
_ANY_CLOSE = re.compile(_CLOSE, re.IGNORECASE)
# Each tag has one of these; to look for them alone is far quicker than for names.
_BRACKETS = re.compile(r"[<＜&>＞\[【{｛《〈«‹]")
_MAY_HOLD = re.compile(rf"[<＜&]|{_PLAIN}", re.IGNORECASE)


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
  return list(_scan(text)) if _BRACKETS.search(text) and _MAY_HOLD.search(text) else []


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
  text = "".join([*pieces, text[done:]])
  if pieces and scan(text):  # Of <a<b>c> something is left: then no bracket stays.
    text = _ANY_CLOSE.sub(")", _ANY_OPEN.sub("(", text))
  return text


def layers_in(found: Sequence[Tag], text: str) -> list[str]:
  """The tags' layers; Qwen's think block in front of everything is the plan."""
  begin = len(text) - len(text.lstrip())
  layers = []
  for i, tag in enumerate(found):
    layer = tag.layer or SPEECH
    if layer == THINK:
      # Of its end, only a block in front of everything can have been left open by a template.
      first = i == 0 if tag.closing else tag.start <= begin
      layer = PLAN if first else THINKING
    layers.append(layer)
  return layers


def pair(found: Sequence[Tag], layers: Sequence[str]) -> list[int | None]:
  """For each tag the index of the one that it belongs to, or None.

  A closing tag belongs to the innermost open one of its layer; where there is none, it closes
  whatever is innermost. What was opened in between is never closed.
  """
  return _pair(found, layers)[0]


def still_open(found: Sequence[Tag], layers: Sequence[str]) -> list[int]:
  """Indices of the tags that a closing one behind them all could still belong to."""
  return _pair(found, layers)[1]


def _pair(found: Sequence[Tag], layers: Sequence[str]) -> tuple[list[int | None], list[int]]:
  partners: list[int | None] = [None] * len(found)
  stack: list[int] = []
  for i, (tag, layer) in enumerate(zip(found, layers, strict=True)):
    if tag.empty:
      continue
    if not tag.closing:
      stack.append(i)
      continue
    same = next((k for k in reversed(range(len(stack))) if layers[stack[k]] == layer), None)
    if same is None and (not stack or layer == SPEECH):
      continue
    at = len(stack) - 1 if same is None else same
    partners[i], partners[stack[at]] = stack[at], i
    del stack[at:]
  return partners, stack


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
  for group in ("unclosed", "other", "bare"):
    if name := match[group]:
      layer, proper, _ = _layer(name)
      slash = bool(match[f"{group}_slash"])
      return Tag(start, end, layer, proper, slash, f"irregular tag {raw!r}")
  inside = _INSIDE.fullmatch(match["inside"].strip())
  if not inside or not inside["name"]:
    return None
  closing, empty = bool(inside["slash"]), bool(inside["empty"])
  name = _ATTRIBUTES.sub("", inside["name"])
  if first := _FIRST.match(name):
    layer, proper, _ = _layer(first["name"])
    end = start + raw.index(first["name"]) + len(first["name"])
    return Tag(start, end, layer, proper, closing, f"irregular tag {raw!r}")
  layer, proper, fault = _layer(name)
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
  name = unicodedata.normalize("NFKC", name).strip()
  plain = _snake(name)
  if plain in _NAMES:
    fault = None if plain in TAGGED else f"legacy tag <{plain}>"
    return _NAMES[plain], plain, fault
  if _NO_NAME.search(name):
    return None, name, None
  words = set(_snake(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).split("_"))
  if difflib.get_close_matches("system", words, 1, 0.8):
    words.add("system")  # A mistyped plan is no thought.
  spaced = bool(re.search(r"\s", name))
  # With blanks between them, all words have to be a name's: <I think so> is text.
  if spaced and not words <= _BESIDE.union(*_WORDS.values()):
    words = set()
  everyday = _EVERYDAY.sub("", plain) if len(plain) <= 12 else ""
  for layer in RANK:
    if words & _WORDS[layer] or any(part in everyday for part in _PARTS[layer]):
      return layer, plain, f"unknown tag <{plain}>, read as {layer}"
  if len(plain) >= 6 and plain not in _NO_SLIPS:
    near = difflib.get_close_matches(plain, _NAMES, 1, 0.8)
    if near and (not spaced or plain.count("_") == near[0].count("_")):
      return _NAMES[near[0]], near[0], f"mistyped tag <{plain}>"
  return None, name, None


def _snake(name: str) -> str:
  return re.sub(r"[\W_]+", "_", name.lower()).strip("_")
