"""The stages in order: source → stage_0 … stage_3 → trajectories.jsonl, resumable throughout.

    workdir/stage_N/     conversations.jsonl, failures.jsonl, stage.json   see stage_files
    workdir/trajectories.jsonl    what the last stage left
    workdir/failures.json         per stage: how much was asked, what failed, by cause
    workdir/retry.jsonl           each failure with its unit; --config.retry_failed does them again
    workdir/synthesis.json        counts per stage, layouts before and after

Conversations go through a stage in blocks, one block at a time, and are written in the order of
the input. What a block is told depends on whole blocks before it alone, and replies that were
paid for lie in the client's journal: a run that is killed and started again ends with the same
files, byte for byte, as one that was not.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import itertools
import json
import pathlib
import shutil
import time
from typing import Any

from absl import logging

from data_pipeline.asking.runner import Runner
from data_pipeline.files import whole_file, whole_path, write_whole
from data_pipeline.synthesis import prepare, stage_files
from data_pipeline.synthesis.stage import Guide, Stage
from data_pipeline.synthesis.stage_files import CONVERSATIONS, InputChanged, StageFiles
from her_jax.errors import ConfigError
from her_jax.llm.guarded import Completes, Guarded
from her_jax.roleplay import grammar
from her_jax.roleplay.layouts import entropy_bits
from her_jax.roleplay.schema import DataError, Trajectory

PREPARE = "stage_0"
TRAJECTORIES, TABLE, RETRY, SUMMARY = (
  "trajectories.jsonl", "failures.json", "retry.jsonl", "synthesis.json"
)  # fmt: skip
_RETRIES = "retries.json"
_BLOCK_0 = 256
_TELL_EVERY_S = 30.0

Read = Callable[[], Iterable[Trajectory | DataError]]


@dataclasses.dataclass(frozen=True)
class Source:
  """Where conversations come from.

  Attributes:
    read: gives them in an order that is always the same; what can't be read as the error.
    identity: of their content; with another one stage 0 is done again.
    lenient: what can't be read is counted and kept in stage_0/quarantine.txt, instead of
      ending the run.
    limit: conversations that are taken; 0: all.
  """

  read: Read
  identity: str
  lenient: bool = False
  limit: int = 0


@dataclasses.dataclass(frozen=True)
class _Retries:
  """The retry list that a run works off.

  Attributes:
    since: the folder of the first stage that is done again; those behind it are too.
    units: how often each has been asked for anew.
  """

  round: int = 0
  since: str = ""
  units: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """A run in a workdir.

  Attributes:
    stages: those that ask a model, in order.
    client_of: the client of a stage, made when it is first needed.
    block: conversations that are worked on at a time.
    depends_on: what a stage's results depend on beside its own settings, as the model that it
      asks; a workdir made with other is refused.
    check: is shown the file of stage 0 before anything is asked; what it raises ends the run.
  """

  workdir: pathlib.Path
  stages: Sequence[Stage]
  client_of: Callable[[Stage], Completes]
  prepare_settings: prepare.Settings = prepare.Settings()
  block: int = 64
  give_up_after: int = 20
  depends_on: Callable[[Stage], Mapping[str, str]] = lambda stage: {}
  check: Callable[[pathlib.Path], None] = lambda path: None

  def run(
    self, source: Source, chosen: Sequence[str] | None = None, retry_failed: bool = False
  ) -> dict[str, Any]:
    """Runs the chosen stages, or goes on with them; returns what synthesis.json holds.

    Args:
      chosen: folders, stage_0 among them; None: all.
      retry_failed: first puts what failed in a finished run on the list to be done again.

    Raises:
      Stopped: the budget is spent or the endpoint down.
      DataError: the source can't be read.
      ConfigError: settings contradict each other or what lies in the workdir.
    """
    folders = [PREPARE, *(stage.folder for stage in self.stages)]
    wanted = folders if chosen is None else [f for f in folders if f in chosen]
    if not wanted:
      raise ConfigError(f"no stage is chosen; there are {', '.join(folders)}")
    self.workdir.mkdir(parents=True, exist_ok=True)
    if retry_failed:
      self._plan_retries(wanted)
    try:
      if PREPARE in wanted:
        self._prepare(source)
        self.check(self.workdir / PREPARE / CONVERSATIONS)
      last = PREPARE
      for stage in self.stages:
        if stage.folder in wanted:
          before = self._input_of(stage, folders, wanted)
          self._run_stage(stage, before)
          last = stage.folder
      final = self.workdir / TRAJECTORIES
      with whole_path(final) as part:
        shutil.copyfile(self.workdir / last / CONVERSATIONS, part)
    finally:
      summary = self._report(folders)
    return summary

  def _input_of(
    self, stage: Stage, folders: Sequence[str], wanted: Sequence[str]
  ) -> pathlib.Path:
    """The folder of the nearest stage before that is run too, or else that is finished."""
    before = folders[: folders.index(stage.folder)]
    ready = [f for f in before if f in wanted] or [
      f for f in before if _manifest(self.workdir / f).get("complete")
    ]
    if not ready:
      raise ConfigError(
        f"{stage.folder} has no conversations to work on: no stage before it is finished in"
        f" {self.workdir}; add 0 to --config.stages"
      )
    return self.workdir / ready[-1]

  def _prepare(self, source: Source) -> None:
    """Stage 0, in one go: it is fast, and costs nothing to do again."""
    folder = self.workdir / PREPARE
    told = {
      "source": source.identity, "limit": source.limit, **dataclasses.asdict(self.prepare_settings)
    }  # fmt: skip
    told = json.loads(json.dumps(told))
    now = _manifest(folder)
    if now.get("complete") and now["fingerprint"] == told:
      return
    if now.get("complete"):
      changed = ", ".join(k for k in told if now["fingerprint"].get(k) != told[k])
      logging.warning(
        "%s was made with another %s: it and what follows are done again, with the answers that"
        " the journal has", folder, changed,
      )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    counts, used = Counter[str](), Counter[str]()
    (folder / stage_files.MANIFEST).unlink(missing_ok=True)
    files = StageFiles(folder, told)
    files.restart()
    files.start(iter(()))
    scenes = self._prepared(source, folder, counts, used)
    for block in _blocks(scenes, _BLOCK_0):
      files.commit([], block, (), {}, {}, whole=True)
    files.commit([], (), (), counts, used, whole=True)
    files.finish()
    logging.info("stage 0: %s", dict(counts))
    if not counts["conversations kept"]:
      raise DataError(f"stage 0 kept no conversation: {dict(counts) or 'the source is empty'}")

  def _prepared(
    self, source: Source, folder: pathlib.Path, counts: Counter[str], used: Counter[str]
  ) -> Iterator[Trajectory]:
    seen: set[bytes] = set()  # Of each id eight bytes: millions of them fit.
    with (folder / "quarantine.txt").open("w", encoding="utf-8") as quarantine:
      for scene in source.read():
        if source.limit and counts["conversations kept"] >= source.limit:
          return
        counts["conversations read"] += 1
        if isinstance(scene, DataError):
          if not source.lenient:
            raise scene
          counts["conversation: unreadable"] += 1
          quarantine.write(f"{scene}\n")
          continue
        own = hashlib.blake2b(scene.id.encode(), digest_size=8).digest()
        if own in seen:
          counts["conversation: id stands twice"] += 1
          continue
        seen.add(own)
        counts["turns read"] += len(scene.turns)
        made = prepare.prepare(scene, self.prepare_settings, counts)
        if made is not None:
          for turn in made.turns:
            if turn.speaker != made.environment:
              used[grammar.parse(turn.reply).layout()] += 1
          yield made

  def _run_stage(self, stage: Stage, before: pathlib.Path) -> None:
    retries = self._retries()
    again = retries.round if stage.folder >= retries.since else 0
    told = {"block": self.block, "input": before.name, **stage.fingerprint()}
    told |= self.depends_on(stage)
    files = StageFiles(self.workdir / stage.folder, told, again)
    lines = self._lines(before)
    try:
      files.start(lines)
    except InputChanged as error:
      logging.warning(
        "%s; it is done again, and what is paid for is taken from the journal", error
      )
      files.restart()
      files.start(lines := self._lines(before))
    runner: Runner | None = None
    whole, told_at = True, time.monotonic()
    while block := list(itertools.islice(lines, self.block)):
      whole = len(block) == self.block
      if files.is_done(block):
        break
      files.rewind()
      if runner is None:
        runner = Runner(Guarded(self.client_of(stage), self.give_up_after))
      self._run_block(stage, files, block, runner, retries.units)
      if time.monotonic() - told_at > _TELL_EVERY_S:
        told_at, progress = time.monotonic(), files.progress
        logging.info(
          "%s: %d conversations so far; %s",
          stage.folder,
          progress.inputs,
          dict(progress.counts),
        )
    if whole:
      files.end_whole()
    files.finish()
    logging.info("%s (%s): %s", stage.folder, stage.name, dict(files.progress.counts))

  def _lines(self, folder: pathlib.Path) -> Iterator[bytes]:
    row = _manifest(folder)
    return stage_files.lines_of(
      folder / CONVERSATIONS, (row["end"] or row["whole"])["conversations"]
    )

  def _run_block(
    self,
    stage: Stage,
    files: StageFiles,
    block: list[bytes],
    runner: Runner,
    again: Mapping[str, int],
  ) -> None:
    scenes = [stage_files.scene_of(line) for line in block]
    shared = files.guide(files.progress.inputs // self.block, stage.guide(files.progress.used))

    def jobs() -> Iterator[tuple[tuple[int, int], Any]]:
      for place, scene in enumerate(scenes):
        for number, job in enumerate(stage.jobs(scene, Guide(shared, place, again))):
          yield (place, number), job

    results = dict(runner.run(jobs()))
    outcomes = []
    for place, scene in enumerate(scenes):
      own = itertools.takewhile(lambda k: k in results, ((place, n) for n in itertools.count()))
      outcomes.append(stage.finish(scene, [results[k] for k in own]))
    counts, used = Counter[str](), Counter[str]()
    for outcome in outcomes:
      counts.update(outcome.counts)
      used.update(outcome.used)
    faults = (fault for outcome in outcomes for fault in outcome.faults)
    made = (outcome.scene for outcome in outcomes)
    files.commit(block, made, faults, counts, used, whole=len(block) == self.block)

  def _retries(self) -> _Retries:
    path = self.workdir / _RETRIES
    return _Retries(**json.loads(path.read_text())) if path.exists() else _Retries()

  def _plan_retries(self, wanted: Sequence[str]) -> None:
    """Begins a new round, unless one is still under way, whose list then counts."""
    now = self._retries()
    asking = [stage.folder for stage in self.stages if stage.folder in wanted]
    for folder in asking:
      row = _manifest(self.workdir / folder)
      behind = folder >= now.since and row.get("round", 0) < now.round
      if behind or not row.get("complete"):
        return
    units, failed = dict(now.units), []
    for folder in asking:
      for fault in stage_files.faults_of(self.workdir / folder):
        units[fault.unit] = units.get(fault.unit, 0) + 1
        failed.append(folder)
    if not failed:
      logging.info("nothing has failed: there is nothing to do again")
      return
    made = _Retries(now.round + 1, failed[0], units)
    text = json.dumps(dataclasses.asdict(made), ensure_ascii=False)
    write_whole(self.workdir / _RETRIES, text)

  def _report(self, folders: Sequence[str]) -> dict[str, Any]:
    """Writes the table of failures, the retry list and the summary of all stages so far."""
    names = {PREPARE: "prepare"} | {stage.folder: stage.name for stage in self.stages}
    table: dict[str, Any] = {}
    summary: dict[str, Any] = {"stages": {}, "layouts": {}}
    with whole_file(self.workdir / RETRY) as retry:
      for folder in folders:
        row = _manifest(self.workdir / folder)
        if not row:
          continue
        progress = row["end"] or row["whole"]
        summary["stages"][names[folder]] = progress["counts"]
        if used := progress["used"]:
          summary["layouts"][names[folder]] = {
            "turns": sum(used.values()), "different": len(used),
            "entropy_bits": round(entropy_bits(used) or 0.0, 4), "used": used,
          }  # fmt: skip
        if folder == PREPARE:
          continue
        failed, kept = Counter[str](), Counter[str]()
        for fault in stage_files.faults_of(self.workdir / folder):
          (kept if fault.kept else failed)[fault.cause] += 1
          line = {"stage": names[folder], "unit": fault.unit, "cause": fault.cause}
          retry.write(json.dumps(line, ensure_ascii=False) + "\n")
        table[names[folder]] = {
          "units": progress["counts"].get("units", 0),
          "failed": sum(failed.values()), "failed_by_cause": dict(sorted(failed.items())),
          "kept": sum(kept.values()), "kept_by_cause": dict(sorted(kept.items())),
        }  # fmt: skip
    if failed_in_all := sum(row["failed"] for row in table.values()):
      logging.info(
        "%d units failed, listed in %s; --config.retry_failed asks for them anew",
        failed_in_all, self.workdir / RETRY,
      )  # fmt: skip
    for name, value in ((TABLE, table), (SUMMARY, summary)):
      text = json.dumps(value, ensure_ascii=False, indent=2)
      write_whole(self.workdir / name, text + "\n")
    return summary


def _blocks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
  source = iter(items)
  while block := list(itertools.islice(source, size)):
    yield block


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / stage_files.MANIFEST
  return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
