"""What is asked of a language model, and what comes back."""

import dataclasses
import hashlib
import json
import math
from typing import ClassVar

from her_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Message:
  """`role` is system, user or assistant."""

  role: str
  content: str


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a reply is sampled; `max_tokens` counts its reasoning too.

  Raises:
    ConfigError: a number is out of its range.
  """

  temperature: float = 0.7
  top_p: float = 0.9
  max_tokens: int = 8192
  seed: int = 0
  stop: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    for field, right, rule in (
      ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
      ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
      ("max_tokens", self.max_tokens >= 1, "1 or more"),
    ):
      if not right:
        raise ConfigError(f"{field} is {getattr(self, field)}; it must be {rule}")


@dataclasses.dataclass(frozen=True)
class Request:
  """One call.

  Attributes:
    id: Unique in a run, such as "role_thinking/a-quiet-street/0". Part of the call's key, so
      several replies to one prompt are several calls.
    messages: The prompt.
    sampling: How to sample.
    tag: What the report counts it under.
  """

  id: str
  messages: tuple[Message, ...]
  sampling: Sampling = Sampling()
  tag: str = ""

  def key(self, model: str) -> str:
    """What the call is known by: another model, prompt, sampling or id is another call."""
    what = [model, dataclasses.asdict(self.sampling), self.id]
    what += [[message.role, message.content] for message in self.messages]
    return hashlib.sha256(json.dumps(what, ensure_ascii=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Usage:
  """Tokens that were paid for, or would be.

  `unknown` is the number of attempts whose tokens the other side did not tell: those whose
  answer was lost on its way, and which may have been paid for, too.
  """

  # No answer is for so many: a larger number is a fault, and one of 400 digits is no float.
  MOST: ClassVar[int] = 10**12

  prompt_tokens: int = 0
  completion_tokens: int = 0
  unknown: int = 0

  @property
  def told(self) -> bool:
    """Whether there are tokens that are known."""
    return bool(self.prompt_tokens or self.completion_tokens)

  def __add__(self, other: "Usage") -> "Usage":
    return Usage(
      self.prompt_tokens + other.prompt_tokens,
      self.completion_tokens + other.completion_tokens,
      self.unknown + other.unknown,
    )


@dataclasses.dataclass(frozen=True)
class Reply:
  """An answer that was paid for, also where it is of no use.

  Attributes:
    text: Without its reasoning.
    reasoning: What a reasoning model thought before it.
    finish_reason: stop, length (cut at `max_tokens`), content_filter or refusal.
    usage: Of all attempts.
    attempts: How often it was asked.
    cached: Whether the journal had it.
  """

  text: str
  reasoning: str = ""
  finish_reason: str = "stop"
  usage: Usage = Usage()
  attempts: int = 1
  cached: bool = False


@dataclasses.dataclass(frozen=True)
class Failure:
  """No answer.

  Attributes:
    cause: timeout, rate_limit, connection, server, bad_request, auth, malformed, budget or
      missing.
    message: For people.
    usage: What its attempts cost, where that is known.
    attempts: How often it was asked.
  """

  cause: str
  message: str
  usage: Usage = Usage()
  attempts: int = 1
