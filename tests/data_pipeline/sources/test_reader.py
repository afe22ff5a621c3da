"""Bad input by its kind: strict stops and names the place, lenient puts aside and counts."""

from collections.abc import Callable
import json
import time
from typing import Any

import pytest

from data_pipeline.sources import reader
from data_pipeline.sources.report import Report
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.sources import rows_of_others as rows


def _trajectory(i: int, **more: Any) -> dict[str, Any]:
  return {
    "id": f"scene-{i}",
    "scenario": rows.SCENARIO,
    "characters": [{"name": "Una"}, {"name": "Joost"}],
    "turns": [{"speaker": "Una", "reply": "Row."}, {"speaker": "Joost", "reply": "No."}],
    "source": "The Ferry",
    **more,
  }


def _coser(i: int) -> dict[str, Any]:
  return {**rows.conversation(), "book": "The Ferry", "i_p": i, "plot": {}}


_GOOD: dict[str, Callable[[int], dict[str, Any]]] = {
  "trajectories": _trajectory,
  "coser_test": _coser,
  "her_full": rows.her_row,
  "her_sft": lambda i: rows.sft_row(trace_id=f"t{i}"),
  "sharegpt": lambda i: rows.sharegpt_row(id=f"t{i}"),
}


def _with(row: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
  copy = json.loads(json.dumps(row))
  inner = copy
  for step in at[:-1]:
    inner = inner[step]
  inner[at[-1]] = value
  return copy


def _deep(levels: int) -> Any:
  value: Any = "x"
  for _ in range(levels):
    value = [value]
  return value


# Format, a row made bad, and a piece of what is said of it.
_BAD = {
  "a turn without text": (
    "trajectories",
    _trajectory(1, turns=[{"speaker": "Una"}]),
    "reply: missing",
  ),
  "a speaker nobody knows": (
    "trajectories",
    _with(_trajectory(1), ("turns", 0, "speaker"), "Marthe"),
    "not among the characters",
  ),
  "a tag that stays open": (
    "trajectories",
    _with(_trajectory(1), ("turns", 0, "reply"), "<role_thinking>Hm"),
    "turns[0].reply",
  ),
  "one speaker": (
    "trajectories",
    _with(_trajectory(1), ("turns", 1, "speaker"), "Una"),
    "only 'Una' speaks",
  ),
  "no dialogue": ("coser_test", {**_coser(1), "dialogues": []}, "dialogues: missing or empty"),
  "dialogue of another type": ("coser_test", {**_coser(1), "dialogues": {"a": 1}}, "dialogues"),
  "a number for a text": (
    "coser_test",
    _with(_coser(1), ("dialogues", 0, "message"), 7),
    "expected a text, got 7",
  ),
  "no scenario": (
    "her_full",
    _with(rows.her_row(1), ("conversation", 0, "scenario"), ""),
    "scenario",
  ),
  "one speaker of HER": (
    "her_full",
    _with(
      rows.her_row(1),
      ("conversation", 0, "dialogues"),
      [rows.line("Una", "Row."), rows.line("Una", "Now.")],
    ),
    "only 'Una' speaks",
  ),
  "a role nobody has": (
    "her_sft",
    _with(rows.sft_row(), ("messages", 1, "role"), "tool"),
    "'tool'",
  ),
  "no character": ("her_sft", rows.sft_row(character=""), "character: missing"),
  "no messages": ("sharegpt", rows.sharegpt_row(conversations=[]), "missing or empty"),
  "a list of texts": (
    "sharegpt",
    rows.sharegpt_row(conversations=["Hi"]),
    "expected an object",
  ),
  "deep JSON": ("trajectories", _trajectory(1, notes=_deep(5000)), "not usable JSON"),
}


def _write(path, found):
  path.write_text("".join(_dumped(row) + "\n" for row in found), encoding="utf-8")
  return path


def _dumped(row):
  try:
    return json.dumps(row)
  except RecursionError:
    shallow = json.dumps({**row, "notes": "@"})
    return shallow.replace('"@"', "[" * 5000 + '"x"' + "]" * 5000)


@pytest.mark.parametrize("kind", _BAD)
def test_strict_stops_at_the_row_and_lenient_puts_it_aside(tmp_path, kind):
  format, bad, told = _BAD[kind]
  good = _GOOD[format]
  path = _write(tmp_path / "rows.jsonl", [good(10), good(11), bad, good(13)])
  read = []
  with pytest.raises(DataError) as error:
    for made in reader.read(path, format):
      read.append(made)
  message = str(error.value)
  assert message.startswith(f"{path}:3: ") and told in message and "\n" not in message
  assert len(read) == 2
  report, rejected = Report(), tmp_path / "out" / "rejected.jsonl"
  kept = list(reader.read(path, format, strict=False, report=report, rejected=rejected))
  assert len(kept) == 3 == report.kept and report.rows == 4
  ((reason, count),) = report.rejected.items()
  assert count == 1 and report.first[reason].startswith(f"{path}:3: ")
  (aside,) = [json.loads(line) for line in rejected.read_text(encoding="utf-8").splitlines()]
  assert aside["place"] == f"{path}:3" and told in aside["problem"]
  if kind != "deep JSON":
    assert aside["row"] == bad
  # What is given keeps the contract, and comes back from a file.
  schema.write_jsonl(tmp_path / "kept.jsonl", kept)
  assert schema.read_trajectories(tmp_path / "kept.jsonl") == kept
  assert list(reader.read(tmp_path / "kept.jsonl")) == kept


@pytest.mark.parametrize(
  ("line", "told"),
  [
    ("{broken", "not valid JSON"),
    ("7", "expected one JSON object, got int"),
    ("null x", "not valid JSON"),
    ('"text"', "expected one JSON object, got str"),
    ("{}", "no known format"),
    ('{"id": "a\\u0000"}', "NUL"),
    ("\0\0\0", "NUL"),
    ('{"id": "' + "9" * 5000 + '", "n": ' + "9" * 5000 + "}", "not usable JSON"),
  ],
)
def test_lines_that_are_no_rows(tmp_path, line, told):
  path = tmp_path / "rows.jsonl"
  path.write_text(
    json.dumps(_trajectory(1)) + f"\n{line}\n" + json.dumps(_trajectory(3)) + "\n"
  )
  with pytest.raises(DataError, match="rows.jsonl:2: ") as error:
    list(reader.read(path))
  assert told in str(error.value) and len(str(error.value)) < 600
  report = Report()
  rejected = tmp_path / "rejected.jsonl"
  kept = list(reader.read(path, strict=False, report=report, rejected=rejected))
  assert [t.id for t in kept] == ["scene-1", "scene-3"]
  (aside,) = map(json.loads, rejected.read_text(encoding="utf-8").splitlines())
  assert aside["place"].endswith(":2")


def test_an_id_that_stands_twice_names_both_places_over_all_files(tmp_path):
  _write(tmp_path / "a.jsonl", [_trajectory(1), _trajectory(2)])
  _write(tmp_path / "b.jsonl", [_trajectory(3), _trajectory(1)])
  with pytest.raises(DataError, match=r"b\.jsonl:2: id: 'scene-1' stands twice.*a\.jsonl:1"):
    list(reader.read(tmp_path))
  report = Report()
  kept = list(reader.read(tmp_path, strict=False, report=report))
  assert [t.id for t in kept] == ["scene-1", "scene-2", "scene-3"]
  assert list(report.rejected.values()) == [1]


def test_faults_of_one_kind_are_counted_together(tmp_path):
  bad = [_with(_trajectory(i), ("turns", i % 2, "speaker"), f"Nobody {i}") for i in range(6)]
  report = Report()
  path = _write(tmp_path / "a.jsonl", [_trajectory(100), *bad])
  assert len(list(reader.read(path, strict=False, report=report))) == 1
  assert list(report.rejected.values()) == [6]
  assert report.as_dict()["rejected"].popitem()[1]["first"].startswith(f"{path}:2: ")


def test_a_row_of_two_megabytes_is_a_row(tmp_path):
  long = "She counts the waves, one by one. " * 60_000
  row = _with(_coser(1), ("dialogues", 0, "message"), f"[{long}] Row.")
  row["plot"] = {"text": long}
  path = _write(tmp_path / "a.jsonl", [_coser(0), row, _coser(2)])
  assert path.stat().st_size > 4_000_000
  start = time.perf_counter()
  found = list(reader.read(path))
  assert time.perf_counter() - start < 30
  assert len(found) == 3 and len(found[1].turns[0].reply) > 2_000_000
  report = Report()
  rejected = tmp_path / "rejected.jsonl"
  row["scenario"] = ""
  _write(path, [_coser(0), row])
  assert len(list(reader.read(path, strict=False, report=report, rejected=rejected))) == 1
  assert max(map(len, report.first.values())) < 500
  assert json.loads(rejected.read_text())["row"] == row


@pytest.mark.parametrize("name", ["utf-8-sig", "utf-16", "gb18030"])
def test_chinese_rows_in_every_encoding(tmp_path, name):
  row = {
    **_trajectory(1),
    "scenario": "江上起了大雾，渡船停在河心，钟声也听不见了，四周一片寂静。",
    "language": "zh",
    "turns": [
      {"speaker": "Una", "reply": "划吧，别等了。"},
      {"speaker": "Joost", "reply": "雾太大，不行。"},
    ],
  }
  path = tmp_path / "a.jsonl"
  path.write_bytes((json.dumps(row, ensure_ascii=False) + "\r\n").encode(name))
  report = Report()
  (made,) = reader.read(path, report=report)
  assert made.turns[0].reply == "划吧，别等了。"
  assert report.encodings == ({} if name == "utf-8-sig" else {str(path): name})


def test_a_wrong_encoding_is_told_with_the_flag(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(json.dumps(_trajectory(1)).encode() + b'\n{"id": "\xc3\xa9\xff"}\n')
  with pytest.raises(DataError, match=r"a\.jsonl:2: not UTF-8.*--encoding"):
    list(reader.read(path))
  with pytest.raises(DataError, match="unknown.*--encoding"):
    list(reader.read(path, options=reader.Options(encoding="utf-9")))


@pytest.mark.parametrize("content", ["", "\n\n", "[]", "\ufeff"])
def test_an_empty_source_is_a_fault_either_way(tmp_path, content):
  path = tmp_path / "a.jsonl"
  path.write_text(content, encoding="utf-8")
  for strict in (True, False):
    with pytest.raises(DataError, match=r"a\.jsonl: holds nothing"):
      list(reader.read(path, strict=strict))


def test_unknown_formats_folders_and_files_are_told_of(tmp_path):
  with pytest.raises(DataError, match="'csv' is not one of auto, coser_book"):
    list(reader.read(tmp_path, "csv"))
  with pytest.raises(DataError, match="no file that ends in"):
    list(reader.read(tmp_path))
  with pytest.raises(DataError, match="no such file or folder"):
    list(reader.read(tmp_path / "missing.jsonl"))


def test_one_bad_file_of_a_folder_does_not_end_a_lenient_reading(tmp_path):
  _write(tmp_path / "a.jsonl", [_trajectory(1)])
  (tmp_path / "b.parquet").write_bytes(b"PAR1" + b"\0" * 50)
  _write(tmp_path / "c.jsonl", [_trajectory(3)])
  report = Report()
  kept = list(reader.read(tmp_path, strict=False, report=report))
  assert [t.id for t in kept] == ["scene-1", "scene-3"]
  assert list(report.rejected.values()) == [1]


def test_min_speakers_can_be_one(tmp_path):
  row = _with(_trajectory(1), ("turns", 1, "speaker"), "Una")
  path = _write(tmp_path / "a.jsonl", [row])
  (made,) = reader.read(path, options=reader.Options(min_speakers=1))
  assert made.id == "scene-1"


def test_each_format_is_told_by_its_fields(tmp_path):
  found = [make(7) for make in _GOOD.values()]
  path = _write(tmp_path / "a.jsonl", found)
  assert [reader.format_of(row) for row in found] == list(_GOOD)
  assert len(list(reader.read(path))) == len(found)
