"""A plain book → scenes with attributed dialogue and profiles, by calls of a language model.

    1. scenes     of each piece of a chapter: who is there, which paragraphs are a scene
    2. cast       of the book: which of the noted names are one person
    3. dialogue   of each scene: scenario, motives, and every line with its speaker
    4. profile    of each character who speaks

The model proposes, the text decides: a line is kept where it stands in the scene's passage, in
the book's own wording and order, and its speaker where the cast knows the name and the
narration beside the line names nobody else. What is dropped is counted by its reason.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

from data_pipeline.sources import book_cast, book_lines, book_prompts, book_replies, book_scenes
from data_pipeline.sources.book_ask import Asker, Counts, Question
from data_pipeline.sources.book_attribution import Attributions
from data_pipeline.sources.book_cast import Cast
from data_pipeline.sources.book_find import Finder, Options, Scene
from data_pipeline.sources.book_replies import Dialogue, Person
from data_pipeline.sources.book_text import Book
from data_pipeline.sources.names import key
from data_pipeline.sources.report import kind_of
from her_jax.llm.guarded import Completes
from her_jax.roleplay import grammar, notations, schema
from her_jax.roleplay.grammar import Reply as Layers
from her_jax.roleplay.grammar import Segment
from her_jax.roleplay.schema import Character, DataError, Trajectory, Turn

_MOST_NAMES = 150  # of one request for the cast
_MOST_NOTES, _MOST_LINES = 12, 24  # of one request for a profile


def from_book(
  book: Book, client: Completes, counts: Counts | None = None, options: Options | None = None
) -> Iterator[Trajectory]:
  """The scenes of a book, in its order.

  `extra["her"]` of a scene holds `book`, `chapter`, `passage` (its paragraphs), `paragraphs`
  (their first and last number) and `aliases` of its characters; that of a turn `origin_ids`,
  the line's place in the book.

  Args:
    counts: takes what was dropped and why.

  Raises:
    ConfigError: the endpoint refuses every call.
  """
  yield from _Work(book, client, counts or Counts(), options or Options()).run()


class _Work:
  """One book's way through the four stages."""

  def __init__(self, book: Book, client: Completes, counts: Counts, options: Options):
    self._book, self._counts, self._options = book, counts, options
    self._language = book.language
    self._asker = Asker(client, counts, options.sampling, book.language)

  def run(self) -> Iterator[Trajectory]:
    scenes = Finder(self._book, self._asker, self._counts, self._options).find()
    noted = book_cast.gather([person] for person in _noted(scenes))
    cast = self._join_names(noted)
    told = self._write_dialogues(scenes, cast)
    spoken: dict[str, list[str]] = {}
    kept: list[Trajectory] = []
    for scene, dialogue in told:
      made = self._scene(scene, dialogue, cast)
      if made is not None:
        kept.append(made)
        for turn in made.turns:
          spoken.setdefault(turn.speaker, []).append(
            grammar.parse(turn.reply).view_for("other")
          )
    profiles = self._profiles(spoken, cast)
    for made in kept:
      people = tuple(
        dataclasses.replace(c, profile=profiles.get(c.name, "")) for c in made.characters
      )
      yield dataclasses.replace(made, characters=people)

  # Stage 2

  def _join_names(self, noted: Mapping[str, book_cast.Noted]) -> Cast:
    """Which names are one person; with many names, those of a request before are given too."""
    joined: list[Person] = []
    names = list(noted.values())
    for batch, start in enumerate(range(0, len(names), _MOST_NAMES)):
      lines = [book_cast.told(entry) for entry in names[start : start + _MOST_NAMES]]
      lines += [
        book_cast.told(book_cast.Noted(p.name, {key(a): a for a in p.aliases})) for p in joined
      ]
      text = book_prompts.cast(self._book.title, lines, self._language)
      name = f"{self._book.title}/cast/{batch}"
      joined = self._asker.ask("cast", [Question(name, text, book_replies.cast)]).get(
        name, joined
      )
    cast = Cast(noted, joined)
    self._counts.names["of one person"] += len(cast.names)
    self._counts.names["left out of the cast, kept as noted"] += len(cast.unjoined)
    self._counts.names["given to several persons, dropped"] += len(cast.torn)
    return cast

  # Stage 3

  def _write_dialogues(
    self, scenes: Sequence[Scene], cast: Cast
  ) -> list[tuple[Scene, Dialogue]]:
    found: dict[str, tuple[Scene, Dialogue]] = {}
    left = list(scenes)
    for attempt in range(3):  # A scene whose answer is cut twice is asked about in halves.
      questions = [self._about_dialogue(scene, cast) for scene in left]
      cut: set[str] = set()
      answers = self._asker.ask("dialogue", questions, cut if attempt < 2 else None)
      halves = []
      for scene, question in zip(left, questions, strict=True):
        if question.id in answers:
          found[scene.id] = (scene, answers[question.id])
        elif question.id in cut:
          halves += self._halves(scene)
        else:
          self._counts.scenes["dropped: no usable answer"] += 1
      left = halves
      if not left:
        break
    place = {id: (s.stretch.first, s.stretch.last) for id, (s, _) in found.items()}
    return [found[id] for id in sorted(found, key=lambda id: place[id])]

  def _halves(self, scene: Scene) -> list[Scene]:
    chapter = scene.chapter
    sizes = [len(p) for p in chapter.paragraphs]
    most = -(-sum(map(len, scene.paragraphs)) // 2)
    parts = book_scenes.split(scene.stretch, sizes, chapter.first, most)
    if len(parts) == 1:
      self._counts.scenes["dropped: answer cut, and no paragraph to split at"] += 1
      return []
    self._counts.scenes["split, its answer was cut"] += 1
    return [
      dataclasses.replace(scene, id=f"{scene.id}.{i}", stretch=part)
      for i, part in enumerate(parts)
    ]

  def _about_dialogue(self, scene: Scene, cast: Cast) -> Question:
    text = "\n".join(scene.paragraphs)
    names: dict[str, list[str]] = {}
    for name in cast.names:
      here = [alias for alias in cast.aliases(name) if alias in text]
      local = any(cast.who(p.name, scene.local) == name for p in scene.local)
      if here or name in text or local:
        names[name] = here
    asked = book_prompts.dialogue(
      self._book.title, scene.chapter.title or self._book.title, names, text, self._language
    )
    return Question(f"dialogue/{scene.id}", asked, book_replies.dialogue)

  def _scene(self, scene: Scene, told: Dialogue, cast: Cast) -> Trajectory | None:
    """A scene of the lines that hold; None, and counted, if no dialogue is left."""
    passage = book_lines.Passage(scene.paragraphs)
    turns = self._turns(scene, told, cast, passage)
    speakers = list(dict.fromkeys(turn.speaker for turn in turns))
    if len(speakers) < 2:
      reason = "one speaker alone" if speakers else "no line left"
      self._counts.scenes[f"dropped: {reason}"] += 1
      return None
    notes = {
      name: next(
        (p.description for p in scene.local if cast.who(p.name, scene.local) == name), ""
      )
      for name in speakers
    }
    own = lambda texts, name: next(
      (t for n, t in texts.items() if cast.who(n, scene.local) == name), ""
    )
    made = Trajectory(
      id=scene.id,
      scenario=told.scenario,
      characters=tuple(
        Character(
          name,
          description=notes[name],
          motivation=own(told.motives, name),
          experience=own(told.experience, name),
        )
        for name in speakers
      ),
      language=self._language,
      source=self._book.title,
      topic=told.topic,
      summary=told.summary,
      extra={
        "her": {
          "book": self._book.title,
          "chapter": scene.chapter.title,
          "passage": passage.text,
          "paragraphs": [scene.stretch.first, scene.stretch.last],
          "aliases": {name: cast.aliases(name) for name in speakers if cast.aliases(name)},
        }
      },
      turns=tuple(turns),
    )
    try:
      schema.check_trajectory(made)
    except DataError as error:
      self._counts.scenes[f"dropped: {kind_of(str(error))}"] += 1
      return None
    self._counts.scenes["kept"] += 1
    return made

  def _turns(
    self, scene: Scene, told: Dialogue, cast: Cast, passage: book_lines.Passage
  ) -> list[Turn]:
    """The lines that stand in the passage, in its order, in its wording."""
    calls = [n for name in cast.names for n in (name, *cast.aliases(name))]
    calls += [n for p in scene.local for n in (p.name, *p.aliases)]
    stated = Attributions(calls)
    kept = []
    for line in told.lines:
      self._counts.lines["given"] += 1
      speaker = cast.who(line.speaker, scene.local)
      if speaker is None:
        several = cast.all_of(line.speaker, scene.local)
        reason = "name of several characters" if several else "speaker not among the characters"
        self._counts.lines[f"dropped: {reason}"] += 1
        continue
      places = passage.find_parts(line.speech)
      if not places:
        again = bool(line.speech) and passage.stands(line.speech)
        reason = "stands once, given again" if again else "not in the text"
        self._counts.lines[f"dropped: {reason}"] += 1
        continue
      says = [cast.all_of(s, scene.local) for p in places if (s := stated.of(passage, p))]
      if any(others and speaker not in others for others in says):
        self._counts.lines["dropped: the text names another speaker"] += 1
        continue
      action = line.action
      if action and not book_lines.is_grounded(action, passage.text):
        self._counts.lines["action not in the text, left out"] += 1
        action = ""
      self._counts.lines["kept"] += 1
      kept += [(p, speaker, action if p is places[0] else "") for p in places]
    number = scene.stretch.first
    return [
      Turn(
        speaker,
        _reply(place.text, action),
        extra={
          "her": {
            "origin_ids": [
              f"{number + place.paragraph}:{place.start - passage.starts[place.paragraph]}"
            ]
          }
        },
      )
      for place, speaker, action in sorted(kept, key=lambda k: k[0].start)
    ]

  # Stage 4

  def _profiles(self, spoken: Mapping[str, Sequence[str]], cast: Cast) -> dict[str, str]:
    """A profile of everybody who speaks; where no call gave one, what the parts' lists say."""
    questions = []
    for name, lines in spoken.items():
      text = book_prompts.profile(
        self._book.title,
        name,
        _spread(cast.notes(name), _MOST_NOTES),
        _spread(lines, _MOST_LINES),
        self._language,
      )
      questions.append(
        Question(f"{self._book.title}/profile/{name}", text, book_replies.profile)
      )
    answers = self._asker.ask("profile", questions)
    found = {}
    for (name, _), question in zip(spoken.items(), questions, strict=True):
      found[name] = answers.get(question.id) or " ".join(cast.notes(name))
      if question.id not in answers:
        self._counts.names["profile out of the notes alone"] += 1
    return found


def _noted(scenes: Sequence[Scene]) -> list[Person]:
  """Entries of the pieces' lists, each once: scenes of one piece share its list."""
  entries = {id(person): person for scene in scenes for person in scene.local}
  return list(entries.values())


def _reply(speech: str, action: str) -> str:
  segments = [Segment(grammar.SPEECH, notations.without_tags(speech))]
  if action:
    plain = notations.without_tags(action).strip("()（）*[] ")
    segments = [Segment(grammar.ACTION, plain), Segment(grammar.SPEECH, f" {segments[0].text}")]
  return grammar.render(Layers(tuple(segments)))


def _spread(entries: Sequence[str], most: int) -> list[str]:
  """At most so many, from the beginning to the end."""
  if len(entries) <= most:
    return list(entries)
  return [entries[i * (len(entries) - 1) // (most - 1)] for i in range(most)]
