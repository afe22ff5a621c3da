"""Small corpora of many books, written to files."""

from collections.abc import Callable
import json
import pathlib
from typing import Any

from absl import flags
import numpy as np
import pytest

_EN = [f"{a}{b}{c}" for a in "bdfgklmnprstv" for b in ("a", "e", "io", "ou") for c in "lmnrst"]
_ZH = [chr(0x4E00 + 7 * i) for i in range(1500)]


def _words(rng: np.random.Generator, count: int, language: str) -> str:
  pool, gap = (_ZH, "") if language == "zh" else (_EN, " ")
  # The cube makes a few words frequent, as in language.
  return gap.join(pool[int(len(pool) * x**3)] for x in rng.random(count))


@pytest.fixture(scope="session", autouse=True)
def _parsed_flags() -> None:
  """Grain hands the flags on to its workers."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="session")
def corpus() -> Callable[..., list[dict[str, Any]]]:
  """Gives rows of trajectories: `books` books with `each` conversations of `turns` turns."""

  def rows(books: int, each: int = 2, turns: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    made = []
    for book in range(books):
      rng = np.random.default_rng([seed, book])
      language = "zh" if book % 3 == 2 else "en"
      names = ["林黛玉", "宝玉"] if language == "zh" else ["Una Marrack", "Ben"]
      for i in range(each):
        dialogue = [
          {
            "speaker": names[t % 2],
            "reply": f"<role_action>{_words(rng, 8, language)}</role_action>"
            f"{_words(rng, 25, language)}",
            "plan": _words(rng, 20, language),
          }
          for t in range(turns)
        ]
        made.append(
          {
            "id": f"{book}/{i}",
            "source": f"Book number {book}",
            "language": language,
            "scenario": _words(rng, 10, language),
            "characters": [{"name": name, "profile": "someone"} for name in names],
            "turns": dialogue,
            "her": {"chapter": str(i)},
          }
        )
    return made

  return rows


@pytest.fixture
def written(tmp_path) -> Callable[..., pathlib.Path]:
  """Writes rows as JSON Lines."""

  def write(rows: list[dict[str, Any]], name: str = "all.jsonl") -> pathlib.Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, "utf-8")
    return path

  return write
