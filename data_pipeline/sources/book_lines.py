"""Where a line of dialogue stands in a book's passage.

A line is looked for by its letters alone: quotation marks, dashes, blanks, case, marks of
italics and hyphens at a line's end are the layout's. What is given back is the book's own text
of the place that was found, so that a line that passed is the book's to the letter.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import re
import unicodedata

_PAIRS = {"“": "”", "„": "”", "「": "」", "『": "』", "«": "»", "‘": "’", '"': '"', "‟": "”"}
# A single quotation mark opens speech only where it can be no apostrophe.
_SINGLE_OPENS = re.compile(r"(?<![\w’'])['‘](?=[\w“\"])")
_BORDERS = ".!?…,;:—–-―。！？，；：、()（）[]*\"'“”‘’「」『』«»"
_INNER = {"’": "‘", "'": "'", "”": "“", "』": "『", "」": "「"}
_MOST_BETWEEN = 300  # characters of narration between two parts of one line
_UNQUOTED = 3000  # characters a passage has for each quotation mark if it does without them


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a line stands.

  Attributes:
    start: of its first letter, counted over all paragraphs; `end` is after its last.
    paragraph: index of the paragraph in which it begins.
    text: the line as the book has it, its parts around narration put together.
    spans: indices of the quotations that it was found in; none where a book has no marks.
  """

  start: int
  end: int
  paragraph: int
  text: str
  spans: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Span:
  """A quotation: its text begins at `start` and ends before `end`, marks left out."""

  paragraph: int
  start: int
  end: int
  closed: bool


class Passage:
  """A stretch of paragraphs in which lines are looked for."""

  def __init__(self, paragraphs: Sequence[str]):
    self.text = "\n".join(paragraphs)
    self.starts: list[int] = []  # of the paragraphs, in the text
    at = 0
    for paragraph in paragraphs:
      self.starts.append(at)
      at += len(paragraph) + 1
    self.spans = [
      span for i, p in enumerate(paragraphs) for span in _spans(p, i, self.starts[i])
    ]
    quoted = len(self.text) < _UNQUOTED * len(self.spans)
    self._streams = list(self._of_speech()) if quoted else [_fold(self.text, 0)]
    self._is_quoted = quoted
    # What an earlier line took is not found again: "Yes" stands for one yes.
    self._taken: list[tuple[int, int]] = []

  def find(self, line: str, take: bool = True) -> Place | None:
    """The first place of a line that no earlier line took.

    Args:
      take: whether later lines must be found elsewhere.
    """
    wanted, _ = _fold(line, 0)
    if not wanted:
      return None
    for letters, places in self._streams:
      at = letters.find(wanted)
      while at >= 0:
        first, last = places[at], places[at + len(wanted) - 1]
        if self._whole(first, last) and not self._overlaps(first, last):
          if take:
            self._taken.append((first, last))
          return self._place(first, last)
        at = letters.find(wanted, at + 1)
    return None

  def find_parts(self, line: str) -> list[Place]:
    """The places of a line whose sentences stand far apart, as one speaks, acts and speaks on.

    Each part is as long as can be and follows the one before; [] where a part is missing.
    """
    if whole := self.find(line):
      return [whole]
    cuts = [match.end() for match in re.finditer(r"[.!?…。！？]\W*", line)]
    for cut in reversed(cuts[:-1] if cuts and cuts[-1] == len(line) else cuts):
      head = self.find(line[:cut])
      if head is None:
        continue
      rest = self.find_parts(line[cut:])
      if rest and rest[0].start > head.start:
        return [head, *rest]
      for _ in (head, *rest):
        self._taken.pop()
    return []

  def stands(self, line: str) -> bool:
    """Whether a line stands in the passage, taken or not."""
    kept, self._taken = self._taken, []
    found = self.find(line, take=False)
    self._taken = kept
    return found is not None

  def _of_speech(self) -> Iterator[tuple[str, list[int]]]:
    """The letters of quotations that can be one line: with narration between, or unclosed."""
    letters = ""
    places: list[int] = []
    before: Span | None = None
    for span in self.spans:
      if before is not None and not self._goes_on(before, span):
        yield letters, places
        letters, places = "", []
      more, at = _fold(self.text[span.start : span.end], span.start)
      letters, places = letters + more, places + at
      before = span
    if letters:
      yield letters, places

  def _goes_on(self, before: Span, after: Span) -> bool:
    if not before.closed:
      return after.paragraph - before.paragraph <= 1
    between = self.text[before.end : after.start]
    told = sum(sign.isalnum() for sign in between)
    return before.paragraph == after.paragraph and 0 < told <= _MOST_BETWEEN

  def _whole(self, first: int, last: int) -> bool:
    """Whether a clause begins and ends there: "no" is no line of "knowing"."""
    before, after = self.text[:first].rstrip()[-1:], self.text[last + 1 :].lstrip()[:1]
    edges = {span.start for span in self.spans} if self._is_quoted else {0}
    begins = not before or before in _BORDERS or "\n" in self.text[max(first - 2, 0) : first]
    ends = not after or after in _BORDERS or "\n" in self.text[last + 1 : last + 3]
    return (begins or first in edges) and ends

  def _overlaps(self, first: int, last: int) -> bool:
    return any(first <= end and start <= last for start, end in self._taken)

  def _place(self, first: int, last: int) -> Place:
    inside = [
      i
      for i, s in enumerate(self.spans)
      if s.start <= last and first < s.end and self._is_quoted
    ]
    if not inside:
      parts = [(first, self._to_stop(last + 1, len(self.text)))]
    else:
      parts = []
      for i in inside:
        span = self.spans[i]
        end = self._to_stop(last + 1, span.end) if last < span.end else span.end
        parts.append((max(first, span.start), end))
    a, b = parts[-1]
    if self.text[b : b + 1] in _INNER and self.text[b : b + 1] and _is_open(self.text[a:b]):
      parts[-1] = (a, b + 1)  # What is quoted within the line closes.
    text = " ".join(" ".join(self.text[a:b].split()) for a, b in parts)
    paragraph = sum(start <= first for start in self.starts) - 1
    return Place(first, parts[-1][1], paragraph, _ended(_joined(text)), tuple(inside))

  def _to_stop(self, end: int, limit: int) -> int:
    """Past the stops that follow a line's last letter."""
    while end < limit and self.text[end] in "!?.…,;:—–-―。！？，；：、)）~":
      end += 1
    return end


