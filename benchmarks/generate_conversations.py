"""Generates conversations of realistic size, for measuring what works on data of that size.

    python -m benchmarks.generate_conversations --out=out/generated.jsonl \
        --conversations=30000 --books=700 --seed=0

Words are drawn by Zipf's law from a made-up vocabulary of which every book uses its own part, so
that no two conversations resemble each other more than real ones do. Sizes follow the corpus of
HER (arXiv 2601.21459): 13 turns a conversation, 580 tokens a plan, three layers a reply; one
book in four is Chinese. Equal arguments give equal bytes.
"""

from collections.abc import Iterator
import functools
import json
import pathlib
from typing import Any

from absl import app, flags
import numpy as np

_SYLLABLES = (
  "ba be bo da de di fa fe ga go ha he ka ke la le li lo ma me mi mo na ne no pa".split()
)
_SYLLABLES += (
  "pe po ra re ri ro sa se si so ta te ti to va ve wa we za ze th sh ck nd st ly".split()
)
_LITTLE = (
  "the and of to a in that he was it his her you with as for had she not but at on".split()
)
_WORDS, _SIGNS, _OWN = 30_000, 4_000, 8_000
_PLAN, _THOUGHT, _ACTION, _SPEECH = 430, 22, 12, 30  # words; a Chinese word is 1.6 signs
_SHEET = {"profile": 90, "background": 60, "experience": 60, "motivation": 30}


class Book:
  """Draws text in one book's vocabulary."""

  def __init__(self, number: int, seed: int):
    self._rng = np.random.default_rng([seed, number])
    self.language = "zh" if number % 4 == 3 else "en"
    words = _vocabulary(self.language)
    own = self._rng.permutation(len(words))[:_OWN]
    self._words = np.array(words, object)[own]
    if self.language == "en":
      self._words[: len(_LITTLE)] = _LITTLE
    weights = 1 / (np.arange(len(self._words)) + 2.7)  # Zipf–Mandelbrot
    self._cumulated = np.cumsum(weights / weights.sum())
    self.title = self.name(3) if self.language == "zh" else f"{self.name(1)} {self.name(1)}"
    self.title = f"{self.title} {number}"
    self.people = list(dict.fromkeys(self.name(1) for _ in range(12)))

  def name(self, parts: int) -> str:
    drawn = self._words[self._rng.integers(100, len(self._words), 3 if parts == 3 else 2)]
    return "".join(drawn)[:3] if self.language == "zh" else str(drawn[0]).capitalize()

  def text(self, length: int) -> str:
    """About `length` words."""
    length = max(3, int(self._rng.normal(length, length / 3)))
    chinese = self.language == "zh"
    count = int(1.6 * length) if chinese else length
    at = np.searchsorted(self._cumulated, self._rng.random(count))
    drawn = self._words[np.minimum(at, len(self._words) - 1)].tolist()
    for i in range(11, count, 12):
      drawn[i] += "，" if chinese else ","
    return "".join(drawn) + "。" if chinese else " ".join(drawn).capitalize() + "."

  def conversation(self, identity: str, turns: int) -> dict[str, Any]:
    count = int(self._rng.integers(2, 5))
    cast = [self.people[i] for i in self._rng.permutation(len(self.people))[:count]]
    characters = [
      {"name": name, **{field: self.text(words) for field, words in _SHEET.items()}}
      for name in cast
    ]
    made, last = [], -1
    for _ in range(turns):
      last = int(self._rng.choice([i for i in range(len(cast)) if i != last]))
      if self._rng.random() < 0.08:
        made.append({"speaker": "环境" if self.language == "zh" else "Environment"})
        made[-1]["reply"] = self.text(_SPEECH)
        continue
      layers = [
        f"<role_thinking>{self.text(_THOUGHT)}</role_thinking>",
        f"<role_action>{self.text(_ACTION)}</role_action>",
        self.text(_SPEECH),
      ]
      order = self._rng.permutation(3)
      reply = ("" if self.language == "zh" else " ").join(layers[i] for i in order)
      made.append({"speaker": cast[last], "reply": reply, "plan": self.text(_PLAN)})
    return {
      "id": identity,
      "source": self.title,
      "language": self.language,
      "scenario": self.text(70),
      "characters": characters,
      "turns": made,
    }


@functools.cache
def _vocabulary(language: str) -> list[str]:
  rng = np.random.default_rng(len(language))
  if language == "zh":
    return [chr(0x4E00 + i) for i in range(_SIGNS)] + [
      chr(0x4E00 + a) + chr(0x4E00 + b) for a, b in rng.integers(0, _SIGNS, (_WORDS, 2))
    ]
  found: dict[str, None] = {}
  while len(found) < _WORDS:
    found["".join(rng.choice(_SYLLABLES, rng.integers(1, 5)))] = None
  return list(found)


def rows(conversations: int, books: int, seed: int = 0) -> Iterator[dict[str, Any]]:
  """Rows of trajectories, book after book; about 13.3 turns each."""
  rng = np.random.default_rng(seed)
  for number in range(books):
    book = Book(number, seed)
    share = conversations * (number + 1) // books - conversations * number // books
    for i in range(share):
      turns = int(np.clip(rng.gamma(5.0, 2.77), 4, 60))
      yield book.conversation(f"{seed}-{number:04d}-{i:04d}", turns)


def write(path: pathlib.Path, conversations: int, books: int, seed: int = 0) -> int:
  """Writes a JSON Lines file and gives its number of turns."""
  turns = 0
  with path.open("w", encoding="utf-8") as file:
    for row in rows(conversations, books, seed):
      turns += len(row["turns"])
      file.write(json.dumps(row, ensure_ascii=False) + "\n")
  return turns


if __name__ == "__main__":
  _OUT = flags.DEFINE_string("out", None, "File to write", required=True)
  _CONVERSATIONS = flags.DEFINE_integer("conversations", 30_000, "How many", 1)
  _BOOKS = flags.DEFINE_integer("books", 700, "How many books they are of", 1)
  _SEED = flags.DEFINE_integer("seed", 0, "Of all that is drawn", 0)


def main(argv: list[str]) -> None:
  del argv
  path = pathlib.Path(_OUT.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  turns = write(path, _CONVERSATIONS.value, _BOOKS.value, _SEED.value)
  print(
    f"{_CONVERSATIONS.value} conversations, {turns} turns, {path.stat().st_size / 1e6:.0f} MB"
  )


if __name__ == "__main__":
  app.run(main)
