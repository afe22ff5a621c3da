"""An OpenAI-compatible endpoint: retries, limits of rate, and what went wrong by cause."""

import asyncio
import datetime
import email.utils
import logging
import random
import re
from typing import Any

import openai
import tenacity

from her_jax.errors import ConfigError
from her_jax.llm import answers
from her_jax.llm.messages import Failure, Reply, Request, Usage

# Seconds: what a header may ask us to wait at most, and to wait for a connection.
_LONGEST_WAIT = 120.0
_CONNECT = 10.0
# How endpoints say that the words of a prompt, not the request, are at fault; often as a 403.
_MODERATION = re.compile(r"content.?(filter|policy|management)|moderat|flagged|safety", re.I)
_NO_CREDIT = re.compile(
  r"insufficient.?(quota|balance|credit|funds)|exceeded your current quota", re.I
)
# The HTTP client has a line for every call; which it is depends on openai's version.
for _name in ("httpx", "httpx2"):
  logging.getLogger(_name).setLevel(logging.WARNING)


class _Again(Exception):
  """An attempt that may go better next time.

  Attributes:
    failure: What to say should it be the last.
    retry_after: Seconds that the other side asks for.
    anew: Whether the answer came whole and is of no use, so that it must not come again.
  """

  def __init__(self, failure: Failure, retry_after: float | None = None, anew: bool = False):
    super().__init__(failure.message)
    self.failure, self.retry_after, self.anew = failure, retry_after, anew


class Endpoint:
  """Sends chat completions over HTTP.

  Every attempt of a call carries its key as `Idempotency-Key`, so that an endpoint that heeds it
  is paid once, also for a call whose answer was lost. After an answer that is whole and empty
  the next attempt is another call, `<key>-1`, or the same nothing would come back for ever.
  """

  def __init__(
    self,
    model: str,
    base_url: str,
    api_key: str = "",
    timeout_s: float = 600.0,
    max_attempts: int = 6,
    first_wait_s: float = 1.0,
  ):
    """Args:
    model: By the endpoint's name.
    base_url: Up to and with `/v1`.
    api_key: Empty where the endpoint wants none.
    timeout_s: Of one attempt, whole.
    max_attempts: Of one call.
    first_wait_s: Before the second attempt at most; doubled each time, drawn at random below it.
      `Retry-After` of the endpoint counts before it.
    """
    self.model = model
    connect = min(_CONNECT, timeout_s)
    self._settings: dict[str, Any] = {
      "base_url": base_url, "api_key": api_key or "none", "max_retries": 0,
      "timeout": openai.Timeout(timeout_s, connect=connect),
    }  # fmt: skip
    self._timeout, self._attempts, self._first_wait = timeout_s, max_attempts, first_wait_s
    self._secret, self._base_url = api_key, base_url
    self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}

  async def send(self, request: Request) -> Reply | Failure:
    """Asks until there is an answer, or `max_attempts` are used.

    Raises:
      ConfigError: The endpoint refuses whatever is sent: key, model, address or credit.
    """
    spent, attempt, calls = Usage(), 0, 0
    retrying = tenacity.AsyncRetrying(
      stop=tenacity.stop_after_attempt(self._attempts),
      wait=self._wait,
      retry=tenacity.retry_if_exception_type(_Again),
      reraise=True,
    )
    name = request.key(self.model)
    try:
      async for one in retrying:
        with one:
          attempt = one.retry_state.attempt_number
          try:
            answer = await self._once(request, f"{name}-{calls}" if calls else name)
          except _Again as error:
            spent = spent + error.failure.usage
            calls += error.anew
            raise
          if isinstance(answer, Failure):
            return Failure(answer.cause, answer.message, spent + answer.usage, attempt)
          return Reply(
            answer.text, answer.reasoning, answer.finish_reason, spent + answer.usage, attempt
          )
    except _Again as error:
      return Failure(error.failure.cause, error.failure.message, spent, attempt)
    raise AssertionError("tenacity neither returned nor raised")

  async def aclose(self) -> None:
    """Ends the connections of the running event loop."""
    client = self._clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
      await client.close()

  def _wait(self, state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Again) and error.retry_after is not None:
      # Spread, so that all who were sent away do not come back at once.
      return min(error.retry_after, _LONGEST_WAIT) + random.uniform(0, self._first_wait)
    longest = self._first_wait * 2 ** (state.attempt_number - 1)
    return random.uniform(0.1 * self._first_wait, min(longest, _LONGEST_WAIT))

  async def _once(self, request: Request, name: str) -> Reply | Failure:
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
    # Where an answer is lost on its way, whether it was paid for is not known.
    unknown = Usage(unknown=1)
    try:
      # Raw: what the client makes of an odd body depends on its release.
      raw = await asyncio.wait_for(
        self._client().chat.completions.with_raw_response.create(
          **body, extra_headers={"Idempotency-Key": name}
        ),
        self._timeout,
      )
    except (TimeoutError, openai.APITimeoutError) as error:
      unsent = _is_or_comes_from(error, "ConnectTimeout")
      told = (
        f"no {'connection' if unsent else 'answer'} in time of {self._base_url}; the limit is"
        f" {self._timeout:g} s"
      )
      raise _Again(Failure("timeout", told, Usage() if unsent else unknown)) from None
    except openai.APIConnectionError as error:
      unsent = _is_or_comes_from(error, "ConnectError")
      told = f"{self._base_url}: {self._told(error.__cause__ or error)}"
      raise _Again(Failure("connection", told, Usage() if unsent else unknown)) from None
    except openai.APIStatusError as error:
      return self._refused(error)
    except openai.APIError as error:
      raise _Again(Failure("malformed", self._told(error), unknown)) from None
    try:
      return answers.parse(raw.content)
    except answers.NoAnswer as error:
      cause = "malformed"
      if error.status:
        cause = "rate_limit" if error.status == 429 else "server"
      failure = Failure(cause, self._told(error), error.usage)
      raise _Again(failure, anew=error.empty) from None

  def _refused(self, error: openai.APIStatusError) -> Failure:
    """Gives what is wrong with this request; raises what may pass, and what ends the run."""
    status, told = error.status_code, self._told(error)
    if status in (400, 403) and _MODERATION.search(told):
      return Failure("bad_request", f"content filter: {told}")
    if status == 402 or (status in (403, 429) and _NO_CREDIT.search(told)):
      raise ConfigError(
        f"{self._base_url} has no credit left: {told}; what was paid for is kept"
      )
    if status in (401, 403):
      raise ConfigError(
        f"{self._base_url} refuses the key ({status}): {told}; see llm.api_key_env"
      )
    if status == 404:
      raise ConfigError(
        f"{self._base_url} knows no such model or path: {told}; see llm.base_url and llm.model"
      )
    retry_after = _retry_after(error.response.headers)
    if status == 429:
      raise _Again(Failure("rate_limit", told), retry_after)
    if status >= 500 or status in (408, 409, 425):
      raise _Again(Failure("server", told), retry_after)
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
    if loop not in self._clients:
      self._clients[loop] = openai.AsyncOpenAI(**self._settings)
    return self._clients[loop]


def _is_or_comes_from(error: BaseException | None, name: str) -> bool:
  """Whether an error of this name began it. The HTTP library beneath the client has changed."""
  while error is not None:
    if type(error).__name__ == name:
      return True
    error = error.__cause__
  return False


def _retry_after(headers: Any) -> float | None:
  """Seconds of a `Retry-After`, which is a number or a date; None without one that is sound."""
  for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
    value = headers.get(name)
    if value is None:
      continue
    try:
      seconds = float(value) * unit
      if seconds >= 0:
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
