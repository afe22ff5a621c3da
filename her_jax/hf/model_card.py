"""The README of an exported folder: what the weights are, and how to use them."""

import json

from her_jax.models.config import ModelConfig

_CARD = """---
{front}
---

# {title}

A {kind} decoder of {size} parameters for role-play, trained with her_jax and written as
{dtype} weights. A reply may hold the speaker's plan, inner thoughts and deeds beside what is
said aloud: show other characters the spoken part and the deeds alone.

{base}

## Loading

```python
from transformers import {imports}

model = AutoModelForCausalLM.from_pretrained("path/of/this/folder", dtype="auto")
{tokenizer}
```

{note}

## Licence

None is stated here. Whoever publishes these weights chooses it, within what the licences of the
base model and of the training data allow, and adds `license` to the head of this file.
"""


def text(config: ModelConfig, dtype: str, base_model: str, has_tokenizer: bool) -> str:
  """The card, with its YAML front matter.

  Args:
    config: The model.
    dtype: Of the written weights.
    base_model: Its name on the Hugging Face hub; "" if unknown.
    has_tokenizer: Whether the folder holds one.
  """
  front = ["library_name: transformers", "pipeline_tag: text-generation"]
  if base_model:
    front.append(f"base_model: {json.dumps(base_model)}")
  front += ["tags:", "- role-play", "- her_jax"]
  note = (
    "The tokenizer's chat template renders a conversation; `generation_config.json` lists the\n"
    "tokens that end a reply."
    if has_tokenizer
    else "The weights came without a tokenizer: take the one they were trained with."
  )
  return _CARD.format(
    front="\n".join(front),
    title=f"{base_model.rpartition('/')[2]}, fine-tuned" if base_model else "Role-play model",
    kind="Qwen3" if config.qk_norm else "Llama",
    size=_size(config.num_params()),
    dtype=dtype,
    base=f"Trained from `{base_model}`." if base_model else "The base model was not stated.",
    imports="AutoModelForCausalLM" + (", AutoTokenizer" if has_tokenizer else ""),
    tokenizer='tokenizer = AutoTokenizer.from_pretrained("path/of/this/folder")'
    if has_tokenizer
    else "# The folder holds no tokenizer.",
    note=note,
  )


def _size(count: int) -> str:
  """32,762,123,264 -> "32.8 billion"."""
  for unit, name in ((10**9, " billion"), (10**6, " million")):
    if count >= unit:
      return f"{count / unit:.1f}{name}"
  return f"{count:,}"
