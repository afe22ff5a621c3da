"""From a plain book to scenes: what a model says is held to the text, and every loss is counted."""

from collections.abc import Callable, Sequence
import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from data_pipeline.sources import book, book_prompts
from data_pipeline.sources.book_text import Book, make_book
from her_jax.llm.client import Client, Failure, Reply, Request
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import schema
from tests.teachers import book as teacher

TEXT = """The Ferry

by N. Body

CHAPTER I

Una Brook came down to the ferry at six, and the fog came with her. Mr. Joost sat on the step.

"Is it running?" asked Una Brook.

"It is not," said Mr. Joost, and looked at the water; "and it will not."

"Then I'll row."

"You will not get far."

"Far enough," cried Una.

CHAPTER II

In the house on the other bank an old man was asleep over his book.

"Wake up!" cried Marthe.

"I am awake," replied Sir Abel, with his eyes shut. "What is it?"

"There is a boat in the fog."

"There is no boat," said Sir Abel.
"""
ZH = """渡口

第一章　雾

江上起了大雾，阿云来到渡口，船夫坐在台阶上，谁也不看。

“还开船吗？”阿云问道。

“不开。”船夫说道，“雾太大了。”

“那我自己划。”

“你划不远的。”船夫笑道。
"""


def _chapters(*paragraphs: str) -> Book:
  return make_book("Chapter 1\n\n" + "\n\n".join(paragraphs), title="T")


def _run(
  text: Book | str,
  reply: Callable[[Request], Reply | Failure] | None = None,
  **options: Any,
) -> tuple[list[schema.Trajectory], book.Counts]:
  counts = book.Counts()
  client = Client(Scripted("teacher", reply or (lambda r: Reply(teacher.reply(r.messages)))))
  made = make_book(text) if isinstance(text, str) else text
  found = list(book.from_book(made, client, counts, book.Options(**options)))
  for one in found:
    assert schema.trajectory_from_dict(schema.to_dict(one)) == one
  return found, counts


def _task(request: Request) -> str:
  return book_prompts.task_of(request.messages[1].content)[0]


def _changed(task: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Request], Reply]:
  """The teacher with a fault planted into its answers to one task."""

  def reply(request: Request) -> Reply:
    answer = json.loads(teacher.reply(request.messages))
    if _task(request) == task:
      changed = change(answer)
      answer = answer if changed is None else changed
    return Reply(answer if isinstance(answer, str) else json.dumps(answer))

  return reply


def test_a_book_becomes_scenes_with_their_passages():
  found, counts = _run(TEXT)
  first, second = found
  assert [(t.speaker, t.reply) for t in first.turns] == [
    ("Una Brook", "Is it running?"),
    ("Mr. Joost", "It is not, and it will not."),
    ("Una Brook", "Then I'll row."),
    ("Mr. Joost", "You will not get far."),
    ("Una", "Far enough."),
  ]
  assert first.source == first.extra["her"]["book"] == "The Ferry"
  assert first.extra["her"]["chapter"] == "CHAPTER I" and first.extra["her"]["paragraphs"] == [
    1,
    5,
  ]
  assert first.extra["her"]["passage"].startswith(
    '"Is it running?" asked Una Brook.\n"It is not,"'
  )
  assert first.turns[1].extra["her"] == {"origin_ids": ["2:1"]}
  assert [c.name for c in second.characters] == ["Marthe", "Sir Abel"]
  assert all(c.profile and c.motivation for one in found for c in one.characters)
  assert counts.scenes["kept"] == 2 and not counts.failures
  assert len({one.id for one in found}) == 2


def test_a_chinese_book_becomes_scenes():
  (found,), counts = _run(ZH)
  assert found.language == "zh" and found.source == "渡口"
  assert [(t.speaker, t.reply) for t in found.turns] == [
    ("阿云", "还开船吗？"),
    ("船夫", "不开。雾太大了。"),
    ("阿云", "那我自己划。"),
    ("船夫", "你划不远的。"),
  ]
  assert counts.lines["kept"] == 4


