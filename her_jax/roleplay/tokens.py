"""Text → ids in which no string becomes a control token, and messages around it."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import json
from typing import TYPE_CHECKING, Any

from her_jax.roleplay import grammar

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

IM_START, IM_END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

# What a small tokenizer keeps whole although it is text: the layers' tags, the judge's fences,
# and the names of the two sides.
FENCES = tuple(f"<{close}candidate_{number}>" for number in (1, 2) for close in ("", "/"))
SIDES = ("cand_1", "cand_2")
WHOLE = (*grammar.TAGS, *FENCES, *SIDES)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """Encodes text in which no string becomes a control token, nor any other added one."""
  return _plain(tokenizer).encode(text, add_special_tokens=False).ids


def encode_with_places(
  text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
  """`encode_text`, and the place in `text` of each token's last sign."""
  found = _plain(tokenizer).encode(text, add_special_tokens=False)
  return found.ids, [max(end - 1, start) for start, end in found.offsets]


def decode_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
  """The text of ids, control tokens left out."""
  text = tokenizer.decode(list(ids), skip_special_tokens=True)
  assert isinstance(text, str)  # A list comes back for a batch alone.
  return text


def control_id(token: str, tokenizer: PreTrainedTokenizerBase) -> int:
  """The id of a control token.

  Raises:
    ValueError: the tokenizer does not have it as a single token.
  """
  index = tokenizer.convert_tokens_to_ids(token)
  # What it does not have becomes the unknown token, which may itself be a control token.
  if not isinstance(index, int) or tokenizer.convert_ids_to_tokens(index) != token:
    raise ValueError(
      f"the tokenizer has no token {token!r}; her_jax needs Qwen's ChatML tokens"
    )
  return index


def stop_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
  """Ids that end a reply; Qwen also stops at its padding token."""
  return control_id(IM_END, tokenizer), control_id(PAD, tokenizer)


def open_message(role: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """`<|im_start|>role\\n`."""
  return [control_id(IM_START, tokenizer), *encode_text(f"{role}\n", tokenizer)]


def message(role: str, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """`<|im_start|>role\\ntext<|im_end|>\\n`."""
  return [
    *open_message(role, tokenizer),
    *encode_text(text, tokenizer),
    control_id(IM_END, tokenizer),
    *encode_text("\n", tokenizer),
  ]


def think_ids(plan: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """Qwen's think block around a plan: `<think>\\nplan\\n</think>\\n\\n`."""
  return [
    control_id("<think>", tokenizer),
    *encode_text(f"\n{plan}\n", tokenizer),
    control_id("</think>", tokenizer),
    *encode_text("\n\n", tokenizer),
  ]


@functools.lru_cache(maxsize=8)
def _plain(tokenizer: PreTrainedTokenizerBase) -> Any:
  """The tokenizer without added tokens, so that text cannot name one.

  Qwen's own encoding with split special tokens still makes one token of `<think>`,
  `<tool_call>` or `<|fim_prefix|>`, which are added but not special.
  """
  import tokenizers

  state = json.loads(tokenizer.backend_tokenizer.to_str())
  state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in WHOLE]
  return tokenizers.Tokenizer.from_str(json.dumps(state))
