"""The HTTP side: routes, errors, streams.

POST /v1/chat/completions, /v1/completions    GET /v1/models    GET /health, /metrics
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
import contextlib
import hmac
import json
import time
from typing import Any, TypeVar

from absl import logging
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from her_jax.serving import answers, protocol, worker
from her_jax.serving.errors import ApiError
from her_jax.serving.metrics import CONTENT_TYPE
from her_jax.serving.protocol import ChatRequest, CompletionRequest
from her_jax.serving.reply import Delta
from her_jax.serving.service import Asked, Call, Service

_GONE = 499  # The client has closed the connection; nobody reads this.
# Bytes that are read beyond what may be sent, so that the client hears why: one whose connection
# is closed while it sends sees a broken pipe alone.
_PASSED_OVER = 2**26
_LARGE = 2**15  # Bytes of a body whose encoding would hold the others up.
_T = TypeVar("_T")
Handler = Callable[[Request], Awaitable[Response]]


def build(service: Service) -> Starlette:
  """The application; the worker starts and ends with it."""

  @contextlib.asynccontextmanager
  async def lifespan(app: Starlette) -> AsyncIterator[None]:
    service.worker.start(asyncio.get_running_loop())
    yield
    await asyncio.to_thread(service.worker.close)

  routes = Routes(service)
  keyed = routes.with_key
  return Starlette(
    routes=[
      Route("/v1/chat/completions", keyed(routes.answer(ChatRequest)), methods=["POST"]),
      Route("/v1/completions", keyed(routes.answer(CompletionRequest)), methods=["POST"]),
      Route("/v1/models", keyed(routes.models)),
      Route("/v1/models/{name:path}", keyed(routes.model)),
      Route("/health", routes.health),
      Route("/metrics", routes.metrics),
    ],
    exception_handlers={ApiError: _told, HTTPException: _told_by_starlette, Exception: _hidden},
    lifespan=lifespan,
  )


class Routes:
  """What the paths do."""

  def __init__(self, service: Service):
    """Of one model."""
    self._service = service
    self._key = service.settings.api_key.encode()

  def with_key(self, handler: Handler) -> Handler:
    """Asks for the key first, where there is one."""

    async def checked(request: Request) -> Response:
      given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
      if self._key and not hmac.compare_digest(given, self._key):
        raise ApiError(
          401, "the API key is missing or wrong: send it as Authorization: Bearer KEY",
          code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
      return await handler(request)

    return checked

  def answer(self, model: type[Asked]) -> Handler:
    """The handler of requests of that kind."""
    count = self._service.metrics.requests.labels
    kind = "chat" if model is ChatRequest else "completions"

    async def handler(request: Request) -> Response:
      started = time.monotonic()
      try:
        response = await self._answer(request, model, started)
      except ApiError as error:
        count(kind, str(error.status)).inc()
        raise
      except ClientDisconnect:
        response = Response(status_code=_GONE)
      except Exception:
        count(kind, "500").inc()
        raise
      if isinstance(response, Stream):
        response.ended = lambda status: count(kind, str(status)).inc()
      else:
        count(kind, str(response.status_code)).inc()
      return response

    return handler

  async def _answer(self, request: Request, model: type[Asked], started: float) -> Response:
    body = await self._body(request)
    asked = protocol.read(body, model)
    prompts = self._service.prompts
    found = await asyncio.to_thread(prompts, asked) if len(body) > _LARGE else prompts(asked)
    call = self._service.begin(asked, found)
    if asked.stream:
      usage = bool(asked.stream_options and asked.stream_options.include_usage)
      return Stream(self._service, call, started, usage, asked.wants_logprobs)
    try:
      deltas = await _unless_gone(request.receive, _collect(call, started))
    finally:
      call.end()
      self._service.metrics.latency.observe(time.monotonic() - started)
    return JSONResponse(
      answers.whole(call.kind, call.head, deltas, call.usage(), asked.wants_logprobs)
    )

  async def _body(self, request: Request) -> bytes:
    """The body, of the type and size that are allowed."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/json":  # Also keeps the forms of other web pages out.
      raise ApiError(
        415, f"Content-Type is {sent!r}; send application/json", code="unsupported_media_type"
      )
    most = self._service.settings.max_body_bytes
    too_large = ApiError(
      413, f"the body has more than {most} bytes: send fewer, or start the server with a larger"
      f" --config.serve.max_body_bytes", code="body_too_large", headers={"Connection": "close"},
    )  # fmt: skip
    length = request.headers.get("content-length", "0")
    body, read = bytearray(), 0
    too_long = length.isdigit() and int(length) > most
    async for part in request.stream():
      read += len(part)
      too_long = too_long or read > most
      if not too_long:
        body += part
      elif read > most + _PASSED_OVER:
        break
    if too_long:
      raise too_large
    return bytes(body)

  async def models(self, request: Request) -> Response:
    """The one model."""
    return JSONResponse({"object": "list", "data": [self._model()]})

  async def model(self, request: Request) -> Response:
    """It by name."""
    name = request.path_params["name"]
    if name != self._service.settings.name:
      raise ApiError(404, f"there is no model {name!r} here", code="model_not_found")
    return JSONResponse(self._model())

  def _model(self) -> dict[str, Any]:
    service = self._service
    return {
      "id": service.settings.name, "object": "model", "created": service.created,
      "owned_by": "her_jax",
    }  # fmt: skip

  async def health(self, request: Request) -> Response:
    """200 where requests are taken."""
    state = self._service.worker.state
    told = {"status": state}
    if state == worker.FAILED:
      told["error"] = self._service.worker.error
    return JSONResponse(told, 200 if state == worker.READY else 503)

  async def metrics(self, request: Request) -> Response:
    """For Prometheus."""
    return Response(self._service.metrics.text(), media_type=CONTENT_TYPE)


