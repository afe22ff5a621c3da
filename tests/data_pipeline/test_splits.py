"""No book and no conversation in two splits, and a proof that says so and is held to it."""

from collections import Counter
import gc
import json
import os
import subprocess
import sys
import tracemalloc

import hypothesis
from hypothesis import strategies as st
import pytest

from data_pipeline import assignment, conversations, near_duplicates, splits
from her_jax.errors import ConfigError
from her_jax.roleplay import grammar, schema
from her_jax.roleplay.schema import DataError

PURPOSES = conversations.PURPOSES
EVEN = dict.fromkeys(PURPOSES, 1.0)


def _split(corpus, written, tmp_path, books=20, **settings):
  path = written(corpus(books))
  return path, splits.split([path], tmp_path / "out", **{"purposes": EVEN, **settings})


def _rows(path):
  return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _outputs(folder):
  return sorted(folder.glob("*.jsonl"))


# What is split.


def test_every_row_goes_into_the_file_of_its_book_with_its_purpose(corpus, written, tmp_path):
  path, made = _split(corpus, written, tmp_path)
  folder = tmp_path / "out"
  seen = Counter()
  for purpose in PURPOSES:
    for row in _rows(folder / f"{purpose}.jsonl"):
      assert made.books[row["source"]]["purpose"] == purpose == row["her"].pop("purpose")
      assert row["her"]["chapter"] in "01"  # What stages before have left stays.
      seen[json.dumps(row, ensure_ascii=False, sort_keys=True)] += 1
  whole = [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in _rows(path)]
  assert seen == Counter(whole)
  for purpose, counts in made.row["purposes"].items():
    assert counts["conversations"] == len(_rows(folder / f"{purpose}.jsonl"))
    assert counts["turns"] == 4 * counts["conversations"]
    assert len(schema.read_trajectories(folder / f"{purpose}.jsonl")) == counts["conversations"]
  assert splits.verify(made, [path, *_outputs(folder)]).row == made.row


@hypothesis.given(
  sizes=st.lists(st.integers(1, 400), min_size=5, max_size=60),
  joins=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=12),
  seed=st.integers(0, 5),
  purposes=st.dictionaries(
    st.sampled_from(PURPOSES), st.floats(0.001, 100), min_size=1, max_size=5
  ),
)
def test_books_are_assigned_once_whole_groups_together_and_none_is_empty(
  sizes, joins, seed, purposes
):
  books = [f"b{i}" for i in range(len(sizes))]
  groups = assignment.Groups()
  for book in books:
    groups.find(book)
  for one, two in joins:
    groups.join(books[one % len(books)], books[two % len(books)])
  members = groups.members()
  turns = dict(zip(books, sizes, strict=True))
  if len(members) < len(purposes):
    with pytest.raises(DataError, match="too few"):
      splits.assign(members, turns, purposes, seed)
    return
  chosen = splits.assign(members, turns, purposes, seed)
  assert chosen.keys() == set(books)
  assert set(chosen.values()) == purposes.keys()
  for group in members:
    assert len({chosen[book] for book in group}) == 1
  # Again, in another order, the same.
  assert splits.assign(members[::-1], dict(reversed(turns.items())), purposes, seed) == chosen
  # Each purpose is within one group of its share at either end, but for the books that the
  # others are owed.
  total, weight = sum(sizes), sum(purposes.values())
  largest = max(sum(turns[b] for b in group) for group in members)
  for purpose, size in purposes.items():
    got = sum(turns[book] for book in books if chosen[book] == purpose)
    assert abs(got - total * size / weight) <= largest * (1 + 2 * len(purposes))


def test_turns_are_balanced_as_wanted():
  books = {f"title {i}": 400 + 37 * i % 300 for i in range(700)}
  chosen = splits.assign([[b] for b in books], books, splits.DEFAULT, 0)
  total, weight = sum(books.values()), sum(splits.DEFAULT.values())
  for purpose, size in splits.DEFAULT.items():
    got = sum(turns for book, turns in books.items() if chosen[book] == purpose)
    assert abs(got - total * size / weight) <= 700