def _speech(text: str, speaker: str = "Mr. Joost") -> Callable[[dict[str, Any]], None]:
  def change(answer: dict[str, Any]) -> None:
    answer["lines"].insert(1, {"speaker": speaker, "speech": text, "action": ""})

  return change


@pytest.mark.parametrize(
  ("change", "reason"),
  [
    (_speech("The river keeps what it is given."), "not in the text"),
    (_speech("It is not, but it may."), "not in the text"),
    (_speech("Mr. Joost sat on the step."), "not in the text"),
    (_speech(""), "not in the text"),
    (_speech("Is it running?"), "stands once, given again"),
    (_speech("Then I'll row.", "Captain Nobody"), "speaker not among the characters"),
    (_speech("Then I'll row.", "he"), "speaker not among the characters"),
  ],
)
def test_invented_lines_and_unknown_speakers_are_dropped_and_counted(change, reason):
  whole, before = _run(TEXT)
  found, counts = _run(TEXT, _changed("dialogue", change))
  # The scene's own lines stay; in the second scene the planted line is foreign as well.
  assert [t.reply for t in found[0].turns] == [t.reply for t in whole[0].turns]
  assert counts.lines[f"dropped: {reason}"] >= 1
  assert counts.lines["given"] == before.lines["given"] + 2
  kept_or_dropped = sum(
    n for k, n in counts.lines.items() if k == "kept" or k.startswith("dropped")
  )
  assert kept_or_dropped == counts.lines["given"]


def test_a_speaker_whom_the_text_contradicts_is_dropped():
  def swap(answer):
    names = [c["name"] for c in answer["characters"]]
    for line in answer["lines"]:
      line["speaker"] = names[1 - names.index(line["speaker"])]

  found, counts = _run(TEXT, _changed("dialogue", swap))
  # What the narration attributes is gone; what it leaves open cannot be checked.
  assert counts.lines["dropped: the text names another speaker"] >= 4
  said = {t.reply for one in found for t in one.turns}
  assert not said & {"Is it running?", "It is not, and it will not.", "Wake up!"}


def test_scenes_of_one_speaker_are_dropped_and_counted():
  def alone(answer):
    for line in answer["lines"]:
      line["speaker"] = answer["lines"][0]["speaker"]

  found, counts = _run(TEXT, _changed("dialogue", alone))
  assert found == []
  assert counts.scenes["dropped: one speaker alone"] == 2
  found, counts = _run(TEXT, _changed("dialogue", lambda a: a.update(lines=[])))
  assert found == [] and counts.scenes["dropped: no line left"] == 2


def test_lines_out_of_order_come_into_the_texts_order():
  found, _ = _run(TEXT, _changed("dialogue", lambda a: a["lines"].reverse()))
  assert [t.reply for t in found[0].turns] == [t.reply for t in _run(TEXT)[0][0].turns]


def test_an_action_stands_before_the_line_if_the_text_tells_it():
  def act(answer):
    for line in answer["lines"]:
      line["action"] = "looked at the water" if "not" in line["speech"] else "draws a pistol"

  found, counts = _run(TEXT, _changed("dialogue", act))
  assert (
    found[0].turns[1].reply.startswith("<role_action>looked at the water</role_action> It is")
  )
  assert "pistol" not in "".join(t.reply for one in found for t in one.turns)
  assert counts.lines["action not in the text, left out"] >= 3