class Stream(Response):
  """An answer as server-sent events; a client that goes away ends the call."""

  def __init__(self, service: Service, call: Call, started: float, usage: bool, logprobs: bool):
    """Of a call that has begun.

    Args:
      usage: whether a last chunk counts the tokens.
    """
    self._service, self._call, self._started = service, call, started
    self._usage, self._logprobs = usage, logprobs
    self.background = None
    self.ended: Callable[[int], None] = lambda status: None

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends it."""
    status = 200
    try:
      await _unless_gone(receive, self._send(send))
    except ApiError as error:  # After the answer has begun.
      status = error.status
      await send(_part(_event(error.body())))
      await send({"type": "http.response.body", "body": b"", "more_body": False})
    except (ClientDisconnect, OSError):
      status = _GONE
    finally:
      self._call.end()
      self._service.metrics.latency.observe(time.monotonic() - self._started)
      self.ended(status)

  async def _send(self, send: Send) -> None:
    call, empty = self._call, {"usage": None} if self._usage else {}
    headers = {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-cache",
      "x-accel-buffering": "no",  # Or nginx would hold the events back.
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    for index in range(len(call.replies)):
      if told := answers.opening(call.kind, call.head, index):
        await send(_part(_event({**told, **empty})))
    async for index, delta in call.deltas(self._started):
      if told := answers.chunk(call.kind, call.head, index, delta, self._logprobs):
        await send(_part(_event({**told, **empty})))
    if self._usage:
      await send(_part(_event(answers.closing(call.kind, call.head, call.usage()))))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _collect(call: Call, started: float) -> list[list[Delta]]:
  parts: list[list[Delta]] = [[] for _ in call.replies]
  async for index, delta in call.deltas(started):
    parts[index].append(delta)
  return parts


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
  """The outcome of `work`, which ends when the client does.

  Raises:
    ClientDisconnect: the client has gone.
  """

  async def gone() -> None:
    while (await receive())["type"] != "http.disconnect":
      pass

  working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(gone())
  try:
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
      raise ClientDisconnect
    return working.result()
  finally:
    for task in (working, waiting):
      task.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)


def _event(data: dict[str, Any]) -> bytes:
  text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
  return f"data: {text}\n\n".encode()


def _part(body: bytes) -> dict[str, Any]:
  return {"type": "http.response.body", "body": body, "more_body": True}


async def _told(request: Request, error: Exception) -> Response:
  assert isinstance(error, ApiError)
  return JSONResponse(error.body(), error.status, headers=error.headers)


async def _told_by_starlette(request: Request, error: Exception) -> Response:
  assert isinstance(error, HTTPException)
  path = request.url.path
  return await _told(request, ApiError(error.status_code, f"{path}: {error.detail}"))


async def _hidden(request: Request, error: Exception) -> Response:
  """What nobody foresaw: told without what it is about, which may be a prompt."""
  logging.error("%s failed with %s", request.url.path, type(error).__name__)
  return await _told(request, ApiError(500, "the server has made a mistake", code="internal"))
