r"""Candidate replies to the turns of scenes, from any model: the material of preference pairs.

    python -m data_pipeline.preferences.candidates --scenes=scenes.jsonl --out=out/candidates.jsonl \
        --backend=endpoint --base_url=http://127.0.0.1:8000/v1 --model=policy --n=8

A context is a scene and a turn of it; the model gets the prompt that it is trained and evaluated
with. One line a context is written, in the order of the scenes:

    {"id": "scene/3", "scene": "scene", "turn": 3, "split": "train", "source": "book",
     "candidates": [{"id": "scene/3/0", "reply": "…", "repairs": []}, …], "missing": {"length": 1}}

A reply stands there as others and the judge may read it: the plan is taken out, broken tags are
repaired, and what it says for others is cut off. What cannot be repaired is asked for once more
and then counted under its cause, in `missing` and in `OUT.report.json`. Calls and answers lie in
`OUT.calls.jsonl`: a run that was killed goes on where it was and ends with the same file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import sys
from typing import Any

from absl import app, flags

from data_pipeline.asking.question import Question, Rejected
from data_pipeline.asking.runner import Runner
from data_pipeline.files import whole_file
from data_pipeline.preferences import inputs, llm_flags
from data_pipeline.preferences.inputs import Refused, Scenes
from her_jax.errors import ConfigError
from her_jax.llm.client import Message, Reply, Sampling
from her_jax.llm.guarded import Guarded
from her_jax.roleplay import chat, grammar, prompts, schema
from her_jax.roleplay.fields import build
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import DataError, Trajectory

TAG = "candidates"
TURNS = ("planned", "all")
_BLOCK = 64  # Contexts that are worked on at a time.


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One reply, without plan and name; `repairs` says what was mended in it."""

  id: str
  reply: str
  repairs: tuple[str, ...] = ()
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Context:
  """A turn of a scene with its candidates; `missing` counts replies without use by cause."""

  id: str
  scene: str
  turn: int
  candidates: tuple[Candidate, ...] = ()
  model: str = ""
  split: str = "train"
  source: str = ""
  missing: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


def context_from_dict(row: Mapping[str, Any]) -> Context:
  """Builds and checks a line of this command's file.

  Raises:
    DataError: names the field and the mend.
  """
  fields = dict(row)
  if type(row.get("turn")) is not int or row["turn"] < 0:
    raise DataError(f"turn: expected the index of a turn, got {row.get('turn')!r}")
  entries = row.get("candidates", [])
  if not isinstance(entries, list):
    raise DataError(f"candidates: expected a list of objects, got {entries!r}")
  made: list[Candidate] = []
  for i, entry in enumerate(entries):
    candidate = build(Candidate, entry, f"candidates[{i}]", required=("id", "reply"))
    repairs = candidate.repairs
    if not isinstance(repairs, list | tuple) or not all(isinstance(r, str) for r in repairs):
      raise DataError(f"candidates[{i}].repairs: expected a list of texts, got {repairs!r}")
    if any(candidate.id == other.id for other in made):
      raise DataError(f"candidates[{i}].id: {candidate.id!r} stands twice; ids must be unique")
    parsed = grammar.parse(candidate.reply)
    if parsed.status != "ok" or parsed.is_empty:
      why = parsed.problems[0] if parsed.problems else "neither speech nor action"
      raise DataError(f"candidates[{i}].reply: {why}; repair the reply or remove it")
    made.append(dataclasses.replace(candidate, repairs=tuple(repairs)))
  if "candidates" in row:
    fields["candidates"] = tuple(made)
  missing = row.get("missing", {})
  if not isinstance(missing, Mapping) or not all(type(n) is int for n in missing.values()):
    raise DataError(f"missing: expected counts by cause, got {missing!r}")
  context = build(Context, fields, "", required=("id", "scene"))
  schema.one_of(context.split, schema.SPLITS, "split")
  return context


