"""The notice that a machine is taken away: SIGTERM, as clouds and schedulers send it."""

from collections.abc import Iterator
import contextlib
import signal
import threading
from types import FrameType

import jax
from jax.experimental import multihost_utils

# A run that has saved and ended by a notice exits with this: start the same command again.
EXIT_CODE = 42


class Preempted(RuntimeError):
  """The run was told to end, and has saved. The message says what of it."""


@contextlib.contextmanager
def at_once(name: str) -> Iterator[None]:
  """Around a run that continues: before and after its training SIGTERM ends it on the spot.

  Nothing is to be saved there. While it is trained a `Notice` listens in its place.

  Raises:
    Preempted: it came.
  """

  def end(number: int, frame: FrameType | None) -> None:
    raise Preempted(
      f"{name}: ended by SIGTERM outside its training, of which nothing is lost; the same command"
      " goes on"
    )

  if jax.process_count() > 1 or threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.signal(signal.SIGTERM, end)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


class Notice:
  """Listens for SIGTERM between `with` and its end, which leaves the process running.

  Of several hosts JAX's own handler listens, and all hear of it at the same step.
  """

  def __init__(self) -> None:
    self._given = False
    self._before: signal.Handlers | int | None | object = None
    self._alone = jax.process_count() == 1
    # Python hears signals in its main thread alone.
    self._listens = self._alone and threading.current_thread() is threading.main_thread()

  def given(self, step: int) -> bool:
    """Whether the run is to end after `step`; the hosts call it with the same steps."""
    if self._alone:
      return self._given
    return bool(multihost_utils.reached_preemption_sync_point(step))

  def __enter__(self) -> "Notice":
    if self._listens:
      self._before = signal.signal(signal.SIGTERM, self._hear)
    return self

  def __exit__(self, *_: object) -> None:
    if self._listens:
      signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

  def _hear(self, number: int, frame: FrameType | None) -> None:
    self._given = True
