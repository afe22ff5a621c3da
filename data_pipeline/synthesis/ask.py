"""One question to a model, with what may go wrong with the answer, as a job for `run_jobs`.

A job is a generator: it gives requests, gets what came of each, and returns an `Answer`. It
knows neither the client nor the other jobs, so that thousands run side by side.
"""

from collections.abc import Callable, Generator, Sequence
import dataclasses
import re
from typing import Generic, TypeVar

from data_pipeline.synthesis import prompts, recovery
from her_jax.llm.client import Failure, Message, Reply, Request, Sampling

T = TypeVar("T")
R = TypeVar("R")
Job = Generator[Request, Reply | Failure, R]
# Tokens of texts in a language: a tokenizer's count, or the estimate of `prompts`.
Counter = Callable[[Sequence[str], str], int]

# No larger budget is asked for than this, in tokens.
_MOST_TOKENS = 32_768
_THINK = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)
# How models decline in the place of an answer.
_DECLINES = re.compile(
  r"\A\W*(?:I['’]m (?:sorry|unable)|I am (?:sorry|unable)|I apologi[sz]e|Sorry\b|I (?:can['’]?t|cannot|won['’]t)"
  r"|As an AI\b|抱歉|对不起|很遗憾|我(?:不能|无法|没法)|作为(?:一个)?(?:AI|人工智能))",
  re.IGNORECASE,
)
_LONGEST_REFUSAL = 800


class Rejected(ValueError):
  """An answer that was not taken. `cause` is counted; `detail` is told to the model."""

  def __init__(self, cause: str, detail: str = ""):
    super().__init__(f"{cause}: {detail}" if detail else cause)
    self.cause, self.detail = cause, detail


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


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
  """What came of a question: the value that `check` made, or why there is none."""

  value: T | None = None
  cause: str = ""
  message: str = ""


@dataclasses.dataclass(frozen=True)
class Question(Generic[T]):
  """A question and how its answer is read.

  Attributes:
    unit: unique in the run; the ids of its requests begin with it.
    check: makes the value of the text, or raises `Rejected` or `recovery.Unrecoverable`. It gets
      the text without a think block, and the model's reasoning.
    last: how an answer is read when no further try is left, where that differs.
  """

  unit: str
  tag: str
  language: str
  messages: tuple[Message, ...]
  sampling: Sampling
  check: Callable[[str, str], T]
  last: Callable[[str, str], T] | None = None


def ask(question: Question[T], tries: int = 2) -> Job[Answer[T]]:
  """Asks, and asks again where that can help, `tries` times in all.

  A cut reply is asked for again with twice the tokens, never sent again unchanged and never
  completed here. An answer that fails its check is asked for again with what is wrong. A
  filtered one is not asked for again, since the same text would meet the same filter.
  """
  messages, sampling, answer = question.messages, question.sampling, Answer[T]()
  for number in range(tries):
    suffix = f"/retry{number}" if number else ""
    result = yield Request(f"{question.unit}{suffix}", messages, sampling, question.tag)
    if isinstance(result, Failure):
      return Answer(cause=result.cause, message=result.message)
    text, reasoning = apart(result)
    if result.finish_reason == "content_filter":
      return Answer(cause="content_filter", message="the reply was withheld")
    if result.finish_reason == "length":
      answer = Answer(cause="truncated", message=f"cut at {sampling.max_tokens} tokens")
      larger = min(2 * sampling.max_tokens, _MOST_TOKENS)
      if larger <= sampling.max_tokens:
        return answer
      sampling = dataclasses.replace(sampling, max_tokens=larger)
      continue
    check = question.last if question.last and number == tries - 1 else question.check
    try:
      if result.finish_reason == "refusal":
        raise Rejected("refusal", _short(text))
      return Answer(check(text, reasoning))
    except (Rejected, recovery.Unrecoverable) as error:
      cause = error.cause
      if cause in ("malformed", "truncated") and declines(text):
        cause = "refusal"
      detail = error.detail if isinstance(error, Rejected) else str(error)
    answer = Answer(cause=cause, message=_short(detail or cause))
    mend = prompts.again(question.language, cause, _short(detail))
    told = Message("assistant", text or "…"), Message("user", mend)
    messages = (*question.messages, *told)
  return answer


def apart(reply: Reply) -> tuple[str, str]:
  """Answer and reasoning, which some back-ends write into the text as a think block."""
  found = _THINK.match(reply.text)
  if not found:
    return reply.text.strip(), reply.reasoning.strip()
  return reply.text[found.end() :].strip(), (reply.reasoning or found[1]).strip()


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


def _short(text: str) -> str:
  line = " ".join(text.split())
  return line if len(line) <= 300 else f"{line[:299]}…"
