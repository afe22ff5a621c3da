"""Pairs made of labelled ones where a mix lacks them, right by construction.

`lengthened`: the loser goes on with what its speaker has said before, until it is the longer
reply and loses all the same. `spoilt`: the winner by all principles that were named is given one
fault of another kind (see `corruptions`), so that counting principles misleads: who alone breaks
a principle loses. Both keep candidates in their places, and say in `kind` how they came about.
"""

import dataclasses
import itertools
import math
import random
import re
from typing import Any

from data_pipeline.preferences import corruptions
from data_pipeline.preferences.lengths import log_ratio
from her_jax.roleplay import grammar, judging
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import DataError, PreferencePair, Trajectory

LENGTHENED, SPOILT, RELABELLED = "lengthened", "spoilt", "relabelled"
_REPEATS = "no-repetition"
# Faults of one place that leave the rest of a reply as it was.
_FAULTS = ("breaks_character", "speaks_for_user", "knows_future", "thoughts_aloud")
_SENTENCE = re.compile(r"[^.!?。！？…]*[.!?。！？…]+[\"'”’」]*|[^.!?。！？…]+$")
_TRIES = 4  # Some of them draw whether to set a sentence in or to put it in another's place.
_LEAST_RATIO = 0.1  # ln of how much longer a lengthened loser is at least: a tenth.
_MOST_RATIO = 1.0


def principles_of(pair: PreferencePair) -> list[tuple[str, str]]:
  """(principle, winner) of a pair: what the teacher found, or what follows from violations.

  Raises:
    DataError: `her.principles` is no list of such.
  """
  her = pair.extra.get("her", {})
  found = her.get("principles")
  if found is None:
    one, two = set(pair.violates_1), set(pair.violates_2)
    named = dict.fromkeys([*pair.violates_1, *pair.violates_2])
    sides = {(True, False): "cand_2", (False, True): "cand_1", (True, True): "tie"}
    return [(p, sides[p in one, p in two]) for p in named]
  winners = ("cand_1", "cand_2", "tie")
  if not isinstance(found, list) or not all(
    isinstance(e, list) and len(e) == 2 and isinstance(e[0], str) and e[1] in winners
    for e in found
  ):
    raise DataError(
      "her.principles: expected a list of [principle, winner] with cand_1, cand_2 or tie as"
      " winner; label the pair anew"
    )
  return [(e[0], e[1]) for e in found]


def swapped(pair: PreferencePair) -> PreferencePair:
  """The same pair with its candidates in the other order, and all that is said of them."""
  her: dict[str, Any] = dict(pair.extra.get("her", {}))
  if "principles" in her:
    her["principles"] = [[p, swap(w)] for p, w in her["principles"]]
  if "verdicts" in her:
    her["verdicts"] = [swap(w) for w in her["verdicts"]]
  if "breaks" in her:
    her["breaks"] = [her["breaks"][0], swap(her["breaks"][1])]
  if "candidates" in her:
    her["candidates"] = her["candidates"][::-1]
  return dataclasses.replace(
    pair,
    candidate_1=pair.candidate_2,
    candidate_2=pair.candidate_1,
    winner=swap(pair.winner) or pair.winner,
    violates_1=pair.violates_2,
    violates_2=pair.violates_1,
    extra={**pair.extra, **({"her": her} if her else {})},
  )


def lengthened(
  pair: PreferencePair, scene: Trajectory, rng: random.Random
) -> PreferencePair | None:
  """The pair with a loser that is longer than the winner by as much as it was shorter.

  Its additions are earlier speech of the same character, or, where there is none, its own
  longest stretch again: it breaks `no-repetition`, and no word in it is foreign to the scene.
  None where nothing is spoken.
  """
  loser = swap(pair.winner)
  if loser in (None, pair.winner):
    return None
  texts = {"cand_1": pair.candidate_1, "cand_2": pair.candidate_2}
  winning, losing = texts[pair.winner], texts[loser or ""]
  ratio = abs(log_ratio(len(winning), len(losing)))
  ratio = min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
  wanted = math.ceil(len(winning) * math.exp(ratio))
  speaker = scene.turns[pair.turn].speaker
  earlier = [
    stretch
    for turn in scene.turns[: pair.turn]
    if turn.speaker == speaker
    for stretch in _spoken(turn.reply)
    for stretch in _sentences(stretch)
  ]
  pieces = earlier or _sentences(max(_spoken(losing), key=len, default=""))
  if not pieces:
    return None
  blank = "" if scene.language == "zh" else " "
  rng.shuffle(pieces)
  text = losing
  for i in itertools.count():
    room = wanted - len(text) - len(blank)
    fitting = [piece for piece in pieces if len(piece) <= room]
    if fitting:
      text += blank + fitting[i % len(fitting)]
      continue
    last = min(pieces, key=len)
    if len(text) <= len(winning) or len(last) - room < room + len(blank):
      text += blank + last
    break
  return _made(pair, loser or "", text, pair.winner, _REPEATS, LENGTHENED)


