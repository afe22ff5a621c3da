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
_TITLE = r"(?:Mr|Mrs|Miss|Ms|Dr|Sir|Lady|Lord|Madam|Captain|Colonel|Aunt|Uncle|St)\.?"


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
    self._verb_first = re.compile(rf"[\s,\-—–]*{_SAID}\s+(?!{_TITLE}\s+(?!{one})){alone}")
    self._name_first = re.compile(
      rf"[\s,\-—–]*{alone}\s+(?:\w+ly\s+)?{_SAID}\b(?![^.\"“]*[,:]\s*$)"
    )
    self._before = re.compile(
      rf"(?:^|[.!?;”\"]\s+|\band\s+){alone}\s+(?:\w+ly\s+)?{_SAID}\b[^.!?\"“”]{{0,60}}[,:]\s*$"
    )
    self._zh_after = re.compile(rf"[，,\s—]*({one})[^“”「」。！？，]{{0,8}}?{_ZH_SAID}")
    self._zh_before = re.compile(
      rf"(?:^|[。！？”」，])\s*({one})[^“”「」。！？]{{0,20}}?{_ZH_SAID}[着了]?\s*[:：，]?\s*$"
    )

  def of(self, passage: Passage, place: Place) -> str | None:
    """The name that the narration gives the line at `place`; None where it gives none."""
    for number in place.spans:
      span = passage.spans[number]
      start = passage.starts[span.paragraph]
      stop = passage.text.find("\n", span.end)
      # The narration up to the quotation before and after.
      after = re.split(r"[\"“「]", passage.text[span.end + 1 : None if stop < 0 else stop])[0]
      before = re.split(r"[\"”」]", passage.text[start : span.start - 1])[-1]
      said = passage.text[span.start : span.end].rstrip()
      if match := self._zh_after.match(after) or self._zh_before.search(before):
        return match[1]
      if said.endswith((",", "!", "?", "-", "—")):
        follows = after.rstrip().endswith((",", ":")) and stop != span.end + 1 + len(after)
        if match := self._verb_first.match(after):
          return match[1]
        if (match := self._name_first.match(after)) and (said.endswith(",") or not follows):
          return match[1]
      if match := self._before.search(before):
        return match[1]
    return None
