"""The body of a chat completion → a reply. An endpoint's JSON is read as input of unknown make."""

import json
import re
from typing import Any

from absl import logging

from her_jax.llm.messages import Reply, Usage

# What servers call an end, in our words. None, where a server is silent, is a plain stop.
_FINISH = {
  None: "stop", "": "stop", "stop": "stop", "eos": "stop", "eos_token": "stop",
  "end_turn": "stop", "stop_sequence": "stop", "length": "length", "max_tokens": "length",
  "content_filter": "content_filter", "safety": "content_filter", "refusal": "refusal",
}  # fmt: skip
_OPEN, _CLOSE = "<think>", "</think>"
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


class NoAnswer(Exception):
  """A body that holds no answer.

  Attributes:
    usage: What it cost.
    empty: Whether it was paid for, came whole and says nothing: to ask for the very same call
      again would bring the same again.
    status: An error's code that the body tells, though HTTP said 200.
  """

  def __init__(self, message: str, usage: Usage, empty: bool = False, status: int = 0):
    super().__init__(message)
    self.usage, self.empty, self.status = usage, empty, status


def parse(body: bytes) -> Reply:
  """Reads an answer.

  `reasoning_content` or `reasoning` beside the text is the reasoning; else a `<think>` block in
  front of it. A block that never ends was cut: all of it is reasoning, and the text is empty.
  A `</think>` alone ends a block that the chat template had opened in the prompt.

  Raises:
    NoAnswer: It is no JSON, an error, or empty.
  """
  try:
    row = json.loads(body)
  except (ValueError, RecursionError) as error:  # Cut, no UTF-8, nested without end.
    raise NoAnswer(f"the answer is no JSON ({_line(error)})", Usage(unknown=1)) from None
  row = row if isinstance(row, dict) else {}
  usage = _usage(row.get("usage"))
  if wrong := row.get("error"):
    code = wrong.get("code") if isinstance(wrong, dict) else None
    told = f"an error in place of an answer: {_line(wrong)}"
    raise NoAnswer(told, usage, usage.told, code if type(code) is int else 0)
  choices = row.get("choices")
  choice = choices[0] if isinstance(choices, list) and choices else None
  message = choice.get("message") if isinstance(choice, dict) else None
  if not isinstance(choice, dict) or not isinstance(message, dict):
    raise NoAnswer("an answer without a message", usage, empty=usage.told)
  finish = _finish(choice.get("finish_reason"))
  if refusal := _text(message.get("refusal")):
    return Reply(refusal, "", "refusal", usage)
  text = _text(message.get("content"))
  reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
  if not reasoning:
    reasoning, text = _take_apart(text)
  if finish == "stop" and not text.strip():
    raise NoAnswer("an empty answer", usage, empty=True)
  return Reply(text, reasoning, finish, usage)


def _take_apart(text: str) -> tuple[str, str]:
  """Reasoning and what follows it."""
  begins = text.lstrip().startswith(_OPEN)
  if not begins and (_CLOSE not in text or _OPEN in text):
    return "", text
  thought, _, rest = text.partition(_CLOSE)
  return thought.replace(_OPEN, "", 1).strip(), rest.lstrip()


def _text(value: Any) -> str:
  """A text, or the texts of a list of parts; NUL and half a surrogate pair become U+FFFD."""
  if isinstance(value, list):
    value = "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
  return _UNWRITABLE.sub("\ufffd", value) if isinstance(value, str) else ""


def _finish(value: Any) -> str:
  known = value.lower() if isinstance(value, str) else value
  if known is None or (isinstance(known, str) and known in _FINISH):
    return _FINISH[known]
  logging.log_first_n(logging.WARNING, "finish_reason %.50r is taken for 'stop'", 3, value)
  return "stop"


def _usage(row: Any) -> Usage:
  """Both counts, or unknown: half of them, or what can be no count, would be a wrong number."""
  told = row if isinstance(row, dict) else {}
  read, written = told.get("prompt_tokens"), told.get("completion_tokens")
  if type(read) is not int or type(written) is not int:
    return Usage(unknown=1)
  if not 0 <= min(read, written) <= max(read, written) <= Usage.MOST:
    return Usage(unknown=1)
  return Usage(read, written)


def _line(value: Any) -> str:
  return " ".join(str(value).split())[:300]