def spoilt(
  pair: PreferencePair, scene: Trajectory, rng: random.Random
) -> PreferencePair | None:
  """The pair with a fault in its winner that the principles named say nothing of: it loses.

  All else in it stays, so that what was found of it still holds. None where every fault is among
  those principles, or none can be set into the reply.
  """
  loser = swap(pair.winner)
  if loser in (None, pair.winner):
    return None
  named = {p for p, _ in principles_of(pair)} | {*pair.violates_1, *pair.violates_2}
  winning = pair.candidate_1 if pair.winner == "cand_1" else pair.candidate_2
  turns = list(scene.turns)
  turns[pair.turn] = dataclasses.replace(turns[pair.turn], reply=winning, plan="")
  scene = dataclasses.replace(scene, turns=tuple(turns))
  for kind in rng.sample(_FAULTS, len(_FAULTS)):
    corrupt, (principle,) = corruptions.CORRUPTIONS[kind]
    if principle in named:
      continue
    for _ in range(_TRIES):
      text = corrupt(scene, pair.turn, rng, ())
      if text is None:
        break
      if _plain(text) != _plain(winning) and _is_within(_plain(winning), _plain(text)):
        text = judging.candidate_text(text, turns[pair.turn].speaker)
        return _made(pair, pair.winner, text, loser or "", principle, SPOILT)
  return None


def relabelled(pair: PreferencePair) -> PreferencePair:
  """The pair with the other label, against all its principles: wrong, and marked as such."""
  her = {**pair.extra.get("her", {}), "principles": [list(e) for e in principles_of(pair)]}
  return dataclasses.replace(
    pair,
    id=f"{pair.id}/{RELABELLED}",
    winner=swap(pair.winner) or pair.winner,
    kind=RELABELLED,
    extra={**pair.extra, "her": her},
  )


def _spoken(reply: str) -> list[str]:
  return [
    segment.text.strip()
    for segment in grammar.parse(reply).segments
    if segment.kind == grammar.SPEECH and segment.text.strip()
  ]


def _plain(text: str) -> str:
  """A reply without its tags and blanks, thoughts marked off, so that spoken ones differ."""
  marks = {grammar.THINKING: "\0", grammar.ACTION: "\1"}
  return "".join(
    f"{marks.get(s.kind, '')}{''.join(s.text.split())}" for s in grammar.parse(text).segments
  )


def _is_within(part: str, whole: str) -> bool:
  """Whether all signs of `part` stand in `whole`, in their order."""
  rest = iter(whole)
  return all(sign in rest for sign in part.replace("\0", "").replace("\1", ""))


def _sentences(text: str) -> list[str]:
  return [piece.strip() for piece in _SENTENCE.findall(text) if piece.strip()]


def _made(
  pair: PreferencePair, side: str, text: str, winner: str, principle: str, kind: str
) -> PreferencePair:
  """The pair with `text` for candidate `side`, which now breaks `principle` too.

  The principles stay what was found of the texts as they were, but for `principle` itself.
  """
  principles = [[p, swap(side) if p == principle else w] for p, w in principles_of(pair)]
  her: dict[str, Any] = {**pair.extra.get("her", {}), "principles": principles, "of": pair.id}
  her["breaks"] = [principle, side]
  her.pop("verdicts", None)  # Nobody has judged this text.
  first = side == "cand_1"
  mine = pair.violates_1 if first else pair.violates_2
  broken = tuple(dict.fromkeys([*mine, principle]))
  return dataclasses.replace(
    pair,
    id=f"{pair.id}/{kind}",
    candidate_1=text if first else pair.candidate_1,
    candidate_2=pair.candidate_2 if first else text,
    winner=winner,
    kind=kind,
    violates_1=broken if first else pair.violates_1,
    violates_2=pair.violates_2 if first else broken,
    extra={**pair.extra, "her": her},
  )
