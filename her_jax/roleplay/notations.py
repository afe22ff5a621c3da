"""Other notations of a turn: CoSER's `[thought] (action) speech`, and chat's `*action* speech`.

CoSER's goes both ways. Text whose brackets are balanced comes back to the letter:
`to_coser(from_coser(text)) == text`, but for a thought within an action, which is taken out of
it, and for brackets of Chinese text, 【】［］（）, which are read as ASCII ones and come back as
those. A plan has no place in the notation and is left out.
"""

from collections.abc import Container, Iterable
import re

from her_jax.roleplay import grammar, tags
from her_jax.roleplay.grammar import Reply, Segment
from her_jax.roleplay.tags import ACTION, SPEECH, THINKING

# What is read as an ASCII bracket, sign for sign: an editor may have changed one of two.
_NARROW = str.maketrans("【［】］（）", "[[]]()")
BRACKETS = "[]()【】［］（）"
# In the place of brackets that are to stay text: no reader of the notation knows these.
_OTHER = {"[": "〔", "]": "〕", "(": "﹙", ")": "﹚"}
# As in Markdown, a star that opens stands before a word and one that closes behind it, so that
# "5 * 3 * 2" is no action, and two stars that stress a word are none. No action goes on past
# a blank line.
_STARRED = re.compile(
  r"(?<!\*)\*(?![\s*])((?:[^*\n]|\n(?![^\S\n]*\n)|\*\*[^*\n]+\*\*)+)(?<!\s)\*(?!\*)"
)


def from_coser(text: str) -> Reply:
  """Reads a message in CoSER's notation; full-width brackets count as ASCII ones.

  What stands in square brackets is hidden, whatever it stands in. A bracket that opens a
  thought and never closes hides the rest; one that closes none hides all since the thought
  before. Parentheses pair up outside of thoughts; one without its partner is speech. Tags of
  our own notation are defused.

  Example:
    from_coser("[Not him.] (bows) Sir.").layout() == "TAS"
  """
  pieces, problems = _thoughts_apart(text)
  malformed = bool(problems)
  segments, others = _actions_apart(pieces)
  plain = tuple(Segment(s.kind, without_tags(s.text)) for s in segments)
  if plain != tuple(segments):
    others.append("holds tags of the other notation, kept as text")
  status = "malformed" if malformed else "repaired" if others else "ok"
  return Reply(plain, status, (*problems, *others))


def to_coser(reply: Reply) -> str:
  """Writes a reply in CoSER's notation, without its plan.

  Brackets that would be read as a layer of their own (in speech, or without a partner) become
  〔〕 and ﹙﹚, so that a thought never leaves its brackets.
  """
  spoken = "".join(s.text for s in reply.segments if s.kind == SPEECH)
  # Parentheses without a partner, as in "1) and 2)", are read as speech.
  pairs = _partners(spoken, "()").items()
  spoken = _without_squares(_replaced(spoken, {i for pair in pairs for i in pair}))
  written, at = [], 0
  for segment in reply.segments:
    if segment.kind == THINKING:
      written.append(f"[{_without_odd(segment.text, '[]')}]")
    elif segment.kind == ACTION:
      written.append(f"({_without_squares(_without_odd(segment.text, '()'))})")
    elif segment.kind == SPEECH:
      written.append(spoken[at : at + len(segment.text)])
      at += len(segment.text)
  return "".join(written)


def from_either(text: str, speaker: str | None = None) -> Reply:
  """Reads a turn in which some layers stand in our notation and some in CoSER's.

  Example:
    from_either("<system_thinking>P</system_thinking>Una: [No.] Yes.", "Una").layout() == "TS"
  """
  ours = grammar.parse(text, speaker)
  segments: list[Segment] = []
  problems, statuses = list(ours.problems), {ours.status}
  for segment in ours.segments:
    if segment.kind == SPEECH:
      theirs = from_coser(segment.text)
      segments += theirs.segments
      problems += theirs.problems
      statuses.add(theirs.status)
    else:
      segments.append(segment)
  status = next(s for s in ("malformed", "repaired", "ok") if s in statuses)
  return Reply(tuple(segments), status, tuple(problems), ours.speaker)


