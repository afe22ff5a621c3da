"""Which tokens' keys and values are kept, and in which pages: a trie of token runs.

A request walks the trie along its prompt. What it finds is computed already, or will be by the
request that put it there; the rest becomes a run of its own. So the samples of a group, a pair in
both orders and the turns of one conversation share what they have in common, to the token.

    prefixes = Prefixes(pages=1000, page_size=64)
    run = prefixes.admit(prompt)     # the last run of the prompt's path, which stays while it is used
    prefixes.release(run)
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools

from her_jax.inference.pages import SCRATCH


class OutOfPages(Exception):
  """More pages are asked for than are free or can be freed."""


@dataclasses.dataclass(eq=False)
class Run:
  """Neighbouring tokens of one path, between two places where paths part.

  Attributes:
    start: position of the first.
    pages: that hold them, one after the other.
    offset: slot of the first token in the first page; its page may hold other runs' too.
    computed: how many of them have been written.
    users: requests that end here.
    used: when one did last, by the trie's clock.
  """

  tokens: list[int]
  start: int
  pages: list[int]
  offset: int = 0
  computed: int = 0
  users: int = 0
  used: int = 0
  parent: "Run | None" = None
  children: dict[int, "Run"] = dataclasses.field(default_factory=dict)

  def path(self) -> list["Run"]:
    """From the root's child to this."""
    runs: list[Run] = []
    run: Run | None = self
    while run is not None and run.parent is not None:
      runs.append(run)
      run = run.parent
    return runs[::-1]

  @property
  def end(self) -> int:
    """Position after its last token."""
    return self.start + len(self.tokens)


@dataclasses.dataclass(frozen=True)
class Stretch:
  """The tokens of a run that lie in one page; as an item of `pages.Items`."""

  page: int
  first: int
  low: int
  high: int


