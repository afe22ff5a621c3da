"""What is measured of a model's text before it is taken: speech kept, nothing given away, quotes."""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import difflib
import re
import unicodedata

from her_jax.roleplay.grammar import Reply
from her_jax.roleplay.tags import ACTION, SPEECH

# A word of a script with blanks, or one sign of a script without.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+(?:['’][^\W_]+)*")  # fmt: skip
_FIRST_PERSON = {
  "en": re.compile(r"\bI\b(?!\.)|\bI['’](?:m|ve|ll|d)\b|\b(?:[Mm]e|[Mm]y|[Mm]ine|[Mm]yself)\b"),
  "zh": re.compile(r"[我俺咱]"),
}
# What stands in quotation marks is told of somebody's words, and no voice of the plan's own.
_QUOTED = re.compile(r"“[^”]*”|\"[^\"\n]*\"|「[^」]*」|『[^』]*』|(?<!\w)‘[^’\n]*’(?!\w)")
_MARKS = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "「": '"', "」": '"', "『": '"', "』": '"', "‘": "'", "’": "'", "‚": "'", "–": "-", "—": "-", "―": "-", "…": "..."})  # fmt: skip


def words(text: str) -> list[str]:
  """The words of a text, or its signs where its script has no blanks; case and width are equal.

  Example:
    words("Don’t go, 佘满仓!") == ["don't", "go", "佘", "满", "仓"]
  """
  plain = unicodedata.normalize("NFKC", text).replace("’", "'").casefold()
  return _WORD.findall(plain)


@dataclasses.dataclass(frozen=True)
class SpeechChange:
  """Words of the speech: of the old one that are lost, of the new one that are added, and moved.

  `moved` counts words that stood in the speech and stand in an action now.
  """

  total: int
  lost: int
  added: int
  moved: int


def speech_change(old: Reply, new: Reply) -> SpeechChange:
  """How an edit treated what is said aloud."""
  before, after = words(_layer(old, SPEECH)), words(_layer(new, SPEECH))
  matched = _matched(before, after)
  missing = Counter(before) - Counter(after)
  # Words taken out of the speech count as moved where an action has them more often than before.
  gained = Counter(words(_layer(new, ACTION))) - Counter(words(_layer(old, ACTION)))
  moved = sum((missing & gained).values())
  return SpeechChange(len(before), len(before) - matched - moved, len(after) - matched, moved)


def _layer(reply: Reply, kind: str) -> str:
  return " ".join(s.text for s in reply.segments if s.kind == kind)


def _matched(one: Sequence[str], other: Sequence[str]) -> int:
  """Words that both have in the same order; the equal ends, mostly all, cost no search."""
  start = 0
  while start < min(len(one), len(other)) and one[start] == other[start]:
    start += 1
  end = 0
  while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
    end += 1
  left, right = one[start : len(one) - end], other[start : len(other) - end]
  if len(left) * len(right) > 4_000_000:  # A middle that long and different is no small edit.
    return start + end
  matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
  return start + end + sum(block.size for block in matcher.get_matching_blocks())


@dataclasses.dataclass(frozen=True)
class Overlap:
  """What a plan shares with the reply that it leads to, and no reader could know before.

  Attributes:
    share: of the reply's runs of three words (four signs in Chinese) that stand in the plan.
    run: the most words in a row that stand in both; `words` are they.
  """

  share: float
  run: int
  words: str


def overlap(plan: str, reply: str, known: str, language: str) -> Overlap:
  """Measures how much of `reply` a plan gives away.

  Args:
    known: the scene up to there: what stands in it is nothing given away.
  """
  mine, theirs, before = words(plan), words(reply), words(known)
  size = 3 if language == "en" else 4
  new = _runs(theirs, size) - _runs(before, size)
  shared = new & _runs(mine, size)
  share = len(shared) / len(new) if new else 0.0
  longest: tuple[str, ...] = ()
  length = size
  while shared and length <= 60:
    longest = min(shared)
    length += 1
    # A longer run counts as soon as a part of it is new.
    shared = _runs(mine, length) & _runs(theirs, length) - _runs(before, length)
  gap = " " if language == "en" else ""
  return Overlap(share, len(longest), gap.join(longest))


def _runs(of: Sequence[str], length: int) -> set[tuple[str, ...]]:
  return {tuple(of[i : i + length]) for i in range(len(of) - length + 1)}


def first_person(text: str, language: str) -> str | None:
  """The first word in which a text speaks of itself, outside of quotation marks."""
  found = _FIRST_PERSON[language].search(_QUOTED.sub(" ", text))
  return found[0] if found else None


def stands_in(quote: str, text: str) -> bool:
  """Whether a quote stands in a text, blanks, quotation marks and dashes aside."""
  plain = _flat(quote)
  return bool(plain) and plain in _flat(text)


def _flat(text: str) -> str:
  plain = unicodedata.normalize("NFKC", text).translate(_MARKS)
  # Blanks count for nothing beside a sign of a script without any.
  plain = re.sub(r"\s+", " ", plain).strip()
  return re.sub(
    r"(?<=[\u3000-\u9fff\uff00-\uffef]) | (?=[\u3000-\u9fff\uff00-\uffef])", "", plain
  )
