"""Other notations of a turn: CoSER's `[thought] (action) speech`, and chat's `*action* speech`.

CoSER's goes both ways. Text that is balanced comes back to the letter:
`to_coser(from_coser(text)) == text`. A plan has no place in it and is left out.
"""

import re

from her_jax.roleplay import tags
from her_jax.roleplay.grammar import Reply, Segment
from her_jax.roleplay.tags import ACTION, SPEECH, THINKING

_WIDE = {"[": "［", "]": "］", "(": "（", ")": "）"}


def from_coser(text: str) -> Reply:
  """Reads a message in CoSER's notation.

  Brackets and parentheses within a thought belong to it, parentheses within an action to that;
  a thought within an action is hidden all the same. What opens a thought and never closes
  hides the rest; a closing square bracket without an opening one hides what stands before it.
  A parenthesis without its partner is speech. Tags of our own notation are defused.

  Example:
    from_coser("[Not him.] (bows) Sir.").layout() == "TAS"
  """
  return _Reader(text).reply()


def to_coser(reply: Reply) -> str:
  """Writes a reply in CoSER's notation, without its plan.

  Brackets that would be read as a layer of their own (in speech, or without a partner) become
  full-width, so that a thought never leaves its brackets.
  """
  written = []
  spoken = "".join(s.text for s in reply.segments if s.kind == SPEECH)
  # Parentheses of one sort alone find no partner, as in "1) and 2)".
  lone = "(" not in spoken or ")" not in spoken
  for segment in reply.segments:
    if segment.kind == THINKING:
      written.append(f"[{_widen_odd(segment.text, '[]')}]")
    elif segment.kind == ACTION:
      inner = _widen_odd(segment.text, "()")
      written.append(f"({inner.translate(_widen('[]'))})")
    elif segment.kind == SPEECH:
      signs = "[]" if lone else "[]()"
      written.append(segment.text.translate(_widen(signs)))
  return "".join(written)


def from_asterisks(text: str) -> Reply:
  """Reads a chat message in which `*…*` are actions; an asterisk without its partner is speech.

  Example:
    from_asterisks("*nods* Go.").layout() == "AS"
  """
  segments = []
  for i, part in enumerate(re.split(r"\*([^*\n]+)\*", tags.defuse(text))):
    if part:
      segments.append(Segment(ACTION if i % 2 else SPEECH, part))
  return Reply(tuple(segments))


class _Reader:
  """Walks a message once; `_depth` counts the brackets of the layer it is in."""

  def __init__(self, text: str):
    self._text = tags.defuse(text)
    self._segments: list[Segment] = []
    self._problems: list[str] = []
    self._malformed = False
    if self._text != text:
      self._problems.append("holds tags of the other notation, kept as text")

  def reply(self) -> Reply:
    self._walk()
    status = "malformed" if self._malformed else "repaired" if self._problems else "ok"
    return Reply(tuple(self._segments), status, tuple(self._problems))

  def _walk(self) -> None:
    text, start, at = self._text, 0, 0
    while at < len(text):
      sign = text[at]
      if sign == "[":
        self._add(SPEECH, text[start:at])
        at = start = self._thought(at)
      elif sign == "(" and (end := _partner(text, at)) is not None:
        self._add(SPEECH, text[start:at])
        self._action(text[at + 1 : end])
        at = start = end + 1
      elif sign == "]":
        # The safe guess is that what stands before it was a thought.
        self._add(THINKING, text[start:at], empty=True)
        self._fault("']' closes nothing", malformed=True)
        at = start = at + 1
      else:
        if sign in "()":
          self._fault(f"{sign!r} has no partner, kept as speech")
        at += 1
    self._add(SPEECH, text[start:])

  def _thought(self, at: int) -> int:
    """Takes the thought that opens at `at`; returns where it ends."""
    end = _partner(self._text, at)
    if end is None:
      self._fault("'[' is never closed", malformed=True)
      end = len(self._text)
    self._add(THINKING, self._text[at + 1 : end], empty=True)
    return end + 1

  def _action(self, inner: str) -> None:
    if "[" not in inner and "]" not in inner:
      self._add(ACTION, inner, empty=True)
      return
    # Only the thought within it is hidden, and an odd bracket hides all of it.
    self._fault("a thought within an action", malformed=inner.count("[") != inner.count("]"))
    start = at = 0
    while (at := inner.find("[", start)) >= 0 and (end := _partner(inner, at)) is not None:
      self._add(ACTION, inner[start:at])
      self._add(THINKING, inner[at + 1 : end], empty=True)
      start = end + 1
    rest = inner[start:]
    self._add(THINKING if "[" in rest or "]" in rest else ACTION, rest)

  def _add(self, kind: str, text: str, empty: bool = False) -> None:
    if text or empty:
      self._segments.append(Segment(kind, text))

  def _fault(self, problem: str, malformed: bool = False) -> None:
    self._problems.append(problem)
    self._malformed = self._malformed or malformed


def _partner(text: str, at: int) -> int | None:
  """Where the bracket at `at` closes, brackets of its own kind counted; None if never."""
  opening = text[at]
  closing = {"[": "]", "(": ")"}[opening]
  depth = 0
  for i in range(at, len(text)):
    depth += (text[i] == opening) - (text[i] == closing)
    if depth == 0:
      return i
  return None


def _widen_odd(text: str, pair: str) -> str:
  """`text` with the brackets of one kind that have no partner made full-width."""
  signs, stack = list(text), []
  for i, sign in enumerate(text):
    if sign == pair[0]:
      stack.append(i)
    elif sign == pair[1]:
      if stack:
        stack.pop()
      else:
        signs[i] = _WIDE[sign]
  for i in stack:
    signs[i] = _WIDE[signs[i]]
  return "".join(signs)


def _widen(signs: str) -> dict[int, str]:
  return str.maketrans({sign: _WIDE[sign] for sign in signs})
