"""The dual-layer turn: a parser with a status, a renderer, and who may see what.

    turn          := system_block? name_prefix? role_response
    system_block  := "<system_thinking>" TEXT "</system_thinking>"    the plan, third person
    role_response := ( role_thinking | role_action | SPEECH )+        in any order

`<role_thinking>` is the character's own mind, `<role_action>` what others can watch, text
outside tags what they hear. CoSER's notation of the same layers is in `notations`.
"""

import bisect
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools
import re

from her_jax.roleplay import tags
from her_jax.roleplay.tags import ACTION, PLAN, SPEECH, TAGGED, THINKING

TAGS = tuple(f"<{close}{kind}>" for kind in TAGGED for close in ("", "/"))

_HEARD = (ACTION, SPEECH)
# Which layers each viewer sees (HER's visibility table). A plan is for the trainer alone, and
# for the person chatting who asks for it; a log or an export holds nothing hidden.
VIEWS = {
  "self": (THINKING, *_HEARD),
  "other": _HEARD,
  "user": _HEARD,
  "environment": _HEARD,
  "next_speaker": _HEARD,
  "judge": (THINKING, *_HEARD),
  "critic": _HEARD,
  "critic_with_thoughts": (THINKING, *_HEARD),
  "log": _HEARD,
  "trainer": (PLAN, THINKING, *_HEARD),
}
_LETTERS = {THINKING: "T", ACTION: "A", SPEECH: "S"}
_NEVER = -1  # The closing tag of a layer that goes on to the end of what it stands in.


@dataclasses.dataclass(frozen=True)
class Segment:
  """One layer's stretch of text; `kind` is PLAN, THINKING, ACTION or SPEECH."""

  kind: str
  text: str


@dataclasses.dataclass(frozen=True)
class Reply:
  """A parsed turn.

  Attributes:
    segments: the layers in order.
    status: "ok", "repaired" (meaning is plain: upper case, a legacy name, an unclosed layer
      before another opens) or "malformed" (what belongs to which layer had to be guessed).
    problems: one sentence for each fault, in order.
    speaker: the name in front of the response, where the text had one.
  """

  segments: tuple[Segment, ...]
  status: str = "ok"
  problems: tuple[str, ...] = ()
  speaker: str | None = None

  @property
  def plan(self) -> str | None:
    """The text of the plan, or None where there is none."""
    plans = [segment.text for segment in self.segments if segment.kind == PLAN]
    return plans[0] if plans else None

  @property
  def is_empty(self) -> bool:
    """True if others would perceive nothing: no speech and no action. A silent deed is enough."""
    return not any(s.kind in _HEARD and s.text.strip() for s in self.segments)

  def layout(self) -> str:
    """The order of the layers without the plan, such as "TASA"."""
    return "".join(
      _LETTERS[s.kind] for s in self.segments if s.kind in _LETTERS and s.text.strip()
    )

  def speaks_for(self, others: Iterable[str]) -> bool:
    """Whether a line that others perceive is spoken as one of `others`."""
    return speaks_for(self.view_for("other"), others)

  def seen_by(self, viewer: str) -> "Reply":
    """What `viewer` (a key of VIEWS) perceives, hidden layers cut out; the trainer sees all.

    Raises:
      ValueError: there is no such viewer.
    """
    if viewer not in VIEWS:
      raise ValueError(f"unknown viewer {viewer!r}; known are {', '.join(VIEWS)}")
    shown = VIEWS[viewer]
    if PLAN in shown:
      return self
    return Reply(_cut(self.segments, shown))

  def view_for(self, viewer: str) -> str:
    """`seen_by` as text."""
    return render(self.seen_by(viewer))


@functools.lru_cache(maxsize=8192)
def parse(text: str, speaker: str | None = None) -> Reply:
  """Reads a turn tag by tag; never raises, never drops a character outside of tags.

  A layer within another is as hidden as the more hidden of both. White space between layers
  is kept as speech, so `render(parse(text)) == text` wherever the status is "ok"; `layout` and
  `is_empty` pass over it. A tag that means no layer stays in the speech and is a problem.

  Args:
    text: a turn, with or without plan and `Name: ` prefix.
    speaker: if given, a prefix `speaker: ` in front of the response is taken off and
      reported as `Reply.speaker`; without it the prefix counts as speech.

  Example:
    parse("<role_action>nods</role_action> Go.").layout() == "AS"
  """
  walk = _Walk(text)
  segments, problems, malformed = walk.segments, walk.problems, walk.malformed
  plans = [i for i, segment in enumerate(segments) if segment.kind == PLAN]
  if len(plans) > 1:
    problems.append(f"{len(plans)} plans instead of one")
    malformed = True
  elif plans and any(s.text.strip() for s in segments[: plans[0]]):
    problems.append("the plan is not first")
    malformed = True
  status = "malformed" if malformed else "repaired" if problems else "ok"
  named, segments = _take_name(segments, speaker)
  return Reply(tuple(segments), status, tuple(problems), named)


