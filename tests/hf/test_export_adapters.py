"""A run that trained adapters is exported as any other: transformers gives its logits."""

from flax import nnx
import grain
import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from configs import export as export_config
from configs import sft
from her_jax import sharding
from her_jax.models.config import ModelConfig
from her_jax.roleplay.prompts import Variant
from her_jax.tasks import export
from her_jax.training import checkpoint, lora, saver
from her_jax.training.state import TrainState

_CONFIG = ModelConfig(
  vocab_size=96,
  hidden_size=32,
  intermediate_size=64,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=64,
  dtype="float32",
)


def test_the_export_of_adapters_gives_our_logits(tmp_path):
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  graphdef, params = sharding.init_sharded(_CONFIG, 0, mesh)
  tuning, noise = lora.begin(_CONFIG, params, lora.Settings(4, 8.0), 0, mesh)
  trained = jax.tree.map(
    lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), noise
  )
  model = checkpoint.Checkpoint(_CONFIG, graphdef, params, None, Variant("brief"))
  state = TrainState(jnp.int32(3), trained, {})
  batches = iter(grain.MapDataset.range(9).to_iter_dataset())
  settings = sft.get_config("tiny").checkpoint
  (tmp_path / "run").mkdir()
  with saver.Saver(
    str(tmp_path / "run"), settings, model, tuning, batches, {"data": ""}
  ) as save:
    save.save(state)
  config = export_config.get_config("tiny")
  config.source = str(tmp_path / "run")
  folder = export.run(config, str(tmp_path), mesh)["folder"]

  tokens = np.random.default_rng(1).integers(0, 96, (2, 12))
  rows = [jnp.broadcast_to(x, (2, 12)) for x in (jnp.arange(12), jnp.full(12, 12))]
  logits = lambda model: model.logits(model(tokens, *rows)[0])
  ours = logits(nnx.merge(tuning.graphdef, trained, *tuning.frozen))
  reference, info = AutoModelForCausalLM.from_pretrained(
    folder, local_files_only=True, output_loading_info=True
  )
  assert not any(info.values()), info
  with torch.no_grad():
    theirs = reference(torch.tensor(tokens)).logits.numpy()
  np.testing.assert_allclose(theirs, ours, atol=1e-4)
  assert np.abs(theirs - logits(nnx.merge(graphdef, params))).max() > 0.1