class Prefixes:
  """The trie, and whose each page is."""

  def __init__(self, pages: int, page_size: int):
    """`pages` in all, that of `SCRATCH` among them."""
    self.page_size = page_size
    self._holders = [0] * pages
    self._holders[SCRATCH] = 1
    self._free = list(range(pages - 1, SCRATCH, -1))
    self._clock = itertools.count(1)
    self._root = Run([], 0, [])
    self.evicted_tokens = 0

  @property
  def free_pages(self) -> int:
    """Pages that hold nothing."""
    return len(self._free)

  def admit(self, tokens: Sequence[int]) -> tuple[Run, int]:
    """The run in which a path ends, made where it is new, and how many tokens were there.

    It stays until `release`.

    Raises:
      OutOfPages: nothing has changed then.
    """
    run, shared = self._walk(tokens)
    run.users += 1  # So that making room does not remove it.
    if shared < len(tokens):
      rest = list(tokens[shared:])
      try:
        pages = self.take(-(-len(rest) // self.page_size))
      except OutOfPages:
        self.release(run)
        raise
      child = Run(rest, shared, pages, users=1, parent=run)
      run.children[rest[0]] = child
      run.users -= 1
      run = child
    run.used = next(self._clock)
    return run, shared

  def release(self, run: Run) -> None:
    """The opposite of `admit`; what is not computed yet and nobody else's goes."""
    run.users -= 1
    while run.parent and not run.users and not run.children:
      if run.computed == len(run.tokens):
        return
      parent = run.parent
      if run.computed:
        self._cut(run, run.computed)
        return
      self._remove(run)
      run = parent

  def keep(self, run: Run, tokens: Sequence[int], pages: Sequence[int]) -> None:
    """Adds computed tokens that follow a path, and their pages, which become the trie's."""
    held = list(pages)
    run, shared = self._walk(tokens, run)
    if shared < len(tokens):
      skipped, offset = divmod(shared, self.page_size)
      rest = list(tokens[shared:])
      whole = held[skipped : -(-len(tokens) // self.page_size)]
      for page in whole:
        self._holders[page] += 1
      run.children[rest[0]] = Run(
        rest, run.end, whole, offset, len(rest), used=next(self._clock), parent=run
      )
    self.give(held)

  def take(self, count: int) -> list[int]:
    """`count` pages, those of the longest unused runs where too few are free.

    Raises:
      OutOfPages: nothing has changed then.
    """
    if count > len(self._free):
      self._evict(count)
    taken = [self._free.pop() for _ in range(count)]
    for page in taken:
      self._holders[page] = 1
    return taken

  def give(self, pages: Sequence[int]) -> None:
    """Pages that their holder does without."""
    for page in pages:
      self._holders[page] -= 1
      if not self._holders[page]:
        self._free.append(page)

  def clear(self) -> None:
    """Forgets everything: other weights make other keys and values.

    Raises:
      ValueError: requests are under way.
    """
    if any(run.users for run in self._runs()):
      raise ValueError("the cache is in use: finish or cancel the requests that are under way")
    for run in list(self._runs()):
      self.give(run.pages)
    self._root.children.clear()

  def stretches(self, run: Run, upto: int | None = None) -> Iterator[Stretch]:
    """Where the tokens of one run lie, or the first `upto` of them."""
    count = len(run.tokens) if upto is None else upto
    stop = run.offset + count
    for i, page in enumerate(run.pages):
      base = i * self.page_size
      if base >= stop:
        break
      low = max(run.offset - base, 0)
      high = min(stop - base, self.page_size)
      yield Stretch(page, run.start - run.offset + base, low, high)

  def slot(self, run: Run, index: int) -> int:
    """page · page_size + slot of a token of a run."""
    page, slot = divmod(run.offset + index, self.page_size)
    return run.pages[page] * self.page_size + slot

  def _walk(self, tokens: Sequence[int], run: Run | None = None) -> tuple[Run, int]:
    """Follows tokens from a run (the root) as far as they go; parts the last run there."""
    run = run or self._root
    at = 0
    while at < len(tokens) and (child := run.children.get(tokens[at])):
      ours = child.tokens
      same = 0
      limit = min(len(ours), len(tokens) - at)
      while same < limit and ours[same] == tokens[at + same]:
        same += 1
      at += same
      if same < len(ours):
        return self._part(child, same), at
      run = child
    return run, at

  def _part(self, run: Run, at: int) -> Run:
    """Makes two runs of one; the new one is the upper, the old one keeps those who end in it."""
    assert run.parent and 0 < at < len(run.tokens)
    border = run.offset + at
    page, offset = divmod(border, self.page_size)
    upper = Run(
      run.tokens[:at],
      run.start,
      run.pages[: -(-border // self.page_size)],
      run.offset,
      min(run.computed, at),
      used=run.used,
      parent=run.parent,
      children={run.tokens[at]: run},
    )
    run.parent.children[run.tokens[0]] = upper
    if offset:
      self._holders[run.pages[page]] += 1
    run.pages = run.pages[page:]
    run.tokens = run.tokens[at:]
    run.start += at
    run.offset = offset
    run.computed = max(run.computed - at, 0)
    run.parent = upper
    return upper

  def _cut(self, run: Run, count: int) -> None:
    """Forgets all but the first `count` tokens of a run without children."""
    used = -(-(run.offset + count) // self.page_size)
    self.give(run.pages[used:])
    run.pages, run.tokens = run.pages[:used], run.tokens[:count]

  def _remove(self, run: Run) -> None:
    assert run.parent and not run.children and not run.users
    del run.parent.children[run.tokens[0]]
    self.give(run.pages)

  def _evict(self, count: int) -> None:
    """Removes unused runs, the longest unused first, until `count` pages are free."""
    if count > len(self._free) + self._evictable():
      raise OutOfPages(f"{count} pages are asked for; {len(self._free)} are free")
    while count > len(self._free):
      leaves = [run for run in self._runs() if not run.children and not run.users]
      oldest = min(leaves, key=lambda run: run.used)
      self.evicted_tokens += len(oldest.tokens)
      self._remove(oldest)

  def _evictable(self) -> int:
    """Pages that would be free if all unused runs went."""
    needed: set[int] = set()
    held: dict[int, int] = {}
    for run in self._runs():
      for page in run.pages:
        held[page] = held.get(page, 0) + 1
    for run in self._runs():
      if run.users:
        for above in run.path():
          needed.update(above.pages)
    return sum(
      1 for page, ours in held.items() if page not in needed and ours == self._holders[page]
    )

  def _runs(self) -> Iterator[Run]:
    """All runs, from the root's children on."""
    stack = list(self._root.children.values())
    while stack:
      run = stack.pop()
      stack += run.children.values()
      yield run
