"""One batch of experience: the policy and its frozen copy reply, the judge compares."""

from collections.abc import Sequence
import dataclasses
import random

from flax import nnx
from transformers import PreTrainedTokenizerBase

from her_jax.inference.sampler import Completion, Sampler
from her_jax.rl import rewards
from her_jax.rl.judge import Comparison, Judge
from her_jax.roleplay import chat, grammar, judging
from her_jax.roleplay.schema import Trajectory

PLACES = ("cand_1", "cand_2")


@dataclasses.dataclass(frozen=True)
class Rollout:
  """One sampled reply and what came of it.

  Attributes:
    outcome: "win", "tie", "lose", or None where no verdict could be read.
    reward: +1, 0 or −1.
    counted: whether it takes part in the group's normalisation and in the loss.
    empty: nothing that others perceive: it loses without being judged.
  """

  completion: Completion
  text: str
  outcome: str | None
  reward: float
  counted: bool
  empty: bool


@dataclasses.dataclass(frozen=True)
class Group:
  """All rollouts of one prompt, and the reply they were compared with."""

  scene: Trajectory
  turn: int
  prompt: list[int]
  rollouts: list[Rollout]
  baseline: str


class Rollouts:
  """Samples groups and has them judged."""

  def __init__(
    self,
    sampler: Sampler,
    baseline_params: nnx.State,
    judge: Judge,
    tokenizer: PreTrainedTokenizerBase,
    *,
    group_size: int,
    orders: int,
    seed: int,
    style: str,
  ):
    """Fixes who plays.

    Args:
      baseline_params: the frozen copy that writes the opponent's reply.
      orders: 1 judges each comparison with the candidates in one order, drawn at random; 2
        in both.
      style: of the sheets, as the policy was trained.
    """
    if orders not in (1, 2):
      raise ValueError(f"judge.orders is {orders}; it must be 1 or 2")
    self._sampler = sampler
    self._baseline_params = baseline_params
    self._judge = judge
    self._tokenizer = tokenizer
    self._group_size = group_size
    self._orders = orders
    self._seed = seed
    self._style = style

  def __call__(
    self, params: nnx.State, turns: Sequence[tuple[Trajectory, int]], step: int
  ) -> list[Group]:
    """One group for each turn, sampled with `params`; `step` makes the draws its own."""
    prompts = [
      chat.render_prompt(scene, turn, self._tokenizer, self._sampler.prompt_length, self._style)
      for scene, turn in turns
    ]
    seed = (self._seed * 1_000_003 + step) * 2
    drawn = self._sampler(params, prompts, n=self._group_size, seed=seed)
    baselines = [
      self._text(group[0])
      for group in self._sampler(self._baseline_params, prompts, n=1, seed=seed + 1)
    ]
    names = [scene.turns[turn].speaker for scene, turn in turns]
    opponents = [
      judging.candidate_text(text, name) for text, name in zip(baselines, names, strict=True)
    ]
    texts = [[self._text(completion) for completion in group] for group in drawn]
    outcomes = self._compare(turns, texts, opponents, names, random.Random(seed))
    return [
      Group(
        scene=scene,
        turn=turn,
        prompt=prompts[i],
        baseline=baselines[i],
        rollouts=[
          _rollout(completion, text, name, outcomes.get((i, j)))
          for j, (completion, text) in enumerate(zip(drawn[i], texts[i], strict=True))
        ],
      )
      for i, ((scene, turn), name) in enumerate(zip(turns, names, strict=True))
    ]

  def _compare(
    self,
    turns: Sequence[tuple[Trajectory, int]],
    texts: Sequence[Sequence[str]],
    opponents: Sequence[str],
    names: Sequence[str],
    rng: random.Random,
  ) -> dict[tuple[int, int], str | None]:
    """The outcome for each (prompt, completion) that has something to judge."""
    comparisons, places, owners = [], [], []
    for i, (scene, turn) in enumerate(turns):
      for j, text in enumerate(texts[i]):
        if grammar.parse(text, names[i]).is_empty:
          continue
        own = judging.candidate_text(text, names[i])
        for place in PLACES if self._orders == 2 else (rng.choice(PLACES),):
          pair = (own, opponents[i]) if place == "cand_1" else (opponents[i], own)
          comparisons.append(Comparison(scene, turn, *pair))
          places.append(place)
          owners.append((i, j))
    read: dict[tuple[int, int], tuple[list[str | None], list[str]]] = {}
    for owner, place, verdict in zip(
      owners, places, self._judge.compare(comparisons), strict=True
    ):
      winners, where = read.setdefault(owner, ([], []))
      winners.append(verdict.winner)
      where.append(place)
    return {owner: rewards.outcome(*found) for owner, found in read.items()}

  def _text(self, completion: Completion) -> str:
    return chat.decode_text(completion.ids, self._tokenizer)


def _rollout(completion: Completion, text: str, name: str, outcome: str | None) -> Rollout:
  empty = grammar.parse(text, name).is_empty
  if empty:
    outcome = "lose"
  return Rollout(
    completion=completion,
    text=text,
    outcome=outcome,
    reward=rewards.reward(outcome),
    counted=outcome is not None and completion.finished,
    empty=empty,
  )