def places(text: str) -> list[tuple[int, Segment]]:
  """The layers' text piece by piece, each with where it stands; tags are no piece.

  Example:
    places("Go. <role_action>nods</role_action>") ==
      [(0, Segment("speech", "Go. ")), (17, Segment("role_action", "nods"))]
  """
  return _Walk(text).pieces


def render(reply: Reply) -> str:
  """Writes a reply as text: plan, `Name: ` prefix, then the layers. Inverse of `parse`."""
  plan = [s for s in reply.segments if s.kind == PLAN]
  rest = [s for s in reply.segments if s.kind != PLAN]
  prefix = f"{reply.speaker}: " if reply.speaker else ""
  return _written(plan) + prefix + _written(rest)


def repair(text: str, speaker: str | None = None) -> str:
  """The turn in regular notation: one plan, in front; every layer closed.

  Example:
    repair("<ROLE_THINKING>Hm <role_action>nods") ==
      "<role_thinking>Hm </role_thinking><role_action>nods</role_action>"
  """
  reply = parse(text, speaker)
  if reply.status == "ok":
    return text
  plans = [s.text.strip() for s in reply.segments if s.kind == PLAN]
  rest = [s for s in reply.segments if s.kind != PLAN]
  plan = [Segment(PLAN, "\n".join(filter(None, plans)))] if plans else []
  return render(dataclasses.replace(reply, segments=(*plan, *rest)))


def speaks_for(text: str, others: Iterable[str]) -> bool:
  """True if a line of `text` begins with the name of one of `others` and a colon."""
  return _line_of(text, others) is not None


def cut_before(text: str, others: Iterable[str]) -> str:
  """A reply up to the line in which it begins to speak for one of `others`.

  Lines within a plan or a thought do not count: nobody is made to speak there.

  Example:
    cut_before("Sit.\\nJoost: No.", ["Joost"]) == "Sit."
  """
  # What others perceive, with the place of each piece; an action's tag is a sign, not a line.
  names, heard, ends, places = tuple(others), "", [], []
  for place, segment in _Walk(text).pieces:
    if segment.kind in _HEARD:
      sign = "\0" if segment.kind == ACTION else ""
      heard += sign + segment.text + sign
      ends.append(len(heard))
      places.append(place + len(segment.text) + len(sign) - len(heard))
  at = _line_of(heard, names)
  if at is None:
    return text
  # Once more: without what follows, an action whose tag only closed is speech.
  return cut_before(text[: at + places[bisect.bisect(ends, at)]].rstrip(), names)


def is_valid_turn(text: str, speaker: str, others: Iterable[str] = ()) -> bool:
  """Whether a sampled completion is a whole turn as the model was asked to write it.

  One plan, first and not empty; then `speaker: `; balanced tags; something that others
  perceive; no line spoken for anybody else.
  """
  reply = parse(text, speaker)
  return (
    reply.status == "ok"
    and bool((reply.plan or "").strip())
    and reply.speaker == speaker
    and not reply.is_empty
    and not reply.speaks_for(others)
  )


@dataclasses.dataclass(frozen=True)
class _Open:
  """A layer that is open; `closed_by` is the index of its closing tag, if it has one, or _NEVER.

  `here` is the most hidden layer that is open there, and the number of the tag that opened it.
  """

  layer: str
  name: str
  closed_by: int | None
  here: tuple[str, int | None]


