r"""Labels pairs of candidates by a teacher that sees the library of principles, in both orders.

    python -m data_pipeline.preferences.labels --candidates=out/candidates.jsonl \
        --scenes=scenes.jsonl --out=out/labelled.jsonl --backend=endpoint --model=teacher …

The candidates of a context meet as in a tournament's rounds, so that each stands in about as many
pairs as any other (`--pairs_per_context`). The teacher names at least three principles, the winner
by each, and a verdict. Written are

    OUT                    pairs with a label (schema.PreferencePair); `her` in a line holds the
                           candidates' ids, winner by each principle, the verdicts of both orders
    OUT.judgements.jsonl   what the teacher said, a line for each order (schema.Judgement)
    OUT.left_out.jsonl     pairs without a label: why, and what the teacher said all the same
    OUT.report.json        counts, flip rate, share of first places, correlation with length
    OUT.calls.jsonl        the journal, by which a run that was killed goes on

Where the orders contradict each other the label is a tie, or with --contradiction=drop there is
none. A verdict that cannot be read is missing and never a lost comparison. Candidates that carry
what looks like a verdict are counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import itertools
import random
import sys
from typing import Any

from absl import app, flags

from data_pipeline.asking.question import Answer, Question, Rejected
from data_pipeline.asking.runner import Runner
from data_pipeline.files import whole_file
from data_pipeline.preferences import inputs, label_prompts, llm_flags, verdicts
from data_pipeline.preferences.candidates import (
  Candidate,
  Context,
  check_context,
  context_from_dict,
)
from data_pipeline.preferences.inputs import Refused, Scenes
from data_pipeline.preferences.lengths import Lengths
from data_pipeline.preferences.verdicts import Names, Told
from her_jax.errors import ConfigError
from her_jax.llm.client import Reply, Sampling
from her_jax.llm.guarded import Guarded
from her_jax.roleplay import judging, principles
from her_jax.roleplay.principles import Principle
from her_jax.roleplay.schema import DataError, Judgement, PreferencePair, Trajectory

TAG = "labels"
ORDERS = ("12", "21")
CONTRADICTIONS = ("tie", "drop")
_BLOCK = 64  # Contexts that are worked on at a time.


@dataclasses.dataclass(frozen=True)
class Settings:
  """How pairs are labelled.

  Attributes:
    pairs_per_context: at most.
    least: principles of the library that a judgement names, or it is not used.
    contradiction: what is made of orders that differ, one of CONTRADICTIONS.
  """

  library: Mapping[str, Principle]
  pairs_per_context: int = 4
  least: int = 3
  contradiction: str = "tie"
  sampling: Sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=4096)
  seed: int = 0

  def __post_init__(self) -> None:
    if self.contradiction not in CONTRADICTIONS:
      raise ConfigError(
        f"contradiction is {self.contradiction!r}; there are {', '.join(CONTRADICTIONS)}"
      )
    if not 1 <= self.least <= len(self.library):
      raise ConfigError(
        f"least_principles is {self.least}; choose from 1 to {len(self.library)}, as many as the"
        " library holds"
      )


@dataclasses.dataclass(frozen=True)
class Match:
  """Two candidates that are to be compared, in the pair's order."""

  id: str
  scene: Trajectory
  turn: int
  candidates: tuple[Candidate, Candidate]

  def texts(self) -> tuple[str, str]:
    """Both as the judge sees them."""
    name = self.scene.turns[self.turn].speaker
    one, two = (judging.candidate_text(c.reply, name) for c in self.candidates)
    return one, two


@dataclasses.dataclass(frozen=True)
class Labelled:
  """What came of a pair: its label and judgements, or rows that say why there is none."""

  pair: PreferencePair | None
  judgements: tuple[Judgement, ...] = ()
  left_out: tuple[dict[str, Any], ...] = ()


def matches(context: Context, scene: Trajectory, count: int, seed: int) -> list[Match]:
  """`count` pairs of a context's candidates, or all there are.

  They come round by round; in a round every candidate stands in at most one pair. Which of two
  is candidate 1 is drawn too. Both depend on the seed and on the context's id alone.
  """
  digest = hashlib.sha256(f"{seed}/{context.id}".encode()).digest()
  rng = random.Random(int.from_bytes(digest[:8], "big"))
  players: list[Candidate | None] = list(context.candidates)
  rng.shuffle(players)
  if len(players) % 2:
    players.append(None)
  made = []
  for _ in range(len(players) - 1):
    half = len(players) // 2
    for one, two in zip(players[:half], reversed(players[half:]), strict=True):
      if one is None or two is None:
        continue
      pair = (one, two) if rng.random() < 0.5 else (two, one)
      name = "-".join(candidate.id.removeprefix(f"{context.id}/") for candidate in pair)
      made.append(Match(f"{context.id}/{name}", scene, context.turn, pair))
    players[1:] = [players[-1], *players[1:-1]]  # The first stays, the others go round.
  return made[:count]


