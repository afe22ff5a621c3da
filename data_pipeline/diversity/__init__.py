"""How varied the replies of a file are: layouts, wording, lengths, before and after an edit.

    python -m data_pipeline.diversity scenes.jsonl --json=diversity.json

A layout is the order of a reply's layers, as "TAS" for a thought, an action, speech. Where
turns keep the reply from before an edit (`extra["her"]["original"]`), the layouts of the same
turns are compared with those of the originals. Wording is measured on a sample of fixed size,
drawn by a hash of scene and turn: the same in every order of the file, and sets of different
size can be compared. What the environment says is left out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import heapq
import itertools
import math
from typing import Any

from data_pipeline.quality import view
from her_jax.roleplay import grammar
from her_jax.roleplay.schema import Trajectory, Turn

SAMPLE = 500
LONGEST_RUN = 2  # turns in a row with one layout, beyond which they count as monotonous
TOP = 12
TOP_OF_EDIT = 9  # of each side
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LAYERS = {grammar.THINKING: "thinking", grammar.ACTION: "action", grammar.SPEECH: "speech"}
_EPSILON = 0.1


# ---- Figures of a list


def entropy(counts: Mapping[str, int]) -> float | None:
  """Shannon entropy of the shares, in bits; None where nothing was counted.

  Example:
    entropy({"TS": 2, "AS": 2}) == 1.0
  """
  total = sum(counts.values())
  return sum(-n / total * math.log2(n / total) for n in counts.values() if n) if total else None


def longest_run(layouts: Iterable[str]) -> tuple[str, int]:
  """The layout that is repeated in most consecutive turns, and in how many."""
  runs = ((layout, sum(1 for _ in run)) for layout, run in itertools.groupby(layouts))
  return max(runs, key=lambda run: run[1], default=("", 0))


def distinct(texts: Iterable[Sequence[str]], size: int) -> float | None:
  """Share of different n-grams among all (distinct-n; Li et al., NAACL 2016)."""
  grams = [gram for words in texts for gram in _grams(words, size)]
  return len(set(grams)) / len(grams) if grams else None


def self_bleu(texts: Sequence[Sequence[str]], most: int = 4) -> float | None:
  """Mean BLEU of each text against all others (self-BLEU; Zhu et al., "Texygen", SIGIR 2018).

  BLEU is the geometric mean of the clipped precisions of 1- to `most`-grams times the brevity
  penalty against the reference nearest in length (Papineni et al., ACL 2002). A precision of 0
  counts as 0.1 hits (Chen and Cherry, 2014, smoothing 1), and one that can't be formed, because
  the text is too short, as none. Texts of less than `most` words are left out.

  Args:
    texts: each as its words.

  Returns:
    between 0 and 1, 1 where all are the same; None for fewer than two texts.
  """
  texts = [words for words in texts if len(words) >= most]
  if len(texts) < 2:
    return None
  counts = [[Counter(_grams(words, n)) for words in texts] for n in range(1, most + 1)]
  best = [_two_best(of_size) for of_size in counts]
  lengths = Counter(len(words) for words in texts)
  scores = []
  for i, words in enumerate(texts):
    logs = 0.0
    for of_size, two in zip(counts, best, strict=True):
      hits = sum(min(n, _others(two[gram], i)) for gram, n in of_size[i].items())
      logs += math.log((hits or _EPSILON) / of_size[i].total())
    scores.append(math.exp(logs / most) * _brevity(len(words), lengths))
  return sum(scores) / len(scores)


def _grams(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
  return zip(*(words[i:] for i in range(size)), strict=False)


def _two_best(
  counts: Sequence[Counter[tuple[str, ...]]],
) -> dict[tuple[str, ...], tuple[int, int, int]]:
  """For each n-gram its highest count, the text that has it, and the highest among the others.

  So what is clipped at the best of all other texts costs no comparison of every two.
  """
  best: dict[tuple[str, ...], tuple[int, int, int]] = {}
  for i, of_text in enumerate(counts):
    for gram, n in of_text.items():
      first, owner, second = best.get(gram, (0, -1, 0))
      best[gram] = (n, i, first) if n > first else (first, owner, max(second, n))
  return best


def _others(best: tuple[int, int, int], text: int) -> int:
  first, owner, second = best
  return second if owner == text else first


def _brevity(length: int, lengths: Counter[int]) -> float:
  others = [n for n in lengths if n != length or lengths[n] > 1]
  nearest = min(others, key=lambda n: (abs(n - length), n))
  return 1.0 if length >= nearest else math.exp(1 - nearest / length)


def quantiles(histogram: Mapping[int, int]) -> dict[str, float] | None:
  """Mean, quantiles and maximum of counted values; None where there are none."""
  total = sum(histogram.values())
  if not total:
    return None
  found: dict[str, float] = {"mean": sum(v * n for v, n in histogram.items()) / total}
  ordered = sorted(histogram)
  reached = list(itertools.accumulate(histogram[value] for value in ordered))
  for q in _QUANTILES:
    found[f"p{q:.0%}".rstrip("%")] = next(
      v for v, n in zip(ordered, reached, strict=True) if n >= q * total
    )
  return found | {"max": ordered[-1]}


# ---- A file


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
    total, bits = self.counts.total(), entropy(self.counts)
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
        language: {name: quantiles(histogram) for name, histogram in of.items()}
        for language, of in self.lengths.items()
      },
    }


def _wording(texts: Sequence[Sequence[str]]) -> dict[str, Any]:
  return {
    "sampled": len(texts),
    "self_bleu_4": self_bleu(texts),
    **{f"distinct_{n}": distinct(texts, n) for n in (1, 2, 3)},
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


# ---- For reading


def text_of(report: Mapping[str, Any], name: str) -> str:
  """The report as tables, for a terminal or a log."""
  sides = {"all replies": report["layouts"]}
  if report["edit"]:
    sides |= {"before the edit": report["edit"]["before"], "after it": report["edit"]["after"]}
  lines = [f"{name}: {report['scenes']} scenes", ""]
  lines.append(f"{'layouts':28}" + "".join(f"{side:>18}" for side in sides))
  rows = {
    "replies": ("replies", "d"),
    "different layouts": ("layouts", "d"),
    "entropy, bits": ("entropy_bits", ".3f"),
    "... of the most it could be": ("evenness", ".1%"),
    "share of the most frequent": ("top_share", ".1%"),
    "beyond two in a row": ("beyond_two_in_a_row", ".1%"),
  }
  for label, (key, style) in rows.items():
    lines.append(
      f"{label:28}" + "".join(f"{_number(s[key], style):>18}" for s in sides.values())
    )
  runs = (s["longest_run"] for s in sides.values())
  shown = (f"{run['turns']} × {run['layout'][:8]}" for run in runs)
  lines.append(f"{'longest run':28}" + "".join(f"{run:>18}" for run in shown))
  if report["edit"]:
    lines.append(f"{'replies that the edit changed':28}{report['edit']['changed']:>17.1%}")
  top = report["layouts"]["top"]
  lines += ["", "most frequent: " + ", ".join(f"{t['layout']} {t['share']:.1%}" for t in top)]
  heads = "".join(f"{f'distinct-{n}':>12}" for n in (1, 2, 3))
  lines += ["", f"{'wording':28}{'sampled':>9}{'self-BLEU-4':>13}{heads}"]
  for language, kinds in report["wording"].items():
    for kind, w in kinds.items():
      figures = "".join(f"{_number(w[f'distinct_{n}'], '.3f'):>12}" for n in (1, 2, 3))
      bleu = _number(w["self_bleu_4"], ".3f")
      lines.append(f"{f'{kind} ({language})':28}{w['sampled']:>9}{bleu:>13}{figures}")
  columns = ("mean", *(f"p{q:.0%}".rstrip("%") for q in _QUANTILES), "max")
  lines += ["", f"{'length, words (zh: signs)':28}" + "".join(f"{c:>8}" for c in columns)]
  for language, kinds in report["lengths"].items():
    for kind, found in kinds.items():
      if found:
        figures = f"{found['mean']:>8.1f}" + "".join(f"{found[c]:>8}" for c in columns[1:])
        lines.append(f"{f'{kind} ({language})':28}{figures}")
  return "\n".join(lines)


def _number(value: float | None, style: str) -> str:
  return "–" if value is None else format(value, style)
