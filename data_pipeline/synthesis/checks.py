"""What is measured of a model's text before it is taken: speech kept, nothing given away, quotes."""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import re
import unicodedata

from data_pipeline.quality import leaks, view, wordings
from her_jax.roleplay.grammar import Reply
from her_jax.roleplay.tags import ACTION, SPEECH

_MARKS = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "「": '"', "」": '"', "『": '"', "』": '"', "‘": "'", "’": "'", "‚": "'", "–": "-", "—": "-", "―": "-", "…": "..."})  # fmt: skip


def words(text: str) -> list[str]:
  """The words of a text, or its signs where its script has no blanks; case and width are equal.

  Example:
    words("Don’t go, 佘满仓!") == ["don't", "go", "佘", "满", "仓"]
  """
  return view.words_as_written(unicodedata.normalize("NFKC", text).casefold())


# Who does it: a movement that is told in the speech loses this where it becomes an action.
_DOERS = frozenset({"he", "she", "they", "it", "i", "we", "his", "her", "他", "她", "我"})


@dataclasses.dataclass(frozen=True)
class SpeechChange:
  """Words of the speech: of the old one that are lost, of the new one that are added, and moved.

  `moved` counts words that stood in the speech and stand in an action now. A word for the doer
  that goes missing with them is not lost.
  """

  total: int
  lost: int
  added: int
  moved: int


def speech_change(old: Reply, new: Reply, speaker: str = "") -> SpeechChange:
  """How an edit treated what is said aloud.

  Example:
    "He nods. Go." → "<role_action>nods</role_action> Go." loses nothing and moves one word.
  """
  before, after = words(_layer(old, SPEECH)), words(_layer(new, SPEECH))
  matched = _longest_common(before, after)
  missing = Counter(before) - Counter(after)
  # Words taken out of the speech count as moved where an action has them more often than before.
  gained = Counter(words(_layer(new, ACTION))) - Counter(words(_layer(old, ACTION)))
  moved = sum((missing & gained).values())
  doers = _DOERS.union(words(speaker))
  left = sum(number for word, number in (missing - gained).items() if word in doers)
  lost = len(before) - matched - moved
  return SpeechChange(len(before), lost - min(left, moved), len(after) - matched, moved)


def _layer(reply: Reply, kind: str) -> str:
  return " ".join(s.text for s in reply.segments if s.kind == kind)


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
  """Words that both have in the same order: the longest common subsequence, in bit vectors.

  As of Hyyrö, "Bit-parallel LCS-length computation revisited" (2004): a bit is 0 where a word of
  `one` ends a longer common subsequence.
  """
  places: dict[str, int] = {}
  for i, word in enumerate(one):
    places[word] = places.get(word, 0) | 1 << i
  whole = (1 << len(one)) - 1
  bits = whole
  for word in other:
    met = bits & places.get(word, 0)
    bits = ((bits + met) | (bits - met)) & whole
  return len(one) - bits.bit_count()


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

  Stricter than the flag `reply_in_plan`, which leaves out runs of small words and shares of
  few runs: a plan refused for nothing costs a call here, and is a false alarm there.

  Args:
    known: the scene up to there: what stands in it is nothing given away.
  """
  mine, theirs, before = map(view.plain_words, (plan, reply, known))
  size = leaks.SHORT[language]
  new = view.runs(theirs, size) - view.runs(before, size)
  shared = new & view.runs(mine, size)
  share = len(shared) / len(new) if new else 0.0
  longest: tuple[str, ...] = ()
  length = size
  while shared and length <= 60:
    longest = min(shared)
    length += 1
    # A longer run counts as soon as a part of it is new.
    shared = view.runs(mine, length) & view.runs(theirs, length) - view.runs(before, length)
  gap = " " if language == "en" else ""
  return Overlap(share, len(longest), gap.join(longest))


def first_person(text: str, language: str) -> str | None:
  """The first word with which a text speaks of itself, outside of quotation marks.

  As the flag `plan_first_person` finds it; of "I'm" the "I" alone is told.
  """
  found = wordings.first_person(view.outside_quotes(text), language)
  return re.sub(r"['’](?:m|ve|ll|d|re)$", "", found[0]) if found else None


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
