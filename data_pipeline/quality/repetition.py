"""The same words again: within a reply, and in a later turn of one speaker."""

from collections import Counter
from collections.abc import Iterator
import re

from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import WALL, SceneView, TurnView, joined, runs, sentences

# Emphasis says three words three times ("No, no, no"), and a refrain comes back; beyond these
# sizes nobody repeats to the letter.
TWICE = {"en": 7, "zh": 12}  # words of a sentence that stands twice in one reply
THRICE = {"en": 4, "zh": 6}  # ... three times
AGAIN = {"en": 9, "zh": 15}  # ... in an earlier turn of the speaker
SHORT = {"en": 4, "zh": 6}
SHARE = 0.5  # of a reply's short runs that one earlier turn of the speaker has
LEAST_SHORT = 6
_LOOP = re.compile(r" ((?:\S+ ){1,12}?)(?:\1){3,}")
_LOOP_WORDS = 10


def repetition(view: SceneView) -> Iterator[Flag]:
  said: dict[str, dict[tuple[str, ...], int]] = {}  # speaker -> sentence -> turn
  heard: dict[str, dict[tuple[str, ...], int]] = {}
  for turn in view.turns:
    speaker = turn.turn.speaker
    own = said.setdefault(speaker, {})
    earlier = heard.setdefault(speaker, {})
    spoken = _sentences(turn)
    short = runs(turn.plain, SHORT[view.language])
    flag = _within(turn, spoken, view.language)
    flag = flag or _sentence_again(turn, spoken, own, view.language)
    flag = flag or _turn_again(turn, short, earlier)
    if flag:
      yield flag
    for _, _, words in spoken:
      own.setdefault(words, turn.index)
    earlier.update(dict.fromkeys(short, turn.index))


def _sentences(turn: TurnView) -> list[tuple[int, int, tuple[str, ...]]]:
  """The sentences of all layers: start, end, words."""
  found, at, words = [], 0, turn.words
  for layer in turn.layers:
    for start, end in sentences(layer.text):
      start, end = layer.start + start, layer.start + end
      while at < len(words) and (words[at][0] < start or turn.plain[at] == WALL):
        at += 1
      first = at
      while at < len(words) and words[at][1] <= end:
        at += 1
      found.append((start, end, turn.plain[first:at]))
  return found


def _within(
  turn: TurnView, spoken: list[tuple[int, int, tuple[str, ...]]], language: str
) -> Flag | None:
  counts = Counter(words for _, _, words in spoken)
  if len(counts) < len(spoken):
    seen: set[tuple[str, ...]] = set()
    for start, end, words in spoken:
      count, long = counts[words], len(words)
      if words in seen and (
        (count >= 2 and long >= TWICE[language]) or (count >= 3 and long >= THRICE[language])
      ):
        return turn.flag(
          "repetition", "reply", start, end, f"stands {count} times in the reply"
        )
      seen.add(words)
  plain = turn.plain
  if len(plain) < _LOOP_WORDS or len(set(plain)) > 0.7 * len(plain):
    return None  # Too many different words for a loop.
  text = joined(plain)
  match = _LOOP.search(text)
  if match and len(match[0].split()) >= _LOOP_WORDS:
    first = len(text[: match.start()].split())
    last = first + len(match[0].split()) - 1
    why = f"{match[1].strip()!r} over and over"
    return turn.flag("repetition", "reply", turn.words[first][0], turn.words[last][1], why)
  return None


def _sentence_again(
  turn: TurnView,
  spoken: list[tuple[int, int, tuple[str, ...]]],
  own: dict[tuple[str, ...], int],
  language: str,
) -> Flag | None:
  for start, end, words in spoken:
    if len(words) >= AGAIN[language] and words in own:
      return turn.flag("repetition", "reply", start, end, f"stands in turn {own[words]} too")
  return None


def _turn_again(
  turn: TurnView, short: set[tuple[str, ...]], earlier: dict[tuple[str, ...], int]
) -> Flag | None:
  """`earlier` has each short run of the speaker with the last turn that says it."""
  if len(short) < LEAST_SHORT:
    return None
  by_turn = Counter(earlier[run] for run in short if run in earlier)
  for index, count in by_turn.most_common(1):
    if count >= LEAST_SHORT and count >= SHARE * len(short):
      size = len(next(iter(short)))
      places = [
        i
        for i in range(len(turn.plain) - size + 1)
        if earlier.get(turn.plain[i : i + size]) == index
      ]
      start, end = turn.words[places[0]][0], turn.words[places[-1] + size - 1][1]
      why = f"{count / len(short):.0%} of its short runs stand in turn {index} too"
      return turn.flag("repetition", "reply", start, end, why)
  return None
