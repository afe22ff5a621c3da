"""An OpenAI-compatible endpoint: retries, limits of rate, and what went wrong by cause."""

import asyncio
import datetime
import email.utils
import random
import re
from typing import Any

from absl import logging
import openai
import tenacity

from her_jax.errors import ConfigError
from her_jax.llm.client import key
from her_jax.llm.messages import Failure, Reply, Request, Usage

# What a header may ask us to wait at most.
_LONGEST_WAIT = 120.0
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


class _Again(Exception):
  """An attempt that may go better next time."""

  def __init__(self, failure: Failure, retry_after: float | None = None):
    super().__init__(failure.message)
    self.failure, self.retry_after = failure, retry_after


class Endpoint:
  """Sends chat completions over HTTP.

  Every attempt of a call carries its key as `Idempotency-Key`, so that an endpoint that heeds it
  is paid once, also for a call whose answer was lost.
  """

  def __init__(
    self,
    model: str,
    base_url: str,
    api_key: str = "",
    timeout_s: float = 600.0,
    max_attempts: int = 6,
    first_wait_s: float = 1.0,
    extra: dict[str, Any] | None = None,
  ):
    """Args:
    model: By the endpoint's name.
    base_url: Up to and with `/v1`.
    api_key: Empty where the endpoint wants none.
    timeout_s: Of one attempt, whole.
    max_attempts: Of one call.
    first_wait_s: Before the second attempt at most; doubled each time, drawn at random below it.
      `Retry-After` of the endpoint counts before it.
    extra: Further fields of the request's body.
    """
    self.model = model
    self._settings: dict[str, Any] = {
      "base_url": base_url, "api_key": api_key or "none", "max_retries": 0, "timeout": timeout_s,
    }  # fmt: skip
    self._timeout, self._attempts, self._first_wait = timeout_s, max_attempts, first_wait_s
    self._extra = extra or {}
    self._secret = api_key
    self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}

  async def send(self, request: Request) -> Reply | Failure:
    """Asks until there is an answer, or `max_attempts` are used.

    Raises:
      ConfigError: The endpoint refuses whatever is sent: key, model, address or credit.
    """
    spent, attempt = Usage(), 0
    retrying = tenacity.AsyncRetrying(
      stop=tenacity.stop_after_attempt(self._attempts),
      wait=self._wait,
      retry=tenacity.retry_if_exception_type(_Again),
      reraise=True,
    )
    try:
      async for one in retrying:
        with one:
          attempt = one.retry_state.attempt_number
          try:
            reply = await asyncio.wait_for(self._once(request), self._timeout)
          except TimeoutError:
            # Whether it was paid for is not known.
            spent = spent + Usage(unknown=1)
            raise _Again(Failure("timeout", f"no answer in {self._timeout:g} s")) from None
          except _Again as error:
            spent = spent + error.failure.usage
            raise
          if isinstance(reply, Failure):
            return Failure(reply.cause, reply.message, spent + reply.usage, attempt)
          return Reply(
            reply.text, reply.reasoning, reply.finish_reason, spent + reply.usage, attempt
          )
    except _Again as error:
      return Failure(error.failure.cause, error.failure.message, spent, attempt)
    raise AssertionError("tenacity neither returned nor raised")

  def _wait(self, state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Again) and error.retry_after is not None:
      # Spread, so that all who were sent away do not come back at once.
      return min(error.retry_after, _LONGEST_WAIT) + random.uniform(0, 0.1 * self._first_wait)
    longest = self._first_wait * 2 ** (state.attempt_number - 1)
    return random.uniform(0.1 * self._first_wait, min(longest, _LONGEST_WAIT))

  async def _once(self, request: Request) -> Reply | Failure:
    sampling = request.sampling
    body: dict[str, Any] = {
      "model": self.model,
      "messages": [{"role": m.role, "content": m.content} for m in request.messages],
      "temperature": sampling.temperature,
      "top_p": sampling.top_p,
      "max_tokens": sampling.max_tokens,
      "seed": sampling.seed,
    }
    if sampling.stop:
      body["stop"] = list(sampling.stop)
    headers = {"Idempotency-Key": key(self.model, request)}
    try:
      answer = await self._client().chat.completions.create(
        **body, extra_headers=headers, extra_body=self._extra or None
      )
    except openai.APITimeoutError as error:
      raise _Again(Failure("timeout", self._told(error), Usage(unknown=1))) from None
    except openai.APIConnectionError as error:
      cause = error.__cause__ or error
      raise _Again(Failure("connection", self._told(cause), Usage(unknown=1))) from None
    except openai.APIStatusError as error:
      return self._refused(error)
    except (openai.APIError, ValueError) as error:  # A body that is no JSON, or cut.
      raise _Again(Failure("malformed", self._told(error), Usage(unknown=1))) from None
    return _reply(answer)

  def _refused(self, error: openai.APIStatusError) -> Failure:
    status, told = error.status_code, self._told(error)
    if status in (401, 403):
      raise ConfigError(f"the endpoint refuses the key ({status}): {told}; see llm.api_key_env")
    if status == 404:
      raise ConfigError(f"the endpoint knows no such model or path: {told}; see llm.base_url and llm.model")
    if status == 402 or "insufficient_quota" in told:
      raise ConfigError(f"the endpoint has no credit left: {told}; what was paid for is kept")
    if status == 429:
      raise _Again(Failure("rate_limit", told), _retry_after(error.response.headers))
    if status >= 500 or status in (408, 409):
      raise _Again(Failure("server", told), _retry_after(error.response.headers))
    if "content_filter" in told or "content_policy" in told:
      return Failure("bad_request", f"content filter: {told}")
    return Failure("bad_request", told)

  def _told(self, error: BaseException) -> str:
    """An error in a line, without the key, should it stand there."""
    text = " ".join(str(error).split()) or type(error).__name__
    if self._secret:
      text = text.replace(self._secret, "(key)")
    return text[:500]

  def _client(self) -> openai.AsyncOpenAI:
    """One for each event loop: its connections belong to the loop."""
    loop = asyncio.get_running_loop()
    for old in [old for old in self._clients if old.is_closed()]:
      del self._clients[old]
    if loop not in self._clients:
      self._clients[loop] = openai.AsyncOpenAI(**self._settings)
    return self._clients[loop]


