"""Starting the JAX runtime over all hosts."""

import os
from typing import Any

from absl import flags, logging
import jax

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


def initialize() -> None:
  """Joins the other hosts, where there is more than one.

  On a TPU VM the hosts of the slice find each other; elsewhere the three flags say it. A host
  that does not come within `--startup_timeout` ends the run with an error instead of a hang.

  Raises:
    ValueError: only some of the three flags are given.
  """
  given = [_COORDINATOR.value, _PROCESSES.value, _PROCESS.value]
  if any(value is not None for value in given):
    if any(value is None for value in given):
      raise ValueError(
        "--coordinator_address, --num_processes and --process_id go together; give all three"
      )
    if os.environ.get("JAX_PLATFORMS") == "cpu":
      jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _join(coordinator_address=given[0], num_processes=given[1], process_id=given[2])
  elif len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
    _join()


def _join(**peers: Any) -> None:
  try:
    jax.distributed.initialize(initialization_timeout=_TIMEOUT.value, **peers)
  except Exception as error:
    raise RuntimeError(
      f"not all hosts joined within {_TIMEOUT.value} s: {error}. Start the same command on"
      f" every worker (launch_tpu/run.sh does), or raise --startup_timeout"
    ) from error
  logging.info("process %d of %d has joined", jax.process_index(), jax.process_count())
