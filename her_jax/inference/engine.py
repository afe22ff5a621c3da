"""Continuous batching with shared prefixes: requests come and go, the chips stay busy.

    engine = Engine(config, graphdef, params, Limits(rows=64, pages=2048), valid_vocab=151_669)
    engine.generate(prompts, Sampling(max_tokens=256, stop_ids=(end,)))

    request = engine.submit(ids, Sampling(temperature=0.7, seed=3))
    while engine.busy:
      for event in engine.step():
        ...

Token in, token out: the ids come back as they were drawn, the stop id among them. Every host of a
pod runs an engine of its own on its own chips, in ordinary Python.
"""

from collections import deque
from collections.abc import Callable, Sequence
import dataclasses

from absl import logging
from flax import nnx
import jax

from her_jax.inference import batches
from her_jax.inference.batches import Limits, Request
from her_jax.inference.cache import OutOfPages, Prefixes
from her_jax.inference.fingerprint import fingerprint
from her_jax.inference.pages import init_pool
from her_jax.inference.programs import Programs
from her_jax.inference.sampling import Sampling
from her_jax.models.config import ModelConfig

_MARGIN = 8  # Characters.


@dataclasses.dataclass(frozen=True)
class Completion:
  """One finished completion.

  Attributes:
    ids: as drawn; the last is the stop id where one ended it.
    logprobs: in nats, of each id at the sampling temperature.
    finish_reason: "stop", or "length" where a limit cut it off.
  """

  ids: list[int]
  logprobs: list[float]
  finish_reason: str

  @property
  def finished(self) -> bool:
    """Whether it came to its end by itself."""
    return self.finish_reason == "stop"


@dataclasses.dataclass(frozen=True)
class Event:
  """What is new of one request.

  Attributes:
    request: of `submit`.
    ids: drawn since the last event.
    logprobs: of these.
    finish_reason: None while it goes on.
  """

  request: int
  ids: list[int]
  logprobs: list[float]
  finish_reason: str | None


@dataclasses.dataclass
class Stats:
  """Counts since the start.

  Attributes:
    prompt_tokens: of all requests.
    shared_tokens: of these, found in the cache.
    prefilled_tokens: of these, computed.
    sampled_tokens: handed out.
    grown_tokens: computed, also for rows that had ended.
    preempted: requests that gave their pages up to others and began anew.
  """

  prompt_tokens: int = 0
  shared_tokens: int = 0
  prefilled_tokens: int = 0
  sampled_tokens: int = 0
  grown_tokens: int = 0
  preempted: int = 0


