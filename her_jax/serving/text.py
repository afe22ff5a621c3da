"""Ids → text piece by piece: a character only when it is whole, a stop text never in part."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from her_jax.roleplay.tokens import WHOLE

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

_BROKEN = "\ufffd"  # What bytes decode to that are no character, or not yet.
# Layout that some tokenizers mark as special. Left out, what stands between would be plain text.
_KEPT = (*WHOLE, "<think>", "</think>")


class Detokenizer:
  """Text of the ids of one reply, control tokens left out.

  The pieces of `feed` and `finish` together are the text of all ids at once.
  """

  def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
    """Nothing is read yet."""
    self._tokenizer = tokenizer
    self._control = {
      i for i, t in tokenizer.added_tokens_decoder.items() if t.special and t.content not in _KEPT
    }  # fmt: skip
    self._ids: list[int] = []  # From the last border at which text was whole.
    self._known = 0  # The first of them, which are decoded only for what follows.
    self._given = ""  # What they have given.

  def feed(self, new: int) -> str:
    """The text that one more id completes."""
    if new in self._control:
      return ""
    self._ids.append(new)
    text = self.decode(self._ids)
    # Bytes decode from left to right: only the last sign can be one that is not whole yet.
    whole = text.removesuffix(_BROKEN)
    delta = whole[len(self._given) :]
    if whole != text or not delta:
      self._given = whole
      return delta
    # A window of two borders: some tokenizers write the first token of a text differently.
    self._ids = self._ids[self._known :]
    self._known = len(self._ids)
    self._given = self.decode(self._ids)
    return delta

  def finish(self) -> str:
    """What is left: the sign for bytes that no id has completed."""
    return self.decode(self._ids)[len(self._given) :]

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids that are no control tokens."""
    text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
    assert isinstance(text, str)  # A list comes back for a batch alone.
    return text


class StopTexts:
  """Ends a text in front of the first of several texts.

  What may be the beginning of one is held back until it is known.
  """

  def __init__(self, stops: Sequence[str]):
    """Without any stop text everything passes."""
    self._stops = tuple(stops)
    self._longest = max(map(len, stops), default=0)
    self._held = ""
    self.met = False

  def feed(self, delta: str) -> str:
    """What may be handed out now; nothing more after `met`."""
    if self.met:
      return ""
    text = self._held + delta
    found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
    if found:
      self.met, self._held = True, ""
      return text[: min(found)]
    keep = max(
      (n for n in range(1, min(self._longest, len(text) + 1)) if self._begins(text[-n:])),
      default=0,
    )
    self._held = text[len(text) - keep :]
    return text[: len(text) - keep]

  def finish(self) -> str:
    """What was held back and is no stop text after all."""
    text, self._held = self._held, ""
    return text

  def _begins(self, tail: str) -> bool:
    return any(stop.startswith(tail) for stop in self._stops)
