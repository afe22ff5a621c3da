"""One batch of experience: the policy and its frozen copy reply, the judge compares."""

from collections.abc import Sequence
import dataclasses
import random

from flax import nnx
from transformers import PreTrainedTokenizerBase

from her_jax.errors import ConfigError
from her_jax.inference.engine import Completion
from her_jax.inference.sampler import Sampler
from her_jax.rl import rewards
from her_jax.rl.judge import Comparison, Judge
from her_jax.roleplay import chat, grammar, judging, prompts
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
    valid: finished, and a whole turn as `chat.is_valid_completion` has it.
  """

  completion: Completion
  text: str
  outcome: str | None
  reward: float
  counted: bool
  empty: bool
  valid: bool


@dataclasses.dataclass(frozen=True)
class _Reply:
  """One completion as it is compared; `candidate` is what the judge reads of it."""

  completion: Completion
  text: str
  candidate: str
  empty: bool
  valid: bool


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
    variant: prompts.Variant,
    judge_invalid: bool = True,
  ):
    """Fixes who plays.

    Args:
      baseline_params: the frozen copy that writes the opponent's reply.
      orders: 1 judges each comparison with the candidates in one order, drawn at random; 2
        in both.
      variant: of the prompts, as the policy was trained.
      judge_invalid: False: a reply that is no valid turn loses unjudged, as an empty one does.
    """
    if orders not in (1, 2):
      raise ConfigError(f"judge.orders is {orders}; it must be 1 or 2")
    self._sampler = sampler
    self._baseline_params = baseline_params
    self._judge = judge
    self._tokenizer = tokenizer
    self._group_size = group_size
    self._orders = orders
    self._seed = seed
    self._variant = variant
    self._judge_invalid = judge_invalid
    self._opponents: dict[tuple[str, int], _Reply] = {}

  def __call__(
    self, params: nnx.State, turns: Sequence[tuple[Trajectory, int]], step: int
  ) -> list[Group]:
    """One group for each turn, sampled with `params`; `step` makes the draws its own.

    The frozen copy answers a turn once: whenever the turn comes again, the policy meets the
    same reply.
    """
    prompts = [
      chat.render_prompt(
        scene, turn, self._tokenizer, self._sampler.prompt_length, self._variant
      )
      for scene, turn in turns
    ]
    seed = (self._seed * 1_000_003 + step) * 2
    drawn = self._sampler(params, prompts, n=self._group_size, seed=seed)
    opponents = self._baselines(turns, prompts, seed + 1)
    replies = [
      [self._reply(turn, completion) for completion in group]
      for turn, group in zip(turns, drawn, strict=True)
    ]
    outcomes = self._compare(turns, replies, opponents, random.Random(seed))
    return [
      Group(
        scene=scene,
        turn=turn,
        prompt=prompts[i],
        baseline=opponents[i].text,
        rollouts=[_rollout(reply, outcomes.get((i, j))) for j, reply in enumerate(replies[i])],
      )
      for i, (scene, turn) in enumerate(turns)
    ]

  def _baselines(
    self,
    turns: Sequence[tuple[Trajectory, int]],
    prompts: Sequence[list[int]],
    seed: int,
  ) -> list[_Reply]:
    """The frozen copy's reply to each turn; only those it has not answered yet are sampled."""
    keys = [(scene.id, turn) for scene, turn in turns]
    # By key, so that a turn which comes twice in one step is answered once.
    new = {key: i for i, key in enumerate(keys) if key not in self._opponents}
    drawn = self._sampler(
      self._baseline_params, [prompts[i] for i in new.values()], n=1, seed=seed
    )
    for (key, i), (completion,) in zip(new.items(), drawn, strict=True):
      self._opponents[key] = self._reply(turns[i], completion)
    return [self._opponents[key] for key in keys]

  def _compare(
    self,
    turns: Sequence[tuple[Trajectory, int]],
    replies: Sequence[Sequence[_Reply]],
    opponents: Sequence[_Reply],
    rng: random.Random,
  ) -> dict[tuple[int, int], str | None]:
    """The outcome for each (prompt, completion) that is not empty."""
    outcomes: dict[tuple[int, int], str | None] = {}
    comparisons, places, owners = [], [], []
    for i, (scene, turn) in enumerate(turns):
      for j, reply in enumerate(replies[i]):
        if reply.empty:
          continue
        if not (reply.valid or self._judge_invalid):
          outcomes[i, j] = "lose"
          continue
        for place in PLACES if self._orders == 2 else (rng.choice(PLACES),):
          pair = (reply.candidate, opponents[i].candidate)
          comparisons.append(
            Comparison(scene, turn, *(pair if place == "cand_1" else pair[::-1]))
          )
          places.append(place)
          owners.append((i, j))
    read: dict[tuple[int, int], tuple[list[str | None], list[str]]] = {}
    for owner, place, verdict in zip(
      owners, places, self._judge.compare(comparisons), strict=True
    ):
      winners, where = read.setdefault(owner, ([], []))
      winners.append(verdict.winner)
      where.append(place)
    return outcomes | {owner: rewards.outcome(*found) for owner, found in read.items()}

  def _reply(self, asked: tuple[Trajectory, int], completion: Completion) -> _Reply:
    scene, turn = asked
    name = scene.turns[turn].speaker
    others = [c.name for c in scene.characters if c.name != name]
    text = chat.decode_text(completion.ids, self._tokenizer)
    return _Reply(
      completion=completion,
      text=text,
      candidate=judging.candidate_text(text, name),
      empty=grammar.parse(text, name).is_empty,
      valid=completion.finished
      and chat.is_valid_completion(completion.ids, self._tokenizer, name, others),
    )


def _rollout(reply: _Reply, outcome: str | None) -> Rollout:
  if reply.empty:
    outcome = "lose"
  return Rollout(
    completion=reply.completion,
    text=reply.text,
    outcome=outcome,
    reward=rewards.reward(outcome),
    counted=outcome is not None and reply.completion.finished,
    empty=reply.empty,
    valid=reply.valid,
  )