class _Walk:
  """One pass over a text and its tags."""

  def __init__(self, text: str):
    self.segments: list[Segment] = []
    self.problems: list[str] = []
    self.malformed = False
    # The segments again, piece by piece, each with its place in the text.
    self.pieces: list[tuple[int, Segment]] = []
    self._stack: list[_Open] = []
    self._last: tuple[str, int | None] | None = None
    found = [tag for tag in tags.scan(text) if self._counts(tag)]
    layers = tags.layers_in(found, text)
    partners = tags.pair(found, layers)
    done = 0
    for i, (tag, layer) in enumerate(zip(found, layers, strict=True)):
      if tag.fault:
        self.problems.append(tag.fault)
      orphan = tag.closing and partners[i] is None and layer != SPEECH
      self._write(text[done : tag.start], done, layer if orphan else None)
      done = tag.end
      self._end_unclosed(tag, layer)
      if orphan:
        self.problems.append(f"</{tag.name}> closes nothing")
        self.malformed = True
      elif tag.closing:
        self._close(i, tag)
      elif not tag.empty:
        other = partners[i]
        most_hidden = min(layer, layers[i if other is None else other], key=tags.RANK.index)
        self._open(i, most_hidden, tag.name, other)
    self._write(text[done:], done)
    for open_ in self._stack:
      self.problems.append(f"<{open_.name}> is never closed")
      self.malformed = self.malformed or open_.layer != SPEECH
    self._drop_empty_think()

  def _counts(self, tag: tags.Tag) -> bool:
    """A tag that means no layer is told of and stays text."""
    if tag.layer is None:
      self.problems.append(f"{tag.fault}, kept as text")
    return tag.layer is not None

  def _here(self) -> tuple[str, int | None]:
    return self._stack[-1].here if self._stack else (SPEECH, None)

  def _write(self, text: str, place: int, as_layer: str | None = None) -> None:
    here = self._here() if as_layer is None else (as_layer, None)
    if not text:
      return
    self.pieces.append((place, Segment(here[0], text)))
    if here == self._last and as_layer is None:
      last = self.segments.pop()
      text = last.text + text
    self.segments.append(Segment(here[0], text))
    self._last = here if as_layer is None else None

  def _open(self, number: int, layer: str, name: str, closed_by: int | None) -> None:
    if self._stack:
      self.problems.append(f"<{name}> within <{self._stack[-1].name}>")
    before = here = self._here()
    if tags.RANK.index(layer) < tags.RANK.index(before[0]):
      here = (layer, number)
    self._stack.append(_Open(layer, name, closed_by, here))
    if here != before:  # Also an empty layer is one.
      self.segments.append(Segment(here[0], ""))
      self._last = here

  def _close(self, i: int, tag: tags.Tag) -> None:
    depths = reversed(range(len(self._stack)))
    at = next((k for k in depths if self._stack[k].closed_by == i), None)
    if at is None:
      return  # The end of a wrapper that was never begun.
    if self._stack[at].name != tag.name:
      self.problems.append(f"<{self._stack[at].name}> is closed by </{tag.name}>")
    del self._stack[at:]

  def _end_unclosed(self, tag: tags.Tag, layer: str) -> None:
    """A layer that is never closed ends where the next tag stands.

    A hidden one does not where that tag opens the same layer again: which of the two the one
    closing tag belongs to can't be known, and what follows it may still be hidden.
    """
    while self._stack and self._stack[-1].closed_by is None:
      open_ = self._stack[-1]
      again = not tag.closing and not tag.empty and layer == open_.layer
      if again and layer in (PLAN, THINKING):
        self._stack[-1] = dataclasses.replace(open_, closed_by=_NEVER)
        return
      self._stack.pop()
      what = f"</{tag.name}>" if tag.closing else f"<{tag.name}>"
      self.problems.append(f"<{open_.name}> is not closed before {what}")

  def _drop_empty_think(self) -> None:
    """Qwen writes an empty think block where it is told not to think: that is no plan."""
    first = self.segments[0] if self.segments else None
    if first and first.kind == PLAN and not first.text.strip() and self.problems:
      if self.problems[0] == "legacy tag <think>":
        del self.segments[0]


def _cut(segments: Sequence[Segment], shown: Sequence[str]) -> tuple[Segment, ...]:
  """The shown segments; where one was cut out between blanks, one blank stays."""
  kept: list[Segment] = []
  gap = False
  for segment in segments:
    if segment.kind not in shown:
      gap = True
      continue
    if gap and segment.kind == SPEECH and (not kept or _ends_blank(kept[-1])):
      segment = Segment(SPEECH, segment.text.lstrip(" \t" if kept else None))
    if segment.kind != SPEECH or segment.text:
      kept.append(segment)
    gap = gap and not segment.text
  if kept and kept[0].kind == SPEECH:
    kept[0] = Segment(SPEECH, kept[0].text.lstrip())
  if kept and kept[-1].kind == SPEECH:
    kept[-1] = Segment(SPEECH, kept[-1].text.rstrip())
  return tuple(s for s in kept if s.kind != SPEECH or s.text)


def _ends_blank(segment: Segment) -> bool:
  return segment.kind == SPEECH and segment.text[-1:].isspace()


def _written(segments: Sequence[Segment]) -> str:
  pieces = []
  for kind, run in itertools.groupby(segments, lambda s: s.kind):
    texts = [s.text for s in run]
    if kind == SPEECH:  # Two pieces may make a tag where something between them was cut out.
      pieces.append(_without_layers("".join(texts)))
    else:
      pieces += [f"<{kind}>{_without_layers(text)}</{kind}>" for text in texts]
  return "".join(pieces)


def _without_layers(text: str) -> str:
  return tags.defuse(text) if any(tag.layer for tag in tags.scan(text)) else text


def _line_of(text: str, others: Iterable[str]) -> int | None:
  """Where the first line begins that is spoken as one of `others`."""
  names = "|".join(re.escape(name) for name in others if name)
  found = re.search(rf"(?m)^[^\S\n]*({names})\s*[:：]", text) if names else None
  return found.start(1) if found else None


def _take_name(
  segments: list[Segment], speaker: str | None
) -> tuple[str | None, list[Segment]]:
  first = next((i for i, s in enumerate(segments) if s.kind != PLAN and s.text.strip()), None)
  if not speaker or first is None or segments[first].kind != SPEECH:
    return None, segments
  text = segments[first].text.lstrip()
  if not re.match(rf"{re.escape(speaker)}[:：]", text):
    return None, segments
  # The separator's own blank goes with the name; a second one would be the speaker's.
  rest = text[len(speaker) + 1 :].removeprefix(" ")
  tail = [Segment(SPEECH, rest)] if rest else []
  return speaker, [*segments[:first], *tail, *segments[first + 1 :]]
