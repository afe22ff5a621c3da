"""One spelling for each name of a scene: what a line is spoken by is what the sheet describes.

Only spellings are brought together: "MR BENNET", "Mr. Bennet:" and "Mr.  Bennet (aside)".
Who "Lizzy" is, no spelling tells: that is for the lists of characters to say.
"""

from collections.abc import Iterable
import functools
import re
import unicodedata

from her_jax.roleplay.schema import ENVIRONMENT

_WRAPPED = re.compile(
  r"""^(?:\*+|_+|"|“|”|'|‘|’|「|『|【|\[|#+)+\s*|\s*(?:\*+|_+|"|“|”|'|‘|’|」|』|】|\])+$"""
)
_NOTE = re.compile(r"\s*[(（][^()（）]*[)）]$")
_SURROUNDINGS = {
  *("environment", "environment description", "env", "scene", "setting"),
  *("环境", "环境描写", "旁白", "场景"),
}


@functools.lru_cache(maxsize=4096)
def cleaned(name: str) -> str:
  """A name on one line without quotes, stars, a colon or a stage direction around it.

  Example:
    cleaned(" **Mr.  Bennet** (aside): ") == "Mr. Bennet"
  """
  name = unicodedata.normalize("NFC", " ".join(name.split()))
  while True:
    shorter = _WRAPPED.sub("", _NOTE.sub("", name.rstrip(":： ")))
    if shorter == name or not shorter:
      return name
    name = shorter


@functools.lru_cache(maxsize=4096)
def key(name: str) -> str:
  """What two spellings of one name share: case, stops and the kind of apostrophe aside.

  Example:
    key("Mr. O’Hara") == key("MR O'HARA")
  """
  text = unicodedata.normalize("NFKC", cleaned(name)).casefold()
  return " ".join(re.sub(r"[.·•・‧]", " ", text.replace("’", "'")).split())


@functools.lru_cache(maxsize=4096)
def environment(name: str) -> str | None:
  """The name that environment lines have here, if `name` means them."""
  if key(name) not in _SURROUNDINGS:
    return None
  return ENVIRONMENT["zh" if re.search(r"[\u4e00-\u9fff]", name) else "en"]


class Spellings:
  """The names of one scene, each in the spelling that came first.

  Args:
    described: the names that the scene's sheets give, which count before those of its lines.
  """

  def __init__(self, described: Iterable[str]):
    self._by_key: dict[str, str] = {}
    # What is described is a person, whatever they are called.
    self._people = set()
    for name in described:
      self._people.add(key(name))
      self._by_key.setdefault(key(name), cleaned(name))
    self.changed: dict[str, str] = {}

  def __call__(self, name: str) -> str:
    found = None if key(name) in self._people else environment(name)
    found = found or self._by_key.setdefault(key(name), cleaned(name))
    if found != name.strip():
      self.changed[name] = found
    return found