def _reply(answer: Any) -> Reply:
  """Raises `_Again` for an answer that is none."""
  used = getattr(answer, "usage", None)
  usage = (
    Usage(used.prompt_tokens or 0, used.completion_tokens or 0)
    if used is not None and used.prompt_tokens is not None
    else Usage(unknown=1)
  )
  choices = getattr(answer, "choices", None)
  if not choices or getattr(choices[0], "message", None) is None:
    raise _Again(Failure("malformed", "an answer without choices", usage))
  choice = choices[0]
  message = choice.message
  text = message.content or ""
  reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
  reasoning = reasoning if isinstance(reasoning, str) else ""
  if not reasoning and (thought := _THINK.match(text)):
    reasoning, text = thought[1].strip(), text[thought.end() :]
  finish = choice.finish_reason or "stop"
  if finish not in ("stop", "length", "content_filter"):
    logging.log_first_n(logging.WARNING, "finish_reason %r is taken for 'stop'", 3, finish)
    finish = "stop"
  if getattr(message, "refusal", None):
    text, finish = message.refusal, "refusal"
  elif finish == "stop" and not text.strip():
    raise _Again(Failure("malformed", "an empty answer", usage))
  return Reply(text, reasoning, finish, usage)


def _retry_after(headers: Any) -> float | None:
  """Seconds of a `Retry-After`, which is a number or a date."""
  for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
    value = headers.get(name)
    if value is None:
      continue
    try:
      seconds = float(value) * unit
      if seconds == seconds and seconds >= 0:
        return seconds
      continue
    except ValueError:
      pass
    try:
      date = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
      continue
    if date.tzinfo is None:
      date = date.replace(tzinfo=datetime.UTC)
    return max((date - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
  return None
