"""A backend that gives recorded replies, and nothing else."""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any

from her_jax.llm import journal
from her_jax.llm.messages import Failure, Reply, Request, Usage
from her_jax.roleplay.schema import DataError

_FIELDS = {"id", "text", "reasoning", "finish_reason"}


class Replay:
  """Answers by the id of a request."""

  def __init__(self, replies: Mapping[str, Reply], model: str = "recorded"):
    self.model = model
    self._replies = replies

  async def send(self, request: Request) -> Reply | Failure:
    reply = self._replies.get(request.id)
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
  if not path.is_file():
    raise DataError(f"{path}: no such file; pass recorded replies as JSON Lines, or a journal")
  found = {}
  with path.open(encoding="utf-8") as file:
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        row = json.loads(line)
        if isinstance(row, dict) and "kind" in row:
          return dict(journal.replies(path))
        name, reply = _recorded(row)
      except ValueError as error:
        raise DataError(f"{path}:{number}: {error}") from None
      if name in found:
        raise DataError(f"{path}:{number}: id: {name!r} stands twice; remove one")
      found[name] = reply
  return found


def _recorded(row: Any) -> tuple[str, Reply]:
  if not isinstance(row, dict):
    raise ValueError(f"expected one JSON object a line, got {type(row).__name__}")
  if unknown := row.keys() - _FIELDS:
    raise ValueError(f"{min(unknown)}: no such field; there are {', '.join(sorted(_FIELDS))}")
  for field in ("id", "text"):
    if not isinstance(row.get(field), str):
      raise ValueError(f"{field}: missing; give it a text")
  fields = {name: value for name, value in row.items() if name != "id"}
  return row["id"], Reply(**fields, usage=Usage())
