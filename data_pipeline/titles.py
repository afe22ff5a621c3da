"""Books' titles as the splits compare them: without what editions and volumes vary."""

import re
import unicodedata

# Letters with a stroke or two in one, which have no accent to take off.
_LETTERS = str.maketrans(
  {"ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "d", "þ": "th"}
)
_NUMBER = (
  r"(?:\d{1,3}|[ivxlc]{1,6}|one|two|three|four|five|six|seven|eight|nine|ten|the (?:first|second"
  r"|third|last)|first|second|third)"
)
_ZH_NUMBER = r"[\d一二三四五六七八九十百]{1,4}"
# Volumes share their people and their plot. Parts may be works of their own: Henry IV has two.
_VOLUME = re.compile(
  rf"(?<=[\w)\]】》’'!?.])[\s,:;.·(\[【–—-]+(?:(?:volumes?|vols?|tome|tomo|band|bd)\b\.?\s*(?:no\.?\s*)?"
  rf"{_NUMBER}(?:\s*(?:of|/)\s*{_NUMBER})?|{_NUMBER}\s+volume)\s*[)\]】]?\s*$"
  rf"|[\s,:;·(\[【–—-]*(?:第{_ZH_NUMBER}[卷册冊]|卷{_ZH_NUMBER}|[上中下][卷册冊])\s*[)\]】]?\s*$"
  r"|\s*[(\[【][上中下][)\]】]\s*$"
)
_YEAR = re.compile(
  r"[(\[【]\s*(?:[^()\[\]【】\d]*\s)?(?:1[4-9]|20)\d\d(?:\s[^()\[\]【】\d]*)?[)\]】]"
)


def normal_title(title: str) -> str:
  """A book's title without what editions and volumes vary.

  That is case, accents, signs, articles, years and remarks in brackets, and a volume's number
  behind the title.

      "The Low Light (Annotated)", "low light, the", "The Low Light, Vol. 2"   → "low light"
      "Émile", "Emile (1762)"                                                  → "emile"
  """
  plain = unicodedata.normalize("NFKC", title).casefold().replace("&", " and ")
  plain = "".join(sign for sign in plain if unicodedata.category(sign) != "Cf")
  plain = _without_accents(plain).translate(_LETTERS)
  plain = _YEAR.sub(" ", plain).strip()
  while (shorter := _VOLUME.sub("", plain).strip()) not in (plain, ""):
    plain = shorter
  # Remarks with a number tell parts apart.
  plain = re.sub(r"[(\[【][^()\[\]【】\d]*[)\]】]", " ", plain)
  plain = re.sub(r",\s*(the|an?)\s*$", "", plain.strip())
  words = re.findall(r"[^\W_]+", plain.replace("'", "").replace("’", ""))
  if len(words) > 1 and words[0] in ("the", "a", "an"):
    words = words[1:]
  return " ".join(words) or title.strip().casefold()


def _without_accents(text: str) -> str:
  """Latin letters without their accents; in other scripts such a mark makes another letter."""
  apart = unicodedata.normalize("NFD", text)
  return unicodedata.normalize("NFC", re.sub(r"(?<=[a-z])[\u0300-\u036f]+", "", apart))
