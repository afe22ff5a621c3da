"""Calls about a book: what is out of form is asked for once more, what was cut with more room."""

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Generic, TypeVar

from data_pipeline.asking import question as asking
from data_pipeline.asking.question import Rejected, request_id
from data_pipeline.asking.runner import Runner
from data_pipeline.sources import book_prompts
from her_jax.llm.client import Message, Reply, Sampling
from her_jax.llm.guarded import Completes
from her_jax.roleplay.schema import DataError

_T = TypeVar("_T")
_CUT, _MALFORMED = "cut", "malformed"


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
    self._runner, self._counts = Runner(client), counts
    self._sampling, self._language = sampling, language

  def ask(
    self, stage: str, questions: Sequence[Question[_T]], cut: set[str] | None = None
  ) -> dict[str, _T]:
    """Answers by id. One that is out of form is asked for once more, and told why; one that
    was cut, once more with twice the tokens.

    Args:
      cut: takes the ids whose answer was cut both times, in place of the failures.
    """
    by_id = {question.id: self._question(stage, question) for question in questions}
    answers = dict(zip(by_id, self._runner.ask(list(by_id.values())), strict=True))
    found: dict[str, _T] = {}
    for id in sorted(answers, key=lambda id: _place(id, answers[id].tries)):
      answer = answers[id]
      if answer.value is not None:
        found[id] = answer.value
      elif cut is not None and answer.cause == _CUT:
        cut.add(id)
      else:
        self._counts.failures[stage, answer.cause] += 1
        self._counts.failed.append(id)
    return found

  def _question(self, stage: str, question: Question[_T]) -> asking.Question[_T]:
    def read(reply: Reply) -> _T:
      try:
        return question.read(reply.text)
      except DataError as error:
        raise Rejected(_MALFORMED, str(error)) from None

    def again(reply: Reply, error: Rejected) -> tuple[Message, ...]:
      told = book_prompts.again(error.detail, self._language)
      return Message("assistant", reply.text or "-"), Message("user", told)

    system = Message("system", book_prompts.role(self._language))
    messages = system, Message("user", question.text)
    return asking.Question(
      question.id, messages, self._sampling, f"book/{stage}", read, again=again, cut=_CUT,
      most_tokens=None,
    )  # fmt: skip


def _place(id: str, tries: int) -> tuple[int, str]:
  """The order in which answers count: those of the first try, then the others, by request."""
  return tries, request_id(id, tries - 1)
