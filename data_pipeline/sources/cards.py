"""Character cards with seed scenarios: each scene's opening, for a model to go on from.

A card alone opens a scene with each of its greetings. A seed puts a character into a situation
of its own; a JSON Lines file of them stands beside the cards or is passed:

    {"id": …, "character": NAME, "scenario": …, "opening": [{"speaker": NAME, "text": …}],
     "user_name": …, "user_profile": …, "language": "en"}

`character` may be left out: the seed is then for every card. Without `opening` the scene begins
with the card's first greeting. Seeds of the role-play bench, which carry their character
themselves, are read by `formats.from_minimax_seed`.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import pathlib
from typing import Any

from data_pipeline.sources.names import key
from her_jax.roleplay import cards, rows
from her_jax.roleplay.cards import Card
from her_jax.roleplay.rows import Row
from her_jax.roleplay.schema import DataError, Trajectory, Turn

USER = {"en": "User", "zh": "用户"}
_SEED = ("id", "character", "scenario", "opening", "user_name", "user_profile", "language")


def openings(card: Card, user: str = "") -> Iterator[Trajectory]:
  """The scene of each greeting; its id ends in the greeting's number.

  Raises:
    DataError: the card has no greeting, so that there is nothing to open a scene with.
  """
  if not card.greetings:
    raise DataError("first_mes: missing or empty; give the card a greeting, or pass seeds")
  language = _language(card)
  for i in range(len(card.greetings)):
    made = cards.to_trajectory(card, user or USER[language], greeting=i, language=language)
    yield _marked(made, card, f"{made.id}/{i}")


def seeded(card: Card, seed: Row, number: int, user: str = "") -> Trajectory:
  """The scene that a seed puts a card's character into.

  Args:
    number: stands for the seed's id where it has none.
    user: the user's name where the seed gives none.

  Raises:
    DataError: names the seed's field and the mend.
  """
  language = rows.text_of(seed, "language") or _language(card)
  if language not in USER:
    raise DataError(f"language: {language!r} is not one of {', '.join(USER)}")
  other = rows.text_of(seed, "user_name").strip() or user or USER[language]
  made = cards.to_trajectory(
    card, other, user_profile=rows.text_of(seed, "user_profile"), language=language
  )
  own, other = (character.name for character in made.characters)
  fill = lambda text: cards.fill(text, own, other).strip()
  scenario = fill(rows.required_text(seed, "scenario", "describe the situation"))
  turns = made.turns
  if "opening" in seed:
    turns = tuple(
      _opened(entry, f"opening[{i}].", own, other)
      for i, entry in enumerate(rows.objects_of(seed, "opening"))
    )
  if not turns:
    raise DataError("opening: missing, and the card has no greeting; give the seed one")
  own_id = rows.text_of(seed, "id").strip() or str(number)
  made = dataclasses.replace(made, scenario=scenario, turns=turns)
  made = _marked(made, card, f"{made.id}/{own_id}")
  rest = rows.rest_of(seed, _SEED)
  return dataclasses.replace(made, extra={**made.extra, "seed": rest}) if rest else made


def fits(seed: Row, card: Card) -> bool:
  """Whether a seed is for this card."""
  name = rows.text_of(seed, "character").strip()
  return not name or key(name) in (key(card.name), key(card.char))


def is_card(path: pathlib.Path) -> bool:
  """Whether a file can be a card: a PNG, or a JSON object with a card's fields."""
  with path.open("rb") as file:
    if file.read(8).startswith(b"\x89PNG"):
      return True
  return path.suffix.casefold() == ".json" and b'"first_mes"' in path.read_bytes()


def scenes(
  card: Card, seeds: Sequence[Row] = (), user: str = ""
) -> Iterator[tuple[str, Trajectory | DataError]]:
  """All scenes of one card, or the fault of each, with the place within the seeds."""
  fitting: Iterable[tuple[int, Row]] = [(i, s) for i, s in enumerate(seeds) if fits(s, card)]
  if not fitting:
    try:
      yield from (("", made) for made in openings(card, user))
    except DataError as error:
      yield "", error
  for i, seed in fitting:
    try:
      yield f"seeds[{i}]", seeded(card, seed, i, user)
    except DataError as error:
      yield f"seeds[{i}]", error


def _opened(entry: Row, where: str, own: str, other: str) -> Turn:
  speaker = cards.fill(rows.text_of(entry, "speaker", where), own, other).strip() or own
  text = rows.required_text(entry, "text", "write what is said", where)
  spoken: dict[str, Any] = {"character": speaker, "message": cards.fill(text, own, other)}
  return rows.turn_of(spoken, where.rstrip("."), "seed")


def _marked(made: Trajectory, card: Card, id: str) -> Trajectory:
  """With the card as source: scenes of one card stay together where data are split."""
  told = {f: v for f, v in (("tags", list(card.tags)), ("creator", card.creator)) if v}
  return dataclasses.replace(
    made, id=id, source=f"card:{made.characters[0].name}", extra={"card": told} if told else {}
  )


def _language(card: Card) -> str:
  return rows.language_of(card.description + card.first_message + card.scenario)
