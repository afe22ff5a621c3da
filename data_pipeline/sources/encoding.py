"""Which encoding a file is in, and its text in that encoding.

A byte order mark decides. Without one a file is UTF-8 unless it cannot be; then GB18030 and
cp1252 are told apart by how their bytes stand: Chinese signs in pairs of high bytes, Western
quotes and accents alone between ASCII letters. Korean, Japanese, Russian and others stand in
pairs or long rows too, so that what is to be Chinese must also read as Chinese. What fits
neither is left to the user.
"""

import codecs
import os
import pathlib
import re

from her_jax.roleplay.schema import DataError

_MARKS = (
  (codecs.BOM_UTF8, "utf-8-sig"),
  (codecs.BOM_UTF32_LE, "utf-32"),  # Before UTF-16, whose mark its own begins with.
  (codecs.BOM_UTF32_BE, "utf-32"),
  (codecs.BOM_UTF16_LE, "utf-16"),
  (codecs.BOM_UTF16_BE, "utf-16"),
)
_BLOCK = 1 << 20  # bytes
_PAIR = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]")
# As GB2312 and GBK's common part write signs and punctuation.
_COMMON_PAIR = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
_ALONE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
# Letters, quotes, dashes and signs of Western texts; the rest is hardly ever written.
_WESTERN = frozenset(
  "àáâäåæçèéêëìíîïñòóôöøœùúûüýÿšžßðþãõÀÁÄÅÆÇÈÉÊËÍÎÏÑÒÓÔÖØŒÙÚÛÜŠŽ"
  "‘’“”‚„‹›«»–—…•°£€§©®™½¼¾×·¿¡ºª±´†\u00a0\u00ad"
)
# Of running Chinese text, modern or classical, these are a quarter and more; of the signs that
# other encodings come out as, a few in a hundred.
_COMMON = frozenset(
  "的一是不了在人有我他这這来來到大上说說们們你中地着著就那和道也要子出时時得去过過自下可么麼会會"
  "天心然之后後小没沒看里裡好起都把只为為她多事想能家对對什还還给給个個吧呢吗嗎老回又请請让讓"
  "以而其者与與于於曰则則乃矣无無何此所"
)
_LEAST_COMMON = 0.12
_MOST_KANA = 0.05
HINT = (
  "pass the right one, such as --encoding=gb18030, cp1252, euc-kr or utf-16 (of a run's config"
  " --config.encoding=gb18030)"
)


def detect(path: str | os.PathLike[str]) -> str:
  """The encoding of a file, as Python names it.

  A file that holds UTF-8 beyond ASCII before it breaks is UTF-8 with a fault in it, and so is
  one that looks like nothing else: who reads it comes upon the fault and tells its line.

  Raises:
    DataError: the file cannot be read.
  """
  try:
    with open(path, "rb") as file:
      head = file.read(_BLOCK)
      if found := _by_bytes_of(head):
        return found
      # Decoded block by block: a file of any size takes one block of memory.
      decoder = codecs.getincrementaldecoder("utf-8")()
      block, beyond_ascii = head, False
      while block:
        try:
          text = decoder.decode(block)
        except UnicodeDecodeError as error:
          whole = error.object + file.read(_BLOCK)
          # A sign or two of GB18030 may by chance be one of UTF-8.
          if not beyond_ascii and _guess(whole) == "gb18030":
            return "gb18030"
          beyond_ascii |= not error.object[: error.start].isascii()
          return "utf-8" if beyond_ascii else _guess(whole) or "utf-8"
        beyond_ascii |= not text.isascii()
        block = file.read(_BLOCK)
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
  return "utf-8"


def _by_bytes_of(head: bytes) -> str | None:
  for mark, name in _MARKS:
    if head.startswith(mark):
      return name
  sample = head[:4096]
  # ASCII in UTF-16 has a NUL in every second byte; a damaged file has them in runs.
  for name, zeros, others in (
    ("utf-16-le", sample[1::2], sample[::2]),
    ("utf-16-be", sample[::2], sample[1::2]),
  ):
    if len(sample) >= 4 and zeros.count(0) > 0.6 * len(zeros) and others.count(0) == 0:
      return name
  return None


def _guess(sample: bytes) -> str | None:
  """GB18030 or cp1252, if the bytes beyond ASCII leave no doubt."""
  high = len(re.findall(rb"[\x80-\xff]", sample))
  paired = 2 * len(_COMMON_PAIR.findall(sample))
  if paired > 0.9 * high:
    return "gb18030" if _is_chinese(sample) else None
  if len(_ALONE.findall(sample)) > 0.5 * high:
    try:
      text = sample.decode("cp1252")
    except UnicodeDecodeError:
      return None
    if all(sign in _WESTERN for sign in text if not sign.isascii()):
      return "cp1252"
  return None


def _is_chinese(sample: bytes) -> bool:
  """Whether bytes are GB18030, and what they spell is Chinese."""
  try:
    # The sample may end within a sign.
    text = codecs.getincrementaldecoder("gb18030")().decode(sample)
  except UnicodeDecodeError:
    return False
  han = re.findall(r"[\u3400-\u9fff]", text)
  kana = len(re.findall(r"[\u3041-\u30fa]", text))
  common = sum(sign in _COMMON for sign in han)
  return bool(han) and common >= _LEAST_COMMON * len(han) and kana <= _MOST_KANA * len(han)


def known(name: str, field: str = "encoding") -> str:
  """An encoding's name as Python knows it.

  Raises:
    DataError: Python has no such encoding of text.
  """
  try:
    found = codecs.lookup(name)
    "".encode(name)  # Some codecs turn bytes into bytes.
  except (LookupError, TypeError, ValueError):
    raise DataError(f"{field}: {name!r} is unknown; {HINT}") from None
  return found.name


def read_text(path: str | os.PathLike[str], encoding: str | None = None) -> tuple[str, str]:
  """The text of a file with `\\n` alone as line break, and the encoding it was read in.

  Raises:
    DataError: the file is not in that encoding, or in none that can be told; names the line.
  """
  name = known(encoding) if encoding else detect(path)
  try:
    raw = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
  try:
    text = raw.decode(name)
  except UnicodeError as error:
    at = getattr(error, "start", 0)
    line = raw[:at].count(b"\n") + 1
    raise DataError(f"{path}:{line}: not {name.upper()}; {HINT}") from None
  if "\0" in text:
    line = text[: text.index("\0")].count("\n") + 1
    raise DataError(
      f"{path}:{line}: holds NUL bytes, as a damaged file does; fetch it again, or {HINT}"
    )
  return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), name
