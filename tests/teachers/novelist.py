"""A teacher for a whole run from a book: answers the requests of the book and of all stages.

    python -m tests.teachers.novelist out/teacher COMMAND …

runs a command against it, over HTTP on loopback, with {url} in the command's arguments replaced
by its address, and says at the end how many calls were paid for.
"""

import pathlib
import subprocess
import sys
from typing import Any

from tests.llm.bad_server import BadServer
from tests.teachers import book, synthesis

REPLY = "tests.teachers.novelist:reply"


def reply(messages: list[dict[str, str]]) -> Any:
  try:
    return book.reply(messages)
  except ValueError:
    return synthesis.over_http(messages)


if __name__ == "__main__":
  with BadServer(pathlib.Path(sys.argv[1]), reply=REPLY, delay=0.0) as server:
    command = [argument.replace("{url}", server.url) for argument in sys.argv[2:]]
    code = subprocess.run(command).returncode
    paid = server.paid()
  print(f"{len(paid)} calls were paid for, each at most {max(paid.values(), default=0)} times")
  sys.exit(code)
