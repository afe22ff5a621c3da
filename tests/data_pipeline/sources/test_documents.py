"""Rows out of files of every form and encoding, each with its place."""

import io
import json
import math
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
import pytest

from data_pipeline import samples
from data_pipeline.sources import documents, json_list, reader
from data_pipeline.sources import encoding as enc
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError

_VALUES = st.recursive(
  st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab\\"[]{},\né漢 ', max_size=8),
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=8,
)


def _read(path, encoding=None):
  return list(documents.records(path, encoding))


@pytest.fixture
def file(tmp_path):
  def write(data, name="rows.jsonl"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path

  return write


@given(st.lists(_VALUES, max_size=6), st.sampled_from([None, 1]), st.integers(1, 40))
def test_a_list_comes_apart_wherever_its_blocks_end(values, indent, block):
  before, json_list._CHUNK = json_list._CHUNK, block
  try:
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    found = list(json_list.ListReader(io.BytesIO(text.encode()), 10**6))
  finally:
    json_list._CHUNK = before
  assert [json.loads(raw) for _, raw in found] == values
  lines = text.split("\n")
  for line, raw in found:
    assert raw.decode().split("\n")[0] in lines[line - 1]


@pytest.mark.parametrize(
  ("text", "places"),
  [
    ('{"a": 1}\n\n{"a": 2}\n', [1, 3]),
    ('{"a": 1}\r\n{"a": 2}\r\n', [1, 2]),
    ('[{"a": 1},\n {"a": 2}]', [1, 2]),
    ('[\n {"a": 1}\n ,\n {"a": 2}\n]\n', [2, 4]),
    ('[[{"a": 1}]]\n', [1]),
    ('[{"a": 1}]\n[{"a": 2}]\n', [1, 2]),
    ('{\n  "a": 1\n}\n', [1]),
    ("", []),
    (" \n\n", []),
    ("[]", []),
  ],
)
def test_each_form_gives_its_rows_with_their_lines(file, text, places):
  path = file(text)
  found = _read(path)
  assert [r.place for r in found] == [f"{path}:{line}" for line in places]
  assert not any(isinstance(r.row, DataError) for r in found)


@pytest.mark.parametrize(
  ("text", "line", "told"),
  [
    ('{"a": 1}\n{"a": \n{"a": 3}\n', 2, "not valid JSON"),
    ('[{"a": 1},\n {"a": 2},', 2, "ends within"),
    ('[{"a": 1},\n\n {"a" 2}]', 3, "not valid JSON"),
    ('[{"a": 1},\n]', 2, "empty entry"),
    ('[{"a": 1}]\n x', 2, "follows the list"),
    ('{\n "a": 1,\n "b" 2\n}', 3, "not valid JSON"),
    ('{"a": 1}\n{"b": "\\u0000"}\n', 2, "NUL"),
    ('{"a": 1}\n\0\0\0\0\0\0\0\n', 2, "NUL"),
    ('{"a": 1}\n' + '{"a": ' * 100_000, 2, "not usable JSON"),
    ('{"a": 1}\n{"a": "\\ud800"}', 2, "surrogate"),
  ],
)
def test_a_broken_row_is_told_with_its_line_and_the_rest_is_read(file, text, line, told):
  path = file(text)
  faults = [r for r in _read(path) if isinstance(r.row, DataError)]
  assert [r.place for r in faults] == [f"{path}:{line}"]
  assert told in str(faults[0].row)


def test_the_sign_that_only_looks_like_nul_is_text(file):
  (record,) = _read(file('{"a": "\\\\u0000"}\n'))
  assert record.row == {"a": "\\u0000"}


_ZH = "“你来了。”他说，“我等了很久。”"
_WEST = "“Déjà vu” – that’s all, café; £5"


@pytest.mark.parametrize(
  ("text", "name"),
  [
    (_ZH, "utf-8"),
    (_ZH, "utf-8-sig"),
    (_ZH, "utf-16"),
    (_WEST, "utf-16"),
    (_ZH, "utf-32"),
    (_ZH, "gb18030"),
    (_WEST, "cp1252"),
    ("plain words, nothing more", "utf-16-le"),
    ("plain words, nothing more", "utf-16-be"),
  ],
)
@pytest.mark.parametrize("form", ["lines", "list", "object"])
def test_encodings_are_told_by_their_bytes(file, text, name, form):
  rows = [{"text": text, "n": i} for i in range(3)]
  written = {
    "lines": "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows),
    "list": json.dumps(rows, ensure_ascii=False, indent=1),
    "object": json.dumps(rows[0], ensure_ascii=False, indent=1),
  }[form]
  path = file(written.encode(name))
  assert [r.row for r in _read(path)] == (rows if form != "object" else rows[:1])
  assert [r.row for r in _read(path, name)] == (rows if form != "object" else rows[:1])


_RUSSIAN = "Он долго стоял у реки и смотрел на воду. Лодка уже ушла, и туман накрыл деревню."
_KOREAN = (
  "그는 강가에 서서 오랫동안 물을 바라보았다. 배는 이미 떠났고 안개가 마을을 덮고 있었다."
)
_JAPANESE = (
  "彼は川辺に立って、長いあいだ水を見つめていた。船はもう出てしまい、霧が村を覆っていた。"
)
_GREEK = "Στάθηκε για πολλή ώρα δίπλα στο ποτάμι και κοίταζε το νερό."


@pytest.mark.parametrize(
  ("text", "name"),
  [
    *((_RUSSIAN, name) for name in ("koi8-r", "cp1251", "cp866", "iso8859-5", "mac-cyrillic")),
    *((_KOREAN, name) for name in ("euc-kr", "cp949", "johab")),
    *((_JAPANESE, name) for name in ("euc-jp", "shift_jis")),
    (_GREEK, "iso8859-7"),
    ("他站在河邊看了很久的水。船已經走了，霧蓋住了村子。", "big5"),
    ("เขายืนอยู่ริมแม่น้ำเป็นเวลานานและมองดูน้ำ", "tis-620"),
  ],
)
@pytest.mark.parametrize("times", [1, 200])
def test_no_other_language_is_read_as_chinese(file, text, name, times):
  path = file((f"CHAPTER 1\n\n{text}\n" * times).encode(name), "book.txt")
  with pytest.raises(DataError, match=r"book\.txt:\d+: not UTF-8; .*--encoding.*--config\.enc"):
    enc.read_text(path)
  assert text in enc.read_text(path, name)[0]
  (row,) = _read(file(json.dumps({"a": text}, ensure_ascii=False).encode(name)))
  assert isinstance(row.row, DataError) and "--encoding" in str(row.row)


@pytest.mark.parametrize(
  "text",
  [
    "“你来了。”他说。",
    "学而时习之，不亦说乎？",
    "他站在河邊看了很久的水。",
    "林黛玉：不，我不去。",
  ],
)
def test_short_chinese_texts_are_known(file, text):
  assert enc.detect(file(text.encode("gb18030"))) == "gb18030"


def test_all_chinese_samples_are_known(file):
  for scene in schema.read_trajectories(samples.SCENES):
    if scene.language == "zh":
      raw = "\n".join([scene.scenario, *(t.reply for t in scene.turns)]).encode("gb18030")
      assert enc.detect(file(raw)) == "gb18030"


def test_one_broken_line_does_not_turn_a_file_into_another_encoding(file):
  path = file('{"a": "é"}\n'.encode() + b'{"a": "\xe9\xff"}\n' + b'{"a": 3}\n')
  assert enc.detect(path) == "utf-8"
  _, bad, good = _read(path)
  assert "not UTF-8" in str(bad.row) and "--encoding" in str(bad.row)
  assert good.row == {"a": 3}


@pytest.mark.parametrize("cut", [b'{"a": "caf\xc3"}\n', b'{"a": "\xe2\x80"}\n'])
def test_a_sign_cut_in_two_is_no_western_letter(file, cut):
  path = file(b'{"a": 1}\n' + cut)
  assert enc.detect(path) == "utf-8"
  assert "not UTF-8" in str(_read(path)[1].row)


def test_what_cannot_be_told_is_one_error_that_names_the_flag(file):
  path = file(bytes(range(0x81, 0xFF)) * 3, "book.txt")
  with pytest.raises(DataError, match=r"book\.txt:1: not UTF-8; .*--encoding"):
    enc.read_text(path)
  with pytest.raises(DataError, match="unknown.*--encoding"):
    enc.read_text(path, "klingon")
  with pytest.raises(DataError, match="unknown"):
    enc.known("base64")
  with pytest.raises(DataError, match=r"book\.txt:1: not GB2312"):
    enc.read_text(path, "gb2312")


def test_a_half_file_of_utf16_tells_the_line_of_its_break(file):
  path = file('{"a": 1}\n'.encode("utf-16") + b"\x00\xd8\x41")
  good, bad = _read(path)
  assert good.row == {"a": 1} and isinstance(bad.row, DataError) and bad.place.endswith(":2")


def test_a_text_loses_its_mark_and_its_line_breaks(file):
  path = file("\ufeffOne\r\nTwo\rThree\n".encode("utf-16"), "a.txt")
  assert enc.read_text(path) == ("One\nTwo\nThree\n", "utf-16")
  with pytest.raises(DataError, match=r"b\.txt:2: holds NUL"):
    enc.read_text(file("One\nT\0wo", "b.txt"))


def test_packed_files_and_missing_ones_are_told_of(file, tmp_path):
  with pytest.raises(DataError, match="unpack it"):
    _read(file(b"\x1f\x8b\x08\0", "rows.jsonl.gz"))
  with pytest.raises(DataError, match="no such file"):
    _read(tmp_path / "nothing.jsonl")


def test_a_line_without_end_does_not_fill_the_memory(file, monkeypatch):
  monkeypatch.setattr(documents, "MAX_ROW", 1 << 20)
  path = file(b'{"a": "' + b"x" * (20 << 20) + b'"}\n{"a": 2}\n')
  tracemalloc.start()
  bad, good = _read(path)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert "longer than 1 MiB" in str(bad.row) and good.row == {"a": 2}
  assert peak < 8 << 20


@pytest.mark.parametrize("form", ["lines", "list"])
def test_memory_does_not_grow_with_the_file(file, form):
  def peak(count):
    rows = [json.dumps({"a": "x" * 2000, "n": i}) for i in range(count)]
    text = "\n".join(rows) if form == "lines" else f"[{', '.join(rows)}]"
    path = file(text)
    tracemalloc.start()
    for record in documents.records(path):
      assert record.row["a"]
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return top

  small, large = peak(500), peak(4000)
  assert large < 1.5 * small


def test_parquet_rows_come_without_the_nulls_of_other_rows(tmp_path):
  import pyarrow as pa
  import pyarrow.parquet as pq

  rows = [{"people": {"Una": {"profile": "a"}}}, {"people": {"Joost": {"profile": "b"}}}]
  pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
  found = _read(tmp_path / "rows.parquet")
  assert [r.place.rpartition(": ")[2] for r in found] == ["row 1", "row 2"]
  # A table gives each row the names of all.
  assert [r.row for r in found] == rows


def test_nan_in_a_table_is_a_null_and_infinity_is_refused_with_its_row(tmp_path):
  import pyarrow as pa
  import pyarrow.parquet as pq

  talk = {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Go."}]}
  rows = [{**talk, "id": str(i), "n": n} for i, n in enumerate([1.5, math.nan, math.inf])]
  path = tmp_path / "rows.parquet"
  pq.write_table(pa.Table.from_pylist(rows), path)
  found = reader.read(path, options=reader.Options(character="Una"))
  assert next(found).extra["sharegpt"]["n"] == 1.5
  assert "n" not in next(found).extra["sharegpt"]
  with pytest.raises(DataError, match=r"rows.parquet: row 3: sharegpt\.n: NaN or Infinity"):
    next(found)


def test_a_broken_parquet_file_is_told_of(file):
  with pytest.raises(DataError, match="cannot be read as a data set"):
    _read(file(b"PAR1" + b"\0" * 100, "rows.parquet"))
