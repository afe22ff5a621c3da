"""Spellings of one name become one; two people never do."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from data_pipeline.synthesis.names import aliases, parts, possessor


@pytest.mark.parametrize(
  ("names", "described", "expected"),
  [
    (["Mr Bennet", "Mr. Bennet"], ["Mr Bennet"], {"Mr. Bennet": "Mr Bennet"}),
    (["Mr. Bennet", "MR.  BENNET"], [], {"MR.  BENNET": "Mr. Bennet"}),
    (["Darcy", "Mr. Darcy"], ["Mr. Darcy"], {"Darcy": "Mr. Darcy"}),
    (["Elizabeth", "Elizabeth's"], ["Elizabeth"], {"Elizabeth's": "Elizabeth"}),
    (["James", "James’"], ["James"], {"James’": "James"}),
    (["Doctor Watson", "Dr. Watson", "Watson"], ["Watson"],
     {"Doctor Watson": "Watson", "Dr. Watson": "Watson"}),
    (["王先生", "王 先生"], [], {}),
    (["佘满仓", "佘满仓先生"], ["佘满仓"], {"佘满仓先生": "佘满仓"}),
    (["Ｕna", "Una"], ["Una"], {"Ｕna": "Una"}),
  ],
)  # fmt: skip
def test_spellings_of_one_name(names, described, expected):
  assert aliases(names, described) == expected


@pytest.mark.parametrize(
  ("names", "described"),
  [
    (["Mr. Bennet", "Mrs. Bennet"], []),
    (["Mr. Bennet", "Mrs. Bennet", "Bennet"], []),
    (["Miss Darcy", "Mr. Darcy", "Darcy"], ["Mr. Darcy"]),
    (["Dr. Jekyll", "Mr. Jekyll"], []),
    (["Henry Jr.", "Henry"], []),
    (["Catherine", "Catherine Linton"], []),
    (["Jane Bennet", "Elizabeth Bennet"], []),
    (["Heathcliff", "Hareton"], []),
    # Two sheets: the father and his ship's surgeon.
    (["Watson", "Dr. Watson"], ["Watson", "Dr. Watson"]),
    (["Lucy's mother", "Lucy"], []),
    (["Marcus", "Marcu"], []),
    (["王先生", "王太太", "王小姐"], []),
    (["Guard 1", "Guard 2"], []),
    (["Old Tom", "Tom"], []),
  ],
)
def test_two_people_stay_two(names, described):
  assert aliases(names, described) == {}


@given(
  st.lists(
    st.tuples(
      st.sampled_from(["", "Mr. ", "mr ", "Mrs. ", "Dr. ", "MISS "]),
      st.sampled_from(["Ash", "ash", "Birch", "Ash Birch"]),
      st.sampled_from(["", "'s", "’s", " "]),
    ).map("".join),
    max_size=8,
  ),
  st.data(),
)
def test_names_of_two_titles_never_meet(names, data):
  described = data.draw(st.lists(st.sampled_from(names or ["x"]), unique=True))
  found = aliases(names, described)
  groups = {}
  for name in names:
    groups.setdefault(found.get(name, name), set()).add(name)
  for proper, group in groups.items():
    assert proper not in found  # Nobody is renamed twice.
    titles = {parts(possessor(n) or n).titles for n in group} - {()}
    assert len(titles) <= 1, group
    assert len({parts(possessor(n) or n).core for n in group}) == 1, group
