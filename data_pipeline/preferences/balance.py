r"""Chooses from labelled pairs the mix that a judge is trained on, and says what is missing of it.

    python -m data_pipeline.preferences.balance --pairs=out/labelled.jsonl --scenes=scenes.jsonl \
        --judgements=out/labelled.jsonl.judgements.jsonl --out=out/pairs.jsonl --total=10000

The mix is that of `mix`: 60 % mixed, 24 % all for one, 10 % ties, 6 % flipped, each label as often
in either order, and the longer reply losing as often as it wins. With `--total=0` it is the
largest of which no part is missing. Where the material lacks flipped pairs (`--flipped`) or longer
losers (`--lengthen`), they are made of labelled ones, see `hard_negatives`. How HER makes flipped
pairs no source states: "spoilt" gives true labels and is the default; "relabelled" turns the label
round and is wrong on purpose; "found" takes those alone in which the teacher went against its
principles.

Each split is balanced on its own. A scene in two splits is an error, and books in two splits are
named: `data_pipeline.splits` keeps them apart. Written are OUT,
OUT.judgements.jsonl (of pairs that were taken as they were; `swapped` follows their order) and
OUT.report.json. The same input and seed give the same files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import random
import sys
from typing import Any

from absl import app, flags

from data_pipeline.files import whole_file
from data_pipeline.preferences import hard_negatives, inputs, mix
from data_pipeline.preferences.hard_negatives import LENGTHENED, RELABELLED, SPOILT
from data_pipeline.preferences.inputs import Place, Refused, Scenes
from data_pipeline.preferences.lengths import Lengths, log_ratio
from data_pipeline.preferences.mix import Choice, Item, Options, Row
from data_pipeline.preferences.verdicts import class_of
from her_jax.errors import ConfigError
from her_jax.roleplay import schema
from her_jax.roleplay.schema import DataError, PreferencePair

FLIPPED = (SPOILT, RELABELLED, "found")


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
  """What is kept of a pair; its text is read anew when it is written."""

  place: Place
  item: Item
  split: str
  lengths: tuple[int, int]


class Material:
  """Labelled pairs, read and checked once; in memory are some numbers a pair."""

  def __init__(self, paths: Sequence[str], refused: Refused, scenes: Scenes | None = None):
    """Reads all pairs.

    Raises:
      DataError: with file, line and mend: a pair is broken, does not fit its scene, or its scene
        stands in two splits.
    """
    self.scenes = scenes
    self.pairs: list[_Known] = []
    self.repeats = 0
    self._splits: dict[str, str] = {}
    self._books: dict[str, set[str]] = {}
    seen: set[bytes] = set()
    for place, (pair, kind) in inputs.placed_rows(paths, self._made, refused):
      texts = sorted((pair.candidate_1, pair.candidate_2))
      text = json.dumps([pair.scene, pair.turn, *texts]).encode()
      digest = hashlib.blake2b(text, digest_size=12).digest()
      if digest in seen:
        self.repeats += 1
        continue
      seen.add(digest)
      lengths = len(pair.candidate_1), len(pair.candidate_2)
      item = Item(len(self.pairs), kind, pair.winner, log_ratio(*lengths))
      self.pairs.append(_Known(place, item, pair.split, lengths))

  def _made(self, row: Mapping[str, Any]) -> tuple[PreferencePair, str]:
    pair = schema.pair_from_dict(row)
    kind = class_of(pair.winner, hard_negatives.principles_of(pair))
    if self.scenes is not None:
      known = self.scenes
      found = {pair.scene: known[pair.scene]} if pair.scene in known else {}
      schema.check_pair(pair, found)
    if self._splits.setdefault(pair.scene, pair.split) != pair.split:
      raise DataError(
        f"split: {pair.split!r}, but other pairs of scene {pair.scene!r} have"
        f" {self._splits[pair.scene]!r}; put all of them into one split"
      )
    if isinstance(source := pair.extra.get("her", {}).get("source"), str):
      self._books.setdefault(source, set()).add(pair.split)
    return pair, kind

  @property
  def shared_books(self) -> list[str]:
    """Books that stand in two splits: scenes of one story, if not the same context."""
    return sorted(book for book, splits in self._books.items() if len(splits) > 1)

  def pair(self, item: Item) -> PreferencePair:
    return schema.pair_from_dict(self.pairs[item.index].place.read())

  def make(self, kind: str, item: Item, seed: int) -> PreferencePair | None:
    """A hard negative out of a pair; see `hard_negatives`. None where its class would change."""
    pair = self.pair(item)
    if kind == RELABELLED:
      return hard_negatives.relabelled(pair)
    assert self.scenes is not None
    function = {SPOILT: hard_negatives.spoilt, LENGTHENED: hard_negatives.lengthened}[kind]
    rng = random.Random(f"{kind}/{seed}/{pair.id}")
    made = function(pair, self.scenes[pair.scene], rng)
    if made is None:
      return None
    wanted = "flipped" if kind == SPOILT else item.kind
    return made if class_of(made.winner, hard_negatives.principles_of(made)) == wanted else None


@dataclasses.dataclass(frozen=True)
class Balanced:
  """What was chosen of one split."""

  choices: list[Choice]
  rows: list[Row]


def balance(material: Material, total: int, seed: int, options: Options) -> dict[str, Balanced]:
  """The mix of each split.

  Args:
    total: pairs of all splits together, each getting its share of the material; 0 for the
      largest number of which no part is missing.

  Raises:
    ConfigError: with `total` 0, a split lacks all pairs of a class.
  """
  done = {}
  sizes = Counter(known.split for known in material.pairs)
  memo = functools.cache(functools.partial(material.make, seed=seed))
  for split in sorted(sizes):
    items = [known.item for known in material.pairs if known.split == split]
    if total:
      part = round(total * len(items) / len(material.pairs))
      found = mix.choose(items, part, f"{seed}/{split}", options, memo)
    else:
      found = mix.choose_whole(items, f"{seed}/{split}", options, memo)
      if not found[0]:
        words = "; ".join(mix.shortages(found[1], options))
        raise ConfigError(
          f"split {split!r}: the mix cannot be filled: {words}; or pass --total"
        )
    done[split] = Balanced(*found)
  return done


def run(
  paths: Sequence[str],
  judgements: Sequence[str],
  scenes: Scenes | None,
  out: str,
  total: int,
  seed: int,
  options: Options,
  refused: Refused,
) -> dict[str, Any]:
  """Writes the files; returns the report.

  Raises:
    DataError, ConfigError: see `Material` and `balance`.
  """
  if scenes is None and (options.lengthen or options.flip == SPOILT):
    raise ConfigError(
      "pairs are made of their scenes: pass --scenes, or --nolengthen --flipped=found"
    )
  material = Material(paths, refused, scenes)
  balanced = balance(material, total, seed, options)
  before, after, counts = Lengths(), Lengths(), Counter[str]()
  for known in material.pairs:
    before.put(known.item.winner, *known.lengths)
    counts[f"class {known.item.kind}"] += 1
  choices = [choice for part in balanced.values() for choice in part.choices]
  orders: dict[str, bool] = {}
  with whole_file(out) as f:
    for choice in sorted(choices, key=lambda choice: choice.item.index):
      pair = choice.made or material.pair(choice.item)
      pair = hard_negatives.swapped(pair) if choice.swap else pair
      if choice.made is None:
        orders[pair.id] = choice.swap
      counts[f"label {pair.winner}"] += 1
      after.add(pair)
      inputs.write_row(f, pair)
  if judgements:
    counts["judgements"] = _write_judgements(judgements, out, orders, refused)
  counts["the same texts again, left out"] = material.repeats
  report = {
    "pairs": len(material.pairs), "taken": len(choices), "seed": seed,
    "splits": {split: _table(part, options) for split, part in balanced.items()},
    "counts": dict(sorted(counts.items())),
    "books_in_two_splits": material.shared_books,
    "before": before.as_dict(), "after": after.as_dict(), "refused": refused.as_dict(),
  }  # fmt: skip
  inputs.write_report(f"{out}.report.json", report)
  return report


def _write_judgements(
  paths: Sequence[str], out: str, orders: Mapping[str, bool], refused: Refused
) -> int:
  count = 0
  with whole_file(f"{out}.judgements.jsonl") as f:
    for _, judgement in inputs.placed_rows(paths, schema.judgement_from_dict, refused):
      swap = orders.get(judgement.pair)
      if swap is not None:
        row = dataclasses.replace(judgement, swapped=judgement.swapped != swap)
        inputs.write_row(f, row)
        count += 1
  return count


def _table(part: Balanced, options: Options) -> dict[str, Any]:
  return {
    "rows": [
      {
        "class": row.kind, "wanted": list(row.wanted), "had": row.had,
        "longer_wins": row.longer_wins, "longer_loses": row.longer_loses,
        "taken": list(row.taken), "made": row.made, "missing": row.missing,
      }
      for row in part.rows
    ],
    "missing": mix.shortages(part.rows, options),
  }  # fmt: skip


def text_of(report: Mapping[str, Any]) -> str:
  """The report for people."""
  lines = []
  for split, table in report["splits"].items():
    lines.append(f"{split:10}{'wanted':>14}{'had':>9}{'taken':>14}  of them made")
    for row in table["rows"]:
      made = ", ".join(f"{n} {kind}" for kind, n in sorted(row["made"].items()))
      wanted, taken = (" + ".join(map(str, row[name])) for name in ("wanted", "taken"))
      lines.append(f"{row['class']:10}{wanted:>14}{row['had']:9}{taken:>14}  {made}".rstrip())
    lines += [f"missing: {text}" for text in table["missing"]]
  if books := report["books_in_two_splits"]:
    lines.append(f"{len(books)} books stand in two splits, such as {books[0]!r}")
  for when in ("before", "after"):
    told = report[when]
    lines.append(
      f"{when}: the longer reply wins {told['longer_wins']} times and loses"
      f" {told['longer_loses']}; correlation of label and length {told['length_correlation']}"
    )
  return "\n".join(lines)


if __name__ == "__main__":
  _PAIRS = flags.DEFINE_list("pairs", None, "Files of labelled pairs", required=True)
  _JUDGEMENTS = flags.DEFINE_list("judgements", [], "Files of the teacher's judgements")
  _SCENES = flags.DEFINE_list("scenes", [], "Files of scenes, to which pairs are held")
  _OUT = flags.DEFINE_string("out", None, "File of pairs to write", required=True)
  _TOTAL = flags.DEFINE_integer("total", 0, "Pairs wanted; 0: the largest whole mix", 0)
  _SEED = flags.DEFINE_integer("seed", 0, "Of the choice")
  _CONTRAST = flags.DEFINE_bool(
    "length_contrast", True, "The longer reply loses as often as it wins"
  )
  _LENGTHEN = flags.DEFINE_bool("lengthen", True, "Lengthen losers where too few are longer")
  _FLIPPED = flags.DEFINE_enum("flipped", SPOILT, FLIPPED, "How lacking flipped pairs are made")
  _LENIENT = flags.DEFINE_bool("lenient", False, "Count faulty lines and leave them out")

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"what is {argv[1]!r}? Pass --pairs=FILES and --out=FILE.")
    flip = "" if _FLIPPED.value == "found" else _FLIPPED.value
    options = Options(_CONTRAST.value, _CONTRAST.value and _LENGTHEN.value, flip)
    refused = Refused(_LENIENT.value)
    try:
      scenes = Scenes(_SCENES.value, refused) if _SCENES.value else None
      report = run(
        _PAIRS.value, _JUDGEMENTS.value, scenes, _OUT.value, _TOTAL.value, _SEED.value, options,
        refused,
      )  # fmt: skip
    except (DataError, ConfigError, OSError) as error:
      sys.exit(f"balance: {error}")
    for line in refused.lines:
      print(f"left out: {line}", file=sys.stderr)
    print(text_of(report))

  app.run(main)
