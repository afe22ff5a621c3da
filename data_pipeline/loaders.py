"""Grain loaders: rows of `rendering` → batches, shuffled and packed.

A batch has int32 `tokens, targets, visible_until, positions` and float32 `loss_weights`, each
[batch, length], and what further columns the rows have; see `trees.lay_out` for a row by example.
"""

from collections.abc import Iterator, Sequence
import hashlib
import itertools
import multiprocessing
import os
import threading
from typing import Any

import grain
import numpy as np

from data_pipeline import mixing, trees
from data_pipeline.rendering import Row
from her_jax.errors import ConfigError

_MEASURED = 64  # Batches of which the padding is told.
_PACKER = ("_segment_ids", "_positions")


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

  Every host packs all rows and takes its own `batch_size / hosts` of each batch: packing is
  some hundred times faster than training, and so the batches, and where an iterator is in them,
  are the same on any number of hosts. `visible_until` is packed relative to its slot, which
  packing moves, and made absolute afterwards.

  An iterator's `get_state` and `set_state` continue it exactly: the place in the shuffled trees,
  half-filled rows, and the draws of word dropout, which follow from the seed and the place.

  Args:
    rows: a `mixing.Mixture` draws each of its sources with its weight.
    word_dropout: share of the input tokens among `word_ids` that are replaced by another of
      them, drawn afresh each epoch; targets stay. It keeps a small model from learning a
      small corpus by heart (word dropout, Bowman et al., arXiv:1511.06349).
    packing: False: a tree a row, filled up with padding.
    host, hosts: which part of each batch this is, and of how many.
    workers: processes that prepare batches; 0 does so in this one. Each reads its own part of
      the trees, so their number is part of the order.
  """
  if batch_size % hosts:
    raise ConfigError(f"a batch of {batch_size} rows cannot be split over {hosts} hosts")
  dataset = mixing.shuffled(rows, seed)
  if word_dropout:
    words = np.asarray(word_ids, np.int32)
    dataset = dataset.random_map(lambda row, rng: _drop_words(row, rng, word_dropout, words))
  if packing:
    dataset = dataset.map(_relative)
  else:
    dataset = dataset.map(lambda row: trees.pad(row, length, pad_id))
  stream = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=64))
  if packing:
    stream = grain.experimental.FirstFitPackIterDataset(
      stream, length_struct=dict.fromkeys(rows[0], length), num_packing_bins=8
    ).map(lambda packed: _absolute(packed, pad_id))
  stream = stream.batch(batch_size)
  if hosts > 1:
    part = slice(host * batch_size // hosts, (host + 1) * batch_size // hosts)
    stream = stream.map(lambda batch: {name: batch[name][part] for name in batch})
  if workers:
    stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers), _end_with)
  return stream


def padding_share(
  rows: Sequence[Row], *, length: int, batch_size: int, seed: int, packing: bool = True
) -> float:
  """Which share of the slots of the first batches, at most an epoch of them, is padding."""
  stream = batches(
    rows, length=length, batch_size=batch_size, seed=seed, pad_id=-1, packing=packing
  )
  epoch = max(sum(len(row["tokens"]) for row in rows) // (length * batch_size), 1)
  some = list(itertools.islice(stream, min(epoch, _MEASURED)))
  return float(np.mean([(batch["tokens"] == -1).mean() for batch in some]))


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
  # The packer adds columns of its own, which are left out.
  own = {name: packed[name] for name in packed if not name.endswith(_PACKER)}
  own["tokens"] = np.where(relative > 0, packed["tokens"], pad_id).astype(np.int32)
  own["visible_until"] = index + np.maximum(relative, 1)
  return own
