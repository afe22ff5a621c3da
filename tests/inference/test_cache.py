"""The trie of runs: what is found is what was put there, and no page is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from her_jax.inference.cache import OutOfPages, Prefixes

_PAGE = 3
_PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=12)


def _slots(prefixes: Prefixes, run) -> list[int]:
  """page · page_size + slot of every token of a path."""
  found = []
  for part in run.path():
    for s in prefixes.stretches(part):
      found += [s.page * _PAGE + slot for slot in range(s.low, s.high)]
      assert s.first + s.low >= part.start
  return found


@given(_PROMPTS, st.randoms())
@settings(max_examples=300, deadline=None)
def test_each_path_reads_its_own_tokens(prompts, rng):
  prefixes = Prefixes(pages=200, page_size=_PAGE)
  written: dict[int, tuple[int, ...]] = {}
  held = []
  for prompt in prompts:
    run, shared = prefixes.admit(prompt)
    slots = _slots(prefixes, run)
    assert len(slots) == len(prompt) == sum(len(r.tokens) for r in run.path())
    for i, slot in enumerate(slots):
      path = tuple(prompt[: i + 1])
      # What is found was written by a prompt with the same beginning; nothing is written twice.
      assert (written.get(slot) == path) == (i < shared)
      written[slot] = path
    for part in run.path():
      part.computed = len(part.tokens)
    held.append((prompt, run))
    if rng.random() < 0.3:
      prefixes.release(held.pop(rng.randrange(len(held)))[1])
  for prompt, run in held:
    assert [written[s] for s in _slots(prefixes, run)] == [
      tuple(prompt[: i + 1]) for i in range(len(prompt))
    ]
    prefixes.release(run)
  prefixes.clear()
  assert prefixes.free_pages == 199


@given(_PROMPTS, st.integers(6, 20), st.randoms())
@settings(max_examples=300, deadline=None)
def test_making_room_never_takes_what_is_used(prompts, pages, rng):
  prefixes = Prefixes(pages=pages, page_size=_PAGE)
  held = []
  for prompt in prompts:
    try:
      run, _ = prefixes.admit(prompt)
    except OutOfPages:
      continue
    for part in run.path():
      part.computed = rng.choice([part.computed, len(part.tokens)])
      if part.computed < len(part.tokens):
        break
    held.append((prompt, run))
    if rng.random() < 0.6:
      prefixes.release(held.pop(rng.randrange(len(held)))[1])
    for asked, kept in held:
      assert sum((r.tokens for r in kept.path()), []) == asked
      assert len(_slots(prefixes, kept)) == len(set(_slots(prefixes, kept)))
  for _, run in held:
    prefixes.release(run)
  prefixes.clear()
  assert prefixes.free_pages == pages - 1


@given(_PROMPTS, st.randoms())
@settings(max_examples=200, deadline=None)
def test_replies_are_kept_and_found(prompts, rng):
  prefixes = Prefixes(pages=300, page_size=_PAGE)
  for prompt in prompts:
    run, _ = prefixes.admit(prompt)
    for part in run.path():
      part.computed = len(part.tokens)
    reply = [rng.randrange(3) for _ in range(rng.randrange(8))]
    extra = rng.randrange(3)  # Pages for tokens that came behind the end.
    prefixes.keep(run, reply, prefixes.take(-(-len(reply) // _PAGE) + extra))
    prefixes.release(run)
    again, shared = prefixes.admit(prompt + reply)
    assert shared == len(prompt + reply)
    assert len(_slots(prefixes, again)) == shared
    prefixes.release(again)
  prefixes.clear()
  assert prefixes.free_pages == 299


def test_a_cancelled_prompt_leaves_what_was_computed_of_it():
  prefixes = Prefixes(pages=20, page_size=_PAGE)
  run, _ = prefixes.admit([1, 2, 3, 4, 5, 6, 7])
  run.computed = 4
  prefixes.release(run)
  assert prefixes.free_pages == 17
  _, shared = prefixes.admit([1, 2, 3, 4, 5])
  assert shared == 4


def test_too_much_is_refused_and_nothing_changes():
  prefixes = Prefixes(pages=4, page_size=_PAGE)
  run, _ = prefixes.admit([1, 2, 3, 4])
  with pytest.raises(OutOfPages, match="2 pages are asked for; 1 are free"):
    prefixes.admit([1, 2, 5, 6, 7, 8])
  assert prefixes.free_pages == 1
  assert sum((r.tokens for r in run.path()), []) == [1, 2, 3, 4]
  with pytest.raises(ValueError, match="in use"):
    prefixes.clear()


def test_the_longest_unused_goes_first():
  prefixes = Prefixes(pages=4, page_size=_PAGE)
  for tokens in ([1, 1, 1], [2, 2, 2], [3, 3, 3], [1, 1, 1], [4, 4, 4]):
    run, _ = prefixes.admit(tokens)
    run.computed = len(run.tokens)
    prefixes.release(run)
  assert [prefixes.admit(t)[1] for t in ([1, 1, 1], [3, 3, 3], [4, 4, 4])] == [3, 3, 3]
