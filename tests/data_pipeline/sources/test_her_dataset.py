"""HER-Dataset's four configurations, as JSON Lines, Parquet, saved and carded data sets."""

import json

import pytest

from data_pipeline.sources import her_dataset, reader
from data_pipeline.sources.report import Report
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.sources import rows_of_others as rows


def _jsonl(path, found):
  path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
  return path


def _read(path, **more):
  return list(reader.read(path, **more))


def test_plans_sit_on_the_turns_they_were_made_for(tmp_path):
  (made,) = _read(_jsonl(tmp_path / "full.jsonl", [rows.her_row()]), format="her_full")
  assert [t.plan for t in made.turns] == [
    "She answers his fear with an oar.", "", "She keeps it short."
  ]  # fmt: skip
  assert made.turns[0].extra["her"] == {
    "origin_ids": ["0", "1"],
    "original": "<role_thinking>Afraid.</role_thinking>Then I'll row.",
    "reason": "The thought was thin.",
    "layout": "TAS",
    "draft": "Perhaps she shouts.",
    "message": "[Afraid.] Then I'll row.",
    "without_think": "Then I'll row.",
  }
  assert made.turns[1].extra["her"] == {"origin_ids": ["2"]}
  assert made.extra["her"]["passage"] == "The ferry stopped, and the two of them argued."
  assert made.extra["her"]["book"] == made.source == "The Ferry"
  assert made.character("Joost").motivation == "I row alone."
  assert schema.trajectory_from_dict(schema.to_dict(made)) == made


@pytest.mark.parametrize("config", ["sft_multi_turn", "sft_single_turn"])
def test_chats_of_one_character_are_read_with_their_book(tmp_path, config):
  row = rows.sft_row(
    **({"turn_index": 1, "source_id": "s"} if config.endswith("single_turn") else {})
  )
  path = _jsonl(tmp_path / "sft.jsonl", [row])
  books = her_dataset.books_of([rows.her_row(), "no row", {}])
  (made,) = _read(path, options=reader.Options(books=books))
  assert made.source == "The Ferry" == made.extra["her"]["book"]
  assert made.id == "the_ferry_0/Una" + ("/1" if config.endswith("single_turn") else "")
  assert [t.speaker for t in made.turns] == ["Joost", "Una", "Joost", "Environment", "Una"]
  assert [t.plan for t in made.turns if t.plan] == ["She keeps it short."]
  # Without the books the trace stands for one, so that its samples stay together.
  (made,) = _read(path)
  assert made.source == "the_ferry_0" and "book" not in made.extra["her"]


def test_a_sample_of_the_first_reply_is_no_single_speaker_scene(tmp_path):
  row = rows.sft_row(1)
  row["messages"][1]["content"] = "===Conversation Start==="
  (made,) = _read(_jsonl(tmp_path / "a.jsonl", [row]))
  assert [t.speaker for t in made.turns] == ["Una"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["parquet", "saved", "card"])
def test_tables_give_what_json_lines_give(tmp_path, form, packed):
  import datasets

  found = [rows.her_row(i) for i in range(3)]
  # Another cast in each row, which a table makes into one struct of all names.
  found[1] = json.loads(json.dumps(found[1]).replace("Joost", "Marthe"))
  expected = _read(_jsonl(tmp_path / "full.jsonl", found))
  if packed:
    fields = ("character_datasets", "training_samples", "conversation")
    found = [{**row, **{f: json.dumps(row[f]) for f in fields}} for row in found]
  table = datasets.Dataset.from_list(found)
  folder = tmp_path / "data"
  config = ""
  if form == "saved":
    table.save_to_disk(folder)
  else:
    (folder / "full_info").mkdir(parents=True)
    table.to_parquet(folder / "full_info" / "train.parquet")
  if form == "card":
    config = "full_info"
    (folder / "README.md").write_text(
      "---\nconfigs:\n- config_name: full_info\n  data_files: full_info/*.parquet\n"
      "- config_name: clean\n  data_files: clean/*.parquet\n---\n"
    )
  made = _read(folder, options=reader.Options(config=config))
  assert [t.id for t in made] == [t.id for t in expected]
  for one, other in zip(made, expected, strict=True):
    assert one == other


def test_a_configuration_that_is_not_there_is_told_of(tmp_path):
  (tmp_path / "README.md").write_text("no card")
  with pytest.raises(DataError, match="cannot be read as a data set"):
    _read(tmp_path, options=reader.Options(config="clean"))
  with pytest.raises(DataError, match="no such file or folder.*--config"):
    _read("someone/HER-Dataset")


def test_a_fault_of_a_table_names_its_row(tmp_path):
  import datasets

  found = [rows.her_row(i) for i in range(3)]
  found[1]["conversation"][0]["scenario"] = ""
  path = tmp_path / "full.parquet"
  datasets.Dataset.from_list(found).to_parquet(path)
  with pytest.raises(
    DataError, match=r"full\.parquet: row 2: conversation\[0\]\.scenario: missing"
  ):
    _read(path)
  report = Report()
  assert len(_read(path, strict=False, report=report)) == 2
  assert list(report.rejected.values()) == [1]


def test_packed_fields_that_are_no_json_are_told_of(tmp_path):
  path = _jsonl(tmp_path / "a.jsonl", [rows.her_row(training_samples="{broken")])
  with pytest.raises(DataError, match=r"a\.jsonl:1: training_samples: a text that is no JSON"):
    _read(path, format="her_full")
