"""The true reply where it should not stand: in the plan before it, or in what the prompt shows.

How much two texts share is measured by the longest run of words in both and by containment, the
share of the reply's short runs (three words, four signs in Chinese) that the other has
(Broder, "On the resemblance and containment of documents", 1997). What the prompt holds anyway
is no secret of the reply and counts for nothing.
"""

from collections.abc import Iterator, Sequence

from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import (
  SceneView,
  TurnView,
  Word,
  joined,
  plain_words,
  quotes,
  runs,
  sentences,
  words_of,
)
from her_jax.roleplay.tags import SPEECH

# The 691 plans of the sample scenes, written by hand, share at most 4 words (en) or 5 signs (zh)
# in a row with their reply, and at most 0.061 of its short runs. With a third of the reply
# pasted into them, 95 in 100 share 6 words or 10 signs or more. Synthesis takes its limits from here.
RUN = {"en": 6, "zh": 10}
SHORT = {"en": 3, "zh": 4}
SHARE = 0.25
LEAST_SHORT = 3  # short runs in common, below which a share says nothing
LEAST_QUOTE = {"en": 2, "zh": 3}
SENTENCE = {"en": 4, "zh": 7}  # words of a sentence that is given away whole
# A run of these alone is nobody's line.
_FILLERS = frozenset(
  "a an the and or but of to in on at by for from with as is are was were be been being am do does"
  " did have has had having will would can could shall should may might must not no it its this"
  " that these those there here he him his she her they them their who what which how when where"
  " why if so than then too very just only all any some more going go get got about into out up"
  " down over one own be".split()
)

# A sheet may quote its character; from so many words on, and that much of what is said, it
# gives the line itself away.
PROMPT_RUN = {"en": 9, "zh": 16}
PROMPT_COVER = 0.5
_STOP = 400  # words of a run that are looked at
_PLACES = 20  # of one short run, that a reply of one word a thousand times costs no time


def reply_in_plan(view: SceneView) -> Iterator[Flag]:
  size = SHORT[view.language]
  known = runs(view.setting_words, size)
  before = [joined(view.setting_words)]
  for turn in view.turns:
    if turn.turn.plan:
      flag = _in_plan(turn, known, view.language) or _whole(turn, before, view.language)
      if flag:
        yield flag
    known |= runs(turn.plain, size)
    before.append(joined(turn.plain))


def _in_plan(turn: TurnView, known: set[tuple[str, ...]], language: str) -> Flag | None:
  size, plan = SHORT[language], turn.plan_words
  unknown = runs(turn.plain, size) - known
  new = {run for run in unknown if not _FILLERS.issuperset(run)}
  shared = new & runs([w for _, _, w in plan], size)
  if not shared:
    return None
  start, end, length = _longest(plan, turn.plain, size, unknown)
  share = len(shared) / len(new)
  unit = "words" if language == "en" else "signs"
  if length >= RUN[language]:
    why = f"{length} {unit} in a row stand in the reply"
  elif share >= SHARE and len(shared) >= LEAST_SHORT:
    why = f"{share:.0%} of the reply's runs of {size} {unit} stand in the plan"
  else:
    return None
  return turn.flag("reply_in_plan", "plan", plan[start][0], plan[end - 1][1], why)


def _whole(turn: TurnView, before: Sequence[str], language: str) -> Flag | None:
  """A short line that is given away whole: a quotation in the plan that the reply says, or a
  sentence of the speech that the plan has."""
  plan, reply = turn.turn.plan, joined(turn.plain)
  for start, end in quotes(plan):
    said = joined(w for _, _, w in words_of(plan[start:end]))
    if len(said.split()) < LEAST_QUOTE[language] or said not in reply:
      continue
    if not any(said in text for text in before):
      return turn.flag("reply_in_plan", "plan", start, end, "a quotation that the reply says")
  mine = tuple(word for _, _, word in turn.plan_words)
  text = joined(mine)
  for layer in turn.of(SPEECH):
    for start, end in sentences(layer.text):
      words = plain_words(layer.text[start:end])
      said = joined(words)
      if len(words) < SENTENCE[language] or said not in text or _FILLERS.issuperset(words):
        continue
      if not any(said in known for known in before):
        first = len(text[: text.index(said)].split())
        place = turn.plan_words[first][0], turn.plan_words[first + len(words) - 1][1]
        return turn.flag("reply_in_plan", "plan", *place, "a sentence that the reply says")
  return None


def _longest(
  plan: Sequence[Word], reply: Sequence[str], size: int, new: set[tuple[str, ...]]
) -> tuple[int, int, int]:
  """Start and end, in words of the plan, of the longest run in both; and how long it is.

  Its length is counted from the short runs in it that nobody could know before (`new`).
  """
  places: dict[tuple[str, ...], list[int]] = {}
  for i in range(len(reply) - size + 1):
    run = tuple(reply[i : i + size])
    if len(found := places.setdefault(run, [])) < _PLACES:
      found.append(i)
  mine = [word for _, _, word in plan]
  best = (0, size, 0)
  for i in range(len(mine) - size + 1):
    for k in places.get(tuple(mine[i : i + size]), ()):
      if i and k and mine[i - 1] == reply[k - 1]:
        continue  # A part of a run that was looked at.
      end = i + size
      while end - i < _STOP and end < len(mine) and k + end - i < len(reply):
        if mine[end] != reply[k + end - i]:
          break
        end += 1
      fresh = sum(tuple(mine[j : j + size]) in new for j in range(i, end - size + 1))
      if fresh and fresh + size - 1 > best[2]:
        best = (i, end, fresh + size - 1)
  return best


def reply_in_prompt(view: SceneView) -> Iterator[Flag]:
  """Lines that a sheet, the scenario or a turn before holds already.

  Others are quoted and echoed in any dialogue: a turn before counts where most of the reply is
  in it.
  """
  language = view.language
  size = PROMPT_RUN[language]
  setting = runs(view.setting_words, size)
  before: dict[tuple[str, ...], int] = {}
  for turn in view.turns:
    own = turn.plain
    if not turn.is_environment and len(own) >= size:
      flag = _in_prompt(turn, setting, before, size)
      if flag:
        yield flag
    for run in runs(own, size):
      before.setdefault(run, turn.index)


def _in_prompt(
  turn: TurnView, setting: set[tuple[str, ...]], before: dict[tuple[str, ...], int], size: int
) -> Flag | None:
  words = turn.words
  inside: dict[int, int] = {}  # word -> turn it stands in, -1 for the setting
  for i in range(len(words) - size + 1):
    run = turn.plain[i : i + size]
    where = -1 if run in setting else before.get(run)
    if where is not None:
      inside.update(dict.fromkeys(range(i, i + size), where))
  if not inside:
    return None
  in_setting = [i for i, where in inside.items() if where == -1]
  count = sum(start < end for start, end, _ in words)
  if len(in_setting) < max(size, 0.25 * count) and len(inside) < PROMPT_COVER * count:
    return None
  first = in_setting[0] if in_setting else min(inside)
  last = first
  while last + 1 in inside:
    last += 1
  where = inside[first]
  place = "the sheets or the scenario" if where == -1 else f"turn {where}"
  why = f"{last - first + 1} words in a row stand in {place}"
  return turn.flag("reply_in_prompt", "reply", words[first][0], words[last][1], why)
