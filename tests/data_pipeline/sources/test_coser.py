"""CoSER's books and cases: each conversation with its passage, names in one spelling."""

from collections import Counter
import json

import pytest

from data_pipeline.sources import coser, names, reader
from data_pipeline.sources.report import Report
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.sources import rows_of_others as rows


def _read(path, **more):
  return list(reader.read(path, **more))


@pytest.fixture
def write(tmp_path):
  def one(row, name="The Ferry.json", indent=2):
    path = tmp_path / name
    path.write_text(json.dumps(row, ensure_ascii=False, indent=indent), encoding="utf-8")
    return path

  return one


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("format", ["auto", "coser_book"])
def test_a_book_gives_its_conversations_with_their_passages(write, indent, format):
  first, second, third = _read(write(rows.coser_book(), indent=indent), format=format)
  assert [first.id, second.id, third.id] == [f"The Ferry/{i}/0" for i in range(3)]
  assert first.source == "The Ferry" and first.split == "train"
  assert second.extra["her"] == {
    "book": "The Ferry",
    "chapter": "Chapter 2",
    "passage": "Passage 1. The ferry stopped, and the two of them argued.",
  }
  una = first.character("Una Brook")
  assert (una.profile, una.motivation, una.description, una.experience) == (
    "Una surveys rivers.", "I must be across by dawn.", "A surveyor.", "Missed the bridge."
  )  # fmt: skip
  # Profiles of the book's other chapters are not in the scene.
  assert [c.name for c in first.characters] == ["Una Brook", "Mr. Joost"]
  for made in (first, second, third):
    assert schema.trajectory_from_dict(schema.to_dict(made)) == made


def test_names_are_brought_into_one_spelling_and_the_others_kept(write):
  made = _read(write(rows.coser_book(1)))[0]
  assert [t.speaker for t in made.turns] == [
    "Una Brook",
    "Mr. Joost",
    "Environment",
    "Una Brook",
  ]
  assert made.extra["coser"]["renamed"] == {
    "MR JOOST:": "Mr. Joost", "Una Brook (to herself)": "Una Brook"
  }  # fmt: skip
  assert made.turns[1].reply.startswith("<role_action>sits down</role_action>")


@pytest.mark.parametrize(
  ("name", "same"),
  [
    ("MR. BENNET", "Mr Bennet"),
    ("**Una**", "Una"),
    ("Una:", "una"),
    ("“O’Hara”", "O'Hara"),
    ("林黛玉（冷笑）", "林黛玉"),
    ("阿不思·邓布利多", "阿不思 邓布利多"),
    ("ＵＮＡ", "Una"),
  ],
)
def test_spellings_of_one_name_share_a_key(name, same):
  assert names.key(name) == names.key(same)


@pytest.mark.parametrize(
  "pair", [("Mr. Bennet", "Mrs. Bennet"), ("Jane", "Jane Bennet"), ("林黛玉", "黛玉")]
)
def test_names_that_only_resemble_each_other_stay_apart(pair):
  assert names.key(pair[0]) != names.key(pair[1])


def test_a_person_who_is_called_like_the_surroundings_stays_a_person():
  assert names.Spellings([])("scene") == "Environment"
  assert names.Spellings(["Scene"])("SCENE") == "Scene"
  assert names.Spellings([])("旁白") == "环境"


def test_what_a_book_keeps_for_the_test_is_held_out(write):
  found = _read(write(rows.coser_book(3, split_plot_index=2)))
  assert [t.split for t in found] == ["train", "train", "heldout"]


def test_a_book_without_its_title_is_named_by_its_file(write):
  row = rows.coser_book(1)
  del row["book"]
  (made,) = _read(write(row, "Northern Ferry.json", indent=None))
  assert made.source == "Northern Ferry"


def test_plots_without_talk_are_counted_and_books_without_any_are_a_fault(write):
  row = rows.coser_book(3)
  row["plots"][1]["conversation"] = []
  report = Report()
  assert len(_read(write(row), report=report)) == 2
  assert report.skipped == Counter({"plot without a conversation": 1})
  for empty in ([], [{**row["plots"][1]}]):
    with pytest.raises(DataError, match=r"The Ferry\.json:1: plots: "):
      _read(write({**row, "plots": empty}))


def test_a_fault_names_the_plot_and_the_line_of_the_dialogue(write, tmp_path):
  row = rows.coser_book(3)
  row["plots"][1]["conversation"][0]["dialogues"][2]["message"] = " "
  path = write(row)
  with pytest.raises(DataError) as error:
    _read(path)
  assert str(error.value) == (
    f"{path}:1: plots[1].conversation[0]: dialogues[2].message: missing or empty; remove the turn"
    " or give it a text"
  )
  report = Report()
  rejected = tmp_path / "rejected.jsonl"
  found = _read(path, strict=False, report=report, rejected=rejected)
  assert [t.id for t in found] == ["The Ferry/0/0", "The Ferry/2/0"]
  assert sum(report.rejected.values()) == 1
  # Mended, what was put aside is read as a case.
  (aside,) = [json.loads(text) for text in rejected.read_text().splitlines()]
  case = aside["row"]
  case["dialogues"][2]["message"] = "The fog closes in."
  (mended,) = coser.from_case(case)
  assert mended.id == "The Ferry/1/0" and mended.extra["her"]["passage"].startswith(
    "Passage 1."
  )


def test_a_folder_of_books_is_read_book_by_book(write, tmp_path):
  for i, name in enumerate(("a.json", "b.json")):
    write(rows.coser_book(2, book=f"Book {i}"), name)
  assert [t.id for t in _read(tmp_path)] == [
    "Book 0/0/0",
    "Book 0/1/0",
    "Book 1/0/0",
    "Book 1/1/0",
  ]


def test_the_real_cases_are_read_whole(real_data):
  report = Report()
  found = _read(real_data("coser_public_domain_cases.json"), format="coser_test", report=report)
  assert (report.rows, report.kept, report.turns) == (43, 43, 530)
  assert all(t.split == "heldout" and t.extra["her"]["book"] == t.source for t in found)
  assert len({t.source for t in found}) > 5
