"""Files that are there whole or not at all."""

import pytest

from data_pipeline.files import whole_file, whole_path, write_whole


def test_a_file_takes_its_name_once_all_is_written(tmp_path):
  path = tmp_path / "new" / "file.txt"
  with whole_file(path) as f:
    f.write("林黛玉\n")
    assert not path.exists()
  assert path.read_text(encoding="utf-8") == "林黛玉\n"
  write_whole(path, "after\n")
  assert path.read_text() == "after\n" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("open_whole", [whole_file, whole_path])
def test_what_stood_there_stays_where_the_writing_fails(tmp_path, open_whole):
  path = tmp_path / "file.txt"
  write_whole(path, "before\n")
  with pytest.raises(KeyError), open_whole(path):
    raise KeyError
  assert path.read_text() == "before\n"
