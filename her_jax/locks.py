"""Locks on files and folders that go with the process that holds them."""

import fcntl
import time
from typing import Any

# A process that has just been killed still holds its locks while the system clears it away.
_PATIENCE_S = 2.0


def take(file: Any) -> None:
  """Locks an open file or a descriptor, for this process alone.

  Raises:
    BlockingIOError: another process holds it, and did so for two seconds.
    OSError: the file system knows no locks.
  """
  until = time.monotonic() + _PATIENCE_S
  while True:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return
    except BlockingIOError:
      if time.monotonic() > until:
        raise
    time.sleep(0.05)
