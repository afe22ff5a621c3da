"""The proof of splits is held to the files, and nobody can change either unseen."""

import json

import pytest

from data_pipeline import conversations, proof, splits
from her_jax.roleplay.schema import DataError

PURPOSES = conversations.PURPOSES
EVEN = dict.fromkeys(PURPOSES, 1.0)


def _split(corpus, written, tmp_path, books=20, **settings):
  path = written(corpus(books))
  return path, splits.split([path], tmp_path / "out", **{"purposes": EVEN, **settings})


def _rows(path):
  return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _forge(folder, change):
  """Changes the proof and seals it again, as one who wants it to pass would."""
  row = json.loads((folder / proof.PROOF).read_text("utf-8"))
  for entry in row["files"]:
    if (folder / entry["name"]).is_file():
      entry["sha256"] = proof.sha256_of(folder / entry["name"])
  change(row)
  row["seal"] = proof.seal_of(row)
  (folder / proof.PROOF).write_text(json.dumps(row, ensure_ascii=False), "utf-8")


def _outputs(folder):
  return sorted(folder.glob("*.jsonl"))


def test_a_changed_file_fails(corpus, written, tmp_path):
  path, made = _split(corpus, written, tmp_path)
  test = tmp_path / "out" / "test.jsonl"
  test.write_text(test.read_text("utf-8").replace("Una", "Ann", 1), "utf-8")
  with pytest.raises(DataError, match=r"test\.jsonl: changed since it was split.*run `python"):
    splits.verify(made, _outputs(tmp_path / "out"))
  with pytest.raises(DataError, match="changed since it was split"):
    splits.require_proof(test)
  with open(path, "a", encoding="utf-8") as f:
    f.write("\n")
  with pytest.raises(DataError, match=r"all\.jsonl: changed since it was split"):
    splits.verify(made, [path])


def _move(folder, source, target, row=0):
  lines = (folder / source).read_text("utf-8").splitlines(keepends=True)
  moved = lines.pop(row)
  (folder / source).write_text("".join(lines), "utf-8")
  with (folder / target).open("a", encoding="utf-8") as f:
    f.write(moved)


def test_a_moved_row_fails_even_if_the_hashes_are_made_to_fit(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  _move(folder, "test.jsonl", "sft.jsonl")
  with pytest.raises(DataError, match="changed since it was split"):
    splits.verify(folder, _outputs(folder))
  _forge(folder, lambda row: None)
  with pytest.raises(DataError, match=r"sft\.jsonl:\d+.*is for test, among those for sft"):
    splits.verify(folder, _outputs(folder))


def test_a_row_that_is_gone_or_edited_fails_even_if_the_hashes_fit(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  whole = (folder / "rl.jsonl").read_text("utf-8")
  (folder / "rl.jsonl").write_text(whole.split("\n", 1)[1], "utf-8")
  _forge(folder, lambda row: None)
  with pytest.raises(DataError, match="has 1 conversations.*moved or changed.*knows 2"):
    splits.verify(folder, _outputs(folder))
  with pytest.raises(DataError, match="moved or changed"):
    splits.verify(folder, [folder / "rl.jsonl"])
  (folder / "rl.jsonl").write_text(whole.replace('"plan": "', '"plan": "x', 1), "utf-8")
  _forge(folder, lambda row: None)
  with pytest.raises(DataError, match="moved or changed"):
    splits.verify(folder, _outputs(folder))


def test_a_book_in_two_splits_fails(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  text = (folder / proof.PROOF).read_text("utf-8")

  def other_title(row):
    book = next(t for t, b in row["books"].items() if b["purpose"] == "sft")
    row["books"][f"The {book} (complete)"] = {**row["books"][book], "purpose": "test"}

  _forge(folder, other_title)
  with pytest.raises(DataError, match="one book under two titles.*for sft.*for test"):
    splits.read_proof(folder)
  # The same title twice, for two purposes: JSON would keep the last in silence.
  twice = text.replace('"books": {\n', '"books": {\n"Book number 0": {"purpose": "rl"},\n')
  assert twice != text
  (folder / proof.PROOF).write_text(twice, "utf-8")
  with pytest.raises(DataError, match="'Book number 0' stands in it twice, so in two splits"):
    splits.read_proof(folder)


def test_a_conversation_in_two_splits_fails(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  row = _rows(folder / "test.jsonl")[0]
  row |= {"source": _rows(folder / "sft.jsonl")[0]["source"]}
  row["her"]["purpose"] = "sft"
  with (folder / "sft.jsonl").open("a", encoding="utf-8") as f:
    f.write(json.dumps(row, ensure_ascii=False) + "\n")
  _forge(folder, lambda row: None)
  with pytest.raises(DataError, match="id: .* stands in .* too; ids must be unique"):
    splits.verify(folder, _outputs(folder))


def test_a_wrong_purpose_in_a_row_fails(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  text = (folder / "test.jsonl").read_text("utf-8")
  text = text.replace('"purpose": "test"', '"purpose": "sft"', 1)
  (folder / "test.jsonl").write_text(text, "utf-8")
  _forge(folder, lambda row: None)
  with pytest.raises(DataError, match=r"test\.jsonl:1 .*her\.purpose is not 'test'"):
    splits.verify(folder, _outputs(folder))


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "not readable as JSON"),
    ("[]", "not a proof of format 1"),
    ('{"format": 1}', "books, files, .* missing"),
  ],
)
def test_a_broken_proof_fails(corpus, written, tmp_path, text, message):
  _split(corpus, written, tmp_path)
  (tmp_path / "out" / proof.PROOF).write_text(text, "utf-8")
  with pytest.raises(DataError, match=message):
    splits.require_proof(tmp_path / "out")


def test_a_proof_changed_by_hand_fails(corpus, written, tmp_path):
  _split(corpus, written, tmp_path)
  path = tmp_path / "out" / proof.PROOF
  path.write_text(path.read_text("utf-8").replace('"seed": 0', '"seed": 1'), "utf-8")
  with pytest.raises(DataError, match="its seal does not fit"):
    splits.require_proof(tmp_path / "out")


def test_loaders_are_given_the_proof_or_the_mend(corpus, written, tmp_path):
  path, made = _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  assert splits.require_proof(folder).seal == made.seal
  assert splits.require_proof(folder / "sft.jsonl", "sft").seal == made.seal
  with pytest.raises(DataError, match=r"is for test, not sft; pass sft\.jsonl"):
    splits.require_proof(folder / "test.jsonl", "sft")
  with pytest.raises(DataError, match="no proof of the splits; run `python -m data_pipeline"):
    splits.require_proof(path)
  with pytest.raises(DataError, match="no such file"):
    splits.require_proof(tmp_path / "nowhere")
  other = folder / "other.jsonl"
  other.write_text(path.read_text("utf-8").splitlines()[0], "utf-8")
  with pytest.raises(DataError, match="not among the files that were split"):
    splits.require_proof(other)
