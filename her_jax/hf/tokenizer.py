"""Tokenizers: Qwen's own folder, or a small byte-level BPE with the same control tokens."""

from collections.abc import Iterable
import itertools
import os
import pathlib
import string

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from her_jax.errors import ConfigError
from her_jax.hf import folder as hf_folder
from her_jax.hf import gguf, json_object
from her_jax.hf.config import from_hf
from her_jax.roleplay import chat, tokens

CONTROL = (chat.PAD, chat.IM_START, chat.IM_END)

# Ordinary tokens that must stay whole. As in Qwen's tokenizer the think tags are added but
# not special: they are text that a model writes, not structure.
LAYOUT = ("<think>", "</think>", *tokens.WHOLE)

# Qwen's split: contractions, words with one leading mark, single digits (here with their
# blank), runs of marks, line ends, blanks.
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Text in which a blank before each of these is by far the most frequent pair, so that it is
# merged first. A blank alone then stands before a tag and nowhere else; where rare words
# begin with one too, a small model puts tags into the middle of them.
_BLANKS = "".join(f" {c}" for c in string.ascii_letters + string.digits + "—–“‘\"'(.…") * 20_000

CHAT_TEMPLATE = (
  "{% for m in messages %}"
  "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
  "{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def load(folder: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
  """Loads a Hugging Face tokenizer folder, offline, or the tokenizer of a GGUF file.

  Raises:
    FileNotFoundError: the folder holds no `tokenizer.json`.
    ConfigError: its files are damaged, the GGUF file describes no tokenizer that can be rebuilt,
      or the tokenizer lacks Qwen's ChatML tokens.
  """
  tokenizer: PreTrainedTokenizerBase
  if (pathlib.Path(folder) / "tokenizer.json").is_file():
    tokenizer = _of_folder(pathlib.Path(folder))
  elif file := gguf.find(folder):
    tokenizer = gguf.tokenizer(file)
  else:
    raise FileNotFoundError(
      f"{folder} holds no tokenizer.json; point config.tokenizer at a Hugging Face folder or"
      f" leave it empty to take the tokenizer of the checkpoint"
    )
  try:
    for token in CONTROL:
      chat.control_id(token, tokenizer)
  except ValueError as error:
    raise ConfigError(f"{folder}: {error}") from None
  return tokenizer


def _of_folder(folder: pathlib.Path) -> PreTrainedTokenizerBase:
  """What transformers makes of the files; it looks into config.json too."""
  config = folder / hf_folder.CONFIG
  hf = json_object.read(config) if config.is_file() else None
  try:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
  except Exception as error:  # Of any type: the parsers below transformers raise bare ones.
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
  if hf is not None:
    try:
      from_hf(hf)
    except ConfigError as error:
      raise ConfigError(f"{config}: {error}") from None
  raise ConfigError(
    f"the tokenizer in {folder} cannot be read ({reason}): copy or download its files again."
  )


def train(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
  """Trains a byte-level BPE on `texts`; the same texts give the same tokenizer.

  Args:
    vocab_size: rows of the vocabulary, control and layout tokens included.
  """
  bpe = tokenizers.Tokenizer(models.BPE())
  bpe.normalizer = normalizers.NFC()
  bpe.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_SPLIT), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  bpe.decoder = decoders.ByteLevel()
  bpe.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in CONTROL])
  bpe.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in LAYOUT])
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    special_tokens=[*CONTROL, *LAYOUT],
    show_progress=False,
  )
  bpe.train_from_iterator(itertools.chain(texts, [_BLANKS]), trainer)
  # The trainer marks all that it was given as special; layout tokens are text.
  bpe.add_tokens([tokenizers.AddedToken(t, normalized=False, special=False) for t in LAYOUT])
  return PreTrainedTokenizerFast(
    tokenizer_object=bpe,
    eos_token=chat.IM_END,
    pad_token=chat.PAD,
    chat_template=CHAT_TEMPLATE,
    clean_up_tokenization_spaces=False,
    split_special_tokens=False,
  )
