"""The dual-layer turn: a parser with a status, a renderer, and who may see what.

    turn          := system_block? name_prefix? role_response
    system_block  := "<system_thinking>" TEXT "</system_thinking>"    the plan, third person
    role_response := ( role_thinking | role_action | SPEECH )+        in any order

`<role_thinking>` is the character's own mind, `<role_action>` what others can watch, text
outside tags what they hear.
"""

from collections.abc import Iterable
import dataclasses
import re

PLAN, THINKING, ACTION, SPEECH = "system_thinking", "role_thinking", "role_action", "speech"
TAGGED = (PLAN, THINKING, ACTION)
TAGS = tuple(f"<{close}{kind}>" for kind in TAGGED for close in ("", "/"))

# Which layers each viewer sees (HER's visibility table). The judge reads thoughts, never
# plans; `log` is everything, for the trainer and the person at the console.
VIEWS = {
  "self": (THINKING, ACTION, SPEECH),
  "other": (ACTION, SPEECH),
  "judge": (THINKING, ACTION, SPEECH),
  "log": (PLAN, THINKING, ACTION, SPEECH),
}
_LETTERS = {THINKING: "T", ACTION: "A", SPEECH: "S"}
_TAG = re.compile(rf"<\s*(/?)\s*({'|'.join(TAGGED)})\s*>", re.IGNORECASE)


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
    status: "ok", "repaired" (meaning is plain: upper case, an unclosed layer before another
      opens) or "malformed" (what belongs to which layer had to be guessed).
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
    """True if others would perceive nothing: no speech and no action."""
    return not any(s.kind in (ACTION, SPEECH) and s.text.strip() for s in self.segments)

  def layout(self) -> str:
    """The order of the layers without the plan, such as "TASA"."""
    return "".join(
      _LETTERS[s.kind] for s in self.segments if s.kind in _LETTERS and s.text.strip()
    )

  def view_for(self, viewer: str) -> str:
    """The text as `viewer` (a key of VIEWS) perceives it, hidden layers cut out."""
    if viewer not in VIEWS:
      raise ValueError(f"unknown viewer {viewer!r}; known are {', '.join(VIEWS)}")
    shown = VIEWS[viewer]
    if PLAN in shown:
      return render(self)
    kept = tuple(s for s in self.segments if s.kind in shown)
    text = render(dataclasses.replace(self, segments=kept, speaker=None))
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def parse(text: str, speaker: str | None = None) -> Reply:
  """Reads a turn by walking its tags; never raises, never drops a character of text.

  White space between layers is kept as speech, so `render(parse(text)) == text` wherever the
  status is "ok"; `layout` and `is_empty` pass over it.

  Args:
    text: a turn, with or without plan and `Name: ` prefix.
    speaker: if given, a prefix `speaker: ` in front of the response is taken off and
      reported as `Reply.speaker`; without it the prefix counts as speech.

  Example:
    parse("<role_action>nods</role_action> Go.").layout() == "AS"
  """
  segments: list[Segment] = []
  problems: list[str] = []
  malformed = False
  kind, start = SPEECH, 0
  inner: list[str] = []  # tags opened within a hidden layer whose own close is still to come
  matches = list(_TAG.finditer(text))

  def flush(as_kind: str, end: int) -> None:
    if as_kind != SPEECH or end > start:
      segments.append(Segment(as_kind, text[start:end]))

  for place, match in enumerate(matches):
    closing, name = bool(match[1]), match[2].lower()
    if match[0] != f"<{match[1]}{name}>":
      problems.append(f"irregular tag {match[0]!r}")
    hides = kind == PLAN or (kind == THINKING and name != PLAN)
    if hides and not closing and _closes_later(kind, matches[place + 1 :]):
      # Nested: it stays text of the hidden layer. Taking it out would show what was hidden.
      problems.append(f"<{name}> within <{kind}>")
      inner.append(name)
      continue
    if closing and inner and inner[-1] == name:
      inner.pop()
      continue
    inner.clear()
    if not closing:
      flush(kind, match.start())
      if kind != SPEECH:
        problems.append(f"<{kind}> is not closed before <{name}> opens")
      kind = name
    elif kind == name:
      flush(kind, match.start())
      kind = SPEECH
    elif kind == SPEECH:
      # An orphan close: the text before it belonged to that layer. Hiding is the safe guess.
      flush(name, match.start())
      problems.append(f"</{name}> closes nothing")
      malformed = True
    else:
      # Closed as a plan, it may hold one: the judge and the speaker must not see it.
      flush(PLAN if name == PLAN else kind, match.start())
      problems.append(f"<{kind}> is closed by </{name}>")
      kind = SPEECH
    start = match.end()
  flush(kind, len(text))
  if kind != SPEECH:
    problems.append(f"<{kind}> is never closed")
    malformed = True
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


def render(reply: Reply) -> str:
  """Writes a reply as text: plan, `Name: ` prefix, then the layers. Inverse of `parse`."""
  plan = [s for s in reply.segments if s.kind == PLAN]
  rest = [s for s in reply.segments if s.kind != PLAN]
  prefix = f"{reply.speaker}: " if reply.speaker else ""
  return "".join(map(_tagged, plan)) + prefix + "".join(map(_tagged, rest))


def speaks_for(text: str, others: Iterable[str]) -> bool:
  """True if a line of `text` begins with the name of one of `others` and a colon."""
  names = "|".join(re.escape(name) for name in others)
  return bool(names) and bool(re.search(rf"(?m)^\s*(?:{names})\s*[:：]", text))


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
    and not speaks_for(reply.view_for("other"), others)
  )


def _closes_later(kind: str, matches: list[re.Match[str]]) -> bool:
  """Whether the open layer `kind` is closed before another one of its kind opens."""
  own = next((m for m in matches if m[2].lower() == kind), None)
  return own is not None and bool(own[1])


def _tagged(segment: Segment) -> str:
  if segment.kind == SPEECH:
    return segment.text
  return f"<{segment.kind}>{segment.text}</{segment.kind}>"


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
