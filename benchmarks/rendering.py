"""How fast conversations become ids, and how much of the time is tokenisation.

    python -m benchmarks.rendering [TOKENIZER_FOLDER]

Renders conversations of about 2,000 tokens in the three ways that training and sampling use:
one tree a character, one example a reply, one prompt. Without a folder the tokenizer is trained
on the sample scenes. Prints medians over the conversations, and the median time of importing
the domain in a process of its own.
"""

import subprocess
import sys
import time

import numpy as np

from data_pipeline import samples
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.roleplay import chat, grammar, schema, tokens

_TOKENS, _CONVERSATIONS, _IMPORTS = 2000, 40, 5


def _tokenizer():
  if len(sys.argv) > 1:
    return hf_tokenizer.load(sys.argv[1])
  scenes = schema.read_trajectories(samples.SCENES)
  return hf_tokenizer.train([t.plan + t.reply for s in scenes for t in s.turns], 2560)


def _conversations(tokenizer) -> list[tuple[schema.Trajectory, str]]:
  """Sample scenes, their turns repeated with a mark until there are enough tokens."""
  found = []
  for scene in schema.read_trajectories(samples.SCENES)[:_CONVERSATIONS]:
    name = scene.trained_characters()[0]
    turns: list[schema.Turn] = []
    while True:
      mark = f" ({len(turns)})"  # No two turns are alike, so that no cache knows them.
      turns += [schema.Turn(t.speaker, t.reply + mark, t.plan) for t in scene.turns]
      longer = schema.Trajectory(
        scene.id, scene.scenario, scene.characters, scene.language, turns=tuple(turns)
      )
      if len(chat.render_prompt(longer, len(turns), tokenizer, speaker=name)) >= _TOKENS:
        found.append((longer, name))
        break
  return found


class _Timed:
  """Adds up the time that is spent in `encode_text`."""

  def __init__(self):
    self.seconds = 0.0
    self._encode = tokens.encode_text
    tokens.encode_text = chat.encode_text = self  # type: ignore[assignment]

  def __call__(self, text, tokenizer):
    start = time.perf_counter()
    try:
      return self._encode(text, tokenizer)
    finally:
      self.seconds += time.perf_counter() - start


def main() -> None:
  tokenizer = _tokenizer()
  conversations = _conversations(tokenizer)
  timed = _Timed()
  ways = {
    "tree": lambda scene, name: [chat.render_dialogue(scene, name, tokenizer).trunk],
    "examples": lambda scene, name: [
      e.ids for e in chat.render_examples(scene, name, tokenizer)
    ],
    "prompt": lambda scene, name: [
      chat.render_prompt(scene, len(scene.turns), tokenizer, speaker=name)
    ],
  }
  for way, render in ways.items():
    rows = []
    for scene, name in conversations:
      grammar.parse.cache_clear()
      timed.seconds = 0.0
      start = time.perf_counter()
      ids = render(scene, name)
      rows.append((time.perf_counter() - start, timed.seconds, sum(map(len, ids))))
    seconds, encoding, count = np.asarray(rows).T
    print(
      f"{way:9s}{np.median(seconds) * 1e3:8.2f} ms {np.median(count):8.0f} ids"
      f" {np.median(count / seconds) / 1e3:7.0f} k ids/s"
      f"  tokenisation {100 * np.median(encoding / seconds):.0f} %"
    )
  command = [sys.executable, "-X", "importtime", "-c", "import her_jax.roleplay.chat"]
  totals = []
  for _ in range(_IMPORTS):
    err = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    totals.append(int(err.splitlines()[-1].split("|")[1]) / 1e6)
  print(f"import of her_jax.roleplay.chat {np.median(totals):.3f} s")


if __name__ == "__main__":
  main()