def test_another_seed_splits_otherwise():
  books = {f"title {i}": 5 for i in range(50)}
  one, two = (splits.assign([[b] for b in books], books, EVEN, seed) for seed in (0, 1))
  assert sum(one[b] != two[b] for b in books) > 10


def test_added_books_move_few_and_pinned_ones_none():
  books = {f"title {i}": 400 + 37 * i % 300 for i in range(500)}
  old = splits.assign([[b] for b in books], books, EVEN, 0)
  more = books | {f"new {i}": 500 for i in range(20)}
  new = splits.assign([[b] for b in more], more, EVEN, 0)
  assert sum(old[b] != new[b] for b in books) <= 25
  one_more = books | {"new": 500}
  new = splits.assign([[b] for b in one_more], one_more, EVEN, 0)
  assert sum(old[b] != new[b] for b in books) <= 4
  new = splits.assign([[b] for b in more], more, EVEN, 0, pinned=old)
  assert all(old[b] == new[b] for b in books)
  assert new.keys() == more.keys()


def test_a_previous_proof_pins_its_books(corpus, written, tmp_path):
  _, old = _split(corpus, written, tmp_path)
  rows = corpus(26)
  rows[0]["source"] = "The Book Number 0"  # Another edition is the same book.
  path = written(rows, "more.jsonl")
  new = splits.split([path], tmp_path / "new", purposes=EVEN, seed=5, previous=old)
  assert all(new.books[b]["purpose"] == old.books[b]["purpose"] for b in old.books)
  assert len(new.books) == 27
  first = old.books["Book number 0"]["purpose"]
  assert new.books["The Book Number 0"]["purpose"] == first
  with pytest.raises(ConfigError, match="name them too"):
    splits.split([path], tmp_path / "x", purposes={"sft": 1, "test": 1}, previous=old)


def test_books_split_apart_before_and_joined_now_are_told_of(corpus, written, tmp_path):
  _, old = _split(corpus, written, tmp_path)
  one = next(b for b in old.books if old.books[b]["purpose"] == "sft")
  two = next(b for b in old.books if old.books[b]["purpose"] == "test")
  rows = corpus(20)
  copied = next(row for row in rows if row["source"] == one)
  rows.append({**copied, "id": "copy", "source": two})
  with pytest.raises(DataError, match="were split apart before.*split anew"):
    splits.split([written(rows)], tmp_path / "new", purposes=EVEN, previous=old)


def test_two_files_are_split_as_one(corpus, written, tmp_path):
  rows = corpus(20)
  a, b = written(rows[:15], "a.jsonl"), written(rows[15:], "b.jsonl")
  made = splits.split([a, b], tmp_path / "out", purposes=EVEN)
  whole = splits.split([written(rows)], tmp_path / "whole", purposes=EVEN)
  assert made.books == whole.books
  splits.verify(made, [a, b, *_outputs(tmp_path / "out")])
  splits.verify(made, [b])


def test_several_processes_give_the_same(corpus, written, tmp_path):
  rows = corpus(60, each=3)  # Several batches for each.
  rows[70]["turns"][0]["speaker"] = "Nobody"
  path = written(rows)
  one, two = (
    splits.split([path], tmp_path / str(n), purposes=EVEN, lenient=True, processes=n)
    for n in (0, 2)
  )
  assert one.row == two.row
  assert sum(two.row["rejected"].values()) == 1
  with pytest.raises(DataError, match=r"all\.jsonl:71: turns\[0\].speaker"):
    splits.split([path], tmp_path / "x", purposes=EVEN, processes=2)


# Text in two books.


def _copied(rows, into="Another title"):
  """The first book's first conversation, a tenth changed, under another id and title."""
  turns = []
  for turn in rows[0]["turns"]:
    words = turn["reply"].split(" ")
    words[3::10] = ["changed"] * len(words[3::10])
    turns.append({**turn, "reply": " ".join(words), "speaker": turn["speaker"] + "x"})
  people = [{"name": c["name"] + "x"} for c in rows[0]["characters"]]
  return {**rows[0], "id": "copy", "source": into, "turns": turns, "characters": people}