def check_context(context: Context, scenes: Scenes) -> Trajectory:
  """The scene of a context, to which it must fit.

  Raises:
    DataError: names the field and the mend.
  """
  if context.scene not in scenes:
    raise DataError(f"scene: {context.scene!r} is not among the scenes that were read with it")
  scene = scenes[context.scene]
  if context.turn >= len(scene.turns):
    raise DataError(
      f"turn: {context.turn}, but scene {scene.id!r} has {len(scene.turns)} turns; count from 0"
    )
  if scene.turns[context.turn].speaker == scene.environment:
    raise DataError(f"turn: {context.turn} is the environment's; take a character's")
  if context.split != scene.split:
    raise DataError(
      f"split: {context.split!r}, but that of scene {scene.id!r} is {scene.split!r}"
    )
  return scene


def prompt_messages(
  scene: Trajectory, turn: int, variant: Variant = chat.DEFAULT
) -> tuple[Message, ...]:
  """The prompt of `chat.render_prompt` as messages, for back-ends that take text.

  Rendered with a chat template they are the same ids.
  """
  name = scene.turns[turn].speaker
  sheet = prompts.system_prompt(scene, scene.character(name), variant)
  dialogue = chat.messages_of(scene, range(turn), name, variant)
  return (Message("system", sheet), *(Message(m.role, m.text) for m in dialogue))


def turns_of(scene: Trajectory, which: str) -> list[int]:
  """Indices of the turns to be answered: those with a plan, or all of characters."""
  if which == "planned":
    return scene.trained_turns()
  return [i for i, turn in enumerate(scene.turns) if turn.speaker != scene.environment]


def cleaned(
  text: str, scene: Trajectory, turn: int, variant: Variant = chat.DEFAULT
) -> tuple[str, tuple[str, ...]]:
  """A sampled turn as others and the judge may read it, and what was mended.

  Raises:
    Rejected: nothing that others perceive is left, or its layers cannot be told.
  """
  speaker = scene.turns[turn].speaker
  others = [*scene.others(speaker), scene.environment]
  whole = chat.read_completion(text, speaker, variant)
  parsed = chat.read_completion(text, speaker, variant, others)
  repairs = []
  if parsed.status != "ok":
    repairs.append("tags repaired" if parsed.status == "repaired" else "tags guessed")
  if parsed.segments != whole.segments:
    repairs.append("cut where it speaks for others")
  reply = parsed.view_for("judge").strip()
  again = grammar.parse(reply)
  if again.is_empty:
    raise Rejected("empty")
  if again.status != "ok":
    raise Rejected("malformed")
  return reply, tuple(repairs)


@dataclasses.dataclass(frozen=True)
class Settings:
  """How candidates are made.

  Attributes:
    n: candidates of one context.
    turns: one of TURNS.
    sampling: of the first; each further one has the next seed, as an endpoint that heeds seeds
      would otherwise give the same reply n times.
  """

  n: int = 8
  turns: str = "planned"
  sampling: Sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=4096)
  variant: Variant = chat.DEFAULT

  def __post_init__(self) -> None:
    if self.n < 1:
      raise ConfigError(f"n is {self.n}; ask for at least one candidate a context")
    if self.turns not in TURNS:
      raise ConfigError(f"turns is {self.turns!r}; there are {', '.join(TURNS)}")


def questions(
  scene: Trajectory, turn: int, settings: Settings
) -> list[Question[tuple[str, tuple[str, ...]]]]:
  """What is asked for a context."""
  messages = prompt_messages(scene, turn, settings.variant)

  def read(reply: Reply) -> tuple[str, tuple[str, ...]]:
    return cleaned(reply.text, scene, turn, settings.variant)

  return [
    Question(
      f"{TAG}/{scene.id}/{turn}/{k}",
      messages,
      dataclasses.replace(settings.sampling, seed=settings.sampling.seed + k),
      TAG,
      read,
    )
    for k in range(settings.n)
  ]


