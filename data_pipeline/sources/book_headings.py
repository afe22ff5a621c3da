"""Whether a line is the heading of a chapter, in the styles of English and Chinese books."""

import re

_NUMBER = (
  r"(?:\d{1,3}|[ivxlcdm]{1,8}|(?:the )?(?:one|two|three|four|five|six|seven|eight|nine|ten|"
  r"eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|twenty|thirty|forty|fifty|sixty|"
  r"first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|last|"
  r"twentieth|thirtieth)(?:[- ](?:one|two|three|four|five|six|seven|eight|nine|first|second|"
  r"third|fourth|fifth|sixth|seventh|eighth|ninth))?)"
)
_STYLES = (
  # Chapter 1. / CHAPTER THE FIRST / Book Two: The Road / Letter IV
  re.compile(
    rf"(?:chapter|chap\.|book|part|volume|vol\.|canto|letter|stave|act|scene|adventure)\s+"
    rf"{_NUMBER}\.?(?:\s*[.:—–\-]+\s*\S.{{0,60}}|\s+[A-Z\"“].{{0,60}})?",
    re.IGNORECASE,
  ),
  # 1 / 1. / IV. / XII: The Road / III—The Road. Roman numerals in capitals: "I" is a word.
  re.compile(r"(?:\d{1,3}|[IVXLC]{1,7})\.?"),
  re.compile(r"(?:\d{1,3}|[IVXLC]{2,7}|[IVX])\s*[.:—–]\s*[A-Z“\"][^.!?]{0,58}[^.!?,;:\"”]"),
  re.compile(
    r"(?:prologue|epilogue|preface|foreword|introduction|conclusion|afterword|postscript|"
    r"interlude)\.?(?:\s*[.:—–\-]\s*.{1,50})?",
    re.IGNORECASE,
  ),
  re.compile(r"#{1,4}\s+\S.{0,80}"),
  re.compile(
    r"(?:正文\s*)?(?:第?[零〇一二三四五六七八九十百千两\d]{1,7}[卷部集篇]\s*\S{0,15}\s+)?"
    r"第\s*[零〇一二三四五六七八九十百千两\d]{1,7}\s*[章回节節卷部集幕篇話话](?:[\s　:：·、].{0,40}|[^，。！？,.]{0,20})"
  ),
  re.compile(r"卷[零〇一二三四五六七八九十百\d]{1,4}(?:[\s　:：·].{0,30})?"),
  re.compile(r"(?:楔子|序章|序言|序|前言|引子|引言|尾声|終章|终章|后记|後記|番外.{0,20})"),
)


# Numbers and single words, which also stand at the end of a sentence on a line of its own.
_WEAK = (_STYLES[1], _STYLES[3])


def is_heading(line: str, before: str = "") -> bool:
  """Whether a line without blanks around it is a heading.

  Args:
    before: the last line before it that is not blank; a bare number or word is none within a
      sentence.

  Example:
    is_heading("CHAPTER IV. In Which They Meet") and not is_heading("Chapter after chapter.")
  """
  if not line or line[0].islower():
    return False
  if not any(style.fullmatch(line) for style in _STYLES):
    return False
  goes_on = bool(before) and (before[-1].islower() or before[-1] in ",;")
  return not (goes_on and any(style.fullmatch(line) for style in _WEAK))