def questions(match: Match, settings: Settings, names: Names) -> list[Question[Told]]:
  """What is asked for a pair: one question an order."""
  one, two = match.texts()

  def read(reply: Reply) -> Told:
    said, why = verdicts.told(reply.text, names)
    if said is None:
      raise Rejected(why)
    kept = sum(finding.principle in settings.library for finding in said.findings)
    if kept < settings.least:
      raise Rejected("too few principles of the library")
    return said

  return [
    Question(
      f"{TAG}/{match.id}/{order}",
      label_prompts.messages(
        match.scene, match.turn, *shown, settings.library.values(), settings.least,
        max(5, settings.least),
      ),
      settings.sampling,
      TAG,
      read,
    )
    for order, shown in zip(ORDERS, ((one, two), (two, one)), strict=True)
  ]  # fmt: skip


def label(
  match: Match,
  answers: Sequence[Answer[Told]],
  settings: Settings,
  teacher: str,
  counts: Counter,
) -> Labelled:
  """A pair's label from the answers of both orders.

  Args:
    counts: gets what became of it.
  """
  counts["pairs asked"] += 1
  judgements, missing = [], []
  for order, answer in zip(ORDERS, answers, strict=True):
    if answer.value is None:
      counts[f"judgement missing: {answer.cause}"] += 1
      missing.append(
        {"pair": match.id, "order": order, "cause": answer.cause, "text": answer.text}
      )
    else:
      judgements.append(_judgement(match, order, answer, teacher))
      _count(answer.value, settings.library, counts)
  if missing:
    counts["left out: an order without a verdict"] += 1
    return Labelled(None, tuple(judgements), tuple(missing))
  first, second = (answer.value for answer in answers)
  assert first is not None and second is not None
  found = verdicts.combine(first, second)
  counts[f"orders {found.agreement}"] += 1
  counts["principles whose winner flips with the order"] += len(found.flipped)
  if found.agreement != "same" and settings.contradiction == "drop":
    counts["left out: the orders contradict each other"] += 1
    row = {"pair": match.id, "cause": "contradiction", "verdicts": list(found.verdicts)}
    return Labelled(None, tuple(judgements), (row,))
  counts[f"label {found.winner}"] += 1
  counts[f"class {verdicts.class_of(found.winner, found.principles)}"] += 1
  one, two = match.texts()
  planted = [text for candidate in (one, two) for text in judging.planted(candidate)]
  counts["pairs with verdict-like text in a candidate"] += bool(planted)
  broken = verdicts.broken(found.principles, settings.library)
  told = {
    "source": match.scene.source,
    "candidates": [candidate.id for candidate in match.candidates],
    "principles": [list(entry) for entry in found.principles],
    "verdicts": list(found.verdicts),
  }
  if planted:
    told["planted"] = planted
  pair = PreferencePair(
    match.id, match.scene.id, match.turn, one, two, found.winner,
    kind="labelled", violates_1=broken[0], violates_2=broken[1],
    split=match.scene.split, extra={"her": told},
  )  # fmt: skip
  return Labelled(pair, tuple(judgements))


def _judgement(match: Match, order: str, answer: Answer[Told], teacher: str) -> Judgement:
  said = answer.value
  assert said is not None
  extra: dict[str, Any] = {"text": answer.text}
  if said.problems:
    extra["problems"] = list(said.problems)
  return Judgement(
    f"{match.id}/{order}", match.id, said.winner, said.findings, answer.reasoning,
    said.analysis, teacher, swapped=order == ORDERS[1], extra={"her": extra},
  )  # fmt: skip


def _count(said: Told, library: Mapping[str, Principle], counts: Counter) -> None:
  counts["judgements"] += 1
  counts["first place wins"] += said.winner == "cand_1"
  counts["second place wins"] += said.winner == "cand_2"
  for finding in said.findings:
    inside = finding.principle in library
    counts["principles of the library" if inside else "principles outside the library"] += 1
  counts.update(f"odd: {problem.split(':')[0]}" for problem in said.problems)


def make(
  contexts: Iterator[tuple[Context, Trajectory]],
  runner: Runner,
  settings: Settings,
  teacher: str,
  counts: Counter,
) -> Iterator[Labelled]:
  """What came of each pair, in the order of the contexts.

  Raises:
    Stopped: no further call can succeed.
  """
  names = Names(settings.library)
  for block in iter(lambda: list(itertools.islice(contexts, _BLOCK)), []):
    paired: list[Match] = []
    for context, scene in block:
      counts["contexts"] += 1
      counts["contexts without a pair"] += len(context.candidates) < 2
      found = matches(context, scene, settings.pairs_per_context, settings.seed)
      for match in found:
        one, two = match.texts()
        if one == two:
          counts["left out: both candidates are the same"] += 1
        else:
          paired.append(match)
    asked = [question for match in paired for question in questions(match, settings, names)]
    answers = runner.ask(asked)
    for i, match in enumerate(paired):
      yield label(match, answers[2 * i : 2 * i + 2], settings, teacher, counts)


