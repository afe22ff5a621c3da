"""What the engine does next, as arrays of few shapes: a chunk of prompts, or rows that grow."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from her_jax.inference.cache import Prefixes, Run, Stretch
from her_jax.inference.pages import SCRATCH, Groups
from her_jax.inference.programs import Chunk, Rows
from her_jax.inference.sampling import Sampling, Settings

# Shared groups that one request is in at most.
_DEPTH = 4


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

  @classmethod
  def of(cls, engine: Mapping[str, int], context: int) -> "Limits":
    """From a config's `engine` section, for requests of up to `context` tokens.

    Where it says `pages` = 0 there is room for `rows` requests that share nothing.
    """
    a_request = -(-(context + cls.steps) // engine["page_size"]) + 2
    return cls(
      rows=engine["rows"],
      pages=engine["pages"] or engine["rows"] * a_request + 1,
      page_size=engine["page_size"],
      context=context,
      chunk=engine["chunk"],
    )

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
  groups: list[_Group] = []
  read: dict[Run, int] = {}
  room = limits.chunk

  for request in active:
    assert request.run
    path = request.run.path()
    for depth, run in enumerate(path):
      done = run.computed + read.get(run, 0)
      while done < len(run.tokens) and room:
        count = min(len(run.tokens) - done, room, limits.query_block)
        seen = [s for above in path[:depth] for s in prefixes.stretches(above)]
        seen += prefixes.stretches(run, done + count)
        groups.append(_Group(list(range(len(tokens), len(tokens) + count)), seen))
        tokens += run.tokens[done : done + count]
        positions += range(run.start + done, run.start + done + count)
        slots += [prefixes.slot(run, i) for i in range(done, done + count)]
        read[run] = read.get(run, 0) + count
        done += count
        room = 0 if len(groups) == _query_blocks(limits, limits.chunk) else room - count
    if not room:
      break

  if not tokens:
    return None
  # Short runs may fill the groups of a size before its tokens.
  size = next(
    size
    for size in limits.chunks
    if size >= len(tokens) and _query_blocks(limits, size) >= len(groups)
  )
  filled = _fill(size)
  lists, places = _reading_lists(groups, size, limits)
  arrays = Chunk(filled(tokens, 0), filled(positions, 0), filled(slots, SCRATCH), lists, places)
  return Reading(arrays, list(read.items()))


def rows(active: Sequence[Request], prefixes: Prefixes, limits: Limits, steps: int) -> Rows:
  """All requests, to grow by `steps` tokens; their pages have room for that."""
  count = next(size for size in limits.row_counts if size >= len(active))
  readers: dict[Run, list[int]] = {}
  own: list[_Group] = []
  slots = np.full((count, limits.steps), SCRATCH, np.int32)
  for i, request in enumerate(active):
    assert request.run
    for run in request.run.path():
      readers.setdefault(run, []).append(i)
    tail = request.own()
    behind = len(request.ids) - 1 - tail.start
    own.append(_Group([i], list(prefixes.stretches(tail, behind + steps))))
    slots[i, :steps] = [prefixes.slot(tail, behind + t) for t in range(steps)]

  settings = [request.sampling for request in active]
  history = None
  if any(s.filtered for s in settings):
    history = np.zeros((count, limits.context), np.int32)
    for i, request in enumerate(active):
      history[i] = request.ids[0]
      history[i, : len(request.ids)] = request.ids
  filled = _fill(count)
  lists, places = _growing_lists(own, _shared(readers, own, prefixes, limits), count, limits)
  return Rows(
    token=filled([request.ids[-1] for request in active], 0),
    position=filled([len(request.ids) - 1 for request in active], 0),
    slots=slots,
    lists=lists,
    places=places,
    settings=Settings.stack(settings, count),
    history=history,
    steps=np.asarray(steps, np.int32),
  )


def shapes(limits: Limits) -> Iterator[Chunk | Rows]:
  """Arguments of every program that is compiled; nothing comes of running them."""
  for size in limits.chunks:
    nothing = np.zeros(size, np.int32)
    lists, places = _reading_lists([], size, limits)
    yield Chunk(nothing, nothing, nothing, lists, places)
  for count in limits.row_counts:
    nothing = np.zeros(count, np.int32)
    lists, places = _growing_lists([], [], count, limits)
    for history in (None, np.zeros((count, limits.context), np.int32)):
      yield Rows(
        token=nothing,
        position=nothing,
        slots=np.full((count, limits.steps), SCRATCH, np.int32),
        lists=lists,
        places=places,
        settings=Settings.stack([], count),
        history=history,
        steps=np.zeros((), np.int32),
      )


@dataclasses.dataclass
class _Group:
  """As in `pages.Groups`."""

  queries: list[int]
  stretches: list[Stretch]


def _shared(
  readers: dict[Run, list[int]], own: Sequence[_Group], prefixes: Prefixes, limits: Limits
) -> list[_Group]:
  """Groups of the runs that several requests read; what one reads alone goes to its own.

  So does what would be the fifth group of a request, or more groups than there is room for.
  """
  together: dict[tuple[int, ...], list[Stretch]] = {}
  for run, ids in readers.items():
    for at in range(0, len(ids), limits.shared):
      part = tuple(ids[at : at + limits.shared])
      together.setdefault(part, []).extend(prefixes.stretches(run))
  found: list[_Group] = []
  held = [0] * len(own)
  for part, stretches in sorted(together.items(), key=lambda x: -len(x[0]) * len(x[1])):
    if len(part) == 1 or len(found) == limits.rows or max(held[i] for i in part) == _DEPTH:
      for i in part:
        own[i].stretches += stretches
      continue
    found.append(_Group(list(part), stretches))
    for i in part:
      held[i] += 1
  return found


def _growing_lists(
  own: Sequence[_Group], several: Sequence[_Group], count: int, limits: Limits
) -> tuple[tuple[Groups, ...], np.ndarray]:
  return _lists(
    [
      _Layout(own, count, 1, limits.stretches, block=16, wide=2),
      _Layout(several, count, limits.shared, limits.stretches, block=8, wide=1),
    ],
    tokens=count,
    most=1 + _DEPTH,
  )


def _reading_lists(
  groups: Sequence[_Group], size: int, limits: Limits
) -> tuple[tuple[Groups, ...], np.ndarray]:
  blocks = _query_blocks(limits, size)
  layout = _Layout(groups, blocks, limits.query_block, limits.stretches, block=4, wide=2)
  return _lists([layout], tokens=size, most=1)


def _query_blocks(limits: Limits, size: int) -> int:
  """Room for groups of prompt tokens: also for some that are short."""
  return 2 * -(-size // limits.query_block)


@dataclasses.dataclass(frozen=True)
class _Layout:
  """Groups, and the shape of the arrays that they are put into.

  Attributes:
    room: for groups.
    shared: queries of a group.
    stretches: of a group; twice, four times … as many where one has more.
    block, wide: as in `pages.Groups`.
  """

  groups: Sequence[_Group]
  room: int
  shared: int
  stretches: int
  block: int
  wide: int


def _lists(
  layouts: Sequence[_Layout], tokens: int, most: int
) -> tuple[tuple[Groups, ...], np.ndarray]:
  """Groups as arrays, and in which rows of their results each token is."""
  found = []
  start = 0
  rows: list[list[int]] = [[] for _ in range(tokens)]
  for layout in layouts:
    block = min(layout.block, layout.room)
    room = -(-layout.room // block) * block
    longest = max((len(g.stretches) for g in layout.groups), default=0)
    stretches = layout.stretches
    while stretches < longest:
      stretches *= 2
    stretches = -(-stretches // layout.wide) * layout.wide
    columns = np.zeros((4, room, stretches), np.int32)
    queries = np.full((room, layout.shared), tokens, np.int32)
    rounds = np.zeros(room // block, np.int32)
    order = sorted(layout.groups, key=lambda g: -len(g.stretches))
    for i, group in enumerate(order):
      queries[i, : len(group.queries)] = group.queries
      for j, query in enumerate(group.queries):
        rows[query].append(start + i * layout.shared + j)
      if group.stretches:
        fields = [(s.page, s.first, s.low, s.high) for s in group.stretches]
        columns[:, i, : len(fields)] = np.asarray(fields, np.int32).T
      rounds[i // block] = max(rounds[i // block], -(-len(group.stretches) // layout.wide))
    blocks = np.asarray(-(-len(order) // block), np.int32)
    found.append(
      Groups(
        queries=queries,
        page=columns[0],
        first=columns[1],
        low=columns[2],
        high=columns[3],
        rounds=rounds,
        blocks=blocks,
        block=block,
        wide=layout.wide,
      )
    )
    start += room * layout.shared
  places = np.full((tokens, most), start, np.int32)
  for query, at in enumerate(rows):
    places[query, : len(at)] = at
  return tuple(found), places


def _fill(size: int) -> Callable[[Sequence[int], int], np.ndarray]:
  """Lists as int32 arrays of that size."""

  def filled(values: Sequence[int], rest: int) -> np.ndarray:
    return np.asarray([*values, *[rest] * (size - len(values))], np.int32)

  return filled
