"""One name for each person of a book, by the lists that a model gave, and by nothing else.

Each part of the book has its own list, since "Miss Bennet" is another sister in another room.
A name is looked for in the part's list first, then in the whole book's; a name that stands for
two persons, or for none, names nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses

from data_pipeline.sources.book_replies import Person
from data_pipeline.sources.names import cleaned, key


@dataclasses.dataclass
class Noted:
  """A name of the parts' lists with all that was noted under it."""

  name: str
  aliases: dict[str, str] = dataclasses.field(default_factory=dict)  # by key
  notes: list[str] = dataclasses.field(default_factory=list)
  parts: int = 0


def gather(parts: Iterable[Sequence[Person]]) -> dict[str, Noted]:
  """All names of the parts' lists by their key, the most frequent first."""
  found: dict[str, Noted] = {}
  for people in parts:
    for person in people:
      noted = found.setdefault(key(person.name), Noted(cleaned(person.name)))
      noted.parts += 1
      for alias in person.aliases:
        if key(alias) != key(noted.name):
          noted.aliases.setdefault(key(alias), cleaned(alias))
      if person.description and person.description not in noted.notes:
        noted.notes.append(person.description)
  return dict(sorted(found.items(), key=lambda item: -item[1].parts))


def told(noted: Noted) -> str:
  """One line of the list that a model is asked to put together."""
  aliases = f" ({', '.join(noted.aliases.values())})" if noted.aliases else ""
  notes = f": {' '.join(noted.notes[:3])}" if noted.notes else ""
  return f"{noted.name}{aliases}{notes}"


class Cast:
  """The book's persons.

  Args:
    noted: names of the parts' lists; see `gather`.
    joined: which of them are one person, as a model put them together. What it leaves out is a
      person of its own, and what it gives to two belongs to the one that it is the name of, or
      to none.
  """

  def __init__(self, noted: Mapping[str, Noted], joined: Sequence[Person]):
    self._of_noted: dict[str, str] = {}
    self._aliases: dict[str, set[str]] = {}
    self._spelt: dict[str, dict[str, str]] = {}
    self.unjoined: list[str] = []
    self.torn: list[str] = []
    names = {key(person.name): cleaned(person.name) for person in joined}
    claims: dict[str, set[str]] = {}
    for person in joined:
      for name in (person.name, *person.aliases):
        claims.setdefault(key(name), set()).add(names[key(person.name)])
    for own, entry in noted.items():
      claimed = {names[own]} if own in names else claims.get(own, set())
      if len(claimed) > 1:
        self.torn.append(entry.name)
        self._aliases[own] = claimed
        continue
      if not claimed:
        self.unjoined.append(entry.name)
      self._of_noted[own] = claimed.pop() if claimed else entry.name
    for own, canonical in self._of_noted.items():
      entry = noted[own]
      for alias in (entry.name, *entry.aliases.values()):
        self._call(canonical, alias)
    for person in joined:
      if names[key(person.name)] in set(self._of_noted.values()):
        for alias in (person.name, *person.aliases):
          self._call(names[key(person.name)], alias)
    self._notes: dict[str, list[str]] = {}
    for own, canonical in self._of_noted.items():
      self._notes.setdefault(canonical, []).extend(noted[own].notes)

  def _call(self, canonical: str, alias: str) -> None:
    self._aliases.setdefault(key(alias), set()).add(canonical)
    self._spelt.setdefault(canonical, {}).setdefault(key(alias), cleaned(alias))

  @property
  def names(self) -> list[str]:
    return list(self._spelt)

  def aliases(self, name: str) -> list[str]:
    """Every way to call a person but the name itself."""
    return [spelt for k, spelt in self._spelt[name].items() if k != key(name)]

  def notes(self, name: str) -> list[str]:
    return list(dict.fromkeys(self._notes.get(name, [])))

  def who(self, name: str, local: Sequence[Person] = ()) -> str | None:
    """The person whom a name means in a part of the book; None if nobody or several.

    Args:
      local: the part's own list.
    """
    own = key(name)
    if any(key(known) == own for known in self._spelt):
      return next(known for known in self._spelt if key(known) == own)
    here = self._locally(own, local)
    if len(here) == 1:
      return next(iter(here))
    found = self._aliases.get(own, set()) if not here else here
    return next(iter(found)) if len(found) == 1 else None

  def all_of(self, name: str, local: Sequence[Person] = ()) -> set[str]:
    """Everybody whom a name can mean."""
    if one := self.who(name, local):
      return {one}
    return self._locally(key(name), local) or self._aliases.get(key(name), set())

  def _locally(self, own: str, local: Sequence[Person]) -> set[str]:
    return {
      self._of_noted[key(person.name)]
      for person in local
      if own in {key(n) for n in (person.name, *person.aliases)}
      and key(person.name) in self._of_noted
    }
