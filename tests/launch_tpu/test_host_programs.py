"""The programs of a host are those of its engine, at the load that is said."""

import jax
import pytest

from configs import rl
from her_jax import sharding
from her_jax.inference.engine import Engine
from her_jax.models.config import PRESETS
from her_jax.models.qwen3 import abstract_model
from launch_tpu import arithmetic, hlo, host_programs


def _config(**changes):
  config = rl.get_config("tiny")
  config.engine.update(changes)
  return config


def _mesh(tensor: int) -> jax.sharding.Mesh:
  return sharding.make_mesh(fsdp=1, tensor=tensor, devices=jax.devices()[:tensor])


def test_the_arguments_are_those_of_an_engine(monkeypatch):
  config, mesh = _config(rows=8), _mesh(2)
  model = host_programs.model_config(config)
  # On a TPU an engine reads its head from the table of embeddings, where that is the head.
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  graphdef, _ = abstract_model(model)
  limits = host_programs.limits(config)
  work = host_programs._rows(limits)
  programs, params, pool, rows = host_programs.arguments(config, mesh, work)
  with jax.set_mesh(mesh):
    engine = Engine(model, graphdef, params, limits, valid_vocab=programs.valid_vocab)
  for ours, theirs in ((pool.keys, engine._pool.keys), (pool.values, engine._pool.values)):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.sharding.is_equivalent_to(theirs.sharding, 5)
  # Equal programs are compiled once.
  assert programs == engine._programs and hash(programs) == hash(engine._programs)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jax.numpy.dtype(model.dtype)}
  assert rows.slots.shape == (8, limits.steps) and rows.history is None


@pytest.mark.parametrize("name", host_programs.ON_HOST)
def test_the_loops_are_told_how_often_they_run(name):
  config, mesh = _config(rows=64), _mesh(1)
  config.rl.group_size = 8
  with jax.set_mesh(mesh):
    text = host_programs.ON_HOST[name](config, mesh).compile().as_text()
  load = host_programs.load(config, name, chips=1)
  counts = hlo.count(text, 1, load.trips).times(1 / load.repeats)
  assert not counts.unread_loops
  # A block of groups is worked on whole, and so is a page; the largest chunk has room for more.
  assert 1 <= counts.matmul_flops / load.flops <= 1.25
  assert counts.hbm_bytes > load.hbm_bytes


def test_shared_pages_are_read_once():
  config = _config(rows=16)
  model, sampling = PRESETS["tiny"], config.sampling
  load = host_programs.load(config, "decode", chips=2)
  token = 2 * model.num_layers * model.num_kv_heads * model.head_dim
  token *= jax.numpy.dtype(model.dtype).itemsize
  seen = 16 // config.rl.group_size * sampling.prompt_length
  seen += 16 * sampling.max_new_tokens // 2
  assert load.hbm_bytes == (2 * arithmetic.multiplied_weights(model) + seen * token) / 2