@pytest.mark.parametrize("task", ["scenes", "cast", "dialogue", "profile"])
@pytest.mark.parametrize(
  "answer", ["no JSON", '{"characters": [', "[]", '{"a": 1} {"b": 2}', ""]
)
def test_broken_json_is_asked_for_once_more_and_then_counted(task, answer):
  asked: list[Request] = []

  def once(request: Request) -> Reply:
    if _task(request) == task and not request.id.endswith("/retry1"):
      asked.append(request)
      return Reply(answer)
    return Reply(teacher.reply(request.messages))

  found, counts = _run(TEXT, once)
  whole, _ = _run(TEXT)
  assert found == whole and not counts.failures and asked

  tried = set()

  def ever(request: Request) -> Reply:
    if _task(request) == task:
      tried.add(request.id.removesuffix("/retry1"))
      assert request.id.count("retry") <= 1
      return Reply(answer)
    return Reply(teacher.reply(request.messages))

  found, counts = _run(TEXT, ever)
  assert counts.failures[task, "malformed"] == len(tried) == len(counts.failed)
  # Without scenes or dialogue there is nothing; names and profiles fall back to the notes.
  assert bool(found) == (task in ("cast", "profile"))


def test_the_second_request_says_what_was_wrong():
  told = []

  def reply(request: Request) -> Reply:
    if _task(request) == "dialogue":
      told.append([m.content for m in request.messages[2:]])
      if len(request.messages) == 2:
        return Reply('{"lines": [{"speaker": ""}], "scenario": "x"}')
    return Reply(teacher.reply(request.messages))

  _run(TEXT, reply)
  again = [messages for messages in told if messages]
  assert len(again) == 2
  assert all("lines[0].speaker: missing" in messages[1] for messages in again)


def test_a_cut_answer_gets_more_room_and_then_the_scene_is_halved():
  sizes = []

  def reply(request: Request) -> Reply:
    whole = teacher.reply(request.messages)
    if _task(request) == "dialogue":
      lines = request.messages[1].content.count('"') // 2
      sizes.append((request.id, request.sampling.max_tokens))
      if (
        "Is it running?" in request.messages[1].content
        and "Far enough" in request.messages[1].content
      ):
        # Whole by chance; it is not to be believed.
        return Reply(whole, finish_reason="length")
      assert lines
    return Reply(whole)

  found, counts = _run(TEXT, reply)
  cut = [size for id, size in sizes if id.endswith(("0/0", "0/0/retry1"))]
  assert sorted(cut) == [8192, 16384]
  assert counts.scenes["split, its answer was cut"] == 1 and not counts.failures
  assert [one.id for one in found][:1] == ["The Ferry/0/0.0"]


@pytest.mark.parametrize("finish", ["content_filter", "refusal"])
def test_refused_answers_are_counted_by_cause_and_not_asked_again(finish):
  def reply(request: Request) -> Reply:
    assert "retry" not in request.id
    if _task(request) == "dialogue":
      return Reply(teacher.reply(request.messages), finish_reason=finish)
    return Reply(teacher.reply(request.messages))

  found, counts = _run(TEXT, reply)
  assert found == [] and counts.failures == {("dialogue", finish): 2}
  assert counts.scenes["dropped: no usable answer"] == 2


def test_failed_calls_are_counted_by_cause_with_their_ids():
  def reply(request: Request) -> Reply | Failure:
    if _task(request) == "scenes" and "/0/" in request.id:
      return Failure("timeout", "took too long")
    return Reply(teacher.reply(request.messages))

  found, counts = _run(TEXT, reply)
  assert [one.extra["her"]["chapter"] for one in found] == ["CHAPTER II"]
  assert counts.failures == {("scenes", "timeout"): 1}
  assert counts.failed == ["The Ferry/scenes/0/0"]


def test_speakers_get_one_name_through_the_whole_book():
  def join(answer):
    return {"characters": [{"name": "Una Brook", "aliases": ["Una"]}, {"name": "Mr. Joost"}]}

  found, _ = _run(TEXT, _changed("cast", join))
  assert {t.speaker for t in found[0].turns} == {"Una Brook", "Mr. Joost"}
  assert found[0].extra["her"]["aliases"] == {"Una Brook": ["Una"]}


