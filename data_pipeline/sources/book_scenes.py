"""A chapter's paragraphs in pieces that fit a prompt, and the scenes of all put together."""

from collections.abc import Sequence
import dataclasses

from data_pipeline.sources.book_replies import Stretch


def pieces(sizes: Sequence[int], most: int, overlap: int) -> list[tuple[int, int]]:
  """Cuts paragraphs into pieces at their borders.

  Args:
    sizes: of the paragraphs, in characters.
    most: characters of a piece; a longer paragraph is a piece by itself.
    overlap: characters at least that a piece repeats of the one before, so that a scene at the
      border is seen whole or from both sides.

  Returns:
    First and last paragraph of each piece.

  Example:
    pieces([5, 5, 5, 5], most=10, overlap=5) == [(0, 1), (1, 2), (2, 3)]
  """
  found: list[tuple[int, int]] = []
  first = 0
  while first < len(sizes):
    last, size = first, sizes[first]
    while last + 1 < len(sizes) and size + sizes[last + 1] <= most:
      last += 1
      size += sizes[last]
    found.append((first, last))
    if last + 1 == len(sizes):
      return found
    # What is repeated leaves room for what is new.
    back, repeated, room = last + 1, 0, min(most // 2, most - sizes[last + 1])
    while back - 1 > first and repeated < overlap and repeated + sizes[back - 1] <= room:
      back -= 1
      repeated += sizes[back]
    first = back
  return found


def join(found: Sequence[Stretch]) -> list[Stretch]:
  """Scenes of all pieces of a chapter: what overlaps, or goes on from one to the next, is one.

  Example:
    join([Stretch(1, 6, cut_end=True), Stretch(5, 9), Stretch(12, 14)]) ==
      [Stretch(1, 9), Stretch(12, 14)]
  """
  joined: list[Stretch] = []
  for one in sorted(found, key=lambda s: (s.first, s.last)):
    before = joined[-1] if joined else None
    if before and (
      one.first <= before.last
      or (one.first == before.last + 1 and before.cut_end and one.cut_start)
    ):
      end = one if one.last >= before.last else before
      joined[-1] = Stretch(before.first, end.last, before.cut_start, end.cut_end)
    else:
      joined.append(one)
  return joined


def within(found: Sequence[Stretch], first: int, last: int) -> list[Stretch]:
  """Scenes of a chapter; one that is said to go on beyond the chapter's end does not."""
  return [
    dataclasses.replace(
      s, cut_start=s.cut_start and s.first > first, cut_end=s.cut_end and s.last < last
    )
    for s in found
  ]


def window(
  scene: Stretch, first: int, last: int, sizes: Sequence[int], most: int
) -> tuple[int, int]:
  """The piece to ask about again for a scene that was cut: the scene and what lies beyond.

  Args:
    first: the chapter's first paragraph; `last` its last; `sizes` are those of its paragraphs.
  """
  begin, end = scene.first, scene.last
  size = sum(sizes[begin - first : end - first + 1])
  grows = True
  while grows:
    grows = False
    if scene.cut_end and end < last and size + sizes[end + 1 - first] <= most:
      end, size, grows = end + 1, size + sizes[end + 1 - first], True
    if scene.cut_start and begin > first and size + sizes[begin - 1 - first] <= most:
      begin, size, grows = begin - 1, size + sizes[begin - 1 - first], True
  return begin, end


def mended(scene: Stretch, again: Sequence[Stretch]) -> Stretch:
  """A cut scene with its rest, as the second answer has it; as it was if that has none."""
  same = [s for s in again if s.first <= scene.last and scene.first <= s.last]
  if not same:
    return Stretch(scene.first, scene.last)
  return Stretch(min(scene.first, same[0].first), max(scene.last, same[-1].last))


def split(scene: Stretch, sizes: Sequence[int], first: int, most: int) -> list[Stretch]:
  """A scene that is too long for one answer, in parts of about equal size."""
  own = sizes[scene.first - first : scene.last - first + 1]
  parts = -(-sum(own) // most)
  if parts <= 1 or len(own) == 1:
    return [scene]
  aim, start, size = sum(own) / parts, scene.first, 0
  found: list[Stretch] = []
  for i, one in enumerate(own):
    if size and size + one / 2 > aim and len(found) < parts - 1:
      found.append(Stretch(start, scene.first + i - 1))
      start, size = scene.first + i, 0
    size += one
  return [*found, Stretch(start, scene.last)]
