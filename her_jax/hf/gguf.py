"""GGUF, the file format of llama.cpp: metadata, dequantised tensors and the tokenizer."""

from collections.abc import Mapping
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from her_jax.errors import ConfigError
from her_jax.hf.source import Source
from her_jax.models.config import RopeScaling, require
from her_jax.models.rope import scaling_factors

# Metadata behind the architecture's name -> the field of config.json.
_FIELDS = {
  "block_count": "num_hidden_layers",
  "context_length": "max_position_embeddings",
  "embedding_length": "hidden_size",
  "feed_forward_length": "intermediate_size",
  "attention.head_count": "num_attention_heads",
  "attention.head_count_kv": "num_key_value_heads",
  "attention.key_length": "head_dim",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "rope.freq_base": "rope_theta",
}
# What Llama files may leave out, as its config.json may.
_LLAMA_OPTIONAL = {"attention.head_count_kv", "attention.key_length", "rope.freq_base"}
_SCALING = {
  "rope.scaling.type": "rope_type",
  "rope.scaling.factor": "factor",
  "rope.scaling.original_context_length": "original_max_position_embeddings",
  "rope.scaling.yarn_beta_fast": "beta_fast",
  "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Widths that have to equal head_dim, and what the tensors say anyway.
_WIDTHS = ("attention.value_length", "rope.dimension_count")
_NEEDLESS = {"vocab_size", "rope.scaling.finetuned"}
# One factor a pair of a head by which its frequency is divided, in Llama 3.1 and later.
_ROPE_FACTORS = "rope_freqs.weight"

# How text is split before it is merged, where transformers builds the same as the original
# tokenizer, save for what `tokenizer` adds.
_SPLITS = ("gpt-2", "llama-bpe", "llama-v3", "llama3", "qwen2", "smollm")
_UNUSED = 5  # The type of a token that only fills up the vocabulary.


def find(path: str | os.PathLike[str]) -> Path | None:
  """The GGUF file that a path names: itself, or the only one in a folder without safetensors.

  Raises:
    ConfigError: The folder holds several.
  """
  path = Path(path)
  if path.is_file():
    return path if path.suffix == ".gguf" else None
  files = sorted(path.glob("*.gguf"))
  if not files or any(path.glob("*.safetensors")):
    return None
  if len(files) > 1:
    found = ", ".join(file.name for file in files)
    raise ConfigError(f"{path} holds several GGUF files: pass one of them ({found}).")
  return files[0]


def read(path: Path) -> Source:
  """Opens a file; memory-mapped, so tensors are read and dequantised block by block.

  Raises:
    ConfigError: The file is damaged, of another architecture than Qwen3 or Llama, its
      metadata ask for something that is not implemented, or the `gguf` package is missing.
  """
  package = _package()
  reader = _reader(path)
  arch = _arch(path, reader)
  tensors = {t.name: t for t in reader.tensors}
  factors = tensors.pop(_ROPE_FACTORS, None)
  metadata = {
    name.removeprefix(f"{arch}."): field.contents()
    for name, field in reader.fields.items()
    if name.startswith(f"{arch}.")
  }
  hf = _config(path, arch, metadata)
  if "token_embd.weight" in tensors:
    hf["vocab_size"] = int(tensors["token_embd.weight"].shape[1])
  hf["tie_word_embeddings"] = "output.weight" not in tensors
  if factors is not None:
    hf["rope_scaling"] = _llama3(path, hf, factors.data)

  if hf["num_hidden_layers"] > len(tensors):  # The table of names would be as long.
    raise ConfigError(
      f"{path}: {arch}.block_count={hf['num_hidden_layers']:,} is more than its {len(tensors):,} "
      "tensors."
    )
  names = package.get_tensor_name_map(package.MODEL_ARCH[arch.upper()], hf["num_hidden_layers"])

  def rename(name: str) -> str:
    return names.get_name(name, try_suffixes=(".weight",)) or name

  def head_dim(name: str) -> int | None:
    mixed = arch == "llama" and name.endswith(("attn_q.weight", "attn_k.weight"))
    return hf["head_dim"] if mixed else None

  return Source(
    path, hf, {name: _Tensor(t, head_dim(name)) for name, t in tensors.items()}, rename
  )


class _Tensor:
  """A tensor that dequantises the rows it is asked for.

  llama.cpp rotates neighbours (2j, 2j + 1) of a head in Llama models, where Hugging Face
  rotates (j, j + head_dim / 2); the rows of q and k lie accordingly and are put back. For a
  head_dim of 6 the rows 0 1 2 3 4 5 of a head are 0 3 1 4 2 5 in the file.
  """

  def __init__(self, tensor: Any, head_dim: int | None):
    """head_dim: of a tensor whose rows are in llama.cpp's order; None for any other."""
    self._tensor = tensor
    self._head_dim = head_dim

  dtype = "F32"

  @property
  def shape(self) -> tuple[int, ...]:
    return tuple(self._tensor.shape.tolist()[::-1])

  def read_rows(self, start: int, out: np.ndarray) -> None:
    """As `source.Tensor`."""
    data = self._tensor.data
    if len(self.shape) == 1:
      out[...] = self._dequantize(data)
      return
    rows = start + np.arange(len(out))
    if self._head_dim is not None:
      head, place = np.divmod(rows, self._head_dim)
      half, pair = np.divmod(place, self._head_dim // 2)
      rows = head * self._head_dim + 2 * pair + half
    out[...] = self._dequantize(data[rows])

  def _dequantize(self, data: np.ndarray) -> np.ndarray:
    try:
      return _package().quants.dequantize(data, self._tensor.tensor_type)
    except NotImplementedError:
      raise ConfigError(
        f"{self._tensor.name} is stored as {self._tensor.tensor_type.name}, which the gguf "
        "package cannot dequantise; take a file of another quantisation, as Q8_0 or F16."
      ) from None


def tokenizer(path: Path) -> PreTrainedTokenizerBase:
  """The tokenizer that the metadata describe, without a token that only fills up the rows.

  Raises:
    ConfigError: There is none, or one of a kind that cannot be rebuilt exactly, or the `gguf`
      package is missing.
  """
  from tokenizers import normalizers, pre_tokenizers
  from transformers import PreTrainedTokenizerFast

  # Of transformers' own import of GGUF, which needs torch, the part that needs none.
  from transformers.integrations.gguf import convert_gguf_tokenizer

  reader = _reader(path)
  keys = ("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token") + tuple(
    f"{role}_token_id" for role in ("bos", "eos", "unknown", "padding")
  )
  fields = {key: reader.fields.get(f"tokenizer.ggml.{key}") for key in keys}
  found = {key: field.contents() for key, field in fields.items() if field is not None}
  kind, split = found.get("model"), found.get("pre", "none")
  mend = "set config.tokenizer to the Hugging Face folder of the model"
  if kind not in ("gpt2", "llama") or "tokens" not in found:
    raise ConfigError(f"{path} describes a tokenizer of kind {kind!r}, not read here; {mend}.")
  if kind == "gpt2" and split not in _SPLITS:
    raise ConfigError(
      f"{path}: tokenizer.ggml.pre={split!r} is not one of {', '.join(_SPLITS)}; {mend}."
    )
  types = found.get("token_type", [])
  while types and types[-1] == _UNUSED:
    types.pop()
  tokens = found["tokens"][: len(types) or None]
  described: dict[str, Any] = {
    "tokenizer_type": kind,
    "pre_tokenizer_type": split,
    "tokens": tokens,
    **{key: found[key] for key in ("token_type", "scores", "merges") if key in found},
  }
  bpe, _ = convert_gguf_tokenizer(_arch(path, reader), described)
  if split == "qwen2":
    bpe.normalizer = normalizers.NFC()
  elif split == "smollm":
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
      [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
  roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
  special: dict[str, Any] = {
    f"{ours}_token": tokens[found[f"{theirs}_token_id"]]
    for theirs, ours in roles.items()
    if f"{theirs}_token_id" in found
  }
  template = reader.fields.get("tokenizer.chat_template")
  return PreTrainedTokenizerFast(
    tokenizer_object=bpe,
    bos_token=special.pop("bos_token", None),
    eos_token=special.pop("eos_token", None),
    **special,
    # Older files of this kind do not say it and mean it.
    add_bos_token=found.get("add_bos_token", kind == "llama"),
    chat_template=template.contents() if template else None,
    clean_up_tokenization_spaces=False,
  )


def _package() -> Any:
  try:
    import gguf
  except ImportError:
    raise ConfigError(
      "Reading a GGUF file needs the gguf package: pip install gguf (or '.[gguf]')."
    ) from None
  return gguf


@functools.lru_cache(maxsize=1)
def _opened(path: Path, size: int, changed: int) -> Any:
  del size, changed  # Of the file, so that another one at this path is read anew.
  return _package().GGUFReader(path)


def _reader(path: Path) -> Any:
  """The file's header, kept for whoever asks next: a large vocabulary takes seconds to parse."""
  stat = path.stat()
  try:
    reader = _opened(path.resolve(), stat.st_size, stat.st_mtime_ns)
  except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
    raise ConfigError(f"{path} is no whole GGUF file ({error}); fetch it again.") from None
  if reader.byte_order != "I":
    raise ConfigError(f"{path} is written for machines of the other byte order.")
  parts = reader.fields.get("split.count")
  if parts is not None and parts.contents() > 1:
    raise ConfigError(
      f"{path} is one of {parts.contents()} parts; join them with llama-gguf-split --merge."
    )
  return reader


def _arch(path: Path, reader: Any) -> str:
  field = reader.fields.get("general.architecture")
  arch = field.contents() if field else None
  if arch not in ("llama", "qwen3"):
    raise ConfigError(
      f"{path}: general.architecture={arch!r} is unsupported, only llama and qwen3 are."
    )
  return arch


def _config(path: Path, arch: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of config.json, without those that the tensors decide."""
  known = {*_FIELDS, *_SCALING, *_WIDTHS, *_NEEDLESS}
  if unknown := [f"{arch}.{key}={metadata[key]!r}" for key in sorted(metadata.keys() - known)]:
    raise ConfigError(f"{path}: metadata that are not implemented: {', '.join(unknown)}.")
  optional = _LLAMA_OPTIONAL if arch == "llama" else set()
  if missing := [f"{arch}.{key}" for key in _FIELDS if key not in {*metadata, *optional}]:
    raise ConfigError(
      f"{path} lacks the metadata {', '.join(missing)}; convert the model anew with a "
      "current llama.cpp."
    )
  for key, value in metadata.items():
    if key not in _NEEDLESS and isinstance(value, list | bool):
      raise ConfigError(f"{path}: {arch}.{key} must be one value, got {value!r}.")
  # What is computed with before `from_hf` sees it.
  for key in ("block_count", "embedding_length", "attention.head_count"):
    require(f"{path}: {arch}.{key}", metadata[key], "size")
  hf = {
    "model_type": arch,
    **{_FIELDS[k]: _plain(metadata[k]) for k in _FIELDS if k in metadata},
  }
  hf.setdefault("head_dim", hf["hidden_size"] // hf["num_attention_heads"])
  for key in _WIDTHS:
    if metadata.get(key, hf["head_dim"]) != hf["head_dim"]:
      raise ConfigError(
        f"{path}: {arch}.{key}={metadata[key]} is unsupported where heads are "
        f"{hf['head_dim']} wide."
      )
  scaling = {_SCALING[key]: _plain(metadata[key]) for key in _SCALING if key in metadata}
  if scaling.get("rope_type", "none") != "none":
    hf["rope_scaling"] = scaling
  return hf


def _llama3(path: Path, hf: Mapping[str, Any], factors: np.ndarray) -> dict[str, Any]:
  """The settings of Llama 3.1 and later, which the file only holds as their result."""
  scaling = RopeScaling(
    rope_type="llama3",
    factor=float(factors.max()),
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
  )
  expected, _ = scaling_factors(scaling, hf["head_dim"], hf.get("rope_theta", 1e4))
  if factors.shape != expected.shape or not np.allclose(1 / factors, expected, rtol=1e-4):
    raise ConfigError(f"{path}: {_ROPE_FACTORS} is not of Llama 3.1, 3.2 or 3.3.")
  return scaling.to_hf()


def _plain(value: Any) -> Any:
  """1e-05 for the float32 that prints as 9.999999747378752e-06."""
  return float(str(np.float32(value))) if isinstance(value, float) else value