def test_scenes_cut_by_a_piece_are_joined_or_asked_about_again():
  talk = [
    f'"Line {i} of the talk goes on and on," said {("Una", "Joost")[i % 2]}.' for i in range(40)
  ]
  text = _chapters(
    "Una and Joost met at the ferry house, in the fog.", *talk, "They went home then."
  )
  whole, _ = _run(text)
  found, counts = _run(text, piece=600, overlap=120)
  # Joined to one, then split by size: every line once, in order.
  said = [t.reply for one in found for t in one.turns]
  assert said == [t.reply for t in whole[0].turns] and len(said) == 40
  assert counts.scenes["split by size"] == 1
  # Without overlap only the marks of a cut hold the parts together.
  found, counts = _run(text, piece=600, overlap=0)
  assert [t.reply for one in found for t in one.turns] == said


def test_a_cut_scene_that_nothing_goes_on_with_is_asked_about_again():
  talk = [
    f'"Line {i} of the talk goes on and on," said {("Una", "Joost")[i % 2]}.' for i in range(12)
  ]
  text = _chapters("Una and Joost met at the ferry house, in the fog.", *talk)
  asked = []

  def reply(request: Request) -> Reply:
    answer = json.loads(teacher.reply(request.messages))
    if _task(request) == "scenes":
      asked.append(request.id)
      if not re.search(r"/scenes/0/(0|again/\d+)$", request.id):
        answer["scenes"] = []  # The second piece does not see that it begins within a scene.
    return Reply(json.dumps(answer))

  found, counts = _run(text, reply, piece=600, overlap=0)
  assert counts.scenes["asked about again"] == 1 and asked[-1] == "T/scenes/0/again/0"
  assert sum(len(one.turns) for one in found) > 6


def _convert(*arguments: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, "-m", "data_pipeline.sources.convert", *arguments],
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_a_book_goes_through_a_server_that_misbehaves_by_one_command(tmp_path):
  from tests.llm.bad_server import BadServer

  source, out = tmp_path / "ferry.txt", tmp_path / "ferry.jsonl"
  source.write_text(TEXT, encoding="utf-8")
  faults = {"broken": 0.2, "cut": 0.2}
  with BadServer(
    tmp_path / "server", reply="tests.teachers.book:reply", faults=faults
  ) as server:
    arguments = [f"--source={source}", "--format=book", f"--out={out}", "--model=teacher"]
    arguments += [f"--endpoint={server.url}", f"--journal={tmp_path / 'calls.jsonl'}"]
    done = _convert(*arguments)
    assert done.returncode == 0, done.stderr
    whole, counts = _run(TEXT)
    assert schema.read_trajectories(out) == whole
    told = json.loads((tmp_path / "ferry.jsonl.report.json").read_text(encoding="utf-8"))
    assert told["book"]["lines"]["kept"] == counts.lines["kept"]
    paid = server.paid()
    first = out.read_bytes()
    assert _convert(*arguments).returncode == 0
    assert out.read_bytes() == first and server.paid() == paid  # All from the journal.
    # As a folder and in another encoding it is the same; both are told, and what was left out.
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "ferry.TXT").write_bytes(TEXT.encode("utf-16"))
    (shelf / "ferry.epub").write_bytes(b"PK")
    arguments[0] = f"--source={shelf}"
    assert _convert(*arguments).returncode == 0
    assert out.read_bytes() == first and server.paid() == paid
    told = json.loads((tmp_path / "ferry.jsonl.report.json").read_text(encoding="utf-8"))
    assert told["encodings"] == {str(shelf / "ferry.TXT"): "utf-16"}
    assert [(count, kind[-10:]) for kind, count in told["skipped"].items()] == [
      (1, "ferry.epub")
    ]


def test_teacher_answers_messages_as_objects_and_as_json():
  asked = book_prompts.cast("T", ["Una", "Joost"], "en")
  as_json = [{"role": "system", "content": "x"}, {"role": "user", "content": asked}]
  request = Request("a", ())
  from her_jax.llm.client import Message

  objects: Sequence[Message] = [Message("system", "x"), Message("user", asked)]
  assert teacher.reply(as_json) == teacher.reply(objects)
  assert dataclasses.is_dataclass(request)
  with pytest.raises(ValueError, match="no request about a book"):
    teacher.reply([{"role": "user", "content": "Hello"}])