def from_asterisks(text: str) -> Reply:
  """Reads a chat message in which `*…*` are actions; an asterisk without its partner is speech.

  Example:
    from_asterisks("*nods* Go.").layout() == "AS"
  """
  segments = []
  for i, part in enumerate(_STARRED.split(without_tags(text))):
    if part:
      segments.append(Segment(ACTION if i % 2 else SPEECH, part))
  return Reply(tuple(segments))


def _thoughts_apart(text: str) -> tuple[list[Segment], list[str]]:
  """The thoughts and, as speech, what stands between them; and what is wrong with brackets."""
  partners = _partners(text, "[]")
  pieces: list[Segment] = []
  problems = []
  start = 0
  for match in re.finditer(r"[\[\]]", text.translate(_NARROW)):
    at = match.start()
    if at < start:
      continue  # Within a thought.
    if match[0] == "]":
      # The safe guess is that what stands before it was a thought.
      problems.append(f"{text[at]!r} closes nothing")
      pieces.append(Segment(THINKING, text[start:at]))
      start = at + 1
      continue
    end = partners.get(at)
    if end is None:
      problems.append(f"{text[at]!r} is never closed")
      end = len(text)
    pieces += [Segment(SPEECH, text[start:at]), Segment(THINKING, text[at + 1 : end])]
    start = end + 1
  return [*pieces, Segment(SPEECH, text[start:])], problems


def _actions_apart(pieces: Iterable[Segment]) -> tuple[list[Segment], list[str]]:
  """`pieces` with what stands in parentheses as actions; and what is odd about those."""
  pieces = list(pieces)
  outside = "".join(p.text for p in pieces if p.kind == SPEECH)
  partners = _partners(outside, "()")
  matched = {i for pair in partners.items() for i in pair}
  problems = [
    f"{outside[match.start()]!r} has no partner, kept as speech"
    for match in re.finditer(r"[()]", outside.translate(_NARROW))
    if match.start() not in matched
  ]
  segments: list[Segment] = []
  end: int | None = None  # of the action that is open
  opened = at = 0
  for piece in pieces:
    if piece.kind == THINKING:
      segments.append(piece)
      if end is not None:
        problems.append("a thought within an action")
      continue
    text, done = piece.text, 0
    for match in re.finditer(r"[()]", text.translate(_NARROW)):
      here = at + match.start()
      if here == end:
        # An empty action is one, but not what is left of one around a thought.
        if done < match.start() or len(segments) == opened:
          segments.append(Segment(ACTION, text[done : match.start()]))
        end, done = None, match.end()
      elif end is None and here in partners:
        if done < match.start():
          segments.append(Segment(SPEECH, text[done : match.start()]))
        end, done, opened = partners[here], match.end(), len(segments)
    if done < len(text):
      segments.append(Segment(SPEECH if end is None else ACTION, text[done:]))
    at += len(text)
  return segments, problems


def _partners(text: str, pair: str) -> dict[int, int]:
  """Where each bracket that opens is closed; those without a partner are left out."""
  found, stack = {}, []
  for match in re.finditer(f"[{re.escape(pair)}]", text.translate(_NARROW)):
    if match[0] == pair[0]:
      stack.append(match.start())
    elif stack:
      found[stack.pop()] = match.start()
  return found


def without_tags(text: str) -> str:
  """`text` without tags, nor those that are left when the tags within them are gone."""
  while (plain := tags.defuse(text)) != text:
    text = plain
  return text


def _replaced(text: str, places: Container[int]) -> str:
  """`text` with other signs for the brackets at these places."""
  narrow = text.translate(_NARROW)
  return "".join(_OTHER[narrow[i]] if i in places else sign for i, sign in enumerate(text))


def _without_odd(text: str, pair: str) -> str:
  """`text` with other signs for the brackets of one kind that have no partner."""
  kept = {i for both in _partners(text, pair).items() for i in both}
  narrow = text.translate(_NARROW)
  return _replaced(text, {i for i, s in enumerate(narrow) if s in pair and i not in kept})


def _without_squares(text: str) -> str:
  """`text` with other signs for all square brackets."""
  narrow = text.translate(_NARROW)
  return _replaced(text, {i for i, sign in enumerate(narrow) if sign in "[]"})
