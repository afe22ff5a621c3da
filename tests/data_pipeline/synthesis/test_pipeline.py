"""The stages in order: placement, resume, retry lists, tables, limits."""

from collections import Counter
import dataclasses
import json

import pytest

from data_pipeline import samples
from data_pipeline.synthesis import prepare, stage_files
from her_jax.errors import ConfigError
from her_jax.llm.client import Client, Failure
from her_jax.llm.guarded import Stopped
from her_jax.roleplay import grammar, schema
from her_jax.roleplay.schema import DataError
from tests.data_pipeline.synthesis import synthesis_runs
from tests.data_pipeline.synthesis.synthesis_runs import files, make, read, scene, source
from tests.teachers import synthesis as scripted_teacher
from tests.teachers.synthesis import Teacher


def plain_samples(number=12):
  """Sample scenes without plans and thoughts, some with turns that have to be merged."""
  made = []
  for n, whole in enumerate(schema.read_trajectories(samples.SCENES)[:: 96 // number][:number]):
    turns = []
    for turn in whole.turns:
      text = grammar.parse(turn.reply).view_for("other")
      turns.append(schema.Turn(turn.speaker, text))
      if n % 3 == 0 and len(turns) % 4 == 1:
        turns.append(schema.Turn(turn.speaker, f"And once more, {n}."))
    her = {"passage": f"{whole.scenario} {whole.characters[0].profile}"}
    made.append(dataclasses.replace(whole, turns=tuple(turns), extra={"her": her}))
  return made


def assert_plans_in_place(made, given):
  """Every plan says the turn that it was made for, and every turn holds its own messages."""
  checked = 0
  for scene_, before in zip(made, given, strict=True):
    messages = {str(i): turn for i, turn in enumerate(before.turns)}
    for turn in scene_.turns:
      her = turn.extra["her"]
      own = [messages[o] for o in her["origin_ids"]]
      assert len({names.casefold().replace(".", "") for names in (o.speaker for o in own)}) == 1
      for message in own:
        said = (
          "".join(
            s.text for s in grammar.parse(turn.reply).segments if s.kind == grammar.SPEECH
          )
          + turn.reply
        )
        words = [w for w in message.reply.split() if w.isalpha()][-1:]
        assert all(word in said for word in words), (turn, message)
      if turn.plan:
        assert scripted_teacher.digest_of(turn.reply) in turn.plan, (scene_.id, her)
        checked += 1
  return checked


def test_every_plan_sits_on_the_turn_it_was_made_for(tmp_path):
  given = plain_samples()
  make(tmp_path, Teacher()).run(source(given))
  made = read(tmp_path)
  assert [s.id for s in made] == [s.id for s in given]
  assert any(len(t.extra["her"]["origin_ids"]) > 1 for s in made for t in s.turns)
  planned = [t for s in made for t in s.turns if t.speaker != s.environment]
  assert assert_plans_in_place(made, given) == len(planned)
  # The draft was made where the history ends: on the turn before.
  for scene_ in made:
    for before, turn in zip(scene_.turns, scene_.turns[1:], strict=False):
      if turn.plan:
        assert turn.extra["her"]["draft"].endswith(f"(after {prepare.key_of(before)})")


def test_plans_of_the_real_cases_sit_on_their_turns_also_after_merging(real_data, tmp_path):
  given = synthesis_runs.real_cases(real_data("coser_public_domain_cases.json"))
  assert len(given) == 43
  teacher = Teacher(seed=4, faulty=0.5)
  summary = make(tmp_path, teacher, window=6).run(source(given))
  made = read(tmp_path)
  assert len(made) == 43
  merged = sum(len(t.extra["her"]["origin_ids"]) > 1 for s in made for t in s.turns)
  assert 0 < merged <= summary["stages"]["prepare"]["turn: merged into the one before"]
  plans = assert_plans_in_place(made, given)
  table = json.loads((tmp_path / "failures.json").read_text())
  assert plans == table["backward"]["units"] - table["backward"]["failed"] > 300
  # Every planted kind of fault has come up, and what asking again did not help is counted.
  for stage, kinds in scripted_teacher.FAULTS.items():
    assert {kind for s, kind, _ in teacher.planted if s == stage} == set(kinds), stage
  stubborn = Counter(
    s for (s, k, again), n in teacher.planted.items() for _ in range(n) if again
  )
  assert table["backward"]["failed"] == stubborn["backward"] > 0
  causes = set(table["backward"]["failed_by_cause"])
  assert (
    causes <= {"leak", "first_person", "too_short", "refusal", "truncated"} and len(causes) >= 4
  )
  # No planted leak, first person or invented quote is in what came out.
  for scene_ in made:
    for fact in scene_.extra["her"].get("settings_added", []):
      assert fact["quote"] in " ".join(scene_.extra["her"]["passage"].split())
      assert "Ozymandias" not in fact["text"]
  dropped = summary["stages"]["setting"]
  assert dropped["fact dropped: quote not in the passage"] == sum(
    n for (s, k, again), n in teacher.planted.items() if (s, k) == ("setting", "quote")
  )
  assert dropped["fact dropped: unsupported name"] + dropped.get(
    "fact dropped: unsupported figure", 0
  ) == sum(n for (s, k, _), n in teacher.planted.items() if (s, k) == ("setting", "name"))


def test_a_run_that_is_broken_off_ends_like_one_that_was_not(tmp_path):
  """Stopped after each number of calls in turn: same files, and nothing is asked twice."""
  given = plain_samples(6)
  whole = Teacher(seed=1, faulty=0.2)
  make(tmp_path / "whole", whole, block=2).run(source(given))
  expected, calls = files(tmp_path / "whole"), sum(whole.asked.values())
  assert max(whole.asked.values()) == 1

  teacher, kept = Teacher(seed=1, faulty=0.2), {}

  class Journalled:
    """A client that keeps replies, and whose budget lets `left` calls through."""

    def __init__(self, left):
      self.left = left

    def complete(self, requests):
      for request in requests:
        if request.id not in kept:
          if not self.left:
            yield request, Failure("budget", "spent")
            continue
          self.left -= 1
          kept[request.id] = teacher(request)
        yield request, kept[request.id]

  stops = 0
  for _ in range(calls):
    client = Journalled(7)
    try:
      make(tmp_path / "broken", None, client_of=lambda _, c=client: c, block=2).run(
        source(given)
      )
      break
    except Stopped as stopped:
      stops += 1
      assert "budget" in str(stopped)
  assert stops >= calls // 7 - 1
  assert files(tmp_path / "broken") == expected
  assert teacher.asked == whole.asked


@pytest.mark.parametrize("name", [stage_files.CONVERSATIONS, stage_files.FAILURES])
def test_what_lies_behind_the_last_block_is_cut_off(tmp_path, name):
  given = plain_samples(5)
  make(tmp_path / "whole", Teacher(), block=2).run(source(given))
  pipeline = make(tmp_path / "torn", Teacher(), block=2)
  pipeline.run(source(given), chosen=["stage_0", "stage_1"])
  manifest = tmp_path / "torn/stage_1/stage.json"
  row = json.loads(manifest.read_text())
  manifest.write_text(json.dumps(row | {"end": None, "complete": False}))
  with (tmp_path / "torn/stage_1" / name).open("ab") as f:
    f.write(b'{"torn": ')
  make(tmp_path / "torn", Teacher(), block=2).run(source(given))
  assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_a_raised_limit_goes_on_and_asks_nothing_twice(tmp_path):
  given, teacher = plain_samples(8), Teacher()
  kept = {}

  class Journalled:
    def complete(self, requests):
      for request in requests:
        if (request.id, request.messages) not in kept:
          kept[request.id, request.messages] = teacher(request)
        yield request, kept[request.id, request.messages]

  run = lambda n: make(tmp_path, None, client_of=lambda _: Journalled(), block=4).run(
    source(given, limit=n)
  )
  run(3)
  assert [s.id for s in read(tmp_path)] == [s.id for s in given[:3]]
  first = sum(teacher.asked.values())
  run(3)
  assert sum(teacher.asked.values()) == first
  run(0)
  assert [s.id for s in read(tmp_path)] == [s.id for s in given]
  assert max(teacher.asked.values()) == 1
  make(tmp_path / "whole", Teacher(), block=4).run(source(given))
  assert files(tmp_path) == files(tmp_path / "whole")


def test_the_retry_list_is_worked_off_and_the_rest_is_not_asked_again(tmp_path):
  given, teacher = plain_samples(8), Teacher(seed=2, faulty=0.5, stubborn=1.0)
  kept, fresh = {}, []

  class Journalled:
    def complete(self, requests):
      for request in requests:
        key = (request.id, request.messages, request.sampling)
        if key not in kept:
          fresh.append(request.id)
          kept[key] = teacher(request)
        yield request, kept[key]

  def run(**more):
    return make(tmp_path, None, client_of=lambda _: Journalled(), block=4).run(
      source(given), **more
    )

  run()
  table = json.loads((tmp_path / "failures.json").read_text())
  failed = [json.loads(line) for line in (tmp_path / "retry.jsonl").read_text().splitlines()]
  assert len(failed) == sum(row["failed"] + row["kept"] for row in table.values()) > 20
  fresh.clear()
  teacher.faulty = 0.0  # The teacher has a better day.
  run(retry_failed=True)
  assert {f["unit"] for f in failed if f["stage"] == "role_thinking"} <= {
    r.partition("/again1")[0] for r in fresh if "/again1" in r
  }
  left = json.loads((tmp_path / "failures.json").read_text())
  assert sum(row["failed"] + row["kept"] for row in left.values()) == 0
  # Asked anew were the list, and what was asked about turns and drafts that it has changed.
  touched = {f["unit"].split("/")[1] for f in failed if f["stage"] == "role_thinking"}
  drafts = {f["unit"].removeprefix("forward/") for f in failed if f["stage"] == "forward"}
  for request in fresh:
    _, scene_id, turn = request.split("/")[:3]
    assert "/again" in request or scene_id in touched or f"{scene_id}/{turn}" in drafts
  before = files(tmp_path)
  fresh.clear()
  run(retry_failed=True)  # Nothing is left to do.
  assert files(tmp_path) == before and not fresh
  plans = [t.plan for s in read(tmp_path) for t in s.turns if t.speaker != s.environment]
  assert all(plans)


def test_a_round_of_retries_that_is_broken_off_is_no_second_round(tmp_path):
  given, teacher = plain_samples(6), Teacher(seed=2, faulty=0.5, stubborn=1.0)
  make(tmp_path, teacher, block=2).run(source(given))

  class Down:
    def complete(self, requests):
      for request in requests:
        yield request, Failure("budget", "spent")

  with pytest.raises(Stopped):
    make(tmp_path, None, client_of=lambda _: Down(), block=2).run(
      source(given), retry_failed=True
    )
  list_1 = (tmp_path / "retries.json").read_bytes()
  make(tmp_path, teacher, block=2).run(source(given), retry_failed=True)
  assert (tmp_path / "retries.json").read_bytes() == list_1
  assert json.loads(list_1)["round"] == 1


def test_an_endpoint_that_is_down_ends_the_run_instead_of_failing_every_scene(tmp_path):
  class Down:
    asked = 0

    def complete(self, requests):
      for request in requests:
        Down.asked += 1
        yield request, Failure("connection", "refused")

  pipeline = dataclasses.replace(
    make(tmp_path, None, client_of=lambda _: Down()), give_up_after=5
  )
  with pytest.raises(Stopped, match="5 calls in a row failed"):
    pipeline.run(source(plain_samples(12)))
  assert Down.asked <= 12
  make(tmp_path, Teacher()).run(source(plain_samples(12)))
  assert len(read(tmp_path)) == 12


def test_one_bad_answer_leaves_the_rest_of_its_scene_alone(tmp_path):
  """A turn without a plan stays in its conversation, untrained, and is listed by cause."""
  teacher = Teacher(seed=5, faulty=0.4, stubborn=1.0)
  make(tmp_path, teacher).run(source(plain_samples(6)))
  made = read(tmp_path)
  assert len(made) == 6
  table = json.loads((tmp_path / "failures.json").read_text())
  own = [t for s in made for t in s.turns if t.speaker != s.environment]
  assert table["backward"]["units"] == len(own)
  assert sum(bool(t.plan) for t in own) == len(own) - table["backward"]["failed"]
  kept = Counter(table["role_thinking"]["kept_by_cause"])
  assert set(kept) <= {"layout_run", "few_layouts"}
  flagged = sum("not_edited" in t.extra["her"].get("flags", []) for t in own)
  unedited = sum("original" not in t.extra["her"] for t in own)
  assert flagged == unedited > 0


def test_layouts_become_more_and_are_counted(tmp_path):
  summary = make(tmp_path, Teacher(), block=3).run(source(plain_samples(12)))
  before, after = (summary["layouts"][s] for s in ("prepare", "role_thinking"))
  assert after["turns"] == before["turns"]
  assert after["entropy_bits"] > before["entropy_bits"] + 0.5
  used = Counter(
    grammar.parse(t.reply).layout()
    for s in read(tmp_path)
    for t in s.turns
    if t.speaker != s.environment
  )
  assert used == Counter(after["used"])


def test_what_blocks_are_told_follows_what_was_used_before(tmp_path):
  prompts = []
  teacher = Teacher()

  def listening(request):
    if request.tag == "role_thinking":
      prompts.append(request.messages[1].content)
    return teacher(request)

  make(tmp_path, listening, block=3).run(
    source(plain_samples(12)), chosen=["stage_0", "stage_1"]
  )
  rare = [p.rpartition("to be preferred: ")[2].splitlines()[0] for p in prompts]
  rare = [r for r in rare if r]
  assert len(set(rare)) > 4


def test_other_settings_are_refused_by_name(tmp_path):
  given = plain_samples(2)
  make(tmp_path, Teacher()).run(source(given))
  with pytest.raises(ConfigError, match=r"stage_1 was made with other settings \(window\)"):
    make(tmp_path, Teacher(), window=7).run(source(given))


def test_stages_can_be_run_one_by_one(tmp_path):
  given = plain_samples(4)
  make(tmp_path / "whole", Teacher()).run(source(given))
  for folder in ("stage_0", "stage_1", "stage_2a", "stage_2b", "stage_3"):
    make(tmp_path / "steps", Teacher()).run(source(given), chosen=[folder])
  assert files(tmp_path / "steps") == files(tmp_path / "whole")


def test_a_stage_without_input_says_so(tmp_path):
  with pytest.raises(ConfigError, match=r"add 0 to --config\.stages"):
    make(tmp_path, Teacher()).run(source(plain_samples(2)), chosen=["stage_2a"])


def test_unreadable_input_is_strict_or_counted(tmp_path):
  given = [plain_samples(2)[0], DataError("x.jsonl:7: id: missing"), plain_samples(2)[1]]
  with pytest.raises(DataError, match=r"x\.jsonl:7"):
    make(tmp_path / "strict", Teacher()).run(source(given))
  summary = make(tmp_path / "lenient", Teacher()).run(source(given, lenient=True))
  assert summary["stages"]["prepare"]["conversation: unreadable"] == 1
  assert "x.jsonl:7" in (tmp_path / "lenient/stage_0/quarantine.txt").read_text()
  assert len(read(tmp_path / "lenient")) == 2


def test_nothing_left_is_an_error_with_the_reasons(tmp_path):
  empty = dataclasses.replace(plain_samples(1)[0], turns=())
  with pytest.raises(DataError, match="conversation: empty"):
    make(tmp_path, Teacher()).run(source([empty]))


def test_requests_are_made_as_they_are_wanted(tmp_path):
  """Ten times the input: not more conversations are read ahead."""
  ahead = []

  def reading(number):
    for n in range(number):
      ahead.append(n)
      yield scene(("Ada", f"Good morning, {n}."), ("Bo", "Is it? Well."), id=f"s{n}")

  made = make(tmp_path, Teacher(), block=4)
  made.run(source(()).__class__(lambda: reading(40), "x"), chosen=["stage_0"])
  open_at_once = []

  class Counting:
    def complete(self, requests):
      known = set()
      for request in requests:
        known.add(request.id.split("/")[1])
        yield request, Teacher()(request)
      open_at_once.append(len(known))

  make(tmp_path, None, client_of=lambda _: Counting(), block=4).run(
    source(()).__class__(lambda: reading(40), "x"), chosen=["stage_1"]
  )
  assert max(open_at_once) <= 4 and len(open_at_once) >= 10


def test_two_conversations_of_one_id_are_never_both_taken(tmp_path):
  given = plain_samples(2)
  summary = make(tmp_path, Teacher()).run(source([*given, given[0]]))
  assert summary["stages"]["prepare"]["conversation: id stands twice"] == 1
  assert len(read(tmp_path)) == 2


def test_the_client_may_look_ahead_and_answer_in_any_order(tmp_path):
  given = plain_samples(4)
  make(tmp_path / "in_order", Teacher()).run(source(given))
  teacher = Teacher()

  class Backwards:
    def complete(self, requests):
      held = []
      for request in requests:
        held.append(request)
        if len(held) == 5:
          yield from ((r, teacher(r)) for r in reversed(held))
          held.clear()
      yield from ((r, teacher(r)) for r in reversed(held))

  make(tmp_path / "reversed", None, client_of=lambda _: Backwards()).run(source(given))
  assert files(tmp_path / "reversed") == files(tmp_path / "in_order")


assert Client  # the runs of `make` go through it
