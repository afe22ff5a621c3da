"""What the stages ask: units, prompts that fit, and answers that a model is told to mend."""

from collections.abc import Callable, Sequence
import dataclasses
import re
from typing import TypeVar

from data_pipeline.asking.question import Question, Rejected, apart, short
from data_pipeline.synthesis import prompts
from her_jax.llm.client import Message, Reply, Sampling

T = TypeVar("T")
# Tokens of texts in a language: a tokenizer's count, or the estimate of `prompts`.
Counter = Callable[[Sequence[str], str], int]
# Makes the value of an answer without its think block and of the reasoning, or raises `Rejected`.
Check = Callable[[str, str], T]

# How models decline in the place of an answer.
_DECLINES = re.compile(
  r"\A\W*(?:I['’]m (?:sorry|unable)|I am (?:sorry|unable)|I apologi[sz]e|Sorry\b|I (?:can['’]?t|cannot|won['’]t)"
  r"|As an AI\b|抱歉|对不起|很遗憾|我(?:不能|无法|没法)|作为(?:一个)?(?:AI|人工智能))",
  re.IGNORECASE,
)
_LONGEST_REFUSAL = 800


@dataclasses.dataclass(frozen=True)
class Fault:
  """One thing that a stage could not do.

  Attributes:
    unit: what it was to be done for, as the request ids begin: "role_thinking/scene/0".
    cause: a word for the table.
    kept: whether a result was taken all the same.
  """

  unit: str
  scene: str
  cause: str
  message: str
  kept: bool = False


def question(
  unit: str,
  tag: str,
  language: str,
  messages: tuple[Message, ...],
  sampling: Sampling,
  check: Check[T],
  last: Check[T] | None = None,
) -> Question[T]:
  """A question of which a model is told what is wrong with its answer, also if it refuses.

  Args:
    unit: what is asked for, unique in the run.
    last: how an answer is read when no further try is left, where that differs.
  """

  def again(reply: Reply, error: Rejected) -> tuple[Message, ...]:
    mend = prompts.again(language, error.cause, short(error.detail))
    return Message("assistant", apart(reply)[0] or "…"), Message("user", mend)

  return Question(
    unit, messages, sampling, tag, _reader(check), _reader(last) if last else None, again,
    final=frozenset({"content_filter"}), cut="truncated",
  )  # fmt: skip


def _reader(check: Check[T]) -> Callable[[Reply], T]:
  def read(reply: Reply) -> T:
    text, reasoning = apart(reply)
    try:
      return check(text, reasoning)
    except Rejected as error:
      if error.cause in ("malformed", "truncated") and declines(text):
        raise Rejected("refusal", error.detail) from None
      raise

  return read


def declines(text: str) -> bool:
  """Whether a text is a refusal: short, and begun like one."""
  return len(text) <= _LONGEST_REFUSAL and bool(_DECLINES.match(text))


def unit_of(stage: str, scene: str, key: str) -> str:
  """What a question is for; the key's own slashes are written another way, so that it is one."""
  return f"{stage}/{scene}/{key.replace('%', '%25').replace('/', '%2F')}"


def again_suffix(attempts: int) -> str:
  """What is added to the units that a retry list asks for anew: they are other requests."""
  return f"/again{attempts}" if attempts else ""


def conversation(system: str, user: str) -> tuple[Message, ...]:
  return Message("system", system), Message("user", user)


def too_long(messages: Sequence[Message], language: str, limit: int, count: Counter) -> bool:
  """Whether the prompt has more tokens than `limit`."""
  return count([m.content for m in messages], language) > limit
