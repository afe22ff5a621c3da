"""Serves a policy over HTTP, in OpenAI's protocol.

    python -m her_jax.main --config=configs/serve.py:tiny --workdir=out/serve --config.policy=out/sft
    python -m her_jax.main --config=configs/serve.py:qwen3-8b --workdir=out/serve --config.policy=/models/Qwen3-8B

docs/inference.md says what it answers.
"""

import ml_collections

from configs import common


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """The size is that of the policy; `tiny` sets lengths and an engine for a laptop."""
  config = common.base("serve", arg)
  tiny = config.model == common.TINY
  # The workdir of a stage, a Hugging Face folder, or a GGUF file or a folder with one.
  config.policy = "out/quickstart/rl" if tiny else ""
  # prompt_length: a longer prompt is refused. max_new_tokens and temperature: where a request
  # does not say.
  config.sampling = common.sampling(tiny)
  if tiny:
    config.sampling.prompt_length = 512
  config.serve = ml_collections.ConfigDict()
  # Only this machine reaches 127.0.0.1. Another address wants a key.
  config.serve.host = "127.0.0.1"
  config.serve.port = 8000
  # That requests name; empty: the folder's name.
  config.serve.model_name = ""
  # Choices that may wait while `engine.rows` run; one more is answered with 429.
  config.serve.max_queue = 256
  # Seconds for one request, the waiting among them.
  config.serve.timeout_s = 600.0
  # Seconds that what runs has to end in after SIGTERM.
  config.serve.grace_s = 30.0
  config.serve.max_body_bytes = 2**20
  # The variable of the environment that holds the key; empty: none is asked for.
  config.serve.api_key_env = ""
  # The most that a request may see of hidden layers: withheld, thoughts (role_thinking) or
  # shown (the plan too).
  config.serve.show = "shown"
  return config
