"""From a request's body to its choices: what is asked of the engine, and what is told of it."""

import asyncio
from collections.abc import AsyncIterator
import dataclasses
import time
from typing import TYPE_CHECKING, Any
import uuid

from her_jax.roleplay import chat
from her_jax.roleplay.prompts import Variant
from her_jax.serving import layers
from her_jax.serving.errors import ApiError
from her_jax.serving.layers import Hidden, Layers
from her_jax.serving.metrics import Metrics
from her_jax.serving.protocol import ChatRequest, CompletionRequest
from her_jax.serving.reply import Delta, Reply
from her_jax.serving.worker import Busy, Job, Unavailable, Worker

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

Asked = ChatRequest | CompletionRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What a server allows.

  Attributes:
    name: of the model.
    prompt_length: tokens of a prompt, at most.
    max_new_tokens: of a completion, where the request does not say.
    temperature: likewise.
    most_choices: of one request.
    show: the most that a request may see of hidden layers.
    timeout_s: seconds for one request, from its arrival on.
    max_body_bytes: of a request.
    api_key: that requests must bring; empty: none.
  """

  name: str
  prompt_length: int
  max_new_tokens: int
  temperature: float = 1.0
  most_choices: int = 32
  show: Hidden = "shown"
  timeout_s: float = 600.0
  max_body_bytes: int = 2**20
  api_key: str = ""


class Service:
  """One model behind a worker."""

  def __init__(
    self,
    worker: Worker,
    tokenizer: "PreTrainedTokenizerBase",
    settings: Settings,
    variant: Variant = chat.DEFAULT,
  ):
    """The worker need not have started."""
    self.worker, self.settings = worker, settings
    self._tokenizer, self._variant = tokenizer, variant
    self._valid_vocab = len(tokenizer)
    self._stop_ids = chat.stop_ids(tokenizer)
    self._control = frozenset(tokenizer.all_special_ids)
    waiting = lambda: max(worker.under_way - worker.running, 0)
    self.metrics = Metrics(lambda: worker.running, waiting)
    self.created = int(time.time())

  def prompts(self, asked: Asked) -> list[list[int]]:
    """The ids of a request's prompts; it may take a while.

    Raises:
      ApiError: one is empty, too long, or holds an id that the model does not have.
    """
    if isinstance(asked, ChatRequest):
      laid_out = chat.as_played([m.message() for m in asked.messages], asked.character)
      found, field = (
        [chat.render_messages(laid_out, self._tokenizer, self._variant)],
        "messages",
      )
    else:
      encode = lambda text: chat.encode_text(text, self._tokenizer)
      found = [encode(p) if isinstance(p, str) else p for p in asked.prompts()]
      field = "prompt"
    for ids in found:
      if not ids or not found:
        raise ApiError(400, f"{field} is empty", code="invalid_value", param=field)
      if not all(0 <= i < self._valid_vocab for i in ids):
        raise ApiError(
          400, f"{field}: ids are from 0 to {self._valid_vocab - 1}", code="invalid_value",
          param=field,
        )  # fmt: skip
      if len(ids) > self.settings.prompt_length:
        raise ApiError(
          400,
          f"{field} has {len(ids)} tokens, and a prompt may have {self.settings.prompt_length}:"
          f" leave out the oldest messages, shorten the text, or start the server with a larger"
          f" --config.sampling.prompt_length",
          code="context_length_exceeded",
          param=field,
        )
    return found

  def begin(self, asked: Asked, prompts: list[list[int]]) -> "Call":
    """Gives a request to the engine.

    Raises:
      ApiError: it asks for what is not allowed (400, 403, 404), too many wait (429), or the
        engine is not there (503).
    """
    hidden = asked.hidden or "withheld"
    self._check(asked, hidden, len(prompts))
    longest = max(map(len, prompts))
    choices = [
      (ids, sampling)
      for ids in prompts
      for sampling in asked.samplings(
        self._max_tokens(asked, longest), self.settings.temperature, self._stop_ids
      )
    ]
    try:
      job = self.worker.submit(choices)
    except Busy as error:
      raise ApiError(429, str(error), code="queue_full", headers={"Retry-After": "1"}) from None
    except Unavailable as error:
      raise ApiError(
        503, str(error), code="unavailable", headers={"Retry-After": "5"}
      ) from None
    count = sum(map(len, prompts))
    self.metrics.prompt_tokens.inc(count)
    replies = [
      Reply(
        self._tokenizer,
        Layers(hidden, asked.character, self._variant.notation),
        asked.stops,
        logprobs=asked.wants_logprobs,
        control=self._control,
      )
      for _ in choices
    ]
    return Call(self, job, replies, count, asked.kind)

  def _check(self, asked: Asked, hidden: Hidden, prompts: int) -> None:
    settings = self.settings
    if asked.model not in (None, settings.name):
      raise ApiError(
        404, f"there is no model {asked.model!r} here; there is {settings.name!r}",
        code="model_not_found", param="model",
      )  # fmt: skip
    if layers.LEVELS.index(hidden) > layers.LEVELS.index(settings.show):
      raise ApiError(
        403, f"hidden={hidden!r} is not allowed here; at most {settings.show!r} is",
        code="hidden_not_allowed", param="hidden",
      )  # fmt: skip
    if (asked.n or 1) * prompts > settings.most_choices:
      raise ApiError(
        400, f"n: {(asked.n or 1) * prompts} choices; at most {settings.most_choices} together",
        code="invalid_value", param="n",
      )  # fmt: skip
    if asked.wants_logprobs and hidden != "shown" and self._variant.notation == "coser":
      raise ApiError(
        400, "logprobs: with this model's notation only where hidden is 'shown'",
        code="unsupported_parameter", param="logprobs",
      )  # fmt: skip

  def _max_tokens(self, asked: Asked, prompt: int) -> int:
    """Of each choice."""
    field, wanted = asked.limit
    room = self.settings.prompt_length + self.settings.max_new_tokens - prompt
    if wanted is not None and wanted > room:
      raise ApiError(
        400,
        f"{field} is {wanted}; beside a prompt of {prompt} tokens there is room for {room}: ask"
        f" for fewer, shorten the prompt, or start the server with a larger"
        f" --config.sampling.max_new_tokens",
        code="context_length_exceeded",
        param=field,
      )
    return self.settings.max_new_tokens if wanted is None else wanted


class Call:
  """A request that the engine works on."""

  def __init__(
    self, service: Service, job: Job, replies: list[Reply], prompt_tokens: int, kind: str
  ):
    """Of `Service.begin`."""
    self._service, self._job = service, job
    self._worker, self._metrics = service.worker, service.metrics
    self.replies = replies
    self._prompt_tokens = prompt_tokens
    self.kind = kind
    prefix = "chatcmpl" if kind == "chat.completion" else "cmpl"
    self.head = {
      "id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()),
      "model": service.settings.name,
    }  # fmt: skip
    self._ended = False

  async def deltas(self, started: float) -> AsyncIterator[tuple[int, Delta]]:
    """What is new of each choice, until all have ended.

    Args:
      started: when the request came, of `time.monotonic`.

    Raises:
      ApiError: the engine fails (503), refuses (400) or takes too long (504).
    """
    left = set(range(len(self.replies)))
    deadline = started + self._service.settings.timeout_s
    first = True
    while left:
      try:
        drawn = await asyncio.wait_for(self._job.next(), deadline - time.monotonic())
      except TimeoutError:
        raise ApiError(
          504, f"the reply took longer than {self._service.settings.timeout_s:g} s and was ended:"
          f" ask for fewer tokens, or try again", code="timeout",
        ) from None  # fmt: skip
      except Unavailable as error:
        raise ApiError(503, str(error), code="unavailable") from None
      except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value") from None
      if drawn.index not in left:
        continue
      if first:
        self._metrics.first_token.observe(time.monotonic() - started)
        first = False
      reply = self.replies[drawn.index]
      delta = reply.feed(drawn.ids, drawn.logprobs, drawn.finish_reason)
      if delta.finish_reason:
        left.remove(drawn.index)
        self._worker.end(self._job, drawn.index)
      yield drawn.index, delta

  def end(self) -> None:
    """Ends what still goes on, and counts; a second call does nothing."""
    if not self._ended:
      self._ended = True
      self._worker.end(self._job)
      self._metrics.completion_tokens.inc(sum(reply.count for reply in self.replies))

  def usage(self) -> dict[str, Any]:
    """Tokens, those of hidden layers too."""
    drawn = sum(reply.count for reply in self.replies)
    return {
      "prompt_tokens": self._prompt_tokens,
      "completion_tokens": drawn,
      "total_tokens": self._prompt_tokens + drawn,
    }
