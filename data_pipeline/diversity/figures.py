"""Figures of lists: how alike texts are, and quantiles of what was counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import itertools
import math

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_EPSILON = 0.1


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
  for q in QUANTILES:
    found[f"p{q:.0%}".rstrip("%")] = next(
      v for v, n in zip(ordered, reached, strict=True) if n >= q * total
    )
  return found | {"max": ordered[-1]}
