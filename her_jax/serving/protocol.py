"""What a request may say: the bodies of OpenAI's two endpoints, and fields of our own.

A field that would change the reply and that we cannot follow is refused in words. Of those that
we do not know, one that looks like a slip of a known name is refused too; the rest is passed over.
"""

import difflib
import json
import re
import secrets
from typing import Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import Field

from her_jax.inference.sampling import Sampling
from her_jax.roleplay.chat import Message
from her_jax.serving.errors import ApiError
from her_jax.serving.layers import Hidden

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_STRICT = pydantic.ConfigDict(extra="allow", strict=True)

# Field -> the values at which it asks for nothing, and what to do in its place.
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
  "audio": ((), "replies are text"),
  "best_of": ((1,), "ask for n choices and choose yourself"),
  "echo": ((False,), "the prompt is known to who sent it"),
  "frequency_penalty": ((0,), "pass repetition_penalty instead"),
  "function_call": (("none", "auto"), "replies are text"),
  "functions": (([],), "replies are text"),
  "logit_bias": (({},), "every token keeps its own probability"),
  "modalities": ((["text"],), "replies are text"),
  "prediction": ((), "leave it out"),
  "presence_penalty": ((0,), "pass repetition_penalty instead"),
  "response_format": (({"type": "text"},), "ask for the form in the messages"),
  "suffix": (("",), "text is written forwards alone"),
  "tool_choice": (("none", "auto"), "replies are text"),
  "tools": (([],), "replies are text"),
  "top_logprobs": ((0,), "the log-probability of the drawn token alone is kept"),
  "web_search_options": ((), "leave it out"),
}


class StreamOptions(pydantic.BaseModel):
  """`include_usage`: a last chunk counts the tokens."""

  model_config = _STRICT
  include_usage: bool | None = None


class Request(pydantic.BaseModel):
  """What both endpoints take; null is as if it were left out."""

  model_config = _STRICT

  model: str | None = None
  max_tokens: int | None = Field(None, ge=1)
  temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
  top_p: float | None = Field(None, gt=0, le=1)
  top_k: int | None = Field(None, ge=-1)
  min_p: float | None = Field(None, ge=0, le=1)
  repetition_penalty: float | None = Field(None, gt=0, le=10)
  seed: int | None = Field(None, ge=-(2**63), lt=2**64)
  stop: str | list[str] | None = None
  n: int | None = Field(None, ge=1)
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  hidden: Hidden | None = None
  character: str | None = Field(None, min_length=1, max_length=200)
  user: str | None = None

  @pydantic.field_validator("stop")
  @classmethod
  def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
    if isinstance(stop, list) and len(stop) > 16:
      raise ValueError("at most 16 stop texts")
    if any(not text or len(text) > 500 for text in _listed(stop)):
      raise ValueError("a stop text has 1 to 500 characters")
    return stop

  @property
  def limit(self) -> tuple[str, int | None]:
    """The field that bounds the completion, and its value."""
    return "max_tokens", self.max_tokens

  @property
  def wants_logprobs(self) -> bool:
    """Whether log-probabilities are asked for."""
    return False

  def samplings(
    self, max_tokens: int, temperature: float, stop_ids: tuple[int, ...]
  ) -> list[Sampling]:
    """The settings of each choice; without a seed one is drawn.

    Stop texts are not among them: they are looked for in what is shown, so that nobody learns
    by them what is hidden.
    """
    seed = secrets.randbits(63) if self.seed is None else self.seed
    given = {
      "temperature": self.temperature,
      "top_p": self.top_p,
      "top_k": None if self.top_k is None else max(self.top_k, 0),
      "min_p": self.min_p,
      "repetition_penalty": self.repetition_penalty,
    }
    settings: dict[str, Any] = {"temperature": temperature}
    settings |= {name: value for name, value in given.items() if value is not None}
    return [
      Sampling(max_tokens=max_tokens, seed=(seed + i) % 2**64, stop_ids=stop_ids, **settings)
      for i in range(self.n or 1)
    ]

  @property
  def stops(self) -> list[str]:
    """The stop texts."""
    return _listed(self.stop)


class Part(pydantic.BaseModel):
  """A piece of a message."""

  model_config = _STRICT
  type: Literal["text"]
  text: str


