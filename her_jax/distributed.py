"""Starting the JAX runtime over all hosts."""

from collections.abc import Callable
import os
import sys
import threading
from typing import Any

from absl import flags, logging
import jax

from her_jax import peers
from her_jax.errors import ConfigError

_COORDINATOR = flags.DEFINE_string(
  "coordinator_address",
  None,
  "host:port of process 0, where the hosts do not find each other by themselves",
)
_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes in all, with the above")
_PROCESS = flags.DEFINE_integer("process_id", None, "This process's number, with the above")
_TIMEOUT = flags.DEFINE_integer(
  "startup_timeout", 300, "Seconds to wait for the other hosts before giving up"
)
_PEER_TIMEOUT = flags.DEFINE_integer(
  "peer_timeout", 30, "Seconds without a sign of life after which another host is gone", 1
)


def initialize(mend: Callable[[], str]) -> None:
  """Joins the other hosts, where there is more than one, and looks after them: see `peers`.

  On a TPU VM the hosts of the slice find each other; elsewhere the three flags say it. A host
  that does not come within `--startup_timeout` ends the run with an error instead of a hang.

  Args:
    mend: says what to do where another host is lost.

  Raises:
    ConfigError: only some of the three flags are given.
  """
  given = [_COORDINATOR.value, _PROCESSES.value, _PROCESS.value]
  if any(value is not None for value in given):
    if any(value is None for value in given):
      raise ConfigError(
        "--coordinator_address, --num_processes and --process_id go together; give all three"
      )
    if os.environ.get("JAX_PLATFORMS") == "cpu":
      jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _join(mend, coordinator_address=given[0], num_processes=given[1], process_id=given[2])
  elif len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
    _join(mend)


def _join(mend: Callable[[], str], **address: Any) -> None:
  others = peers.Peers(mend, _PEER_TIMEOUT.value)
  # When the time is up JAX ends the process from C++, past any `except`: speak just before.
  done = threading.Event()
  threading.Thread(target=_give_up, args=(done, _TIMEOUT.value), daemon=True).start()
  jax.distributed.initialize(initialization_timeout=_TIMEOUT.value + 30, **address)
  done.set()
  others.join(jax.process_index(), jax.process_count())
  logging.info("process %d of %d has joined", jax.process_index(), jax.process_count())


def _give_up(done: threading.Event, seconds: int) -> None:
  if done.wait(seconds):
    return
  print(
    f"her_jax: not all hosts joined within {seconds} s. Start the same command on every worker"
    f" (launch_tpu/run.sh does), or raise --startup_timeout",
    file=sys.stderr,
    flush=True,
  )
  os._exit(1)