def test_a_planted_near_duplicate_joins_its_books(corpus, written, tmp_path):
  rows = corpus(20)
  path = written([*rows, _copied(rows)])
  made = splits.split([path], tmp_path / "out", purposes=EVEN)
  (link,) = made.row["links"]
  assert link["why"] == "conversation" and set(link["ids"]) == {"0/0", "copy"}
  assert 0.3 < link["similarity"] < 1
  assert made.books["Another title"]["purpose"] == made.books["Book number 0"]["purpose"]
  with pytest.raises(DataError, match="'Another title'.*similarity.*--duplicates=join"):
    splits.split([path], tmp_path / "x", purposes=EVEN, duplicates="raise")


def test_a_book_cut_into_other_conversations_joins_its_like(corpus, written, tmp_path):
  """Each new conversation has one turn of each old one, so that no two are alike."""
  rows = corpus(20, each=4)
  old = rows[:4]
  for i in range(4):
    turns = [{**row["turns"][i], "speaker": "Ben"} for row in old]
    rows.append({**old[0], "id": f"cut {i}", "source": "Elsewhere", "turns": turns})
  made = splits.split([written(rows)], tmp_path / "out", purposes=EVEN)
  (link,) = made.row["links"]
  assert (link["why"], set(link["books"])) == ("text", {"Book number 0", "Elsewhere"})
  assert made.books["Elsewhere"]["purpose"] == made.books["Book number 0"]["purpose"]


@pytest.mark.parametrize("taken", [12, 4, 3])
@pytest.mark.parametrize("beside", [0, 3])
def test_an_excerpt_of_a_long_book_joins_it(corpus, written, tmp_path, taken, beside):
  """One scene of a novel, or some turns of it, alone or amid others, is a book of its own."""
  rows = corpus(20, each=3)
  novel = [{**row, "source": "A novel"} for row in corpus(1, each=120, seed=7)]
  for i, row in enumerate(novel):
    row["id"] = f"novel {i}"
  turns = [*novel[77]["turns"][-taken:], *rows[0]["turns"][:beside]]
  excerpt = {**novel[77], "id": "excerpt", "source": "A pamphlet", "turns": turns}
  rows = [row for row in rows if row["source"] != rows[0]["source"]]
  made = splits.split([written([*rows, *novel, excerpt])], tmp_path / "out", purposes=EVEN)
  (link,) = made.row["links"]
  assert set(link["books"]) == {"A novel", "A pamphlet"}
  assert made.books["A novel"]["purpose"] == made.books["A pamphlet"]["purpose"]


def test_clean_look_alikes_stay_apart(corpus, written, tmp_path):
  """Same names, same scenario, same opening line, titles of a series: no duplicates."""
  rows = corpus(20)
  for row in rows:
    row["scenario"] = rows[0]["scenario"]
    row["turns"][0]["reply"] = "Good evening, and welcome. " + row["turns"][0]["reply"]
  made = splits.split([written(rows)], tmp_path / "out", purposes=EVEN, duplicates="raise")
  assert not made.row["links"]
  near = made.row["nearest"]
  assert near is None or near["similarity"] < 0.3


def test_a_book_under_two_titles_is_one(corpus, written, tmp_path):
  rows = corpus(20)
  for row in rows:
    if row["source"] == "Book number 3":
      row["source"] = "book NUMBER 0 (illustrated)"
  made = splits.split([written(rows)], tmp_path / "out", purposes=EVEN)
  assert [link["why"] for link in made.row["links"]] == ["title"]
  chosen = {b["purpose"] for t, b in made.books.items() if "0" in t.split()}
  assert len(chosen) == 1