def make(
  scenes: Iterable[Trajectory], runner: Runner, settings: Settings, model: str, counts: Counter
) -> Iterator[Context]:
  """The contexts with their candidates, in the order of the scenes.

  Args:
    counts: gets what was made, mended and is missing.

  Raises:
    Stopped: no further call can succeed.
  """
  places = ((scene, turn) for scene in scenes for turn in turns_of(scene, settings.turns))
  for block in iter(lambda: list(itertools.islice(places, _BLOCK)), []):
    asked = [question for scene, turn in block for question in questions(scene, turn, settings)]
    answers = iter(runner.ask(asked))
    for scene, turn in block:
      made: list[Candidate] = []
      missing: Counter[str] = Counter()
      for k in range(settings.n):
        answer = next(answers)
        if answer.value is None:
          missing[answer.cause] += 1
          continue
        reply, repairs = answer.value
        if any(reply == other.reply for other in made):
          missing["same as another"] += 1
          continue
        counts.update(f"mended: {repair}" for repair in repairs)
        made.append(Candidate(f"{scene.id}/{turn}/{k}", reply, repairs))
      counts["contexts"] += 1
      counts["candidates"] += len(made)
      counts["contexts with fewer than two candidates"] += len(made) < 2
      counts.update({f"missing: {cause}": n for cause, n in missing.items()})
      yield Context(
        f"{scene.id}/{turn}", scene.id, turn, tuple(made), model, scene.split, scene.source,
        dict(sorted(missing.items())),
      )  # fmt: skip


def run(
  paths: Sequence[str],
  out: str,
  runner: Runner,
  settings: Settings,
  model: str,
  refused: Refused,
) -> dict[str, Any]:
  """Writes the file and its report; returns the report.

  Raises:
    DataError: the scenes are faulty, or there is no turn to answer.
    Stopped: no further call can succeed; the file is not written.
  """
  scenes = Scenes(paths, refused)
  counts: Counter[str] = Counter()
  with whole_file(out) as f:
    for context in make(scenes, runner, settings, model, counts):
      inputs.write_row(f, context)
    if not counts["contexts"]:
      raise DataError(
        f"{', '.join(paths)}: no turn has a plan; pass --turns=all to answer all characters'"
      )
  report = {
    "scenes": len(scenes), "n": settings.n, "model": model,
    "counts": dict(sorted(counts.items())), "refused": refused.as_dict(),
  }  # fmt: skip
  inputs.write_report(f"{out}.report.json", report)
  return report


if __name__ == "__main__":
  _SCENES = flags.DEFINE_list("scenes", None, "JSON Lines files of scenes", required=True)
  _OUT = flags.DEFINE_string("out", None, "File to write", required=True)
  _N = flags.DEFINE_integer("n", 8, "Candidates a context", 1)
  _TURNS = flags.DEFINE_enum("turns", "planned", TURNS, "Turns with a plan, or all")
  _TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Of sampling", 0.0)
  _TOP_P = flags.DEFINE_float("top_p", 1.0, "Of sampling", 0.0, 1.0)
  _MAX_TOKENS = flags.DEFINE_integer("max_tokens", 4096, "Of a reply, its plan included", 1)
  _SEED = flags.DEFINE_integer("seed", 0, "Sent with the first candidate's call")
  _STYLE = flags.DEFINE_enum("style", "full", tuple(prompts.STYLES), "Of the character sheet")
  _NOTATION = flags.DEFINE_enum("notation", "her", prompts.NOTATIONS, "Of thoughts and actions")
  _PLAN = flags.DEFINE_enum("plan", "full", prompts.PLANS, "Whether a plan is asked for")
  _LENIENT = flags.DEFINE_bool("lenient", False, "Count faulty lines and leave them out")
  _CLIENT = llm_flags.define()

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"what is {argv[1]!r}? Pass --scenes=FILE and --out=FILE.")
    settings = Settings(
      _N.value,
      _TURNS.value,
      Sampling(_TEMPERATURE.value, _TOP_P.value, _MAX_TOKENS.value, _SEED.value),
      Variant(_STYLE.value, _NOTATION.value, _PLAN.value),
    )
    refused = Refused(_LENIENT.value)
    try:
      client = _CLIENT(f"{_OUT.value}.calls.jsonl")
      runner = Runner(Guarded(client))
      report = run(_SCENES.value, _OUT.value, runner, settings, client.backend.model, refused)
    except (DataError, ConfigError, OSError) as error:
      sys.exit(f"candidates: {error}")
    for line in refused.lines:
      print(f"left out: {line}", file=sys.stderr)
    for name, count in report["counts"].items():
      print(f"{count:8} {name}")
    print(client.report.table())

  app.run(main)
