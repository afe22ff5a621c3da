"""A whole novel through the book's stages, with the scripted teacher."""

import re

import pytest

from data_pipeline.sources import book
from data_pipeline.sources.book_ask import Counts
from data_pipeline.sources.book_text import read_book
from her_jax.llm.client import Client, Reply
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import grammar
from tests.teachers import book as teacher


def _letters(text: str) -> str:
  return "".join(sign for sign in text.casefold() if sign.isalnum())


@pytest.fixture(scope="module")
def novel(real_data):
  path = real_data("pride_and_prejudice.txt")
  counts = Counts()
  client = Client(Scripted("teacher", lambda request: Reply(teacher.reply(request.messages))))
  return path, list(book.from_book(read_book(path), client, counts)), counts


def test_the_real_novel_gives_scenes_whose_lines_all_stand_in_it(novel):
  path, found, counts = novel
  raw = _letters(path.read_text(encoding="utf-8"))
  turns = [(one, t) for one in found for t in one.turns]
  assert len(found) >= 60 and len(turns) >= 900
  assert counts.lines["kept"] / counts.lines["given"] > 0.99 and not counts.failures
  for one in found:
    # Read without the project's code: the passage in the file, the line in the passage's speech.
    passage = one.extra["her"]["passage"]
    assert all(_letters(p) in raw for p in passage.split("\n"))
    quoted = _letters("".join(re.findall(r'"([^"\n]*)(?:"|$)', passage, re.MULTILINE)))
    for turn in one.turns:
      assert _letters(grammar.parse(turn.reply).view_for("other")) in quoted
  names = {t.speaker for _, t in turns}
  assert {"Elizabeth Bennet", "Mr. Darcy", "Jane Bennet"} <= names
  assert not names & {"Elizabeth", "Lizzy", "Darcy", "Miss Bennet", "Jane"}
  assert len({one.id for one in found}) == len(found)


@pytest.mark.parametrize("name", ["utf-16", "cp1252", "utf-8-sig"])
def test_the_novel_reads_the_same_in_other_encodings(novel, tmp_path, name):
  path = novel[0]
  copy = tmp_path / path.name
  text = path.read_text(encoding="utf-8").replace("\n", "\r\n").replace("'s ", "’s ")
  copy.write_bytes(text.encode(name, "ignore"))
  made, whole = read_book(copy), read_book(path)
  plain = lambda p: p.replace("’", "'")
  assert [tuple(map(plain, c.paragraphs)) for c in made.chapters] == [
    tuple(map(plain, c.paragraphs)) for c in whole.chapters
  ]
