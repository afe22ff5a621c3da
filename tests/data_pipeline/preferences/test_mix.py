"""The mix, on synthetic material: exact counts, and what is missing said."""

from collections import Counter
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from data_pipeline.preferences import hard_negatives, mix
from data_pipeline.preferences.hard_negatives import LENGTHENED, RELABELLED, SPOILT
from data_pipeline.preferences.lengths import Lengths
from data_pipeline.preferences.mix import MIX, Item, Options
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import PreferencePair

KINDS = (*MIX, mix.UNUSED)


def _pair(item: Item) -> PreferencePair:
  """A pair of the item's label and lengths."""
  long = 200
  other = round((long + 1) / 2.718281828 ** abs(item.ratio)) - 1
  one, two = (long, other) if item.ratio > 0 else (other, long)
  return PreferencePair(str(item.index), "s", 0, "x" * one, "y" * two, item.winner)


def _make(kind: str, item: Item) -> PreferencePair:
  """As `hard_negatives` do: the label turned round, or the loser made longer."""
  pair = _pair(item)
  if kind in (SPOILT, RELABELLED):
    return PreferencePair(
      f"{pair.id}/{kind}", "s", 0, pair.candidate_1, pair.candidate_2, swap(pair.winner), kind
    )
  texts = [pair.candidate_1, pair.candidate_2]
  loser = 1 if pair.winner == "cand_1" else 0
  texts[loser] = "z" * round(len(texts[1 - loser]) * 2.718281828 ** max(abs(item.ratio), 0.1))
  return PreferencePair(f"{pair.id}/{kind}", "s", 0, *texts, pair.winner, kind)


def _item(index: int, kind: str, rng: random.Random, bias: float = 0.5) -> Item:
  """`bias` is the share in which the longer reply wins."""
  size = abs(rng.gauss(0, 0.5)) + 0.05
  winner = rng.choice(["cand_1", "cand_2"])
  longer_wins = rng.random() < bias
  ratio = size if (winner == "cand_1") == longer_wins else -size
  if kind == "tie":
    return Item(index, kind, "tie", ratio)
  return Item(index, kind, winner, 0.0 if rng.random() < 0.05 else ratio)


def _material(counts: dict[str, int], seed: int, bias: float = 0.5) -> list[Item]:
  rng = random.Random(seed)
  kinds = [kind for kind, n in counts.items() for _ in range(n)]
  rng.shuffle(kinds)
  return [_item(i, kind, rng, bias) for i, kind in enumerate(kinds)]


def _outcome(choice: mix.Choice) -> tuple[str, float]:
  """Label and log ratio as they are written."""
  item = choice.item
  return (swap(item.winner), -item.ratio) if choice.swap else (item.winner, item.ratio)


def _class(choice: mix.Choice) -> str:
  if choice.made is not None and choice.made.kind in (SPOILT, RELABELLED):
    return "flipped"
  return choice.item.kind


@hypothesis.given(st.integers(0, 100_000))
def test_cells_add_up_to_the_total(total):
  plan = mix.wanted(total)
  assert sum(map(sum, plan.values())) == total
  for kind, cells in plan.items():
    assert len(cells) == len(MIX[kind])
    for share, n in zip(MIX[kind], cells, strict=True):
      assert abs(n - total * share / 1000) < 1
    assert max(cells) - min(cells) <= 1


def test_the_shares_are_those_of_her():
  assert mix.wanted(100) == {
    "mixed": (30, 30), "all": (12, 12), "tie": (10,), "flipped": (3, 3)
  }  # fmt: skip


_OPTIONS = st.builds(
  Options, st.booleans(), st.booleans(), st.sampled_from([SPOILT, RELABELLED, ""])
)


@hypothesis.given(
  st.fixed_dictionaries({kind: st.integers(0, 40) for kind in KINDS}),
  st.integers(0, 150),
  st.integers(0, 5),
  st.floats(0, 1),
  _OPTIONS,
)
def test_whatever_the_material_the_table_is_what_was_taken(counts, total, seed, bias, options):
  items = _material(counts, seed, bias)
  choices, rows = mix.choose(items, total, seed, options, _make)
  assert len({c.item.index for c in choices}) == len(choices)  # No pair twice.
  by_class = {kind: [c for c in choices if _class(c) == kind] for kind in MIX}
  for row in rows:
    taken = by_class[row.kind]
    assert row.had == counts[row.kind] and row.wanted == mix.wanted(total)[row.kind]
    assert sum(row.taken) == len(taken) <= sum(row.wanted)
    assert dict(Counter(c.made.kind for c in taken if c.made)) == row.made
    if row.kind != "tie":
      labels = Counter(_outcome(c)[0] for c in taken)
      assert (labels["cand_1"], labels["cand_2"]) == row.taken
      assert abs(row.taken[0] - row.taken[1]) <= 1  # The order is balanced.
    if not options.contrast and row.kind in ("mixed", "tie"):
      assert len(taken) == min(row.had, sum(row.wanted))
  if options.contrast:
    pulls = [c.item.pull for c in choices if c.item.kind != "tie"]
    assert abs(sum(p > 0 for p in pulls) - sum(p < 0 for p in pulls)) <= 1
  if not options.flip:
    assert rows[-1].taken and not rows[-1].made
  missing = mix.shortages(rows, options)
  assert [text.split(":")[0] for text in missing] == [r.kind for r in rows if r.missing]
  assert (choices, rows) == mix.choose(items, total, seed, options, _make)


