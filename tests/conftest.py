"""Set before anything imports JAX: eight fake CPU devices run what a pod runs."""

from collections.abc import Callable
import os
import pathlib

import hypothesis
import pytest

_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No model is ever looked for on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# How many examples a property gets: HYPOTHESIS_PROFILE=thorough for the long run.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_DATA = "HER_JAX_TEST_DATA"


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], pathlib.Path]:
  """Gives the path of a file of real data, which the repository does not hold, or skips."""
  root = pathlib.Path(__file__).parents[1]
  folder = pathlib.Path(os.environ.get(_DATA) or root.parent / "shared" / "data")

  def path(name: str) -> pathlib.Path:
    if not (folder / name).is_file():
      pytest.skip(f"no {name} in {folder}; set {_DATA} to the folder that holds it")
    return folder / name

  return path
