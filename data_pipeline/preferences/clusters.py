"""Clusters of short texts: TF-IDF, KMeans, and the silhouette for their number.

Chinese is cut into pairs of signs, since it has no blanks, English into words. The same texts and
seed give the same clusters.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

_SAMPLE = 2000  # Texts on which the silhouette is measured: it compares each with each.
_DIMENSIONS = 100  # Of the space of topics, where the vocabulary is larger.


@dataclasses.dataclass(frozen=True)
class Clusters:
  """Which cluster each text is in.

  Attributes:
    labels: [texts], numbers from 0, the largest cluster first.
    nearness: [texts], cosine of each text with the middle of its cluster.
    silhouettes: number of clusters → silhouette, −1 to 1, for all numbers that were tried.
  """

  labels: np.ndarray
  nearness: np.ndarray
  silhouettes: dict[int, float]

  @property
  def count(self) -> int:
    return int(self.labels.max()) + 1 if len(self.labels) else 0

  def members(self, cluster: int) -> list[int]:
    """Indices of a cluster's texts, those next to its middle first."""
    inside = np.flatnonzero(self.labels == cluster)
    return [int(i) for i in inside[np.argsort(-self.nearness[inside], kind="stable")]]


def vectorizer(language: str) -> Any:
  """A TF-IDF that is not fitted yet."""
  from sklearn.feature_extraction.text import TfidfVectorizer

  if language == "zh":
    return TfidfVectorizer(analyzer="char", ngram_range=(2, 2), sublinear_tf=True)
  return TfidfVectorizer(
    stop_words="english",
    token_pattern=r"(?u)\b\w\w+\b",
    sublinear_tf=True,
    strip_accents="unicode",
  )


def cluster(
  texts: Sequence[str],
  language: str,
  seed: int = 0,
  most: int = 20,
  fixed: int = 0,
  weights: Sequence[float] | None = None,
) -> Clusters:
  """Clusters texts that differ.

  Args:
    most: clusters at most; of 2 to `most` the number with the largest silhouette is taken, and
      one cluster where texts have no word in common or there are fewer than three.
    fixed: so many clusters instead, or as many as there are texts.
    weights: how much each text counts, for example how often it was said.
  """
  from sklearn.metrics import silhouette_score

  space = _space(texts, language, seed)
  if space is None or len(texts) < 3 and not fixed:
    return Clusters(np.zeros(len(texts), int), np.ones(len(texts)), {})
  different = len(np.unique(space.round(9), axis=0))
  numbers = [min(fixed, different)] if fixed else _numbers(min(most, different - 1))
  if not numbers or numbers == [1]:
    return Clusters(np.zeros(len(texts), int), _nearness(space, np.zeros(len(texts), int)), {})
  best: tuple[float, np.ndarray] | None = None
  silhouettes: dict[int, float] = {}
  for number in numbers:
    labels = _fit(space, number, seed, weights)
    if 1 < len(np.unique(labels)) < len(texts):
      score = silhouette_score(
        space, labels, metric="cosine", sample_size=min(_SAMPLE, len(texts)), random_state=seed
      )
      silhouettes[number] = round(float(score), 4)
    # Of equals the fewer; a fixed number needs no score.
    score = silhouettes.get(number, -1.0)
    if best is None or score > best[0]:
      best = score, labels
  assert best is not None
  labels = _by_size(best[1])
  return Clusters(labels, _nearness(space, labels), silhouettes)


def similarity(texts: Sequence[str], others: Sequence[str], language: str) -> np.ndarray:
  """[texts, others] cosines of TF-IDF vectors, 0 to 1."""
  fitted = vectorizer(language).fit([*texts, *others])
  return (fitted.transform(texts) @ fitted.transform(others).T).toarray()


def terms(
  texts: Sequence[str], inside: Sequence[Sequence[int]], language: str
) -> list[list[str]]:
  """The five terms that tell each group of texts from the rest."""
  fitted = vectorizer(language)
  matrix = fitted.fit_transform(texts)
  names = fitted.get_feature_names_out()
  whole = np.asarray(matrix.mean(axis=0))[0]
  found = []
  for members in inside:
    mean = np.asarray(matrix[list(members)].mean(axis=0))[0]
    order = np.lexsort((np.arange(len(names)), -(mean - whole)))
    found.append([str(names[i]) for i in order[:5] if mean[i] > 0])
  return found


def _space(texts: Sequence[str], language: str, seed: int) -> np.ndarray | None:
  """[texts, dimensions] of length 1; None where there is no word to go by."""
  from sklearn.decomposition import TruncatedSVD
  from sklearn.preprocessing import normalize

  try:
    matrix = vectorizer(language).fit_transform(texts)
  except ValueError:  # Nothing but stop words.
    return None
  if min(matrix.shape) <= _DIMENSIONS:
    return matrix.toarray()
  reduced = TruncatedSVD(_DIMENSIONS, random_state=seed).fit_transform(matrix)
  return normalize(reduced)


def _numbers(most: int) -> list[int]:
  """2, 3, … up to `most`, in steps that grow with the number: at most some forty."""
  found, number = [], 2
  while number <= most:
    found.append(number)
    number += max(1, number // 10)
  return found


def _fit(
  space: np.ndarray, number: int, seed: int, weights: Sequence[float] | None
) -> np.ndarray:
  from sklearn.cluster import KMeans

  means = KMeans(number, n_init=5 if len(space) < 10_000 else 2, random_state=seed)
  return means.fit(
    space, sample_weight=None if weights is None else np.asarray(weights)
  ).labels_


def _by_size(labels: np.ndarray) -> np.ndarray:
  """Labels from 0 by falling size; of equals the one whose first text comes first."""
  found, first, sizes = np.unique(labels, return_index=True, return_counts=True)
  order = np.lexsort((first, -sizes))
  new = {int(found[old]): number for number, old in enumerate(order)}
  return np.asarray([new[int(label)] for label in labels])


def _nearness(space: np.ndarray, labels: np.ndarray) -> np.ndarray:
  near = np.zeros(len(labels))
  for label in np.unique(labels):
    inside = labels == label
    middle = space[inside].mean(axis=0)
    length = np.linalg.norm(middle)
    near[inside] = space[inside] @ middle / length if length else 0.0
  return near.round(9)
