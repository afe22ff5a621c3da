"""How varied the replies of a file are: layouts, wording, lengths, before and after an edit.

    python -m data_pipeline.diversity scenes.jsonl --json=diversity.json

A layout is the order of a reply's layers, as "TAS" for a thought, an action, speech. Where
turns keep the reply from before an edit (`extra["her"]["original"]`), the layouts of the same
turns are compared with those of the originals. Wording is measured on a sample of fixed size,
drawn by a hash of scene and turn: the same in every order of the file, and sets of different
size can be compared. What the environment says is left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import heapq
import itertools
import math
from typing import Any

from data_pipeline.diversity import figures
from data_pipeline.quality import view
from her_jax.roleplay import grammar
from her_jax.roleplay.layouts import entropy_bits, longest_run
from her_jax.roleplay.schema import Trajectory, Turn

SAMPLE = 500
LONGEST_RUN = 2  # turns in a row with one layout, beyond which they count as monotonous
TOP = 12
TOP_OF_EDIT = 9  # of each side
_LAYERS = {grammar.THINKING: "thinking", grammar.ACTION: "action", grammar.SPEECH: "speech"}


class Sample:
  """The `size` entries with the smallest hash of their key: a draw that no order changes."""

  def __init__(self, size: int):
    self._size = size
    self._heap: list[tuple[int, str, tuple[str, ...]]] = []

  def offer(self, key: str, words: tuple[str, ...]) -> None:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    entry = (-int.from_bytes(digest, "big"), key, words)
    if len(self._heap) < self._size:
      heapq.heappush(self._heap, entry)
    elif entry > self._heap[0]:
      heapq.heapreplace(self._heap, entry)

  def texts(self) -> list[tuple[str, ...]]:
    return [words for _, _, words in sorted(self._heap, reverse=True)]


@dataclasses.dataclass
class Layouts:
  """The layouts of one side, before or after an edit."""

  counts: Counter[str] = dataclasses.field(default_factory=Counter)
  longest: tuple[str, int] = ("", 0)
  longest_in: str = ""
  monotonous: int = 0  # turns beyond the second of a run

  def add(self, layouts: Sequence[str], scene: str) -> None:
    """Takes the layouts of one scene in order."""
    self.counts.update(layouts)
    for _, run in itertools.groupby(layouts):
      self.monotonous += max(0, sum(1 for _ in run) - LONGEST_RUN)
    if (found := longest_run(layouts))[1] > self.longest[1]:
      self.longest, self.longest_in = found, scene

  def as_dict(self) -> dict[str, Any]:
    total, bits = self.counts.total(), entropy_bits(self.counts)
    top = self.counts.most_common(TOP)
    return {
      "replies": total,
      "layouts": len(self.counts),
      "entropy_bits": bits,
      # Of the entropy that as many layouts could have at most.
      "evenness": bits / math.log2(len(self.counts)) if bits else None,
      "top_share": top[0][1] / total if top else None,
      "top": [{"layout": name, "replies": n, "share": n / total} for name, n in top],
      "longest_run": {
        "layout": self.longest[0],
        "turns": self.longest[1],
        "scene": self.longest_in,
      },
      "beyond_two_in_a_row": self.monotonous / total if total else None,
    }


class Diversity:
  """Gathers scenes one by one; its size is that of the sample."""

  def __init__(self, sample: int = SAMPLE):
    self.scenes = 0
    self.all = Layouts()
    self.before = Layouts()
    self.after = Layouts()
    self.changed = 0
    self.lengths: dict[str, dict[str, Counter[int]]] = {}
    self._samples: dict[str, dict[str, Sample]] = {}
    self._size = sample

  def add(self, scene: Trajectory) -> None:
    self.scenes += 1
    turns = [(i, t) for i, t in enumerate(scene.turns) if t.speaker != scene.environment]
    self.all.add([layout_of(turn.reply) for _, turn in turns], scene.id)
    pairs = [(old, turn.reply) for _, turn in turns if (old := original_of(turn)) is not None]
    if pairs:
      self.before.add([layout_of(old) for old, _ in pairs], scene.id)
      self.after.add([layout_of(new) for _, new in pairs], scene.id)
      self.changed += sum(old != new for old, new in pairs)
    self._measure(scene, turns)

  def _shares(self) -> list[dict[str, Any]]:
    """Both shares of each layout that is frequent before or after the edit."""
    sides = (self.after.counts, self.before.counts)
    names = dict.fromkeys(name for side in sides for name, _ in side.most_common(TOP_OF_EDIT))
    total = self.before.counts.total()
    return [
      {"layout": name, "before": sides[1][name] / total, "after": sides[0][name] / total}
      for name in names
    ]

  def _measure(self, scene: Trajectory, turns: Sequence[tuple[int, Turn]]) -> None:
    of = self.lengths.setdefault(scene.language, {})
    samples = self._samples.setdefault(scene.language, {})
    of.setdefault("turns of a scene", Counter())[len(scene.turns)] += 1
    for i, turn in turns:
      layers: Counter[str] = Counter()
      spoken: list[str] = []
      for layer in view.layers_of(turn.reply):
        words = view.plain_words(layer.text)
        layers[_LAYERS.get(layer.kind, "speech")] += len(words)
        spoken += words
      of.setdefault("reply", Counter())[len(spoken)] += 1
      for name in _LAYERS.values():
        of.setdefault(name, Counter())[layers[name]] += 1
      self._sample(samples, "reply", f"{scene.id}\0{i}", spoken)
      if turn.plan:
        plan = view.plain_words(turn.plan)
        of.setdefault("plan", Counter())[len(plan)] += 1
        self._sample(samples, "plan", f"{scene.id}\0{i}", plan)
      if (old := original_of(turn)) is not None:
        words = [w for layer in view.layers_of(old) for w in view.plain_words(layer.text)]
        self._sample(samples, "reply before", f"{scene.id}\0{i}", words)

  def _sample(
    self, samples: dict[str, Sample], name: str, key: str, words: Sequence[str]
  ) -> None:
    samples.setdefault(name, Sample(self._size)).offer(key, tuple(words))

  def as_dict(self) -> dict[str, Any]:
    edited = self.before.counts.total()
    return {
      "scenes": self.scenes,
      "layouts": self.all.as_dict(),
      "edit": {
        "before": self.before.as_dict(),
        "after": self.after.as_dict(),
        "changed": self.changed / edited,
        "shares": self._shares(),
      }
      if edited
      else None,
      "wording": {
        language: {name: _wording(sample.texts()) for name, sample in samples.items()}
        for language, samples in self._samples.items()
      },
      "lengths": {
        language: {name: figures.quantiles(histogram) for name, histogram in of.items()}
        for language, of in self.lengths.items()
      },
    }


def _wording(texts: Sequence[Sequence[str]]) -> dict[str, Any]:
  return {
    "sampled": len(texts),
    "self_bleu_4": figures.self_bleu(texts),
    **{f"distinct_{n}": figures.distinct(texts, n) for n in (1, 2, 3)},
  }


@functools.lru_cache(maxsize=4096)
def layout_of(reply: str) -> str:
  """The order of layers, cut where a text has more of them than anybody would call a layout."""
  return grammar.parse(reply).layout()[:40] or "–"


def original_of(turn: Turn) -> str | None:
  """The reply before an edit, if the turn keeps it."""
  her = turn.extra.get("her")
  old = her.get("original") if isinstance(her, Mapping) else None
  return old if isinstance(old, str) and old.strip() else None


def measure(scenes: Iterable[Trajectory], sample: int = SAMPLE) -> dict[str, Any]:
  """The report of an iterable of scenes; see `Diversity`."""
  gathered = Diversity(sample)
  for scene in scenes:
    gathered.add(scene)
  return gathered.as_dict()
