"""Limits of what a run may spend, in tokens and in money."""

import dataclasses

from her_jax.llm.messages import Usage


@dataclasses.dataclass
class Budget:
  """What may be spent, and what was.

  Attributes:
    tokens: At most so many, of prompts and replies together; None is no limit.
    money: At most so much, in the currency of the prices.
    price_in, price_out: Of a million tokens of prompts and of replies.
    spent: Tokens so far, also those of earlier runs on the same journal.
  """

  tokens: int | None = None
  money: float | None = None
  price_in: float = 0.0
  price_out: float = 0.0
  spent: Usage = Usage()

  def spend(self, usage: Usage) -> None:
    self.spent = self.spent + usage

  def price(self, usage: Usage) -> float:
    """What tokens cost."""
    return (
      usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out
    ) / 1e6

  def over(self) -> str | None:
    """Says which limit is reached, where one is."""
    used = self.spent.prompt_tokens + self.spent.completion_tokens
    if self.tokens is not None and used >= self.tokens:
      return f"{used} tokens are spent of {self.tokens}; raise llm.budget_tokens to go on"
    if self.money is not None and self.price(self.spent) >= self.money:
      return (
        f"{self.price(self.spent):.2f} are spent of {self.money:.2f}; raise llm.budget_usd to go on"
      )
    return None