def test_the_nearest_pair_across_splits_is_named(corpus, written, tmp_path):
  """Three turns of eight shared: no duplicate, but the nearest there is."""
  rows = corpus(20, turns=8)
  for other in (10, 20, 30):
    rows[other]["turns"][:3] = [
      {**t, "speaker": rows[other]["turns"][i]["speaker"]}
      for i, t in enumerate(rows[0]["turns"][:3])
    ]
  made = splits.split([written(rows)], tmp_path / "out", purposes=EVEN)
  near = made.row["nearest"]
  assert 0.05 < near["similarity"] < 0.3
  assert len(set(near["purposes"])) == 2
  assert [made.books[b]["purpose"] for b in near["books"]] == near["purposes"]


def test_one_conversation_under_two_ids_is_counted(corpus, written, tmp_path):
  rows = corpus(20)
  rows.append({**rows[2], "id": "again"})
  made = splits.split([written(rows)], tmp_path / "out", purposes=EVEN)
  assert made.row["repeats"] == {"conversations": 1, "ids": [[rows[2]["id"], "again"]]}


@pytest.mark.parametrize("write_files", [True, False])
def test_memory_does_not_grow_with_the_texts(
  corpus, written, tmp_path, write_files, monkeypatch
):
  # Its cache of some thousand replies is not full at this size.
  monkeypatch.setattr(grammar, "parse", grammar.parse.__wrapped__)

  def peak(each):
    rows = corpus(10, each=each)
    for row in rows:
      row["scenario"] = " ".join([row["id"]] * 20_000)
    path = written(rows, f"{each}.jsonl")
    out = tmp_path / str(each)
    gc.collect()  # What earlier tests left.
    tracemalloc.start()
    splits.split([path], out, purposes=EVEN, write_files=write_files)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held, path.stat().st_size

  peak(1)  # What is cached once.
  (little, _), (much, size) = peak(10), peak(40)
  # So long that the numbers kept of a conversation, 1.5 kB, are little beside its text.
  assert size > 30_000_000
  assert much < little + size / 50


# Bad input.


def test_empty_input_is_told_of(written, tmp_path):
  with pytest.raises(DataError, match=r"all\.jsonl: holds no conversation; pass a file"):
    splits.split([written([])], tmp_path / "out")
  with pytest.raises(DataError, match="no files of trajectories"):
    splits.split([], tmp_path / "out")
  with pytest.raises(DataError, match="no such file"):
    splits.split([tmp_path / "none.jsonl"], tmp_path / "out")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("books", [1, 4])
def test_fewer_books_than_purposes_is_told_of(corpus, written, tmp_path, books):
  with pytest.raises(DataError, match=rf"{books} books.*too few for the purposes sft, rl"):
    splits.split([written(corpus(books))], tmp_path / "out")
  made = splits.split([written(corpus(books))], tmp_path / "out", purposes={"sft": 1})
  assert len(made.books) == books


def test_a_conversation_without_its_book_is_told_of(corpus, written, tmp_path):
  rows = corpus(20)
  del rows[3]["source"]
  path = written(rows)
  with pytest.raises(DataError, match=r"all\.jsonl:4: source: '1/1' names no book"):
    splits.split([path], tmp_path / "out")
  made = splits.split([path], tmp_path / "out", purposes=EVEN, lenient=True)
  assert sum(made.row["rejected"].values()) == 1
  assert ":4: source" in made.row["rejected_lines"][0]


def test_notes_of_another_form_are_told_of(corpus, written, tmp_path):
  rows = corpus(6)
  rows[2]["her"] = ["a list"]
  with pytest.raises(DataError, match=r"all\.jsonl:3: her: expected an object, got list"):
    splits.split([written(rows)], tmp_path / "out", purposes={"sft": 1})


