"""A training step of ours beside the same one of torch and transformers, in turns.

    python -m benchmarks.train_step            # wants the test extra, two cores and 6 GB

A Qwen3 of 107.8M parameters, 4 rows of 256 tokens, float32, two threads, AdamW with clipping,
loss on every token. Each side is a process of its own that waits while the other works; both
start from the same weights and read the same tokens, and their losses must agree. Prints
tokens/s and the ratio of neighbouring steps, by median.

On two cores with AVX-512 ours did 0.55 to 0.75 times the tokens/s of torch, from day to day. Of
our 3.6 s a step 2.4 s are matrix products at the 300 GFLOP/s that both reach.
"""

from collections.abc import Callable
import statistics
import sys
import tempfile

import numpy as np

from benchmarks.sides import THREADS, Side, serve

_ROWS, _LENGTH, _VOCAB = 4, 256, 32_768
_RATE, _B1, _B2, _DECAY = 1e-4, 0.9, 0.95, 0.1
_TOKENS = np.random.default_rng(0).integers(0, _VOCAB, (_ROWS, _LENGTH), np.int32)


def save_weights(folder: str) -> None:
  """Writes a random model of the shape as a Hugging Face folder."""
  import torch
  import transformers

  torch.manual_seed(0)
  config = transformers.Qwen3Config(
    vocab_size=_VOCAB, hidden_size=768, intermediate_size=2304, num_hidden_layers=12,
    num_attention_heads=12, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
    max_position_embeddings=512, attention_bias=False, use_sliding_window=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
  )  # fmt: skip
  transformers.Qwen3ForCausalLM(config).float().save_pretrained(folder)


def _torch_step(folder: str) -> Callable[[], float]:
  import torch
  import transformers

  torch.set_num_threads(THREADS)
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=_RATE, betas=(_B1, _B2), weight_decay=_DECAY
  )
  ids = torch.from_numpy(_TOKENS).long()

  def step() -> float:
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()

  return step


def _jax_step(folder: str) -> Callable[[], float]:
  from her_jax import cpu_backend

  cpu_backend.tune()

  import jax.numpy as jnp
  import ml_collections

  from her_jax.hf import load
  from her_jax.training import optimizer as optimizers
  from her_jax.training import step as steps
  from her_jax.training.state import TrainState

  _, graphdef, params = load.load(folder, dtype="float32", remat="none")
  settings = ml_collections.ConfigDict(
    {
      "name": "adamw", "learning_rate": _RATE, "warmup_steps": 0, "final_scale": 1.0,
      "b1": _B1, "b2": _B2, "weight_decay": _DECAY, "clip_norm": 1.0,
    }
  )  # fmt: skip
  optimizer, _ = optimizers.build(settings, 1000)
  fn = steps.make_train_step(graphdef, optimizer, steps.next_token_loss(_VOCAB))
  state = TrainState.create(params, optimizer)
  weights = np.ones(_TOKENS.shape, np.float32)
  weights[:, -1] = 0
  batch = {
    "tokens": jnp.asarray(_TOKENS),
    "targets": jnp.roll(_TOKENS, -1, axis=1),
    "positions": jnp.tile(jnp.arange(_LENGTH, dtype=jnp.int32), (_ROWS, 1)),
    "visible_until": jnp.full(_TOKENS.shape, _LENGTH, jnp.int32),
    "loss_weights": jnp.asarray(weights),
  }

  def step() -> float:
    nonlocal state
    state, metrics = fn(state, batch)
    return float(metrics["loss"])

  return step


_SIDES = {"her_jax": _jax_step, "torch": _torch_step}


def main(pairs: int = 10) -> None:
  with tempfile.TemporaryDirectory() as folder:
    save_weights(folder)
    sides = {side: Side("benchmarks.train_step", side, folder) for side in _SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for pair in range(pairs + 2):  # The first two compile and warm up.
      losses = {}
      for side in sorted(sides, reverse=bool(pair % 2)):
        took, losses[side] = sides[side].ask(pair)
        if pair > 1:
          seconds[side].append(took)
      np.testing.assert_allclose(losses["her_jax"], losses["torch"], rtol=1e-3)
    for side in sides.values():
      side.end()
  for side, times in seconds.items():
    print(f"{side:8s}{_TOKENS.size / statistics.median(times):8.1f} tokens/s")
  ratios = [t / j for j, t in zip(seconds["her_jax"], seconds["torch"], strict=True)]
  print(
    f"her_jax / torch: {statistics.median(ratios):.3f} x"
    f" ({min(ratios):.3f} to {max(ratios):.3f} over {pairs} pairs of steps)"
  )


if __name__ == "__main__":
  if sys.argv[1:2] == ["work"]:
    step = _SIDES[sys.argv[2]](sys.argv[3])
    serve(lambda _: step())
  else:
    main(*map(int, sys.argv[1:]))
