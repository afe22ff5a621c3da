"""TPU pods by the names that users know, and their topologies for compiling without one."""

from collections.abc import Sequence
import dataclasses
import math
import os
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Pod:
  """A slice, or several.

  Attributes:
    chip: a key of `roofline.CHIPS`.
    shape: chips along each axis of one slice.
    slices: connected by the data centre's network.
  """

  chip: str
  shape: tuple[int, ...]
  slices: int = 1


# v5p-N counts cores, two a chip; v6e-N counts chips.
PODS = {
  "v5p-16": Pod("v5p", (2, 2, 2)),
  "v5p-32": Pod("v5p", (2, 2, 4)),
  "v5p-64": Pod("v5p", (2, 4, 4)),
  "v5p-128": Pod("v5p", (4, 4, 4)),
  "v5p-256": Pod("v5p", (4, 4, 8)),
  "v6e-16": Pod("v6e", (4, 4)),
  "v6e-32": Pod("v6e", (4, 8)),
  "v6e-64": Pod("v6e", (8, 8)),
  "v6e-256": Pod("v6e", (16, 16)),
  "2xv6e-256": Pod("v6e", (16, 16), slices=2),
}


# A host of these slices has four chips.
_HOST = {"v5p": (2, 2, 1), "v6e": (2, 2)}


def chips(pod: Pod) -> int:
  """Of all slices."""
  return math.prod(pod.shape) * pod.slices


def host_devices(pod: Pod) -> Sequence[jax.Device]:
  """The devices of one host of the pod, as those of a slice of its size."""
  return devices(Pod(pod.chip, _HOST[pod.chip]))


def devices(pod: Pod) -> Sequence[jax.Device]:
  """The pod's devices, to compile for; needs libtpu and no TPU.

  Raises:
    ModuleNotFoundError: libtpu is not installed.
  """
  import libtpu  # noqa: F401  # Without it the error below is about a plugin.

  # Else libtpu asks the metadata server of a TPU VM, and holds a lock on the machine's TPU.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  from jax.experimental import topologies

  shape = "x".join(map(str, pod.shape))
  options: dict[str, Any] = {"num_slices": pod.slices}
  name = f"{pod.chip}:{shape}"
  if pod.chip == "v5p":
    # By these the compiler knows the torus: without them weight gathers become all-reduces.
    name = f"v5:{shape}"
    options = {
      "chip_config_name": "megacore",
      "chips_per_host_bounds": (2, 2, 1),
      # An axis of the torus is closed where it has four chips or more.
      "wrap": tuple(side >= 4 for side in pod.shape),
    }
  return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
