"""What a judge is taught of a pair: a judgement in words, for each order of the candidates.

In this order of what there is:

1. what a teacher said, of each order in which it came to the pair's label;
2. the winner by each principle that stands in the pair (`her.principles`): where a teacher
   contradicted itself, and of pairs made for the mix, which nobody has judged;
3. what follows from the principles that the pair says are broken.
"""

from collections.abc import Sequence
import dataclasses

from data_pipeline.preferences.hard_negatives import principles_of
from her_jax.errors import ConfigError
from her_jax.roleplay import judging
from her_jax.roleplay.judging import swap
from her_jax.roleplay.schema import Finding, Judgement, PreferencePair


@dataclasses.dataclass(frozen=True)
class Taught:
  """A judgement's text.

  Attributes:
    swapped: whether candidate 2 is the one shown first.
    other: the text if the other candidate were the better one, to see which words decide.
  """

  swapped: bool
  text: str
  other: str


def taught(
  pair: PreferencePair, judgements: Sequence[Judgement], also: Sequence[str], language: str
) -> list[Taught]:
  """The judgements of a pair, of one order or of both.

  Args:
    judgements: what a teacher said of the pair.
    also: ids of principles that both keep, named beside what follows from violations.

  Raises:
    ConfigError: nothing that is known of the pair gives its label.
    DataError: `her.principles` is no list of such.
  """
  agreeing = [
    judgement
    for judgement in judgements
    if (swap(judgement.winner) if judgement.swapped else judgement.winner) == pair.winner
  ]
  if not agreeing and "principles" in pair.extra.get("her", {}):
    findings = [Finding(principle, winner) for principle, winner in _principles(pair)]
    said = Judgement("", pair.id, pair.winner, tuple(findings))
    agreeing = [said, dataclasses.replace(judging.mirrored(said), swapped=True)]
  if agreeing:
    return [
      Taught(
        judgement.swapped,
        judging.write(judgement, language),
        judging.write(judging.mirrored(judgement), language),
      )
      for judgement in agreeing
    ]
  follows = judging.decide(pair.violates_1, pair.violates_2)
  if follows != pair.winner:
    raise ConfigError(
      f"pair {pair.id!r}: the winner is {pair.winner}, but by violates_1 and violates_2 it is"
      f" {follows}; make them agree, or pass a teacher's judgements (--config.data.judgements)"
    )
  one = judging.judgement_text(pair.violates_1, pair.violates_2, also, language)
  two = judging.judgement_text(pair.violates_2, pair.violates_1, also, language)
  return [Taught(False, one, two), Taught(True, two, one)]


def _principles(pair: PreferencePair) -> list[tuple[str, str]]:
  """(principle, winner) of a pair, with the fault that was set into it to make it."""
  found = principles_of(pair)
  broken = pair.extra["her"].get("breaks")
  if broken and broken[0] not in (principle for principle, _ in found):
    found.append((broken[0], swap(broken[1]) or broken[1]))
  return found
