"""Limits of what a run may spend, in tokens and in money."""

import dataclasses
import threading

from her_jax.llm.journal import Journal
from her_jax.llm.messages import Usage

# So many attempts without a word about tokens, and none with one: the endpoint counts none.
_SILENT = 32


@dataclasses.dataclass
class Budget:
  """What may be spent, and what was.

  An attempt whose tokens nobody told counts as much as the mean of those that were told: a
  limit that overlooked them would not hold.

  Attributes:
    tokens: At most so many, of prompts and replies together; None is no limit.
    money: At most so much, in the currency of the prices.
    price_in, price_out: Of a million tokens of prompts and of replies.
    earlier_runs: Whether what earlier runs on the same journal spent counts.
    spent: Tokens so far.
    told: Calls that they were for.
  """

  tokens: int | None = None
  money: float | None = None
  price_in: float = 0.0
  price_out: float = 0.0
  earlier_runs: bool = True
  spent: Usage = Usage()
  told: int = 0

  def __post_init__(self):
    self._lock = threading.Lock()
    self._journals: list[Journal] = []

  def begin(self, journal: Journal) -> None:
    """Counts what a journal's calls have cost so far, where that is wanted, and once."""
    if self.earlier_runs and not any(journal is known for known in self._journals):
      self._journals.append(journal)
      with self._lock:
        self.spent, self.told = self.spent + journal.spent, self.told + journal.told

  def spend(self, usage: Usage) -> None:
    with self._lock:
      self.spent = self.spent + usage
      self.told += usage.told

  def price(self, usage: Usage) -> float:
    """What tokens cost, without the attempts that are unknown."""
    return (
      usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out
    ) / 1e6

  def over(self) -> str | None:
    """Says which limit is reached, where one is."""
    with self._lock:
      spent, told = self.spent, self.told
    limited = self.tokens is not None or self.money is not None
    if limited and not told and spent.unknown >= _SILENT:
      return (
        f"the endpoint told no tokens in {spent.unknown} attempts, so no limit can be held;"
        " set llm.budget_tokens and llm.budget_usd to 0 to go on without"
      )
    share = 1 + spent.unknown / told if told else 1.0
    tokens = (spent.prompt_tokens + spent.completion_tokens) * share
    about = f" ({spent.unknown} attempts by estimate)" if spent.unknown else ""
    if self.tokens is not None and tokens >= self.tokens:
      return (
        f"{tokens:.0f} tokens are spent{about} of {self.tokens};"
        " raise llm.budget_tokens to go on"
      )
    if self.money is not None and (money := self.price(spent) * share) >= self.money:
      return f"{money:.2f} are spent{about} of {self.money:.2f}; raise llm.budget_usd to go on"
    return None
