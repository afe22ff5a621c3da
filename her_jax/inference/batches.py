"""What the engine does next, as arrays of few shapes: a chunk of prompts, or rows that grow."""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses

import numpy as np

from her_jax.inference.cache import Prefixes, Run, Stretch
from her_jax.inference.pages import SCRATCH, Items
from her_jax.inference.programs import Chunk, Rows
from her_jax.inference.sampling import Sampling, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """What is worked on together, and how much is kept.

  Attributes:
    rows: requests that grow together.
    pages: of the cache. One holds `page_size` tokens of 2 · layers · kv_heads · head_dim numbers.
    page_size: tokens of a page.
    context: longest prompt and completion together.
    chunk: prompt tokens that are read together.
    steps: tokens by which replies grow from one look at them to the next.
    shared: requests that read a common page together.
    query_block: prompt tokens that read a page together.
  """

  rows: int = 64
  pages: int = 1024
  page_size: int = 64
  context: int = 4096
  chunk: int = 512
  steps: int = 8
  shared: int = 8
  query_block: int = 64

  def __post_init__(self):
    """Refuses limits under which a request could never run.

    Raises:
      ValueError: naming them.
    """
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < 1:
        raise ValueError(f"{field.name} is {getattr(self, field.name)}; it must be at least 1")
    needed = -(-(self.context + self.steps) // self.page_size) + 2
    if self.pages < needed:
      raise ValueError(
        f"{self.pages} pages of {self.page_size} tokens cannot hold one request of"
        f" context = {self.context}: give it {needed} pages or more"
      )

  @property
  def row_counts(self) -> list[int]:
    """Rows of the compiled programs, the fewest first."""
    return sorted({max(self.rows >> i, 1) for i in range(4)})

  @property
  def chunks(self) -> list[int]:
    """Tokens of the compiled programs, the fewest first."""
    return sorted({max(self.chunk // 4, 1), self.chunk})

  @property
  def stretches(self) -> int:
    """Room for the stretches of one request: its pages, and places where paths part."""
    return -(-(self.context + self.steps) // self.page_size) + 8


@dataclasses.dataclass(eq=False)
class Request:
  """One request on its way.

  Attributes:
    number: that its caller knows it by.
    ids: prompt and completion so far.
    room: tokens of the completion at most.
    prompt: tokens of the prompt.
    run: the last of its path; the path ends before the last id that was known when it began.
    pages: of its own, for what comes after the path.
  """

  number: int
  ids: list[int]
  sampling: Sampling
  room: int
  prompt: int = 0
  run: Run | None = None
  pages: list[int] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    """Counts the prompt."""
    self.prompt = len(self.ids)

  @property
  def drawn(self) -> int:
    """Tokens of the completion so far."""
    return len(self.ids) - self.prompt

  def own(self) -> Run:
    """What comes after the path, as a run."""
    assert self.run
    return Run(self.ids[self.run.end :], self.run.end, self.pages)

  def missing_pages(self, steps: int, page_size: int) -> int:
    """How many more its own part takes while it grows by `steps`."""
    assert self.run
    needed = -(-(len(self.ids) - 1 + steps - self.run.end) // page_size)
    return max(needed - len(self.pages), 0)


@dataclasses.dataclass(frozen=True)
class Reading:
  """A chunk, and how many tokens of which runs it reads."""

  arrays: Chunk
  read: list[tuple[Run, int]]


def chunk(active: Iterable[Request], prefixes: Prefixes, limits: Limits) -> Reading | None:
  """The next tokens that are to be read, those of the first requests first; None where all are.

  A run that several wait for is read once. Keys and values of a chunk are written before any
  of its queries looks, so a run may be read with those before it in its path.
  """
  tokens: list[int] = []
  positions: list[int] = []
  slots: list[int] = []
  items: list[tuple[Stretch, Sequence[int]]] = []
  read: dict[Run, int] = {}
  room = limits.chunk
  most = _reading_room(limits, limits.chunk)

  for request in active:
    assert request.run
    path = request.run.path()
    for depth, run in enumerate(path):
      done = run.computed + read.get(run, 0)
      while done < len(run.tokens) and room:
        count = min(len(run.tokens) - done, room, limits.query_block)
        seen = [s for above in path[:depth] for s in prefixes.stretches(above)]
        seen += prefixes.stretches(run, done + count)
        if items and len(items) + len(seen) > most:
          room = 0
          break
        queries = range(len(tokens), len(tokens) + count)
        items += [(stretch, queries) for stretch in seen]
        tokens += run.tokens[done : done + count]
        positions += range(run.start + done, run.start + done + count)
        slots += [prefixes.slot(run, i) for i in range(done, done + count)]
        read[run] = read.get(run, 0) + count
        done += count
        room -= count
    if not room:
      break

  if not tokens:
    return None
  size = next(size for size in limits.chunks if size >= len(tokens))
  filled = _fill(size)
  arrays = Chunk(
    tokens=filled(tokens, 0),
    positions=filled(positions, 0),
    slots=filled(slots, SCRATCH),
    lists=(_items(items, limits.query_block, size, _reading_room(limits, size), block=4),),
  )
  return Reading(arrays, list(read.items()))


def rows(active: Sequence[Request], prefixes: Prefixes, limits: Limits, steps: int) -> Rows:
  """All requests, to grow by `steps` tokens; their pages have room for that."""
  count = next(size for size in limits.row_counts if size >= len(active))
  shared: dict[Run, list[int]] = {}
  single: list[tuple[Stretch, Sequence[int]]] = []
  several: list[tuple[Stretch, Sequence[int]]] = []
  slots = np.full((count, limits.steps), SCRATCH, np.int32)
  for i, request in enumerate(active):
    assert request.run
    for run in request.run.path():
      shared.setdefault(run, []).append(i)
    own = request.own()
    behind = len(request.ids) - 1 - own.start
    single += [(s, (i,)) for s in prefixes.stretches(own, behind + steps)]
    slots[i, :steps] = [prefixes.slot(own, behind + t) for t in range(steps)]
  for run, readers in shared.items():
    for at in range(0, len(readers), limits.shared):
      together = readers[at : at + limits.shared]
      into = several if len(together) > 1 else single
      into += [(s, together) for s in prefixes.stretches(run)]

  settings = [request.sampling for request in active]
  history = None
  if any(s.filtered for s in settings):
    history = np.zeros((count, limits.context), np.int32)
    for i, request in enumerate(active):
      history[i] = request.ids[0]
      history[i, : len(request.ids)] = request.ids
  filled = _fill(count)
  return Rows(
    token=filled([request.ids[-1] for request in active], 0),
    position=filled([len(request.ids) - 1 for request in active], 0),
    slots=slots,
    lists=_growing_lists(single, several, count, limits),
    settings=Settings.stack(settings, count),
    history=history,
    steps=np.int32(steps),
  )


def shapes(limits: Limits) -> Iterator[Chunk | Rows]:
  """Arguments of every program that is compiled; nothing comes of running them."""
  for size in limits.chunks:
    nothing = np.zeros(size, np.int32)
    lists = (_items([], limits.query_block, size, _reading_room(limits, size), block=4),)
    yield Chunk(nothing, nothing, nothing, lists)
  for count in limits.row_counts:
    nothing = np.zeros(count, np.int32)
    for history in (None, np.zeros((count, limits.context), np.int32)):
      yield Rows(
        token=nothing,
        position=nothing,
        slots=np.full((count, limits.steps), SCRATCH, np.int32),
        lists=_growing_lists([], [], count, limits),
        settings=Settings.stack([], count),
        history=history,
        steps=np.int32(0),
      )


def _growing_lists(
  single: list[tuple[Stretch, Sequence[int]]],
  several: list[tuple[Stretch, Sequence[int]]],
  count: int,
  limits: Limits,
) -> tuple[Items, ...]:
  room = count * limits.stretches
  return (
    _items(single, 1, count, room, block=16),
    _items(several, limits.shared, count, room, block=4),
  )


def _reading_room(limits: Limits, size: int) -> int:
  return (-(-size // limits.query_block) + 1) * limits.stretches


def _items(
  found: list[tuple[Stretch, Sequence[int]]], shared: int, none: int, room: int, block: int
) -> Items:
  """As arrays, with room for `room` items, or for twice, four times … as many if they are more."""
  while len(found) > room:
    room *= 2
  room = -(-room // block) * block
  columns = np.zeros((4, room), np.int32)
  queries = np.full((room, shared), none, np.int32)
  for i, (stretch, readers) in enumerate(found):
    columns[:, i] = stretch.page, stretch.first, stretch.low, stretch.high
    queries[i, : len(readers)] = readers
  return Items(*columns, queries=queries, count=np.int32(len(found)), block=block)


def _fill(size: int):
  """Lists as int32 arrays of that size."""

  def filled(values: Sequence[int], rest: int) -> np.ndarray:
    return np.asarray([*values, *[rest] * (size - len(values))], np.int32)

  return filled