def _spans(text: str, paragraph: int, offset: int) -> Iterator[Span]:
  """The outermost quotations of a paragraph; one that does not close goes on to its end."""
  single = not re.search(r"[\"“”„«「『]", text) and bool(_SINGLE_OPENS.search(text))
  at = 0
  while at < len(text):
    sign = text[at]
    opens = (sign in _PAIRS and sign not in "‘") or (
      single and _SINGLE_OPENS.match(text, at) is not None
    )
    if not opens:
      at += 1
      continue
    end = _closing(text, at, single)
    yield Span(paragraph, offset + at + 1, offset + (len(text) if end < 0 else end), end >= 0)
    at = len(text) if end < 0 else end + 1


def _closing(text: str, at: int, single: bool) -> int:
  """Where the quotation that opens at `at` closes; -1 if it does not."""
  if single:
    closes = re.compile(r"(?<=[.,!?;:…—\-])['’](?!\w)").search(text, at + 1)
    return closes.start() if closes else -1
  closer = _PAIRS[text[at]]
  depth = 1
  for i in range(at + 1, len(text)):
    if text[i] == closer:
      depth -= 1
      if not depth:
        return i
    elif text[i] == text[at]:
      depth += 1
  # Of several that open and too few that close, the first that closes counts.
  return text.find(closer, at + 1)


def _is_open(text: str) -> bool:
  """Whether a single quotation mark within a line waits for its partner."""
  if text.count("‘") or text.count("“") or text.count("『") or text.count("「"):
    return any(text.count(o) > text.count(c) for c, o in _INNER.items() if c != o)
  return _SINGLE_OPENS.search(text) is not None


def _fold(text: str, offset: int) -> tuple[str, list[int]]:
  """The letters and digits of a text, in one case, each with its place."""
  letters, places = [], []
  for i, sign in enumerate(text, offset):
    if sign.isalnum():
      for folded in unicodedata.normalize("NFKC", sign).casefold():
        letters.append(folded)
        places.append(i)
  return "".join(letters), places


def _joined(text: str) -> str:
  """Parts that narration cut, without the blank that Chinese has none of."""
  return re.sub(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]) (?=[\u4e00-\u9fff])", "", text)


def _ended(text: str) -> str:
  """A line that narration followed ends in a comma: as a line of its own, in a full stop."""
  text = text.strip()
  if text.endswith((",", ";")):
    return f"{text[:-1]}."
  return f"{text[:-1]}。" if text.endswith(("，", "；", "、")) else text


def is_grounded(text: str, passage: str) -> bool:
  """Whether what is told of an action is told by the passage too: half of its words are there.

  Words count by their first five letters, Chinese by pairs of signs.
  """
  words = _stems(text)
  return bool(words) and 2 * len(words & _stems(passage)) >= len(words)


def _stems(text: str) -> set[str]:
  stems = {w[:5] for w in re.findall(r"[a-zà-ÿ]{4,}", text.casefold())}
  for run in re.findall(r"[\u4e00-\u9fff]{2,}", text):
    stems |= {run[i : i + 2] for i in range(len(run) - 1)}
  return stems
