"""One question to a model, with what may go wrong with the answer, as a job for a `Runner`.

A job is a generator: it gives requests, gets what came of each, and returns an `Answer`. It
knows neither the client nor the other jobs, so that thousands run side by side.
"""

from collections.abc import Callable, Generator
import dataclasses
import re
from typing import Generic, TypeVar

from her_jax.llm.client import Failure, Message, Reply, Request, Sampling

T = TypeVar("T")
R = TypeVar("R")
Job = Generator[Request, Reply | Failure, R]

# No larger budget is asked for than this, in tokens.
MOST_TOKENS = 32_768
_LONGEST = 300
_THINK = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


class Rejected(ValueError):
  """An answer that was not taken. `cause` is counted; `detail` says what is wrong."""

  def __init__(self, cause: str, detail: str = ""):
    super().__init__(f"{cause}: {detail}" if detail else cause)
    self.cause, self.detail = cause, detail


@dataclasses.dataclass(frozen=True)
class Question(Generic[T]):
  """A question and how its answer is read.

  Attributes:
    id: unique in the run; the ids of its requests begin with it.
    read: makes the value of a whole reply, or raises `Rejected`.
    last: how a reply is read when no further try is left, where that differs.
    again: what is said to the model after a reply that was rejected; None: the same is asked
      once more, under a new id.
    final: causes after which nothing is asked again: the same text meets the same filter.
    cut: the cause of a reply that was cut, as it is counted.
    most_tokens: the largest budget that is asked for; None: any.
  """

  id: str
  messages: tuple[Message, ...]
  sampling: Sampling
  tag: str
  read: Callable[[Reply], T]
  last: Callable[[Reply], T] | None = None
  again: Callable[[Reply, Rejected], tuple[Message, ...]] | None = None
  final: frozenset[str] = frozenset({"content_filter", "refusal"})
  cut: str = "length"
  most_tokens: int | None = MOST_TOKENS


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
  """What came of a question.

  Attributes:
    value: what its reader made of the reply; None where there is none.
    cause: a word for why there is none: of the reader, a failure's, or how the reply ended.
    message: the same for people.
    text: the last reply, used or not, or what a call that failed says.
    reasoning: what the model thought before it, where the back-end tells.
    tries: calls that it took.
  """

  value: T | None = None
  cause: str = ""
  message: str = ""
  text: str = ""
  reasoning: str = ""
  tries: int = 1


def ask(question: Question[T], tries: int = 2) -> Job[Answer[T]]:
  """Asks, and asks again where that can help, `tries` times in all.

  A cut reply is asked for again with twice the tokens, never sent again unchanged and never
  completed here. One that is rejected is asked for again as the question says. A call that
  failed is not: the client has tried it often enough.
  """
  messages, sampling, answer = question.messages, question.sampling, Answer[T]()
  for number in range(tries):
    id = request_id(question.id, number)
    result = yield Request(id, messages, sampling, question.tag)
    if isinstance(result, Failure):
      return Answer(None, result.cause, result.message, result.message, tries=number + 1)
    answer = Answer(text=result.text, reasoning=result.reasoning, tries=number + 1)
    read = question.last if question.last and number == tries - 1 else question.read
    try:
      _check_end(result, question.cut, sampling)
      return dataclasses.replace(answer, value=read(result))
    except Rejected as error:
      rejected = error
    message = short(rejected.detail or rejected.cause)
    answer = dataclasses.replace(answer, cause=rejected.cause, message=message)
    if rejected.cause in question.final:
      return answer
    if result.finish_reason == "length":
      larger = 2 * sampling.max_tokens
      if question.most_tokens is not None:
        larger = min(larger, question.most_tokens)
      if larger <= sampling.max_tokens:
        return answer
      sampling = dataclasses.replace(sampling, max_tokens=larger)
    elif question.again:
      messages = (*question.messages, *question.again(result, rejected))
  return answer


def request_id(question: str, number: int) -> str:
  """The id of a question's request: of the first try, number 0, or of a later one."""
  return f"{question}/retry{number}" if number else question


def apart(reply: Reply) -> tuple[str, str]:
  """Answer and reasoning, which some back-ends write into the text as a think block."""
  found = _THINK.match(reply.text)
  if not found:
    return reply.text.strip(), reply.reasoning.strip()
  return reply.text[found.end() :].strip(), (reply.reasoning or found[1]).strip()


def _check_end(reply: Reply, cut: str, sampling: Sampling) -> None:
  """Rejects a reply that is not whole, also if what there is of it can be read."""
  if reply.finish_reason == "length":
    raise Rejected(cut, f"cut at {sampling.max_tokens} tokens")
  if reply.finish_reason == "content_filter":
    raise Rejected("content_filter", "the reply was withheld")
  if reply.finish_reason != "stop":
    raise Rejected(reply.finish_reason, apart(reply)[0])


def short(text: str) -> str:
  """A text in one line, cut where it is long."""
  line = " ".join(text.split())
  return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
