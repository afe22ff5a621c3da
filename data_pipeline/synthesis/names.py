"""One name for one person: spellings that differ by blanks, case, a title or a possessive.

Two people are never made one: titles that contradict each other keep names apart, a bare name
that could be either of two is left alone, and two sheets under names of which only one has a
title stay two.
"""

from collections.abc import Collection, Sequence
import dataclasses
import functools
import re
import unicodedata

_TITLES = {
  "mr": "mr", "mister": "mr", "monsieur": "mr", "m": "mr", "herr": "mr", "señor": "mr",
  "mrs": "mrs", "mistress": "mrs", "madame": "mrs", "mme": "mrs", "madam": "mrs", "frau": "mrs",
  "miss": "miss", "ms": "miss", "mademoiselle": "miss", "mlle": "miss",
  "dr": "dr", "doctor": "dr", "prof": "prof", "professor": "prof",
  "sir": "sir", "lady": "lady", "dame": "dame", "lord": "lord", "count": "count",
  "countess": "countess", "baron": "baron", "duke": "duke", "duchess": "duchess",
  "prince": "prince", "princess": "princess", "king": "king", "queen": "queen",
  "captain": "captain", "capt": "captain", "colonel": "colonel", "col": "colonel",
  "major": "major", "lieutenant": "lieutenant", "lt": "lieutenant", "sergeant": "sergeant",
  "sgt": "sergeant", "inspector": "inspector", "reverend": "reverend", "rev": "reverend",
  "father": "father", "mother": "mother", "sister": "sister", "brother": "brother",
  "uncle": "uncle", "aunt": "aunt", "saint": "saint", "st": "saint",
}  # fmt: skip
_TITLES_ZH = (
  "先生",
  "小姐",
  "夫人",
  "太太",
  "老爷",
  "姑娘",
  "公子",
  "大人",
  "医生",
  "教授",
  "老师",
)
_WORD = re.compile(r"[^\s]+")


@dataclasses.dataclass(frozen=True)
class Parts:
  """A name taken apart: what it shares with its other spellings, and its titles."""

  core: str
  titles: tuple[str, ...] = ()


@functools.lru_cache(maxsize=65536)
def parts(name: str) -> Parts:
  """Title and core of a name.

  Example:
    parts("MR.  Bennet") == Parts("bennet", ("mr",))
  """
  plain = unicodedata.normalize("NFKC", name).replace("’", "'").casefold().strip()
  words, titles = _WORD.findall(plain), []
  while len(words) > 1 and (title := _TITLES.get(words[0].rstrip("."))):
    titles.append(title)
    words = words[1:]
  core = " ".join(words)
  for title in _TITLES_ZH:
    if core.endswith(title) and len(core) >= len(title) + 2:
      return Parts(core.removesuffix(title), (title,))
  return Parts(core, tuple(titles))


def possessor(name: str) -> str | None:
  """Who stands in front of a possessive ending: "Darcy's" → "Darcy"; None without one."""
  found = re.fullmatch(r"(.*\w)(?:['’]s|(?<=s)['’])", name.strip(), re.IGNORECASE)
  return found[1] if found else None


def aliases(names: Sequence[str], described: Collection[str]) -> dict[str, str]:
  """Names that are another spelling of one of `names`, with that one.

  Args:
    names: of a cast and its speakers, in order.
    described: those with a sheet of their own; a name among them is what others turn into.

  Example:
    aliases(["Mr Bennet", "Mrs Bennet", "mr. bennet", "Bennet"], ["Mr Bennet"]) ==
      {"mr. bennet": "Mr Bennet"}
  """
  known = list(dict.fromkeys(names))
  found: dict[str, str] = {}
  groups: dict[Parts, list[str]] = {}
  for name in known:
    base = _possessive_of(name, known)
    groups.setdefault(parts(base), []).append(name)
  proper = {
    key: min(group, key=lambda n: (n not in described, possessor(n) is not None))
    for key, group in groups.items()
  }
  for key, group in groups.items():
    found.update({name: proper[key] for name in group if name != proper[key]})
  by_core: dict[str, list[Parts]] = {}
  for key in groups:
    by_core.setdefault(key.core, []).append(key)
  for keys in by_core.values():
    bare = [key for key in keys if not key.titles]
    titled = [key for key in keys if key.titles]
    # "Bennet" beside "Mr Bennet" and "Mrs Bennet" may be either.
    if len(bare) != 1 or len(titled) != 1:
      continue
    one, other = proper[bare[0]], proper[titled[0]]
    if one in described and other in described:
      continue
    goal, gone = (one, other) if one in described else (other, one)
    found[gone] = goal
    found.update({name: goal for name, now in found.items() if now == gone})
  return found


def _possessive_of(name: str, known: Sequence[str]) -> str:
  base = possessor(name)
  if base is None:
    return name
  # "James's" is James; "The Joneses'" alone is whatever it is.
  return base if any(parts(other) == parts(base) for other in known if other != name) else name
