"""Grain loaders: scenes and pairs → batches of packed trees.

A batch has int32 `tokens, targets, visible_until, positions` and float32 `loss_weights`,
each [batch, length]; see `trees.lay_out` for a row by example.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import multiprocessing
import os
import threading
from typing import Any

import grain
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

  def line(self) -> str:
    saved = ""
    if self.samples > self.rows:
      saved = f" ({self.expanded / max(self.tokens, 1):.2f} x fewer than as rows)"
    return (
      f"{self.samples} samples in {self.rows} trees, {self.tokens} tokens{saved},"
      f" {self.supervised} supervised, {self.split_up} conversations split up"
    )


def sft_trees(
  trajectories: Sequence[Trajectory],
  tokenizer: PreTrainedTokenizerBase,
  length: int,
  context_weight: float = 0.0,
  variant: Variant = chat.DEFAULT,
  name_weight: float = 1.0,
  field: str = "data.length",
) -> tuple[list[Row], Counts]:
  """One tree a character and conversation: the sheet and history once, a branch a reply.

  A conversation longer than `length` becomes several trees, each of consecutive replies with
  as many turns before them as fit into half of the row.

  Args:
    context_weight: loss weight of sheet and history, 0 for HER's loss on replies alone.
    variant: of the prompts.
    name_weight: loss weight of the first token of the speaker's name after the plan.
    field: of the config that gives `length`, for the error.

  Raises:
    ConfigError: the sheet and a single reply do not fit into `length`.
  """
  rows, counts = [], Counts()

  def lay_out(dialogue: chat.Dialogue) -> Row:
    return _lay_out(dialogue, context_weight, name_weight)

  for scene in trajectories:
    for name in scene.trained_characters():
      made = list(_windows(scene, name, tokenizer, length, variant, lay_out, field))
      rows += [row for row, _ in made]
      counts.split_up += len(made) > 1
      for _, dialogue in made:
        counts.samples += len(dialogue.branches)
        counts.expanded += sum(b.at + len(b.ids) for b in dialogue.branches)
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


def _lay_out(dialogue: chat.Dialogue, context_weight: float, name_weight: float) -> Row:
  branches = []
  for branch in dialogue.branches:
    weights = [1.0] * len(branch.ids)
    weights[branch.name_at] = name_weight
    weights[: branch.given] = [0.0] * branch.given
    branches.append(trees.Branch(branch.at, branch.ids, weights))
  return trees.lay_out(dialogue.trunk, branches, context_weight)


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
) -> tuple[list[Row], Counts]:
  """One tree a pair: character and scene once, each order of the candidates a branch.

  Args:
    judgements: by pair, what a teacher said of it; what is taught without is told in
      `preferences.taught`.
    verdict_weight: loss weight of the tokens that would differ if the other candidate were the
      better one: they, and no others, say which candidate is meant.

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
        f"pair {pair.id!r} takes {len(row['tokens'])} tokens, more than data.length ="
        f" {length}; raise it or lower judge.history"
      )
    counts.samples += len(branches)
    rows.append(row)
  return rows, _count(rows, counts)


def batches(
  rows: Sequence[Row],
  *,
  length: int,
  batch_size: int,
  seed: int,
  pad_id: int,
  host: int = 0,
  hosts: int = 1,
  word_dropout: float = 0.0,
  word_ids: Sequence[int] = (),
  packing: bool = True,
  workers: int = 0,
) -> grain.IterDataset[Row]:
  """Shuffled, repeated, packed batches for ever.

  Each host reads every `hosts`-th tree and packs `batch_size / hosts` rows of `length`.
  `visible_until` is packed relative to its slot, which packing moves, and made absolute
  afterwards.

  An iterator's `get_state` and `set_state` continue it exactly: the place in the shuffled trees,
  half-filled rows, and the draws of word dropout, which follow from the seed and the place.

  Args:
    word_dropout: share of the input tokens among `word_ids` that are replaced by another of
      them, drawn afresh each epoch; targets stay. It keeps a small model from learning a
      small corpus by heart (word dropout, Bowman et al., arXiv:1511.06349).
    packing: False: a tree a row, filled up with padding.
    workers: processes that prepare batches; 0 does so in this one. Each reads its own part of
      the trees, so their number is part of the order.
  """
  if batch_size % hosts:
    raise ConfigError(f"a batch of {batch_size} rows cannot be split over {hosts} hosts")
  if len(rows) < hosts:
    raise ConfigError(f"{len(rows)} trees are too few for {hosts} hosts")
  dataset = grain.MapDataset.source(rows).seed(seed).shuffle()[host::hosts].repeat()
  if word_dropout:
    words = np.asarray(word_ids, np.int32)
    dataset = dataset.random_map(lambda row, rng: _drop_words(row, rng, word_dropout, words))
  if packing:
    dataset = dataset.map(_relative)
  else:
    dataset = dataset.map(lambda row: trees.pad(row, length, pad_id))
  stream = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=64))
  if packing:
    names = ("tokens", "targets", "loss_weights", "visible_until", "positions")
    stream = grain.experimental.FirstFitPackIterDataset(
      stream, length_struct=dict.fromkeys(names, length), num_packing_bins=8
    ).map(lambda packed: _absolute(packed, pad_id))
  stream = stream.batch(batch_size // hosts)
  if workers:
    stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers), _end_with)
  return stream


