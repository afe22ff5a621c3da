"""Text as its reader sees it: signs without width gone, letters that look alike made one.

A plan that holds the reply in Cyrillic look-alikes, with zero-width signs between the letters or
strokes through them, gives it away all the same.
"""

from collections.abc import Sequence
import functools
import unicodedata

# Of "confusables.txt" of Unicode's TR 39 what is in everyday fonts: one letter each, by the looks
# of its own case.
_PAIRS = (
  ("АВЕКМНОРСТУХЅІЈԀԌԚԜҮӀ", "abekmhopctyxsijdgqwyl"),  # Cyrillic
  ("авекмнорстухѕіјԁһԛԝүӏ", "abekmhopctyxsijdhqwyl"),
  ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx"),  # Greek
  ("αγεηικνορτυχϲϳ", "ayenikvoptuxcj"),
  ("ՕՏսոհօցզյ", "osunhogqj"),  # Armenian
  ("ıȷɑɡɩʏʀɪɴ", "ijagiyrin"),  # Latin
  ("ᴀʙᴄᴅᴇꜰɢʜᴊᴋʟᴍᴏᴘꜱᴛᴜᴠᴡᴢ", "abcdefghjklmopstuvwz"),
  ("’ʼʹ՚", "''''"),
)
_ALIKE = {
  one: other for ones, others in _PAIRS for one, other in zip(ones, others, strict=True)
}
# Letters by Unicode, and signs, that show nothing at all.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5\u034f")


@functools.lru_cache(maxsize=65_536)
def folded_sign(sign: str) -> str:
  """What a sign is compared as; "" for one without width or a mark on another.

  Example:
    [folded_sign(s) for s in "É\\u200bс"] == ["e", "", "c"]
  """
  if sign in _BLANK or unicodedata.category(sign) in ("Cf", "Me") or _is_mark(sign):
    return ""
  if sign in _ALIKE:
    return _ALIKE[sign]
  plain = unicodedata.normalize("NFKC", sign) if sign.isalnum() else sign
  apart = unicodedata.normalize("NFD", plain)
  if apart != plain and apart[0] < "\u0590":  # In scripts beyond, a mark makes another letter.
    plain = "".join(_ALIKE.get(s, s) for s in apart if not _is_mark(s))
  return plain.casefold()


def folded(text: str) -> tuple[str, Sequence[int]]:
  """The text as it is compared, and for each of its signs the place that it has in `text`.

  Example:
    folded("Ab\\u200bc") == ("abc", [0, 1, 3])
  """
  if text.isascii():
    return text.lower(), range(len(text))
  signs = {sign: folded_sign(sign) for sign in set(text)}
  made = "".join([signs[sign] for sign in text])
  if all(len(other) == 1 for other in signs.values()):
    return made, range(len(text))
  return made, [i for i, sign in enumerate(text) for _ in signs[sign]]


def _is_mark(sign: str) -> bool:
  """Whether it is an accent or stroke on the letter before, or chooses a letter's form."""
  return (
    "\u0300" <= sign <= "\u036f" or "\ufe00" <= sign <= "\ufe0f" or "\u20d0" <= sign <= "\u20f0"
  )
