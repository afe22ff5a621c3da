"""A scene taken apart once for all checks: layers with their places, words, names."""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import re

from data_pipeline.quality import flags, letters
from her_jax.roleplay import grammar
from her_jax.roleplay.schema import Character, Trajectory, Turn
from her_jax.roleplay.tags import ACTION, SPEECH

HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_SIGNS = rf"\u3040-\u30ff{HAN}"
# A word of a script with blanks, or one sign of a script without.
_WORD = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+(?:'[^\W_{_SIGNS}]+)*")
# Titles, and small words within names, are no names by themselves.
_NO_NAMES = frozenset(
  "mr mrs ms miss mister dr doctor sir lady lord dame madam madame monsieur mademoiselle mme mlle"
  " count countess baron duke duchess prince princess king queen captain colonel major general"
  " lieutenant sergeant inspector professor reverend father mother sister brother uncle aunt old"
  " young little the of de la le du van von der den and st saint servant maid guard nurse judge"
  " soldier man woman boy girl officer driver crowd voice all everyone".split()
)
_FIELDS = ("profile", "background", "motivation", "description", "experience")

# (start, end, word in lower case); words of two layers are kept apart by one that matches none.
Word = tuple[int, int, str]
WALL = "\0"


def words_of(text: str, place: int = 0) -> list[Word]:
  """The words of a text as they are compared (see `letters`), with their places from `place` on.

  Example:
    words_of("Don’t, 佘满") == [(0, 5, "don't"), (7, 8, "佘"), (8, 9, "满")]
  """
  plain, at = letters.folded(text)
  return [
    (place + at[m.start()], place + at[m.end() - 1] + 1, m[0]) for m in _WORD.finditer(plain)
  ]


def plain_words(text: str) -> list[str]:
  """The words alone."""
  return _WORD.findall(letters.folded(text)[0])


def words_as_written(text: str) -> list[str]:
  """The words in lower case, in which a look-alike is another letter."""
  return _WORD.findall(text.lower().replace("’", "'"))


def runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
  """All runs of `length` words that stay within one layer."""
  columns = [words[i:] for i in range(length)]
  found = set(zip(*columns, strict=False))
  if WALL in words:
    return {run for run in found if WALL not in run}
  return found


@dataclasses.dataclass(frozen=True)
class Layer:
  """One layer's text in a reply: `reply[start : start + len(text)] == text`."""

  kind: str
  text: str
  start: int


def layers_of(reply: str) -> tuple[Layer, ...]:
  """The layers of a reply with their places; blank ones are left out."""
  parsed = grammar.parse(reply)
  found, at = [], 0
  for segment in parsed.segments:
    mark = len(f"<{segment.kind}>") if segment.kind != SPEECH else 0
    start = at + mark
    if parsed.status != "ok" or not reply.startswith(segment.text, start):
      start = reply.find(segment.text, at)  # Of irregular tags only the order is known.
      if start < 0:
        continue
      at = start + len(segment.text)
    else:
      at = start + len(segment.text) + (mark + 1 if mark else 0)
    if segment.text.strip():
      found.append(Layer(segment.kind, segment.text, start))
  return tuple(found)


@dataclasses.dataclass(frozen=True)
class TurnView:
  """A turn with its layers and words."""

  index: int
  turn: Turn
  is_environment: bool

  @functools.cached_property
  def layers(self) -> tuple[Layer, ...]:
    return layers_of(self.turn.reply)

  def of(self, *kinds: str) -> Iterator[Layer]:
    return (layer for layer in self.layers if layer.kind in kinds)

  @functools.cached_property
  def text(self) -> str:
    """All layers, a line each: what stands in none of them is looked for once."""
    return "\n".join(layer.text for layer in self.layers)

  @functools.cached_property
  def words(self) -> tuple[Word, ...]:
    """Of all layers, a wall between two."""
    found: list[Word] = []
    for layer in self.layers:
      if found:
        found.append((layer.start, layer.start, WALL))
      found += words_of(layer.text, layer.start)
    return tuple(found)

  @functools.cached_property
  def plain(self) -> tuple[str, ...]:
    return tuple(word for _, _, word in self.words)

  @functools.cached_property
  def plan_words(self) -> tuple[Word, ...]:
    return tuple(words_of(self.turn.plan)) if self.turn.plan else ()

  def flag(self, name: str, field: str, start: int, end: int, why: str) -> flags.Flag:
    text = self.turn.reply if field == "reply" else self.turn.plan
    return flags.Flag(name, self.index, field, start, end, text[start:end], why)


class SceneView:
  """A trajectory as the checks read it.

  Attributes:
    setting: scenario and sheets as one text.
    forms: for each character the forms of the name that mean nobody else of the scene.
  """

  def __init__(self, trajectory: Trajectory):
    self.trajectory = trajectory
    self.language = trajectory.language
    environment = trajectory.environment
    self.turns = [
      TurnView(i, turn, turn.speaker == environment) for i, turn in enumerate(trajectory.turns)
    ]
    self.setting = "\n".join([trajectory.scenario, *map(sheet, trajectory.characters)])
    self.forms = name_forms([c.name for c in trajectory.characters])
    self._others: dict[str, tuple[str, ...]] = {}

  @functools.cached_property
  def setting_words(self) -> list[str]:
    return plain_words(self.setting)

  @functools.cached_property
  def setting_lower(self) -> str:
    return self.setting.lower()

  @functools.cached_property
  def passage(self) -> str:
    """The source's text of the scene, where there is one."""
    found = flags.notes(self.trajectory).get("passage")
    return found if isinstance(found, str) else ""

  @functools.cached_property
  def everything(self) -> str:
    """Setting, passage and all turns with their plans, in lower case."""
    scene = self.trajectory
    turns = [text for turn in scene.turns for text in (turn.reply, turn.plan)]
    told = (self.setting, self.passage, scene.source, scene.summary)
    return "\n".join([*told, *turns]).lower()

  @functools.cached_property
  def said(self) -> list[str]:
    """For each turn the speech and actions, in lower case."""
    return [
      " ".join(layer.text for layer in turn.of(SPEECH, ACTION)).lower() for turn in self.turns
    ]

  def named_before(self, word: str, turn: int) -> bool:
    """Whether setting or an earlier turn has a word; `word` in lower case."""
    return word in self.setting_lower or any(word in said for said in self.said[:turn])

  def others(self, speaker: str) -> tuple[str, ...]:
    """The forms of all other characters' names, long ones first."""
    if speaker not in self._others:
      forms = [f for name, own in self.forms.items() if name != speaker for f in own]
      self._others[speaker] = tuple(sorted(forms, key=len, reverse=True))
    return self._others[speaker]


def named_at(
  text: str, begin: re.Pattern[str], forms: Sequence[str]
) -> Iterator[tuple[int, int]]:
  """Where one of `forms` stands right behind a match of `begin`.

  Names differ from scene to scene, and a pattern of them would have to be compiled for each.

  Example:
    list(named_at("No. Una nods.", re.compile(r"^|[.] "), ["Una"])) == [(4, 7)]
  """
  if not any(form in text for form in forms):
    return
  for match in begin.finditer(text):
    at = match.end()
    for form in forms:
      if text.startswith(form, at):
        yield at, at + len(form)
        break


def sheet(character: Character) -> str:
  """All that is told of a character."""
  texts = [getattr(character, field) for field in _FIELDS]
  return "\n".join([character.name, *filter(None, texts)])


def name_forms(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Whole names and those parts of them that stand in one name alone.

  Example:
    name_forms(["Una Marrack", "Davy Marrack"]) ==
      {"Una Marrack": ("Una Marrack", "Una"), "Davy Marrack": ("Davy Marrack", "Davy")}
  """
  parts = {name: _parts(name) for name in names}
  taken: dict[str, int] = {}
  for own in parts.values():
    for part in set(own):
      taken[part] = taken.get(part, 0) + 1
  return {
    name: tuple(dict.fromkeys([name, *(p for p in own if taken[p] == 1)]))
    for name, own in parts.items()
  }


def _parts(name: str) -> list[str]:
  if re.fullmatch(rf"[{HAN}]+", name):
    return [name, name[1:]] if len(name) == 3 else [name]
  found = [p for p in re.split(r"[\s·.,]+", name) if p]
  return [p for p in found if len(p) > 1 and p[0].isupper() and p.lower() not in _NO_NAMES] or [
    p for p in found if re.search(rf"[{HAN}]", p)
  ]


def sentences(text: str) -> Iterator[tuple[int, int]]:
  """The places of a text's sentences, blanks and marks at their ends left out.

  Example:
    list(sentences("No. Sit down!")) == [(0, 2), (4, 12)]
  """
  for match in _SENTENCE.finditer(text):
    inside = match[0].strip(" \t\"'“”‘’「」—–-，,")
    if inside:
      start = match.start() + match[0].index(inside)
      yield start, start + len(inside)


_SENTENCE = re.compile(r"(?:[^.!?。！？…\n]|(?<=\bMr)\.|(?<=\bMrs)\.|(?<=\bDr)\.)+")


def outside_quotes(text: str) -> str:
  """The text with what stands in quotation marks blanked out, at the same length."""
  return _QUOTED.sub(lambda m: " " * len(m[0]), text)


def quotes(text: str) -> Iterator[tuple[int, int]]:
  """The places of what stands in quotation marks."""
  for match in _QUOTED.finditer(text):
    yield match.start() + 1, match.end() - 1


_QUOTED = re.compile(
  r"“[^”]*”|\"[^\"\n]*\"|「[^」]*」|『[^』]*』|(?<!\w)‘[^’\n]*(?:’(?=\w)[^’\n]*)*’(?!\w)"
  r"|(?<!\w)'[^'\n]*(?:'(?=\w)[^'\n]*)*'(?!\w)"
)


def joined(words: Iterable[str]) -> str:
  """Words as one text in which a run is found with `in`."""
  return f" {' '.join(words)} "