def run(
  path: str,
  scenes: Scenes,
  out: str,
  runner: Runner,
  settings: Settings,
  teacher: str,
  refused: Refused,
) -> dict[str, Any]:
  """Writes the files; returns the report.

  Raises:
    DataError: the candidates are faulty or do not fit the scenes.
    Stopped: no further call can succeed; the files are not written.
  """

  def fitting(row: Mapping[str, Any]) -> tuple[Context, Trajectory]:
    context = context_from_dict(row)
    return context, check_context(context, scenes)

  counts: Counter[str] = Counter()
  lengths = Lengths()
  with (
    whole_file(out) as pairs,
    whole_file(f"{out}.judgements.jsonl") as judgements,
    whole_file(f"{out}.left_out.jsonl") as left_out,
  ):
    rows = (row for _, row in inputs.placed_rows([path], fitting, refused))
    for labelled in make(rows, runner, settings, teacher, counts):
      for judgement in labelled.judgements:
        inputs.write_row(judgements, judgement)
      for row in labelled.left_out:
        inputs.write_row(left_out, row)
      if labelled.pair is not None:
        inputs.write_row(pairs, labelled.pair)
        lengths.add(labelled.pair)
  report = _report(counts, lengths, refused, teacher)
  inputs.write_report(f"{out}.report.json", report)
  return report


def _report(
  counts: Counter, lengths: Lengths, refused: Refused, teacher: str
) -> dict[str, Any]:
  both = counts["orders same"] + counts["orders half"] + counts["orders opposite"]
  won = counts["first place wins"] + counts["second place wins"]
  return {
    "teacher": teacher,
    "counts": {name: n for name, n in sorted(counts.items()) if n},
    # None where it could not be measured.
    "flip_rate": round(counts["orders opposite"] / both, 4) if both else None,
    "disagreement_rate": round(1 - counts["orders same"] / both, 4) if both else None,
    "first_place_share": round(counts["first place wins"] / won, 4) if won else None,
    **lengths.as_dict(),
    "refused": refused.as_dict(),
  }


if __name__ == "__main__":
  _CANDIDATES = flags.DEFINE_string("candidates", None, "File of candidates", required=True)
  _SCENES = flags.DEFINE_list("scenes", None, "JSON Lines files of scenes", required=True)
  _OUT = flags.DEFINE_string("out", None, "File of pairs to write", required=True)
  _LIBRARY = flags.DEFINE_string("library", "", "File of principles; empty: the shipped one")
  _PAIRS = flags.DEFINE_integer("pairs_per_context", 4, "At most", 1)
  _LEAST = flags.DEFINE_integer("least_principles", 3, "Of the library, in a judgement", 1)
  _CONTRADICTION = flags.DEFINE_enum(
    "contradiction", "tie", CONTRADICTIONS, "What pairs become whose orders differ"
  )
  _TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "Of sampling", 0.0)
  _MAX_TOKENS = flags.DEFINE_integer("max_tokens", 4096, "Of a judgement", 1)
  _SEED = flags.DEFINE_integer("seed", 0, "Of the pairing")
  _LENIENT = flags.DEFINE_bool("lenient", False, "Count faulty lines and leave them out")
  _CLIENT = llm_flags.define()

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"what is {argv[1]!r}? Pass --candidates, --scenes and --out.")
    refused = Refused(_LENIENT.value)
    try:
      library = principles.load(_LIBRARY.value) if _LIBRARY.value else principles.library()
      settings = Settings(
        library,
        _PAIRS.value,
        _LEAST.value,
        _CONTRADICTION.value,
        Sampling(_TEMPERATURE.value, 1.0, _MAX_TOKENS.value),
        _SEED.value,
      )
      scenes = Scenes(_SCENES.value, refused)
      client = _CLIENT(f"{_OUT.value}.calls.jsonl")
      report = run(
        _CANDIDATES.value, scenes, _OUT.value, Runner(Guarded(client)), settings,
        client.backend.model, refused,
      )  # fmt: skip
    except (DataError, ConfigError, OSError) as error:
      sys.exit(f"labels: {error}")
    for line in refused.lines:
      print(f"left out: {line}", file=sys.stderr)
    for name, count in report["counts"].items():
      print(f"{count:8} {name}")
    for name in ("flip_rate", "disagreement_rate", "first_place_share", "length_correlation"):
      print(f"{name}: {report[name]}")
    print(client.report.table())

  app.run(main)