@hypothesis.given(st.integers(0, 300), st.integers(0, 3))
@hypothesis.settings(max_examples=30)
def test_with_enough_of_all_every_cell_is_filled_exactly(total, seed):
  # Enough: three times what is wanted, so that longer losers and winners suffice.
  counts = {kind: 3 * sum(cells) + 30 for kind, cells in mix.wanted(total).items()}
  choices, rows = mix.choose(_material(counts, seed), total, seed, Options(), _make)
  assert [row.taken for row in rows] == list(mix.wanted(total).values())
  assert len(choices) == total and not mix.shortages(rows, Options())


def test_length_tells_nothing_after_the_choice_and_did_before():
  items = _material({"mixed": 900, "all": 500, "tie": 100, "flipped": 10}, 3, bias=0.8)
  before, after = Lengths(), Lengths()
  for item in items:
    before.put(item.winner, *map(len, (_pair(item).candidate_1, _pair(item).candidate_2)))
  choices, rows = mix.choose(items, 600, 0, Options(), _make)
  for choice in choices:
    label, ratio = _outcome(choice)
    after.labels.append({"cand_1": 1, "cand_2": -1, "tie": 0}[label])
    after.ratios.append(ratio)
  assert before.as_dict()["length_correlation"] > 0.4
  told = after.as_dict()
  assert abs(told["length_correlation"]) < 0.05
  assert abs(told["longer_wins"] - told["longer_loses"]) <= 1
  assert not any(row.missing for row in rows)


def test_longer_losers_are_made_where_the_longer_reply_always_wins():
  items = _material({"mixed": 200, "all": 100, "tie": 40, "flipped": 0}, 1, bias=1.0)
  _, rows = mix.choose(items, 100, 0, Options(), _make)
  assert not any(row.missing for row in rows)
  # Every second one but for those of equal length; flipped ones all go against the longer.
  made = {row.kind: row.made.get(LENGTHENED, 0) for row in rows}
  assert 20 <= made["mixed"] <= 27 and 8 <= made["all"] <= 12
  _, rows = mix.choose(items, 100, 0, Options(lengthen=False), _make)
  (mixed, *_), options = rows, Options(lengthen=False)
  assert mixed.missing > 40 and mixed.longer_loses == 0
  assert "pass --lengthen" in mix.shortages(rows, options)[0]
  assert "--nolength_contrast" in mix.shortages(rows, options)[0]


def test_a_scarce_class_is_shared_by_those_that_need_it():
  items = _material({"mixed": 400, "all": 60, "tie": 100, "flipped": 0}, 2)
  _, rows = mix.choose(items, 400, 0, Options(), _make)
  by = {row.kind: row for row in rows}
  # 96 and 24 are wanted, and there are 60: four fifths and one fifth.
  assert 30 <= sum(by["all"].taken) <= 48 and 12 <= sum(by["flipped"].taken) <= 24
  assert "flipped: " in mix.shortages(rows, Options())[-1]


def test_the_largest_whole_mix_leaves_nothing_out():
  items = _material({"mixed": 300, "all": 300, "tie": 17, "flipped": 0}, 5)
  choices, rows = mix.choose_whole(items, 0, Options(), _make)
  assert not any(row.missing for row in rows)
  assert 165 <= len(choices) <= 174  # 17 ties are a tenth, or a rounding more, of so many.
  larger, rows = mix.choose(items, len(choices) + 10, 0, Options(), _make)
  assert any(row.missing for row in rows)
  assert mix.choose_whole(_material({"mixed": 50}, 0), 0, Options(), _make)[0] == []
  assert min(map(min, mix.wanted(mix.SMALLEST).values())) == 1


def test_another_seed_is_another_choice():
  items = _material({"mixed": 300, "all": 300, "tie": 100, "flipped": 30}, 5)
  taken = [
    {c.item.index for c in mix.choose(items, 100, seed, Options(), _make)[0]} for seed in (0, 1)
  ]
  assert taken[0] != taken[1]


@pytest.mark.parametrize("winner", ["cand_1", "cand_2", "tie"])
def test_swapping_twice_changes_nothing(winner):
  her = {
    "principles": [["vivid", "cand_1"], ["own-voice", "tie"]], "verdicts": ["cand_1", "tie"],
    "candidates": ["a", "b"], "breaks": ["vivid", "cand_2"], "source": "book",
  }  # fmt: skip
  pair = PreferencePair("p", "s", 1, "A", "B", winner, "k", ("x",), (), extra={"her": her})
  once = hard_negatives.swapped(pair)
  assert (once.candidate_1, once.candidate_2, once.violates_2) == ("B", "A", ("x",))
  assert once.winner == swap(winner)
  assert once.extra["her"] == {
    "principles": [["vivid", "cand_2"], ["own-voice", "tie"]], "verdicts": ["cand_2", "tie"],
    "candidates": ["b", "a"], "breaks": ["vivid", "cand_1"], "source": "book",
  }  # fmt: skip
  assert hard_negatives.swapped(once) == pair