class ChatMessage(pydantic.BaseModel):
  """One message."""

  model_config = _STRICT
  role: Literal["system", "developer", "user", "assistant"]
  content: str | list[Part]
  name: str | None = Field(None, min_length=1, max_length=200)

  def message(self) -> Message:
    """As the renderer takes it; who speaks stands in front of a user's text."""
    parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
    text = "\n".join(parts)
    if self.role == "user" and self.name and not text.startswith(f"{self.name}:"):
      text = f"{self.name}: {text}"
    return Message("system" if self.role == "developer" else self.role, text)


class ChatRequest(Request):
  """The body of /v1/chat/completions."""

  messages: list[ChatMessage] = Field(min_length=1)
  max_completion_tokens: int | None = Field(None, ge=1)
  logprobs: bool | None = None

  kind: ClassVar[str] = "chat.completion"

  @property
  def limit(self) -> tuple[str, int | None]:
    """The newer field counts where both are there."""
    if self.max_completion_tokens is not None:
      return "max_completion_tokens", self.max_completion_tokens
    return super().limit

  @property
  def wants_logprobs(self) -> bool:
    """Whether log-probabilities are asked for."""
    return bool(self.logprobs)


class CompletionRequest(Request):
  """The body of /v1/completions: a text or ids, or several of either."""

  prompt: str | list[str] | list[int] | list[list[int]]
  logprobs: int | None = Field(None, ge=0, le=0)

  kind: ClassVar[str] = "text_completion"

  @property
  def wants_logprobs(self) -> bool:
    """Whether log-probabilities are asked for; 0 asks for those of the drawn tokens."""
    return self.logprobs is not None

  def prompts(self) -> list[str | list[int]]:
    """One after the other."""
    given = self.prompt
    if isinstance(given, str):
      return [given]
    if all(isinstance(item, int) for item in given):
      return [[item for item in given if isinstance(item, int)]]
    return [item for item in given if not isinstance(item, int)]


AnyRequest = TypeVar("AnyRequest", bound=Request)


def read(body: bytes, model: type[AnyRequest]) -> AnyRequest:
  """A body as a request.

  Raises:
    ApiError: 400, naming the field and what it may be.
  """
  try:
    fields = json.loads(body, parse_constant=_no_constant)
  except (ValueError, RecursionError):  # Also what is no UTF-8.
    raise ApiError(400, "the body is no JSON", code="invalid_json") from None
  if _HALF.search(body) and not _is_unicode(fields):
    raise ApiError(
      400, "a \\ud8… escape in the body is half of a character", code="invalid_json"
    )
  if not isinstance(fields, dict):
    raise ApiError(400, "the body must be a JSON object", code="invalid_json")
  _refuse_unsupported(fields, model)
  try:
    return model.model_validate(fields)
  except pydantic.ValidationError as error:
    raise _named(error) from None


def _refuse_unsupported(fields: dict[str, Any], model: type[Request]) -> None:
  for name, value in fields.items():
    if name in model.model_fields:
      continue
    if name in _UNSUPPORTED:
      empty, instead = _UNSUPPORTED[name]
      if value is not None and value not in empty:
        raise ApiError(
          400, f"{name} is not supported: {instead}", code="unsupported_parameter", param=name
        )
    elif near := difflib.get_close_matches(name, model.model_fields, 1, 0.85):
      raise ApiError(
        400, f"there is no field {name!a}; is it {near[0]}?", code="unknown_parameter",
        param=ascii(name)[1:-1],
      )  # fmt: skip


def _named(error: pydantic.ValidationError) -> ApiError:
  """One fault, by the field of the body; the deepest, which says most where types may vary."""
  faults = error.errors(include_url=False, include_context=False, include_input=False)
  fault = max(faults, key=lambda found: len(found["loc"]))
  place = ""
  for step in fault["loc"]:
    if isinstance(step, int):
      place += f"[{step}]"
    elif step.isidentifier() and step not in ("str", "Part"):  # Else a branch of a union.
      place += f".{step}" if place else step
  message = fault["msg"].removeprefix("Value error, ")
  return ApiError(400, f"{place}: {message}", code="invalid_value", param=place)


def _is_unicode(fields: Any) -> bool:
  """Whether no text in it holds half of a surrogate pair, which no tokenizer takes."""
  try:
    json.dumps(fields, ensure_ascii=False).encode()
  except UnicodeEncodeError:
    return False
  return True


def _no_constant(name: str) -> float:
  raise ValueError(name)


def _listed(stop: str | list[str] | None) -> list[str]:
  return [stop] if isinstance(stop, str) else list(stop or ())