class Engine:
  """Samples from one model; `load` gives it other weights of the same shape."""

  def __init__(
    self,
    config: ModelConfig,
    graphdef: nnx.GraphDef,
    params: nnx.State,
    limits: Limits | None = None,
    *,
    valid_vocab: int | None = None,
    decode: Callable[[list[int]], str] | None = None,
  ):
    """Makes an empty cache.

    Args:
      params: the mesh of `jax.set_mesh` is theirs.
      limits: what is worked on together and how much is kept.
      valid_vocab: rows of the tokenizer, which alone are drawn; None: all.
      decode: ids -> text, for stop texts.
    """
    self.limits = limits or Limits()
    self.stats = Stats()
    self._own_head = config.tie_embeddings and jax.default_backend() == "cpu"
    self._tied, self._given = graphdef, params
    graphdef, self._params = self._with_head(params)
    self._programs = Programs(graphdef=graphdef, valid_vocab=valid_vocab or config.vocab_size)
    self._decode = decode
    self._prefixes = Prefixes(self.limits.pages, self.limits.page_size)
    self._pool = init_pool(config, self.limits.pages, self.limits.page_size)
    self._waiting: deque[Request] = deque()
    self._active: list[Request] = []
    self._submitted = 0

  @property
  def busy(self) -> bool:
    """Whether any request is under way."""
    return bool(self._waiting or self._active)

  @property
  def waiting(self) -> int:
    """Requests that have no row yet."""
    return len(self._waiting)

  @property
  def running(self) -> int:
    """Requests that have one."""
    return len(self._active)

  def load(self, params: nnx.State) -> None:
    """Goes on with other weights; what the old ones computed is forgotten.

    Raises:
      ValueError: requests are under way.
    """
    if self.busy:
      raise ValueError("requests are under way: finish or cancel them before new weights")
    self._prefixes.clear()
    self._given = params
    _, self._params = self._with_head(params)
    self.tell_weights()

  def tell_weights(self) -> None:
    """Says in the log which weights it samples from; reads them once."""
    logging.info("The engine samples from weights %s", fingerprint(self._given))

  def submit(self, ids: Sequence[int], sampling: Sampling) -> int:
    """Puts a request behind those that wait, and returns its number.

    Raises:
      ValueError: the prompt is empty, or longer than the engine has room for.
    """
    ids = list(ids)
    limits = self.limits
    if not ids:
      raise ValueError("the prompt is empty: it needs at least one token")
    if sampling.stop and self._decode is None:
      raise ValueError("stop texts need an engine that was given `decode`")
    if len(ids) >= limits.context:
      raise ValueError(
        f"the prompt has {len(ids)} tokens; with at least one of the completion there is room"
        f" for {limits.context}: shorten it, or raise the context"
      )
    self._submitted += 1
    room = min(sampling.max_tokens, limits.context - len(ids))
    self._waiting.append(Request(self._submitted, ids, sampling, room))
    self.stats.prompt_tokens += len(ids)
    return self._submitted

  def cancel(self, number: int) -> bool:
    """Drops a request; False where it has ended."""
    for request in self._waiting:
      if request.number == number:
        self._waiting.remove(request)
        return True
    for request in self._active:
      if request.number == number:
        self._leave(request)
        return True
    return False

  def generate(
    self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling]
  ) -> list[Completion]:
    """One completion a prompt, in their order; one setting for all, or one for each."""
    settings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    requests = [self.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    found = {request: Completion([], [], "") for request in requests}
    while self.busy:
      for event in self.step():
        if before := found.get(event.request):
          found[event.request] = Completion(
            before.ids + event.ids,
            before.logprobs + event.logprobs,
            event.finish_reason or "",
          )
    return [found[request] for request in requests]

  def step(self) -> list[Event]:
    """Reads one chunk of prompts where any is unread, or else grows the replies."""
    self._admit()
    chunk = batches.chunk(self._active, self._prefixes, self.limits)
    if chunk:
      self._pool = self._programs.prefill(self._params, self._pool, chunk.arrays)
      for run, count in chunk.read:
        run.computed += count
        self.stats.prefilled_tokens += count
      return []
    return self._grow()

  def _with_head(self, params: nnx.State) -> tuple[nnx.GraphDef, nnx.State]:
    """On a CPU a head of its own for a model whose head is the table of its embeddings.

    XLA's CPU backend multiplies few rows by a transposed table of 32,768 tokens in 23 ms, by the
    same numbers in order in 7.
    """
    if not self._own_head:
      return self._tied, params
    model = nnx.merge(self._tied, params)
    table = model.embedding[...].T.copy()
    head = nnx.Param(table, out_sharding=("embed", "vocab"), eager_sharding=False)
    model.lm_head = nnx.data(head)
    return nnx.split(model)

  def _admit(self) -> None:
    while self._waiting and len(self._active) < self.limits.rows:
      request = self._waiting[0]
      try:
        run, shared = self._prefixes.admit(request.ids[:-1])
      except OutOfPages:
        if not self._active:
          raise
        return
      request.run = run
      if not request.drawn:
        self.stats.shared_tokens += shared
      self._active.append(self._waiting.popleft())

  def _grow(self) -> list[Event]:
    steps = self._make_room()
    if not self._active:
      return []
    rows = batches.rows(self._active, self._prefixes, self.limits, steps)
    self._pool, ids, log_probs = self._programs.decode(self._params, self._pool, rows)
    ids, log_probs = jax.device_get((ids, log_probs))
    self.stats.grown_tokens += steps * len(rows.token)
    events = []
    for i, request in enumerate(list(self._active)):
      new, reason = self._accept(request, ids[i, :steps].tolist())
      events.append(Event(request.number, new, log_probs[i, : len(new)].tolist(), reason))
      self.stats.sampled_tokens += len(new)
      if reason:
        self._leave(request)
    return events

  def _make_room(self) -> int:
    """Pages for the next tokens of all rows; the last to come gives way where there are none."""
    while self._active:
      left = max(s.room - s.drawn for s in self._active)
      steps = min(self.limits.steps, left)
      missing = [(s, s.missing_pages(steps, self.limits.page_size)) for s in self._active]
      try:
        pages = iter(self._prefixes.take(sum(count for _, count in missing)))
      except OutOfPages:
        if len(self._active) == 1:
          raise
        self._preempt(self._active[-1])
        continue
      for request, count in missing:
        request.pages += [next(pages) for _ in range(count)]
      return steps
    return 0

  def _preempt(self, request: Request) -> None:
    """Sends a request back; what it has drawn is read again, and so goes on as it would have."""
    self.stats.preempted += 1
    self._leave(request)
    self._waiting.appendleft(request)

  def _accept(self, request: Request, ids: list[int]) -> tuple[list[int], str | None]:
    """Appends new ids up to where the request ends; those and why it does."""
    settings = request.sampling
    for i, new in enumerate(ids):
      request.ids.append(new)
      if new in settings.stop_ids or self._at_stop_text(request):
        return ids[: i + 1], "stop"
      if request.drawn == request.room:
        return ids[: i + 1], "length"
    return ids, None

  def _at_stop_text(self, request: Request) -> bool:
    """Whether the last id has completed one of the stop texts.

    What was completed before has ended the request, so only the end of the reply is decoded: from
    so far back that the longest stop text fits in front of the last id, with room for the
    characters that are cut or lack their blank where the decoding begins.
    """
    stops = request.sampling.stop
    if not stops or not self._decode:
      return False
    needed = max(map(len, stops)) + _MARGIN
    count = needed + 1
    while count < request.drawn and len(self._decode(request.ids[-count:-1])) < needed:
      count *= 2  # Control tokens and parts of a character are no text.
    tail = self._decode(request.ids[max(request.prompt, len(request.ids) - count) :])
    return any(stop in tail for stop in stops)

  def _leave(self, request: Request) -> None:
    """Takes a request's row away; what it computed stays for those who share it."""
    assert request.run
    self._active.remove(request)
    tail = request.ids[request.run.end : -1]
    if request.pages:
      self._prefixes.keep(request.run, tail, request.pages)
    self._prefixes.release(request.run)
    request.run, request.pages = None, []

  def warm_up(self) -> None:
    """Compiles all programs, so that no request waits for it."""
    self.tell_weights()
    for arrays in batches.shapes(self.limits):
      if isinstance(arrays, batches.Chunk):
        self._pool = self._programs.prefill(self._params, self._pool, arrays)
      else:
        self._pool, _, _ = self._programs.decode(self._params, self._pool, arrays)
    logging.info("The engine is warm: %s", self.limits)
