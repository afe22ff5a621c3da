"""Questions to a model in blocks: answers in the order asked, and every failure with its cause.

What a reply is worth says the question's reader. A reply that was cut is asked for again with
twice the tokens, one that cannot be used once more under a new id; a filtered or refused one is
not, since the same text meets the same filter.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Generic, TypeVar

from her_jax.llm.client import Failure, Message, Reply, Request, Sampling
from her_jax.llm.guarded import Completes, Guarded

T = TypeVar("T")
# No larger budget is asked for than this, in tokens.
MOST_TOKENS = 32_768
_FINAL = {"refusal", "content_filter"}


class Unusable(ValueError):
  """A reply that its reader cannot take; the text is the cause that is counted."""


@dataclasses.dataclass(frozen=True)
class Question(Generic[T]):
  """Something to ask.

  Attributes:
    id: of its request, unique in the run.
    read: makes the value of a finished reply, or raises `Unusable`.
  """

  id: str
  messages: tuple[Message, ...]
  sampling: Sampling
  tag: str
  read: Callable[[Reply], T]


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
  """What came of a question.

  Attributes:
    value: what its reader made of the reply; None where there is none.
    cause: why there is none: a finish reason, a failure's cause or what the reader said.
    text: the last reply, used or not.
    reasoning: what the model thought before it, where the back-end tells.
  """

  value: T | None
  cause: str = ""
  text: str = ""
  reasoning: str = ""


class Asker:
  """Asks over one client, and ends the run where no call can succeed any more."""

  def __init__(self, client: Completes, tries: int = 2, give_up_after: int = 20):
    """Args:
    client: whoever answers, with its journal.
    tries: replies asked for to one question at most.
    give_up_after: so many calls in a row that the endpoint failed end the run.
    """
    self._client, self._tries = Guarded(client, give_up_after), tries

  def ask(self, questions: Sequence[Question[T]]) -> list[Answer[T]]:
    """One answer a question, in their order.

    Raises:
      Stopped: the budget is spent or the endpoint is down; calls on their way are kept.
    """
    answers: dict[int, Answer[T]] = {}
    pending = {i: question.sampling for i, question in enumerate(questions)}
    for number in range(self._tries):
      suffix = f"/retry{number}" if number else ""
      asked = {f"{questions[i].id}{suffix}": i for i in pending}
      requests = (
        Request(name, questions[i].messages, pending[i], questions[i].tag)
        for name, i in asked.items()
      )
      again: dict[int, Sampling] = {}
      for request, result in self._client.complete(requests):
        i = asked[request.id]
        answers[i] = answer = _answer(questions[i], result)
        if isinstance(result, Failure) or not answer.cause or answer.cause in _FINAL:
          continue
        again[i] = pending[i]
        if answer.cause == "length":
          larger = min(2 * pending[i].max_tokens, MOST_TOKENS)
          if larger <= pending[i].max_tokens:
            del again[i]  # The same budget would be cut in the same place.
          else:
            again[i] = dataclasses.replace(pending[i], max_tokens=larger)
      pending = {i: again[i] for i in sorted(again)}
      if not pending:
        break
    return [answers[i] for i in range(len(questions))]


def _answer(question: Question[T], result: Reply | Failure) -> Answer[T]:
  if isinstance(result, Failure):
    return Answer(None, result.cause, result.message)
  if result.finish_reason != "stop":
    return Answer(None, result.finish_reason, result.text, result.reasoning)
  try:
    value = question.read(result)
  except Unusable as error:
    return Answer(None, str(error), result.text, result.reasoning)
  return Answer(value, "", result.text, result.reasoning)
