"""Names of one person, pieces of a chapter, and the scenes at their borders."""

from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sources import book_cast, book_scenes
from data_pipeline.sources.book_replies import Person, Stretch


def _cast(parts, joined):
  return book_cast.Cast(book_cast.gather(parts), joined)


def test_aliases_of_one_person_come_of_the_lists_and_not_of_their_looks():
  parts = [
    [Person("Elizabeth", ("Lizzy", "Miss Bennet")), Person("Mr. Darcy")],
    [Person("Jane", ("Miss Bennet",)), Person("Darcy"), Person("Mr. Bennet")],
  ]
  joined = [
    Person("Elizabeth Bennet", ("Elizabeth", "Eliza")),
    Person("Mr. Darcy", ("Darcy",)),
    Person("Jane Bennet", ("Jane",)),
  ]
  cast = _cast(parts, joined)
  assert cast.names == ["Elizabeth Bennet", "Mr. Darcy", "Jane Bennet", "Mr. Bennet"]
  for name in ("Elizabeth", "LIZZY", "Eliza", "elizabeth bennet"):
    assert cast.who(name) == "Elizabeth Bennet"
  # Another sister in another part; without a part the name is of both.
  assert cast.who("Miss Bennet", parts[0]) == "Elizabeth Bennet"
  assert cast.who("Miss Bennet", parts[1]) == "Jane Bennet"
  assert cast.who("Miss Bennet") is None
  assert cast.all_of("Miss Bennet") == {"Elizabeth Bennet", "Jane Bennet"}
  # Resembling names are nobody's.
  for name in ("Bennet", "Mrs. Bennet", "Liz", "Miss Elizabeth"):
    assert cast.who(name) is None
  assert cast.unjoined == ["Mr. Bennet"]


def test_a_name_that_is_given_to_two_persons_is_nobodys():
  cast = _cast(
    [[Person("Una"), Person("Joost")]], [Person("A", ("Una",)), Person("B", ("Una", "Joost"))]
  )
  assert cast.torn == ["Una"] and cast.who("Una", [Person("Una")]) is None
  assert cast.who("Joost") == "B"


@given(
  st.lists(st.integers(1, 60), min_size=1, max_size=40),
  st.integers(10, 200),
  st.integers(0, 80),
)
def test_pieces_cover_all_paragraphs_and_overlap(sizes, most, overlap):
  found = book_scenes.pieces(sizes, most, overlap)
  assert found[0][0] == 0 and found[-1][1] == len(sizes) - 1
  for (a, b), (c, d) in zip(found, found[1:], strict=False):
    assert a < c <= b + 1 and b < d
  for a, b in found:
    assert a == b or sum(sizes[a : b + 1]) <= most
  if overlap == 0:
    assert all(c == b + 1 for (_, b), (c, _) in zip(found, found[1:], strict=False))


@given(
  st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans(), st.booleans()), max_size=9
  )
)
def test_joined_scenes_are_apart_and_lose_nothing(drawn):
  found = [Stretch(a, a + n, s, e) for a, n, s, e in drawn]
  joined = book_scenes.join(found)
  covered = lambda scenes: {i for s in scenes for i in range(s.first, s.last + 1)}
  assert covered(joined) == covered(found)
  assert all(a.last < b.first for a, b in zip(joined, joined[1:], strict=False))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(5, 120))
def test_a_long_scene_is_split_into_neighbours(sizes, most):
  scene = Stretch(7, 6 + len(sizes))
  parts = book_scenes.split(scene, sizes, 7, most)
  assert parts[0].first == 7 and parts[-1].last == scene.last
  assert all(a.last + 1 == b.first for a, b in zip(parts, parts[1:], strict=False))
  assert all(p.first <= p.last for p in parts)