def test_lenient_counts_faults_by_kind_and_leaves_the_lines_out(corpus, written, tmp_path):
  rows = corpus(20)
  path = written(rows)
  lines = path.read_text("utf-8").splitlines()
  lines[2] = "{broken"
  lines[5] = lines[5].replace('"language": "zh"', '"language": "xx"')
  lines[6] = json.dumps({**rows[6], "turns": []})
  lines[7] = json.dumps({**rows[7], "turns": []})
  lines.append(lines[0])
  lines.insert(1, "")
  text = ("\n".join(lines) + "\n").encode() + b'{"id": "\xff"}\n'
  path.write_bytes(text)
  with pytest.raises(DataError, match=r"all\.jsonl:4: not valid JSON"):
    splits.split([path], tmp_path / "out", purposes=EVEN)
  made = splits.split([path], tmp_path / "out", purposes=EVEN, lenient=True)
  reasons = made.row["rejected"]
  assert sum(reasons.values()) == 6
  assert [n for reason, n in reasons.items() if reason.startswith("turns")] == [2]
  assert any(reason.startswith("not UTF-8") for reason in reasons)
  kept = sum(len(_rows(p)) for p in _outputs(tmp_path / "out"))
  assert kept == 36
  splits.verify(made, [path, *_outputs(tmp_path / "out")])


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"purposes": {}}, "none given"),
    ({"purposes": {"train": 1}}, "'train' is not one of sft"),
    ({"purposes": {"sft": 0}}, "size of sft is 0"),
    ({"purposes": {"sft": float("nan")}}, "size of sft is nan"),
    ({"duplicates": "drop"}, "'drop' is neither"),
    ({"seed": 99_999_999_999}, "seed: 99999999999 is not within"),
    ({"seed": -1}, "seed: -1 is not within"),
  ],
)
def test_settings_that_are_none_are_told_of(corpus, written, tmp_path, settings, message):
  with pytest.raises(ConfigError, match=message):
    splits.split([written(corpus(6))], tmp_path / "out", **settings)


@pytest.mark.parametrize("share", [0, -1.0, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["threshold", "excerpt_threshold", "book_threshold"])
def test_a_threshold_is_a_share(name, share):
  with pytest.raises(ConfigError, match=f"{name}: {share} is no share"):
    near_duplicates.Settings(**{name: share})


@pytest.mark.parametrize("text", ["sft", "sft=x", "sft=1,sft=2", ""])
def test_purposes_are_read_or_refused(text):
  assert splits.parse_purposes("sft=3, test=1.5") == {"sft": 3, "test": 1.5}
  with pytest.raises(ConfigError):
    splits.parse_purposes(text)


def test_files_of_purposes_that_are_no_more_go(corpus, written, tmp_path):
  path, out = written(corpus(20)), tmp_path / "out"
  splits.split([path], out, purposes=EVEN)
  (out / "notes.jsonl").write_text("mine\n")
  (out / "rl.jsonl").write_text("changed by hand\n")
  splits.split([path], out, purposes={"sft": 3, "test": 1})
  left = {p.name for p in out.iterdir()}
  assert left == {"sft.jsonl", "test.jsonl", splits.PROOF, "notes.jsonl", "rl.jsonl"}


def test_a_table_of_ids_is_a_dict():
  table, known = conversations.IdTable(), {}
  for i in range(5000):
    key = conversations.hash_of(str(i % 3000))
    assert table.add(key, i) == known.get(key)
    known.setdefault(key, i)
  assert len(table) == 3000
  assert all(table.get(key) == value for key, value in known.items())
  assert table.get(conversations.hash_of("none")) is None


def test_the_command(corpus, written, tmp_path):
  path = written(corpus(20))

  def run(*arguments):
    return subprocess.run(
      [sys.executable, "-m", "data_pipeline.splits", f"--trajectories={path}", *arguments],
      capture_output=True,
      text=True,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

  done = run(f"--out={tmp_path / 'out'}", "--purposes=sft=3,test=1", "--seed=2")
  assert done.returncode == 0, done.stderr
  assert "books joined: none" in done.stdout
  made = splits.read_proof(tmp_path / "out")
  assert made.row["seed"] == 2 and set(made.row["purposes"]) == {"sft", "test"}
  for place in ("/proc/none", "/etc/passwd"):
    failed = run(f"--out={place}", "--purposes=sft=3,test=1")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr, failed.stderr
    assert place in failed.stderr
  failed = run(f"--out={tmp_path / 'out'}", "--purposes=sft=3,train=1")
  assert failed.returncode == 1
  assert failed.stderr.strip().splitlines() == [
    "splits: purposes: 'train' is not one of sft, rl, judge_sft, judge_rl, test"
  ]
