"""A run over several processes ends when one of them does, and each of the others says which.

Otherwise they would wait for it in a collective. Each process is two. One works; a thread in it
gives a sign of life every other second, in the store that JAX's coordinator holds (a part of
process 0), and looks for those of the others. Its parent, the guard, does nothing but look after
it: where process 0 is lost JAX ends a process from C++, past any `except`, and the guard says so.
"""

from collections.abc import Callable
import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from absl import logging
from jax._src import distributed  # As Orbax does: there is no public way to its store.

# A run exits with this that has lost another of its processes: start the same command again.
EXIT_CODE = 43

_BEAT_S = 2.0
_SIGNS, _FAILED = "her_jax/signs", "failed"
_PR_SET_PDEATHSIG = 1
# How JAX ends a process: LOG(QFATAL), and of some versions LOG(FATAL).
_ENDED_BY_JAX = (1, -signal.SIGABRT)


_current: "Peers | None" = None


class _Board:
  """What the guard knows of the process that works; memory that both see."""

  def __init__(self) -> None:
    self._values = memoryview(mmap.mmap(-1, 32)).cast("d")

  @property
  def joined(self) -> bool:
    """Whether JAX may end the process for the sake of another."""
    return bool(self._values[0])

  @property
  def name(self) -> str:
    return f"process {self._values[1]:.0f} of {self._values[2]:.0f}"

  @property
  def silence_s(self) -> float:
    """Since the last answer of the store."""
    return time.monotonic() - self._values[3]

  def join(self, number: int, count: int) -> None:
    self._values[1], self._values[2], self._values[3] = number, count, time.monotonic()
    self._values[0] = 1.0

  def leave(self) -> None:
    self._values[0] = 0.0

  def hear(self) -> None:
    """The store has answered."""
    self._values[3] = time.monotonic()


class Peers:
  """The other processes of this run, as the one that works sees them."""

  def __init__(self, mend: Callable[[], str], limit_s: float):
    """Splits off the guard, before JAX has threads. What works returns, as the guard's child.

    Args:
      mend: what to do once a process is lost, and what comes of it.
      limit_s: after so long without a sign of life a process is gone.
    """
    self._mend, self._limit_s = mend, limit_s
    self._board, self._lock, self._number = _Board(), threading.Lock(), 0
    guard = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
      _guard(child, self._board, mend, limit_s)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
      os._exit(1)

  def join(self, number: int, count: int) -> None:
    """Begins to look for the others; JAX has joined them."""
    global _current
    _current, self._number = self, number
    self._board.join(number, count)
    threading.Thread(target=self._watch, args=(count,), daemon=True).start()

  def hear_why(self) -> None:
    """To be called on an error that another's end may have caused; does not return if it has."""
    logging.info("an error; waiting for %d s for word of the other processes", self._patience_s)
    time.sleep(self._patience_s)

  def fail(self) -> NoReturn:
    """Ends this process with code 1, and the others with it."""
    with self._lock:  # No sign of life is given any more.
      self._board.leave()
      try:
        self._give_sign(_FAILED)
      except Exception:
        logging.info("the other processes could not be told")
      self._end(1)

  @property
  def _patience_s(self) -> float:
    return self._limit_s + 3 * _BEAT_S

  def _watch(self, count: int) -> None:
    changed: dict[int, tuple[str | None, float]] = {}
    while True:
      try:
        with self._lock:
          self._give_sign(str(time.monotonic_ns()))
        signs = dict(_store().key_value_dir_get(_SIGNS))
      except Exception:  # The coordinator is lost: JAX, or the guard, ends this process.
        time.sleep(_BEAT_S)
        continue
      self._board.hear()
      now = time.monotonic()
      for other in range(count):
        sign = signs.get(f"{_SIGNS}/{other}")
        if sign == _FAILED:
          self._lose(f"process {other} of {count} has failed, its log says why")
        if other not in changed or sign != changed[other][0]:
          changed[other] = sign, now
        if now - changed[other][1] > self._limit_s:
          self._lose(
            f"process {other} of {count} is gone: no sign of life for {self._limit_s:g} s"
          )
      time.sleep(_BEAT_S)

  def _give_sign(self, sign: str) -> None:
    _store().key_value_set(f"{_SIGNS}/{self._number}", sign, allow_overwrite=True)

  def _lose(self, what: str) -> NoReturn:
    _say(what, self._mend)
    self._end(EXIT_CODE)

  def _end(self, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if self._number == 0:  # The store ends with it: the others look first.
      time.sleep(2 * _BEAT_S)
    os._exit(code)


def _guard(child: int, board: _Board, mend: Callable[[], str], limit_s: float) -> NoReturn:
  """Waits for the end of the process that works, and ends alike."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal gives it to the child too.
  signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
  lost = lambda: f"process 0 is gone, or {board.name} cannot reach it any more"
  while not (found := os.waitpid(child, os.WNOHANG))[0]:
    # Here hangs what has to do with process 0, or all of the child.
    if board.joined and board.silence_s > limit_s + 3 * _BEAT_S:
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      _say(lost(), mend)
      os._exit(EXIT_CODE)
    time.sleep(0.1)
  code = os.waitstatus_to_exitcode(found[1])
  if board.joined and code in _ENDED_BY_JAX:
    _say(lost(), mend)
    code = EXIT_CODE
  if code < 0:
    if board.joined:
      print(f"her_jax: {board.name} was ended by signal {-code}", file=sys.stderr, flush=True)
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
      signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
  os._exit(code)


def _say(what: str, mend: Callable[[], str]) -> None:
  print(f"her_jax: {what}. The run ends on every host; {mend()}", file=sys.stderr, flush=True)


def _store() -> Any:
  return distributed.global_state.client


def current() -> Peers | None:
  """None: this run has one process alone, or has not found the others yet."""
  return _current
