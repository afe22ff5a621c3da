"""Who wins unjudged: empty replies lose, and broken grammar may."""

import random

import pytest

from data_pipeline import samples
from her_jax.inference.engine import Completion
from her_jax.rl.rollout import Rollouts, _rollout
from her_jax.roleplay import schema
from her_jax.roleplay.judging import Verdict
from her_jax.roleplay.prompts import Variant

SCENE = schema.read_trajectories(samples.SCENES)[0]
TURN = SCENE.trained_turns()[0]
NAME = SCENE.turns[TURN].speaker
PLAN = "<system_thinking>He waits.</system_thinking>"
WHOLE = f"{PLAN}{NAME}: <role_action>nods</role_action> Sit down."
BROKEN = f"{PLAN}{NAME}: <role_action>nods. Sit down."
EMPTY = f"{PLAN}{NAME}: <role_thinking>Not a word.</role_thinking>"


class _Words:
  """A tokenizer of whole texts: one id each."""

  added_tokens_decoder: dict = {}

  def __init__(self):
    self.texts: list[str] = []

  def id(self, text: str) -> int:
    self.texts.append(text)
    return len(self.texts) - 1

  def decode(self, ids, skip_special_tokens):
    return "".join(self.texts[i] for i in ids)


class _LaterWins:
  """A judge that prefers the text that sorts later, in either order, and counts its work."""

  def __init__(self):
    self.asked = 0

  def compare(self, comparisons):
    self.asked += len(comparisons)
    return [
      Verdict("cand_1" if c.candidate_1 > c.candidate_2 else "cand_2", "ok")
      for c in comparisons
    ]


def _outcome(own: str, opponent: str, judge_invalid: bool, finished: bool = True):
  words, judge = _Words(), _LaterWins()
  rollouts = Rollouts(
    None, None, judge, words, group_size=1, orders=2, seed=0, variant=Variant("brief"),
    judge_invalid=judge_invalid,
  )  # fmt: skip
  asked = (SCENE, TURN)
  one = rollouts._reply(
    asked, Completion([words.id(own)], [0.0], "stop" if finished else "length")
  )
  two = rollouts._reply(asked, Completion([words.id(opponent)], [0.0], "stop"))
  outcomes = rollouts._compare([asked], [[one]], [two], random.Random(0))
  return _rollout(one, outcomes.get((0, 0))), judge.asked


@pytest.mark.parametrize("own, opponent", [(BROKEN, WHOLE), (BROKEN, BROKEN), (EMPTY, BROKEN)])
def test_a_broken_turn_can_lose_unjudged(own, opponent):
  rollout, asked = _outcome(own, opponent, judge_invalid=False)
  assert (rollout.outcome, rollout.reward, asked) == ("lose", -1, 0)


@pytest.mark.parametrize("opponent", [WHOLE + " Now.", BROKEN])
def test_a_whole_turn_is_judged_whatever_stands_against_it(opponent):
  rollout, asked = _outcome(WHOLE, opponent, judge_invalid=False)
  assert rollout.outcome in ("win", "lose") and asked == 2


def test_by_default_the_judge_decides_on_broken_turns_too():
  _, asked = _outcome(BROKEN, WHOLE, judge_invalid=True)
  assert asked == 2


@pytest.mark.parametrize("judge_invalid", [True, False])
def test_an_empty_reply_loses_unjudged(judge_invalid):
  rollout, asked = _outcome(EMPTY, WHOLE, judge_invalid)
  assert (rollout.outcome, rollout.empty, asked) == ("lose", True, 0)


def test_a_reply_cut_off_is_not_valid_and_does_not_count():
  rollout, _ = _outcome(WHOLE, WHOLE, judge_invalid=False, finished=False)
  assert not rollout.valid and not rollout.counted


def test_the_frozen_copy_answers_a_turn_once():
  words, asked = _Words(), []

  def sampler(params, prompts, *, n, seed):
    asked.extend(prompts)
    return [
      [Completion([words.id(f"{PLAN}{NAME}: Reply {seed}.")], [0.0], "stop")] for _ in prompts
    ]

  rollouts = Rollouts(
    sampler, None, _LaterWins(), words, group_size=1, orders=2, seed=0, variant=Variant("brief")
  )
  one, two, three = ((SCENE, turn) for turn in SCENE.trained_turns()[:3])
  first = rollouts._baselines([one, two, one], [[1], [2], [1]], seed=1)
  later = rollouts._baselines([two, three, one], [[2], [3], [1]], seed=9)
  assert sorted(asked) == [[1], [2], [3]]
  assert first[0] == first[2] == later[2] and first[1] == later[0]
  assert "Reply 9" in later[1].text and "Reply 1" in later[0].text