def prompt_stream(
  prompts: Sequence[Any], *, batch_size: int, seed: int
) -> grain.IterDataset[list[Any]]:
  """Shuffled, repeated lists of `batch_size` prompts (indices into `prompts` are shuffled)."""
  if not prompts:
    raise ConfigError("no prompts: the data holds no turn with a plan that fits")
  dataset = grain.MapDataset.range(len(prompts)).seed(seed).shuffle().repeat()
  stream = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1)).batch(batch_size)
  return stream.map(lambda chosen: [prompts[i] for i in chosen])


def fingerprint(rows: Sequence[Row], word_ids: Sequence[int] = ()) -> str:
  """A digest of what `batches` is given: other data under the same path are told by it."""
  digest = hashlib.sha256(np.asarray(word_ids, np.int32).tobytes())
  for row in rows:
    for name in sorted(row):
      digest.update(f"{name} {row[name].dtype} {row[name].shape} ".encode())
      digest.update(np.ascontiguousarray(row[name]).tobytes())
  return digest.hexdigest()[:16]


def padded_batches(
  rows: Sequence[Row], *, length: int, batch_size: int, pad_id: int
) -> Iterator[Row]:
  """Every row once, in order, unpacked, for evaluation; the last batch is filled with padding."""
  empty = {name: values[:0] for name, values in rows[0].items()}
  for start in range(0, len(rows), batch_size):
    chunk = [*rows[start : start + batch_size]]
    chunk += [empty] * (batch_size - len(chunk))
    padded = [trees.pad(row, length, pad_id) for row in chunk]
    yield {name: np.stack([row[name] for row in padded]) for name in padded[0]}


def _end_with(worker: int, workers: int) -> None:
  """Has a worker end with the process it works for, also where that one is killed."""
  parent = multiprocessing.parent_process()

  def watch() -> None:
    if parent is not None:
      parent.join()
      os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _drop_words(row: Row, rng: np.random.Generator, share: float, words: np.ndarray) -> Row:
  tokens = row["tokens"]
  hit = (rng.random(len(tokens)) < share) & np.isin(tokens, words)
  other = words[rng.integers(0, len(words), len(tokens))]
  return {**row, "tokens": np.where(hit, other, tokens)}


def _relative(row: Row) -> Row:
  index = np.arange(len(row["tokens"]), dtype=np.int32)
  return {**row, "visible_until": row["visible_until"] - index}


def _absolute(packed: Row, pad_id: int) -> Row:
  index = np.arange(len(packed["tokens"]), dtype=np.int32)
  relative = packed["visible_until"]  # at least 1 for a token, 0 for padding
  return {
    "tokens": np.where(relative > 0, packed["tokens"], pad_id).astype(np.int32),
    "targets": packed["targets"],
    "loss_weights": packed["loss_weights"],
    "visible_until": index + np.maximum(relative, 1),
    "positions": packed["positions"],
  }


def _count(rows: Sequence[Row], counts: Counts) -> Counts:
  counts.rows = len(rows)
  counts.tokens = sum(len(row["tokens"]) for row in rows)
  counts.supervised = int(sum((row["loss_weights"] > 0).sum() for row in rows))
  return counts
