"""One choice of an answer: from drawn ids to what may be handed out of them."""

from collections import deque
from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING

from her_jax.serving.layers import Layers
from her_jax.serving.text import Detokenizer, StopTexts

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True)
class TokenInfo:
  """A token that is shown.

  Attributes:
    text: of it alone; a part of a character is U+FFFD.
    logprob: in nats.
    offset: characters of the tokens that were told of before it.
  """

  text: str
  logprob: float
  offset: int


@dataclasses.dataclass(frozen=True)
class Delta:
  """What is new of a choice.

  Attributes:
    text: that may be seen.
    tokens: of it, where they are asked for.
    finish_reason: None while it goes on.
  """

  text: str
  tokens: list[TokenInfo]
  finish_reason: str | None


@dataclasses.dataclass
class _Read:
  """A token and the characters that it is, or helps to be."""

  id: int
  logprob: float
  start: int
  end: int


class Reply:
  """Follows one choice."""

  def __init__(
    self,
    tokenizer: "PreTrainedTokenizerBase",
    layers: Layers,
    stops: Sequence[str] = (),
    *,
    logprobs: bool = False,
    control: frozenset[int] = frozenset(),
  ):
    """Before the first id.

    Args:
      layers: what of it is shown.
      stops: texts that end it, in what is shown.
      logprobs: whether tokens are told of.
      control: ids that are never told of.
    """
    self._detokenizer = Detokenizer(tokenizer)
    self._layers = layers
    self._stops = StopTexts(stops)
    self._logprobs, self._control = logprobs, control
    self._characters = self._told = 0
    self._unread: deque[_Read] = deque()
    self.count = 0  # Tokens that count as drawn.

  def feed(
    self, ids: Sequence[int], logprobs: Sequence[float], finish_reason: str | None
  ) -> Delta:
    """What new ids add; `finish_reason` is "stop" where a stop text is met."""
    text, tokens = "", list[TokenInfo]()
    for new, logprob in zip(ids, logprobs, strict=True):
      self.count += 1
      raw = self._detokenizer.feed(new)
      text += self._show(self._layers.feed(raw), tokens, (new, logprob), len(raw))
      if self._stops.met:
        return Delta(text, tokens, "stop")
    if finish_reason:
      raw = self._detokenizer.finish()
      shown = self._layers.feed(raw) + self._layers.finish()
      text += self._show(shown, tokens, None, len(raw))
      if self._stops.met:
        finish_reason = "stop"
      else:
        text += self._stops.finish()
    return Delta(text, tokens, finish_reason)

  def _show(
    self, shown: str, tokens: list[TokenInfo], new: tuple[int, float] | None, length: int
  ) -> str:
    """Passes shown text on, and tells of the tokens that are settled by now."""
    given = self._stops.feed(shown)
    if not self._logprobs:
      return given
    start = self._characters
    self._characters += length
    if new and new[0] not in self._control:
      self._unread.append(_Read(*new, start, self._characters))
    if length:  # Also of those before it that gave no text of their own.
      for read in reversed(self._unread):
        if read.start != start:
          break
        read.end = self._characters
    left = len(given) if self._stops.met else None
    while self._unread and self._unread[0].start < self._unread[0].end <= self._layers.settled:
      read = self._unread.popleft()
      if not self._layers.shows(read.start, read.end) or (left is not None and left <= 0):
        continue
      told = self._detokenizer.decode([read.id])
      tokens.append(TokenInfo(told, read.logprob, self._told))
      self._told += len(told)
      left = None if left is None else left - len(told)
    return given
