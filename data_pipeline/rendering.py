"""Conversations and pairs → rows of ids that a loader packs, each with its targets."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

import numpy as np
from transformers import PreTrainedTokenizerBase

from data_pipeline import trees
from data_pipeline.preferences.taught import taught
from her_jax.errors import ConfigError
from her_jax.roleplay import chat, judging, principles
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import Judgement, PreferencePair, Trajectory

Row = dict[str, np.ndarray]


@dataclasses.dataclass
class Counts:
  """What a data set holds, counted while it is built; printed before the first step."""

  rows: int = 0
  samples: int = 0
  tokens: int = 0
  supervised: int = 0
  expanded: int = 0  # tokens if every sample were a row of its own
  split_up: int = 0  # conversations too long for one row, laid out as several trees
  longest: int = 0  # tokens of the longest row
  left: Counter[str] = dataclasses.field(
    default_factory=Counter
  )  # what is not trained, by reason

  def line(self) -> str:
    left = ", ".join(f"{count} {why}" for why, count in sorted(self.left.items()))
    saved = ""
    if self.samples > self.rows:
      saved = f" ({self.expanded / max(self.tokens, 1):.2f} x fewer than as rows)"
    return (
      f"{self.samples} samples in {self.rows} rows, {self.tokens} tokens{saved},"
      f" {self.supervised} supervised, the longest {self.longest}, {self.split_up} conversations"
      f" split up; not trained: {left or 'nothing'}"
    )


def sft_trees(
  trajectories: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  context_weight: float = 0.0,
  variant: Variant = chat.DEFAULT,
  name_weight: float = 1.0,
  field: str = "data.length",
  all_turns: bool = False,
) -> tuple[list[Row], Counts]:
  """One tree a character and conversation: the sheet and history once, a branch a reply.

  A conversation longer than `length` becomes several trees, each of consecutive replies with
  as many turns before them as fit into half of the row.

  Args:
    context_weight: loss weight of sheet and history, 0 for HER's loss on replies alone.
    variant: of the prompts.
    name_weight: loss weight of the first token of the speaker's name after the plan.
    field: of the config that gives `length`, for the error.
    all_turns: whether own replies also weigh 1 where they stand in the history, without plans.

  Raises:
    ConfigError: the sheet and a single reply do not fit into `length`.
  """
  rows, counts = [], Counts()

  def lay_out(dialogue: chat.Dialogue) -> Row:
    return _lay_out(dialogue, context_weight, name_weight, all_turns)

  for scene in trajectories:
    _count_bare(scene, counts)
    for name in scene.trained_characters():
      made = list(_windows(scene, name, tokenizer, length, variant, lay_out, field))
      rows += [row for row, _ in made]
      counts.split_up += len(made) > 1
      for _, dialogue in made:
        counts.samples += len(dialogue.branches)
        counts.expanded += sum(b.at + len(b.ids) for b in dialogue.branches)
  return rows, _count(rows, counts)


def sft_rows(
  trajectories: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  context_weight: float = 0.0,
  variant: Variant = chat.DEFAULT,
  name_weight: float = 1.0,
) -> tuple[list[Row], Counts]:
  """Each trained reply as a row of its own behind the whole conversation before it.

  What `sft_trees` lays out once a conversation is here once a reply: the same losses and
  gradients, with several times the tokens. Of a conversation longer than `length` the oldest
  turns are left out. Arguments as in `sft_trees`.

      prompt = [7, 8, 9], completion = [5, 6]

      tokens          7 8 9 5 6
      targets         0 0 5 6 0
      loss_weights    0 0 1 1 0
      visible_until   5 5 5 5 5
      positions       0 1 2 3 4

  Raises:
    DataError: a sheet, last turn and reply are longer than `length`.
  """
  rows, counts = [], Counts()
  for scene in trajectories:
    for turn in scene.trained_turns():
      example = chat.render_example(scene, turn, tokenizer, length, variant)
      if example.dropped:
        counts.left["turns of history that did not fit"] += example.dropped
      told = scene.turns[turn]
      completion, layers = chat.completion_and_layers(
        told.plan, told.speaker, told.reply, tokenizer, variant
      )
      weights = [1.0] * len(completion)
      weights[layers.index(0)] = name_weight  # The first behind the plan.
      begins = len(example.ids) - len(completion)
      branch = trees.Branch(begins, completion, weights, {"layers": layers})
      rows.append(trees.lay_out(example.ids[:begins], [branch], context_weight))
      counts.samples += 1
      counts.expanded += len(example.ids)
    _count_bare(scene, counts)
  return rows, _count(rows, counts)


def reply_trees(
  trajectories: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  context_weight: float = 0.0,
  name_weight: float = 1.0,
) -> list[Row]:
  """Each trained reply once more, behind the name of its speaker alone.

  Short rows, from which a small model learns the form of a turn sooner than from whole
  conversations. Arguments as in `sft_trees`.
  """
  rows = []
  for scene in trajectories:
    for turn in scene.trained_turns():
      speaker = scene.turns[turn].speaker
      dialogue = chat.render_dialogue(
        scene, speaker, tokenizer, range(turn, turn + 1), turn, Variant("name")
      )
      rows.append(_lay_out(dialogue, context_weight, name_weight))
  return rows


def _lay_out(
  dialogue: chat.Dialogue, context_weight: float, name_weight: float, all_turns: bool = False
) -> Row:
  branches = []
  for branch in dialogue.branches:
    weights = [1.0] * len(branch.ids)
    weights[branch.name_at] = name_weight
    weights[: branch.given] = [0.0] * branch.given
    branches.append(trees.Branch(branch.at, branch.ids, weights, {"layers": branch.layers}))
  of_trunk = [1.0 if own and all_turns else context_weight for own in dialogue.own]
  return trees.lay_out(dialogue.trunk, branches, of_trunk)


def _windows(
  scene: Trajectory,
  name: str,
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  variant: Variant,
  lay_out: Callable[[chat.Dialogue], Row],
  field: str,
) -> Iterator[tuple[Row, chat.Dialogue]]:
  """Trees that together hold each trained reply of `name` once, none longer than `length`."""

  def tree(first: int, trained: int, stop: int) -> tuple[Row, chat.Dialogue]:
    dialogue = chat.render_dialogue(
      scene, name, tokenizer, range(first, stop), trained, variant
    )
    return lay_out(dialogue), dialogue

  whole = tree(0, 0, len(scene.turns))
  if len(whole[0]["tokens"]) <= length:
    yield whole
    return
  turns = scene.trained_turns(name)
  while turns:
    start = turns[0]
    # At least the turn that is answered; more history while half of the row holds it.
    first = max(start - 1, 0)
    made = tree(first, start, start + 1)
    while first and _fits(longer := tree(first - 1, start, start + 1), length // 2):
      first, made = first - 1, longer
    if not _fits(made, length):
      raise ConfigError(
        f"scene {scene.id!r}, turn {start}: sheet, last turn and reply take"
        f" {len(made[0]['tokens'])} tokens, more than {field} = {length}; raise it"
      )
    done = 1
    for stop in turns[1:]:
      longer = tree(first, start, stop + 1)
      if not _fits(longer, length):
        break
      made, done = longer, done + 1
    yield made
    turns = turns[done:]


def _fits(made: tuple[Row, chat.Dialogue], length: int) -> bool:
  return len(made[0]["tokens"]) <= length


def judge_trees(
  pairs: Sequence[PreferencePair],
  scenes: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  history: int | None,
  seed: int,
  variant: Variant = chat.DEFAULT,
  verdict_weight: float = 1.0,
  judgements: Mapping[str, Sequence[Judgement]] | None = None,
  field: str = "data.length",
) -> tuple[list[Row], Counts]:
  """One tree a pair: character and scene once, each order of the candidates a branch.

  Args:
    judgements: by pair, what a teacher said of it; what is taught without is told in
      `preferences.taught`.
    verdict_weight: loss weight of the tokens that would differ if the other candidate were the
      better one: they, and no others, say which candidate is meant.
    field: of the config that gives `length`, for the error.

  Raises:
    ConfigError: a pair is longer than `length`, or nothing that is known of it gives its label.
  """
  by_id = {scene.id: scene for scene in scenes}
  rows, counts = [], Counts()
  rng = np.random.default_rng(seed)
  # Beside what decides, a judgement names a principle that both keep, of those used here.
  used = {principle for pair in pairs for principle in (*pair.violates_1, *pair.violates_2)}
  for pair in pairs:
    scene = by_id[pair.scene]
    kept = (used or set(principles.library())) - {*pair.violates_1, *pair.violates_2}
    also = [sorted(kept)[rng.integers(len(kept))]] if kept else []
    context = judging.context_ids(scene, pair.turn, tokenizer, history, variant)
    branches = []
    for said in taught(pair, (judgements or {}).get(pair.id, ()), also, scene.language):
      shown = (pair.candidate_1, pair.candidate_2)
      prompt = judging.candidates_ids(*(shown[::-1] if said.swapped else shown), tokenizer)
      end = chat.control_id(chat.IM_END, tokenizer)
      target, other = (
        [*chat.encode_text(text, tokenizer), end] for text in (said.text, said.other)
      )
      weights = [verdict_weight if a != b else 1.0 for a, b in zip(target, other, strict=False)]
      weights += [1.0] * (len(target) - len(weights))
      branches.append(
        trees.Branch(len(context), prompt + target, [0.0] * len(prompt) + weights)
      )
      counts.expanded += len(context) + len(prompt) + len(target)
    row = trees.lay_out(context, branches)
    if len(row["tokens"]) > length:
      raise ConfigError(
        f"pair {pair.id!r} takes {len(row['tokens'])} tokens, more than {field} ="
        f" {length}; raise it or lower judge.history"
      )
    counts.samples += len(branches)
    rows.append(row)
  return rows, _count(rows, counts)


def _count_bare(scene: Trajectory, counts: Counts) -> None:
  own = sum(turn.speaker != scene.environment for turn in scene.turns)
  if bare := own - len(scene.trained_turns()):
    counts.left["replies without a plan"] += bare


def _count(rows: Sequence[Row], counts: Counts) -> Counts:
  counts.rows = len(rows)
  counts.longest = max((len(row["tokens"]) for row in rows), default=0)
  counts.tokens = sum(len(row["tokens"]) for row in rows)
  counts.supervised = int(sum((row["loss_weights"] > 0).sum() for row in rows))
  return counts
