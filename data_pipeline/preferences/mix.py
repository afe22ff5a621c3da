"""Which labelled pairs make up the judge's mix, and in which order of their candidates.

    class    principles                      cells and shares (HER, arXiv 2601.21459)
    mixed    not all on one side             cand_1 30 %, cand_2 30 %
    all      all for the winner              cand_1 12 %, cand_2 12 %
    tie      as may be, the label is a tie   10 %
    flipped  all that decide for the loser   cand_1 3 %, cand_2 3 %

A pair can be shown in either order, so both cells of a class draw on the same pairs, and the
order is balanced exactly. The longer reply loses as often as it wins, and those where it loses are
chosen to differ in length as much as those where it wins: neither the order nor the length tells
anything of the label. That holds within each class but for flipped pairs, which are few and may
lean to one side; the mixed ones then lean to the other.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import math
import random
from typing import Any

from data_pipeline.preferences.hard_negatives import LENGTHENED, SPOILT
from data_pipeline.preferences.lengths import log_ratio
from her_jax.roleplay.schema import PreferencePair

# Class → share of each of its cells, in thousandths.
MIX = {"mixed": (300, 300), "all": (120, 120), "tie": (100,), "flipped": (30, 30)}
UNUSED = "undecided"  # A winner, but no principle that is for it or against it.


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
  """What a choice needs of a pair: its number, class, label and length.

  `ratio` is the log ratio of candidate 1 to candidate 2, see `lengths.log_ratio`.
  """

  index: int
  kind: str
  winner: str
  ratio: float

  @property
  def pull(self) -> float:
    """Above 0 where the longer reply wins, below where it loses; 0 for ties and equal lengths."""
    return {"cand_1": self.ratio, "cand_2": -self.ratio}.get(self.winner, 0.0)


@dataclasses.dataclass(frozen=True)
class Choice:
  """A pair that was taken: itself or what was made of it, and whether to swap its order."""

  item: Item
  swap: bool
  made: PreferencePair | None = None


@dataclasses.dataclass
class Row:
  """A line of the table. `made` counts those of `taken` that were made for the mix, by kind."""

  kind: str
  wanted: tuple[int, ...]
  had: int = 0
  longer_wins: int = 0
  longer_loses: int = 0
  taken: tuple[int, ...] = ()
  made: dict[str, int] = dataclasses.field(default_factory=dict)

  @property
  def missing(self) -> int:
    return sum(self.wanted) - sum(self.taken)


def wanted(total: int) -> dict[str, tuple[int, ...]]:
  """How many pairs each cell gets; they add up to `total`.

  Example:
    wanted(100)["mixed"] == (30, 30)
  """
  cells = [(kind, i, share) for kind, shares in MIX.items() for i, share in enumerate(shares)]
  counts = {(kind, i): total * share // 1000 for kind, i, share in cells}
  order = sorted(cells, key=lambda cell: -(total * cell[2] % 1000))
  for kind, i, _ in order[: total - sum(counts.values())]:
    counts[kind, i] += 1
  return {kind: tuple(counts[kind, i] for i in range(len(s))) for kind, s in MIX.items()}


# The smallest total of which every cell gets a pair.
SMALLEST = next(
  n for n in range(1, 1000) if min(min(cells) for cells in wanted(n).values()) > 0
)
# Makes a pair of a kind out of an item's; None where that cannot be done.
Make = Callable[[str, Item], PreferencePair | None]


@dataclasses.dataclass(frozen=True)
class Options:
  """How the mix is filled.

  Attributes:
    contrast: whether the longer reply must lose as often as it wins.
    lengthen: whether losers are lengthened where too few are the longer reply.
    flip: kind of pair to make where too few are flipped: SPOILT, RELABELLED or "" for none.
  """

  contrast: bool = True
  lengthen: bool = True
  flip: str = SPOILT


def choose(
  items: Sequence[Item], total: int, seed: int | str, options: Options, make: Make
) -> tuple[list[Choice], list[Row]]:
  """The choices, and the table of what was wanted, there and taken.

  Each pair is taken once at most, also those that others are made of. The choice depends on
  the arguments alone.
  """
  return _Chooser(random.Random(f"mix/{seed}"), options, make).choose(items, wanted(total))


def choose_whole(
  items: Sequence[Item], seed: int | str, options: Options, make: Make
) -> tuple[list[Choice], list[Row]]:
  """The largest choice found of which every cell has a pair and none is missing.

  Where there is none the choice is empty, and the table that of the smallest one there could be.
  """
  total = max(len(items), SMALLEST)
  while True:
    choices, rows = choose(items, total, seed, options, make)
    if not any(row.missing for row in rows):
      return choices, rows
    if total == SMALLEST:
      return [], rows
    reach = min(1000 * sum(row.taken) // sum(MIX[row.kind]) for row in rows)
    total = max(SMALLEST, min(total - 1, reach + 1))


class _Chooser:
  def __init__(self, rng: random.Random, options: Options, make: Make):
    self._rng, self._options, self._make = rng, options, make
    # Pulls of those taken so far that none of the other sign makes up for.
    self._open: list[float] = []

  def choose(
    self, items: Sequence[Item], plan: dict[str, tuple[int, ...]]
  ) -> tuple[list[Choice], list[Row]]:
    by_kind: dict[str, list[Choice]] = {kind: [] for kind in MIX}
    rows = {kind: Row(kind, cells) for kind, cells in plan.items()}
    for item in items:
      if item.kind == UNUSED:
        continue
      by_kind[item.kind].append(Choice(item, False))
      rows[item.kind].had += 1
      rows[item.kind].longer_wins += item.pull > 0
      rows[item.kind].longer_loses += item.pull < 0
    for material in by_kind.values():
      self._rng.shuffle(material)
    taken: dict[str, list[Choice]] = {"mixed": [], "all": [], "flipped": []}
    pool: list[Choice] = by_kind["all"]
    spare: list[Choice] = []
    lacking = max(0, sum(plan["flipped"]) - len(by_kind["flipped"]))
    if self._options.flip and pool and len(pool) < sum(plan["all"]) + lacking:
      # Both classes need them and there are too few: each gets its part.
      keep = round(len(pool) * lacking / (sum(plan["all"]) + lacking))
      pool, spare = pool[keep:], pool[:keep]
    taken["all"] = self._decided(pool, sum(plan["all"]))
    spare += _without(pool, taken["all"])
    flipped = by_kind["flipped"] + self._flipped(spare, by_kind["flipped"], plan["flipped"])
    taken["flipped"] = self._leaning(flipped, sum(plan["flipped"]))
    taken["mixed"] = self._decided(by_kind["mixed"], sum(plan["mixed"]))
    while len(self._open) > 1:  # More than the mixed pairs could make up for.
      sign = _sign(self._open.pop())
      at = next(i for i, c in enumerate(taken["flipped"]) if _sign(c.item.pull) == sign)
      del taken["flipped"][at]
    taken["tie"] = self._ties(by_kind["tie"], sum(plan["tie"]))
    choices: list[Choice] = []
    for kind, chosen in taken.items():
      made = Counter(choice.made.kind for choice in chosen if choice.made is not None)
      rows[kind].made = dict(made)
      if kind == "tie":
        rows[kind].taken = (len(chosen),)
      else:
        chosen, rows[kind].taken = self._ordered(chosen, plan[kind])
      choices += chosen
    return sorted(choices, key=lambda choice: choice.item.index), list(rows.values())

  def _decided(self, choices: list[Choice], count: int) -> list[Choice]:
    """Up to `count` of those with a winner, by which the lean so far is made up for."""
    if not self._options.contrast:
      return choices[:count]
    wins, loses, even = _by_sign(choices)
    lean = max(-count, min(count, sum(map(_sign, self._open))))
    if self._options.lengthen:
      need = (count - abs(lean)) // 2 + max(0, lean)
      few = min(need - len(loses), (len(wins) - len(loses) + lean) // 2)
      wins, more = self._made_of(wins, LENGTHENED, few)
      loses = loses + more
    # First what makes up, then as many of each, then what is of equal length.
    taken = _nearest(self._open[: abs(lean)], loses if lean > 0 else wins)
    self._open = self._open[len(taken) :]
    wins, loses = _without(wins, taken), _without(loses, taken)
    taken += _alike(wins, loses, (count - len(taken)) // 2)
    taken += even[: count - len(taken)]
    for part, sign in (
      (loses, -1),
      (wins, 1),
    ):  # An odd one, if it does not add to what is open.
      left = _without(part, taken)
      if len(taken) < count and left and not (self._open and _sign(self._open[0]) == sign):
        taken.append(left[0])
        self._count(left[0].item.pull)
    return taken

  def _count(self, pull: float) -> None:
    """Makes up for one that is open, or is open itself: all that are have one sign."""
    if self._open and _sign(self._open[0]) != _sign(pull):
      self._open.pop()
    else:
      self._open.append(pull)

  def _leaning(self, choices: list[Choice], count: int) -> list[Choice]:
    """Up to `count`, as many of either sign as there are; what is left over stays open."""
    if not self._options.contrast:
      return choices[:count]
    wins, loses, even = _by_sign(choices)
    taken = _alike(wins, loses, count // 2)
    taken += even[: count - len(taken)]
    rest = _without([*wins, *loses], taken)[: count - len(taken)]
    for choice in rest:
      self._count(choice.item.pull)
    return taken + rest

  def _made_of(
    self, choices: list[Choice], kind: str, count: int
  ) -> tuple[list[Choice], list[Choice]]:
    """Makes `count` pairs out of the first choices that allow it; the rest, and what was made."""
    rest: list[Choice] = []
    made: list[Choice] = []
    for choice in choices:
      pair = self._make(kind, choice.item) if len(made) < count else None
      if pair is None:
        rest.append(choice)
      else:
        made.append(_of(pair, choice.item))
    return rest, made

  def _flipped(
    self, spare: Iterable[Choice], have: Sequence[Choice], cells: tuple[int, ...]
  ) -> list[Choice]:
    """Flipped pairs made of spare ones, as many as are missing of each sign."""
    if not self._options.flip:
      return []
    count = sum(cells)
    # Of each sign first as many as balance, then of any.
    half = (count + 1) // 2
    room = {sign: half - sum(_sign(c.item.pull) == sign for c in have) for sign in (1, -1)}
    made: list[Choice] = []
    later: list[Choice] = []
    for choice in spare:
      if len(made) + len(have) >= count:
        break
      # Who won loses now.
      if self._options.contrast and room.get(-_sign(choice.item.pull), 1) <= 0:
        later.append(choice)
        continue
      for new in self._made_of([choice], self._options.flip, 1)[1]:
        made.append(new)
        room[_sign(new.item.pull)] = room.get(_sign(new.item.pull), 0) - 1
    return made + self._made_of(later, self._options.flip, count - len(made) - len(have))[1]

  def _ordered(
    self, choices: Sequence[Choice], cells: tuple[int, ...]
  ) -> tuple[list[Choice], tuple[int, int]]:
    """Says for each whether to swap it, so that candidate 1 wins as often as candidate 2."""
    count = len(choices)
    ones = min(cells[0], (count + (cells[0] >= cells[1])) // 2)
    places = [i % 2 == 0 for i in range(count)]
    # Those where the longer one wins and those where it loses go to both cells alike.
    signs = sorted(range(count), key=lambda i: (_sign(choices[i].item.pull), i))
    first = dict(zip(signs, places, strict=True))
    surplus = sum(places) - ones
    for i in signs:
      if surplus == 0:
        break
      if first[i] == (surplus > 0):
        first[i] = not first[i]
        surplus -= 1 if surplus > 0 else -1
    return [
      dataclasses.replace(c, swap=(c.item.winner == "cand_1") != first[i])
      for i, c in enumerate(choices)
    ], (ones, count - ones)

  def _ties(self, choices: list[Choice], count: int) -> list[Choice]:
    """Up to `count` ties; the longer reply stands first in every second one."""
    taken = choices[:count]
    first, made = True, []
    for choice in taken:
      swap = choice.item.ratio != 0 and (choice.item.ratio > 0) != first
      first = first != (choice.item.ratio != 0)
      made.append(dataclasses.replace(choice, swap=swap))
    return made


def _by_sign(choices: Iterable[Choice]) -> tuple[list[Choice], list[Choice], list[Choice]]:
  """Those where the longer reply wins, where it loses, and of equal lengths."""
  parts: dict[int, list[Choice]] = {1: [], -1: [], 0: []}
  for choice in choices:
    parts[_sign(choice.item.pull)].append(choice)
  return parts[1], parts[-1], parts[0]


def _without(choices: Iterable[Choice], taken: Iterable[Choice]) -> list[Choice]:
  used = {choice.item.index for choice in taken}
  return [choice for choice in choices if choice.item.index not in used]


def _alike(one: Sequence[Choice], other: Sequence[Choice], count: int) -> list[Choice]:
  """Up to `count` of each, matched so that lengths differ by as much on both sides."""
  few, many = (one, other) if len(one) <= len(other) else (other, one)
  few = few[: min(count, len(few))]
  return [*few, *_nearest([choice.item.pull for choice in few], many)]


def _nearest(pulls: Sequence[float], choices: Iterable[Choice]) -> list[Choice]:
  """For each pull the choice nearest in size, those hardest to match first; each once."""
  left = sorted(choices, key=lambda choice: abs(choice.item.pull))
  sizes = [abs(choice.item.pull) for choice in left]
  taken: list[Choice] = []
  for size in sorted(map(abs, pulls), reverse=True)[: len(left)]:
    at = bisect.bisect_left(sizes, size)
    if at == len(sizes) or (at and size - sizes[at - 1] < sizes[at] - size):
      at -= 1
    sizes.pop(at)
    taken.append(left.pop(at))
  return taken


def _of(pair: PreferencePair, item: Item) -> Choice:
  """A made pair as a choice, in the place of the one that it was made of."""
  ratio = log_ratio(len(pair.candidate_1), len(pair.candidate_2))
  return Choice(dataclasses.replace(item, winner=pair.winner, ratio=ratio), False, pair)


def _sign(value: float) -> int:
  return int(math.copysign(1, value)) if value else 0


def shortages(rows: Sequence[Row], options: Options) -> list[str]:
  """What is missing of the mix, in words, with the mend."""
  said = []
  for row in rows:
    if row.missing <= 0:
      continue
    text = (
      f"{row.kind}: {row.missing} of {sum(row.wanted)} pairs are missing; there were {row.had}"
    )
    mends: list[Any] = [
      {
        "mixed": "label more pairs, of candidates that are close in quality",
        "all": "label more pairs, of candidates that differ in quality",
        "tie": "label more pairs, with --contradiction=tie",
        "flipped": "label more pairs that one reply wins by all principles",
      }[row.kind]
    ]
    if options.contrast and row.kind != "tie":
      text += f" (the longer reply wins in {row.longer_wins} and loses in {row.longer_loses})"
      if row.had >= sum(row.wanted):
        mends.append("pass --nolength_contrast to take them whatever their lengths")
    if row.kind == "flipped" and not options.flip:
      mends.append("pass --flipped=spoilt and --scenes to make them")
    if row.kind in ("mixed", "all") and options.contrast and not options.lengthen:
      mends.append("pass --lengthen and --scenes to make some")
    said.append(f"{text}; {', or '.join(mends)}")
  return said
