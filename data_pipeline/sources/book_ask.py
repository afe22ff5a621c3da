"""Calls about a book: what is out of form is asked for once more, what was cut with more room."""

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Generic, TypeVar

from data_pipeline.sources import book_prompts
from her_jax.llm.client import Failure, Message, Reply, Request, Sampling
from her_jax.llm.guarded import Completes
from her_jax.roleplay.schema import DataError

_T = TypeVar("_T")


@dataclasses.dataclass
class Counts:
  """What became of a book.

  Attributes:
    scenes: found, split, kept, and dropped by reason; `lines` likewise.
    names: of the lists that the cast does not place, by reason.
    failures: calls that gave nothing, by stage and cause; `failed` are their ids.
  """

  scenes: Counter[str] = dataclasses.field(default_factory=Counter)
  lines: Counter[str] = dataclasses.field(default_factory=Counter)
  names: Counter[str] = dataclasses.field(default_factory=Counter)
  failures: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
  failed: list[str] = dataclasses.field(default_factory=list)

  def as_dict(self) -> dict[str, Any]:
    return {
      "scenes": dict(self.scenes),
      "lines": dict(self.lines),
      "names": dict(self.names),
      "failures": {f"{stage}: {cause}": n for (stage, cause), n in self.failures.items()},
      "failed": self.failed,
    }


@dataclasses.dataclass(frozen=True)
class Question(Generic[_T]):
  """A request and how its answer is read; `read` raises DataError if it is out of form."""

  id: str
  text: str
  read: Callable[[str], _T]


class Asker:
  """Asks a model about one book and counts what came to nothing."""

  def __init__(self, client: Completes, counts: Counts, sampling: Sampling, language: str):
    self._client, self._counts = client, counts
    self._sampling, self._language = sampling, language

  def ask(
    self, stage: str, questions: Sequence[Question[_T]], cut: set[str] | None = None
  ) -> dict[str, _T]:
    """Answers by id. One that is out of form is asked for once more, and told why; one that
    was cut, once more with twice the tokens.

    Args:
      cut: takes the ids whose answer was cut both times, in place of the failures.
    """
    found: dict[str, _T] = {}
    requests = {q.id: self._request(stage, q.id, q.text) for q in questions}
    readers = {q.id: q.read for q in questions}
    for attempt in range(2):
      answers = sorted(
        self._client.complete(list(requests.values())), key=lambda pair: pair[0].id
      )
      retry: dict[str, Request] = {}
      by_request = {request.id: id for id, request in requests.items()}
      for request, answer in answers:
        id = by_request[request.id]
        try:
          found[id] = readers[id](_usable(answer))
          continue
        except DataError as error:
          cause, fault = _cause(answer), str(error)
        last = attempt == 1
        if last and cause == "cut" and cut is not None:
          cut.add(id)
        elif not last and isinstance(answer, Reply) and cause in ("cut", "malformed"):
          retry[id] = self._retried(request, answer, cause, fault)
        else:
          self._counts.failures[stage, cause] += 1
          self._counts.failed.append(id)
      requests = retry
      if not requests:
        break
    return found

  def _request(self, stage: str, id: str, text: str) -> Request:
    messages = (Message("system", book_prompts.role(self._language)), Message("user", text))
    return Request(id, messages, self._sampling, tag=f"book/{stage}")

  def _retried(self, request: Request, answer: Reply, cause: str, fault: str) -> Request:
    """The request with more room, or with what was wrong with the answer."""
    if cause == "cut":
      more = dataclasses.replace(request.sampling, max_tokens=2 * request.sampling.max_tokens)
      return dataclasses.replace(request, id=f"{request.id}/retry1", sampling=more)
    told = Message("user", book_prompts.again(fault, self._language))
    messages = (*request.messages, Message("assistant", answer.text or "-"), told)
    return dataclasses.replace(request, id=f"{request.id}/retry1", messages=messages)


def _usable(answer: Reply | Failure) -> str:
  if isinstance(answer, Failure):
    raise DataError(answer.message)
  if answer.finish_reason != "stop":
    # Never read, even if it happens to be whole: its lines may be missing.
    raise DataError(f"finished with {answer.finish_reason}")
  return answer.text


def _cause(answer: Reply | Failure) -> str:
  if isinstance(answer, Failure):
    return answer.cause
  return {"stop": "malformed", "length": "cut"}.get(answer.finish_reason, answer.finish_reason)
