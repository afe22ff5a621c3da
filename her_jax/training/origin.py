"""What a run started from, told by a digest: other weights under the same path are others."""

import hashlib
import pathlib

from her_jax.training import checkpoint

_BLOCK = 1 << 16
_BLOCKS = 16


def identity(source: str) -> str:
  """A digest of the weights that `config.init_from` names; "" where there are none (any more).

  Of a workdir it is of what Orbax notes of its newest checkpoint, the time among it. Of files of
  weights it is of names, sizes and 17 blocks of 64 KiB of each, the header with all shapes being
  the first: a copy has the same, another training another. Reading all of 65 GB takes minutes.
  """
  if not source:
    return ""
  digest = hashlib.sha256()
  path = pathlib.Path(source)
  if steps := checkpoint.steps(source):
    noted = checkpoint.folder(source, steps[-1]) / "_CHECKPOINT_METADATA"
    digest.update(f"{steps[-1]} ".encode() + noted.read_bytes())
    return digest.hexdigest()[:16]
  files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
  for file in sorted(files):
    size = file.stat().st_size
    digest.update(f"{file.name} {size} ".encode())
    with file.open("rb") as opened:
      for number in range(_BLOCKS + 1):
        opened.seek(number * max(size - _BLOCK, 0) // _BLOCKS)
        digest.update(opened.read(_BLOCK))
  return digest.hexdigest()[:16] if files else ""
