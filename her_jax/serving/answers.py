"""The bodies of answers, as OpenAI's two endpoints shape them."""

from collections.abc import Sequence
from typing import Any

from her_jax.serving.reply import Delta, TokenInfo

CHAT = "chat.completion"


def whole(
  kind: str, head: dict[str, Any], deltas: Sequence[Sequence[Delta]], usage: dict[str, Any],
  logprobs: bool,
) -> dict[str, Any]:  # fmt: skip
  """An answer in one piece.

  Args:
    deltas: of each choice.
  """
  choices = []
  for index, parts in enumerate(deltas):
    text = "".join(part.text for part in parts)
    tokens = [token for part in parts for token in part.tokens]
    choice = _choice(index, finish_reason=parts[-1].finish_reason)
    if logprobs:
      choice["logprobs"] = _logprobs(kind, tokens)
    if kind == CHAT:
      choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
      choice["text"] = text
    choices.append(choice)
  return {**head, "object": kind, "choices": choices, "usage": usage}


def opening(kind: str, head: dict[str, Any], index: int) -> dict[str, Any] | None:
  """The first chunk of a choice, which says who speaks; a completion has none."""
  if kind != CHAT:
    return None
  return _chunk(kind, head, [_choice(index, delta={"role": "assistant", "content": ""})])


def chunk(
  kind: str, head: dict[str, Any], index: int, delta: Delta, logprobs: bool
) -> dict[str, Any] | None:
  """A chunk, or None where there is nothing to tell."""
  if not (delta.text or delta.tokens or delta.finish_reason):
    return None
  choice = _choice(index, finish_reason=delta.finish_reason)
  if logprobs:
    choice["logprobs"] = _logprobs(kind, delta.tokens)
  if kind == CHAT:
    choice["delta"] = {"content": delta.text} if delta.text else {}
  else:
    choice["text"] = delta.text
  return _chunk(kind, head, [choice])


def closing(kind: str, head: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
  """The last chunk, which counts."""
  return {**_chunk(kind, head, []), "usage": usage}


def _chunk(kind: str, head: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
  name = "chat.completion.chunk" if kind == CHAT else kind
  return {**head, "object": name, "choices": choices}


def _choice(index: int, **fields: Any) -> dict[str, Any]:
  return {"index": index, "logprobs": None, "finish_reason": None, **fields}


def _logprobs(kind: str, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
  if kind == CHAT:
    content = [
      {
        "token": token.text,
        "logprob": token.logprob,
        # Part of a character is told of without its bytes.
        "bytes": None if "\ufffd" in token.text else list(token.text.encode()),
        "top_logprobs": [],
      }
      for token in tokens
    ]
    return {"content": content, "refusal": None}
  return {
    "tokens": [token.text for token in tokens],
    "token_logprobs": [token.logprob for token in tokens],
    "top_logprobs": None,
    "text_offset": [token.offset for token in tokens],
  }
