"""Who the narration says speaks a line, where it says so by name beside the line."""

from collections.abc import Iterable
import re

from data_pipeline.sources.book_lines import Passage, Place

_SAID = (
  r"(?:said|says|cried|replied|answered|asked|added|exclaimed|returned|continued|observed|"
  r"whispered|murmured|muttered|shouted|called|remarked|repeated|resumed|interrupted|declared|"
  r"demanded|inquired|enquired|retorted|rejoined|responded|began|sighed|laughed|snapped|"
  r"growled|screamed|protested|suggested|insisted|agreed|admitted|explained|went on)"
)
_ZH_SAID = r"(?:说道|说|道|问道|问|答道|答|回答|叫道|叫|喊道|喊|笑道|骂道|叹道|嚷道|嚷|接口|插嘴|低声|应道|吩咐)"


class Attributions:
  """Who the narration beside a quotation says speaks it, where it says so by name.

  Args:
    names: every name and alias of the scene's characters.
  """

  def __init__(self, names: Iterable[str]):
    # The longest first: "Mr. Bennet" before "Bennet".
    ordered = sorted({n for n in names if n.strip()}, key=len, reverse=True)
    one = "|".join(re.escape(name) for name in ordered) or r"(?!)"
    # A name within a longer one, or whose relative speaks, is not the speaker's.
    alone = rf"(?<!\w)(?<!\w['’])({one})(?!['’]s\b)(?!\w)(?!\s+(?!{_SAID})[A-Z])"
    self._verb_first = re.compile(rf"[\s,\-—–]*{_SAID}\s+{alone}")
    self._name_first = re.compile(rf"[\s,\-—–]*{alone}\s+(?:\w+ly\s+)?{_SAID}\b")
    self._before = re.compile(
      rf"(?:^\s*|[.!?;”\"]\s+|\band\s+){alone}\s+(?:\w+ly\s+)?{_SAID}\b"
      r"[^.!?\"“”]{0,60}[,:]\s*$"
    )
    self._zh_after = re.compile(
      rf"[，,\s—]*({one})[^“”「」。！？，的身旁边听被]{{0,8}}?{_ZH_SAID}"
    )
    self._zh_before = re.compile(
      rf"(?:^|[。！？”」，])\s*({one})[^“”「」。！？的身旁边听被]{{0,20}}?{_ZH_SAID}[着了]?\s*[:：，]?\s*$"
    )

  def of(self, passage: Passage, place: Place) -> str | None:
    """The name that the narration gives the line at `place`; None where it gives none."""
    for number in place.spans:
      after, before = _narration(passage, number)
      said = passage.text[passage.spans[number].start : passage.spans[number].end].rstrip()
      if name := self._after_a_line(said, after) or self._before_a_line(before):
        return name
      if number and passage.spans[number - 1].paragraph == passage.spans[number].paragraph:
        if name := self._going_on(passage, number - 1, before):
          return name
    return None

  def _after_a_line(self, said: str, after: str) -> str | None:
    if match := self._zh_after.match(after):
      return match[1]
    # After a full stop the narration tells of what comes next.
    if not said.endswith((",", "!", "?", "-", "—")):
      return None
    if match := self._verb_first.match(after):
      return match[1]
    leads_on = after.rstrip().endswith((",", ":")) and not said.endswith(",")
    match = None if leads_on else self._name_first.match(after)
    return match[1] if match else None

  def _before_a_line(self, before: str) -> str | None:
    match = self._zh_before.search(before) or self._before.search(before)
    return match[1] if match else None

  def _going_on(self, passage: Passage, earlier: int, between: str) -> str | None:
    """Who spoke before in the paragraph, if the narration between tells of nothing else."""
    span = passage.spans[earlier]
    said = passage.text[span.start : span.end].rstrip()
    told_once = not re.search(r"[.!?。！？]\s*\w", between)
    return self._after_a_line(said, between) if told_once else None


def _narration(passage: Passage, number: int) -> tuple[str, str]:
  """What stands after a quotation and before it, up to the next one or the paragraph's end."""
  span = passage.spans[number]
  start, stop = passage.starts[span.paragraph], passage.text.find("\n", span.end)
  after = passage.text[span.end + 1 : len(passage.text) if stop < 0 else stop]
  before = passage.text[start : span.start - 1]
  return re.split(r"[\"“「『]", after)[0], re.split(r"[\"”」』]", before)[-1]
