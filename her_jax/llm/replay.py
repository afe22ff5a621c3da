"""A backend that gives recorded replies, and nothing else."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

from her_jax.llm import journal
from her_jax.llm.messages import Failure, Reply, Request
from her_jax.roleplay import jsonl
from her_jax.roleplay.fields import one_of
from her_jax.roleplay.jsonl import DataError

_FIELDS = {"id", "text", "reasoning", "finish_reason"}
_FINISH = ("stop", "length", "content_filter", "refusal")


class Replay:
  """Answers by the id of a request.

  One that is asked anew, `ID/again1`, gets what is recorded for it, or else for `ID`: replies
  that were missing are written beside the others.
  """

  def __init__(self, replies: Mapping[str, Reply], model: str = "recorded"):
    self.model = model
    self._replies = replies

  async def send(self, request: Request) -> Reply | Failure:
    first, _, _ = request.id.partition("/again")
    reply = self._replies.get(request.id) or self._replies.get(first)
    return reply or Failure("missing", f"no reply to {request.id!r} is recorded")


def read(path: str | os.PathLike[str]) -> dict[str, Reply]:
  """Replies by id: of a journal, of JSON Lines `{"id", "text", …}`, or of a folder of such files.

  `reasoning` and `finish_reason` may stand beside `text`. Of several with one id the last counts
  in a journal, where a call may have been asked again; elsewhere that is an error.

  Raises:
    DataError: A file is missing or broken, with its line.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    found: dict[str, Reply] = {}
    for file in sorted(path.glob("*.jsonl")):
      more = read(file)
      if twice := found.keys() & more.keys():
        raise DataError(f"{file}: {min(twice)!r} is recorded in another file too; remove one")
      found |= more
    if not found:
      raise DataError(f"{path}: holds no recorded reply (*.jsonl)")
    return found
  found = {}
  for number, row in jsonl.each_line(path, _recorded):
    if isinstance(row, DataError):
      raise DataError(f"{path}:{number}{row}")
    if row is None:
      return dict(journal.replies(path))
    found[row[0]] = row[1]
  return found


def _recorded(row: Mapping[str, Any]) -> tuple[str, Reply] | None:
  """An id and its reply; None for a journal's record."""
  if "kind" in row and "key" in row:
    return None
  if unknown := row.keys() - _FIELDS:
    raise DataError(f"{min(unknown)}: no such field; there are {', '.join(sorted(_FIELDS))}")
  for field in ("id", "text"):
    if not isinstance(row.get(field), str):
      raise DataError(f"{field}: missing; give it a text")
  fields = {name: value for name, value in row.items() if name != "id"}
  if not isinstance(fields.get("reasoning", ""), str):
    raise DataError(f"reasoning: expected a text, got {fields['reasoning']!r}")
  one_of(fields.get("finish_reason", "stop"), _FINISH, "finish_reason")
  return row["id"], Reply(**fields)
