"""Eight fake devices compute what one does, and hold an eighth each."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.models.config import ModelConfig

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
_ROWS, _LENGTH = 8, 16
# Each program runs once: LLVM's optimisations would take most of the test's time.
_QUICK_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module", autouse=True)
def _eight_devices():
  assert jax.device_count() == 8, "tests/conftest.py must run before JAX is imported."


def _batch() -> dict[str, np.ndarray]:
  """Two documents a row."""
  tokens = np.random.default_rng(0).integers(0, 96, (_ROWS, _LENGTH), dtype=np.int32)
  half = _LENGTH // 2
  positions = np.tile(np.arange(half, dtype=np.int32), (_ROWS, 2))
  visible_until = np.tile(np.repeat(np.int32([half, _LENGTH]), half), (_ROWS, 1))
  return {"tokens": tokens, "positions": positions, "visible_until": visible_until}


def _run(mesh):
  """Initial parameters, logits and one gradient on a mesh, brought to the host."""
  graphdef, params = sharding.init_sharded(_CONFIG, seed=0, mesh=mesh)

  def loss(params, batch):
    model = nnx.merge(graphdef, params)
    logits = model.logits(model(**batch)[0])
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2), logits

  with jax.set_mesh(mesh):
    step = jax.jit(jax.grad(loss, has_aux=True), compiler_options=_QUICK_COMPILE)
    grads, logits = step(params, sharding.to_global(_batch(), mesh))
  return jax.tree.map(np.asarray, (params, logits, grads))


@pytest.fixture(scope="module")
def single():
  return _run(sharding.make_mesh(devices=jax.devices()[:1]))


@pytest.mark.parametrize(
  "sizes",
  [
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 2, "context": 2, "tensor": 2},
    {"tensor": 8},  # More ways than there are heads.
  ],
  ids=str,
)
def test_equals_a_single_device(single, sizes):
  params, logits, grads = _run(sharding.make_mesh(**sizes))
  jax.tree.map(np.testing.assert_array_equal, params, single[0])
  np.testing.assert_allclose(logits, single[1], atol=1e-5)

  def assert_close(ours, expected):
    scale = np.abs(expected).max()
    assert scale > 0
    np.testing.assert_allclose(ours / scale, expected / scale, atol=1e-5)

  jax.tree.map(assert_close, grads, single[2])


def test_parameters_are_held_in_parts():
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  _, params = sharding.init_sharded(_CONFIG, seed=0, mesh=mesh)
  shards = {
    ".".join(path): param.get_value().addressable_shards[0].data.shape
    for path, param in nnx.to_flat_state(params)
  }
  assert shards["layers.attention.q.weight"] == (2, 32 // 4, 4 // 2, 8)
  assert shards["layers.attention.o.weight"] == (2, 4 // 2, 8, 32 // 4)
  assert shards["layers.mlp.down.weight"] == (2, 64 // 2, 32 // 4)
  assert shards["embedding"] == (96 // 2, 32 // 4)
  assert shards["lm_head"] == (32 // 4, 96 // 2)
  held = sum(np.prod(shape) for shape in shards.values())
  assert held < 1.02 * _CONFIG.num_params() / 8  # Only the norms of the heads are whole.


def test_activations_are_constrained_on_cpu():
  x = jnp.zeros((_ROWS, _LENGTH, 32))
  constrain = jax.jit(lambda x: sharding.constrain(x, "batch", "length", "act_embed"))
  mesh = sharding.make_mesh(data=2, fsdp=2, context=2)
  with jax.set_mesh(mesh):
    assert constrain(x).sharding.spec == P(("data", "fsdp"), "context")
    with pytest.raises(ValueError, match="No sharding rule for axis 'bach'"):
      sharding.constrain(x, "bach", "length", "act_embed")
  assert sharding.constrain(x, "batch", "length", "act_embed") is x


def test_seed_decides_the_parameters():
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  first, second = (sharding.init_sharded(_CONFIG, seed, mesh)[1] for seed in (0, 1))
  assert not np.array_equal(first["embedding"].get_value(), second["embedding"].get_value())


@pytest.mark.parametrize(
  ("names", "shape", "spec"),
  [
    (("embed", "mlp"), (32, 64), P(("fsdp", "context"), "tensor")),
    (("embed", "mlp"), (32, 63), P(("fsdp", "context"), None)),
    (("embed",), (6,), P("fsdp")),
    (("kv_heads",), (1,), P(None)),
    (("batch", "length"), (8, 16), P(("data", "fsdp"), "context")),
    (("batch",), (2,), P("data")),
    (("batch",), (3,), P(None)),
    (("layers", "head_dim"), (8, 8), P(None, None)),
  ],
)
def test_axes_that_do_not_divide_are_left_out(names, shape, spec):
  mesh = jax.sharding.AbstractMesh((2, 2, 2, 2), sharding.MESH_AXES)
  assert sharding.RULES.spec(names, shape, mesh) == spec


def test_two_claims_on_a_mesh_axis_are_an_error():
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  with pytest.raises(ValueError, match="'heads' and 'mlp' .* both map to mesh axis 'tensor'"):
    sharding.RULES.spec(("heads", "mlp"), (4, 64), mesh)
  rules = dataclasses.replace(sharding.RULES, layers="fsdp")
  with pytest.raises(ValueError, match="'layers' and 'embed' .* both map"):
    rules.spec(("layers", "embed"), (8, 8), mesh)


def test_axis_without_rule_or_name_is_an_error():
  mesh = sharding.make_mesh()
  named = nnx.State({"w": nnx.Param(jnp.ones(3), out_sharding=("spam",), eager_sharding=False)})
  with pytest.raises(ValueError, match="No sharding rule for axis 'spam'"):
    sharding.shardings(named, mesh)
  with pytest.raises(ValueError, match="'w'.* names no sharding axes"):
    sharding.shardings(nnx.State({"w": nnx.Param(jnp.ones(3))}), mesh)
  with pytest.raises(ValueError, match="1 axis names .* shape \\(2, 3\\)"):
    sharding.RULES.spec(("embed",), (2, 3), mesh)


@pytest.mark.parametrize(
  "sizes", [{"fsdp": 3}, {"data": 3}, {"fsdp": -1, "tensor": -1}, {"tensor": 0}, {"data": 16}]
)
def test_mesh_that_does_not_fit_is_refused(sizes):
  with pytest.raises(ValueError, match="Mesh data="):
    sharding.make_mesh(**sizes)


def test_batches_are_split_over_data_and_fsdp():
  mesh = sharding.make_mesh(data=2, fsdp=4)
  batch = sharding.to_global({"tokens": np.arange(16).reshape(8, 2), "odd": np.ones(3)}, mesh)
  assert batch["tokens"].shape == (8, 2)
  assert batch["tokens"].addressable_shards[0].data.shape == (1, 2)
  np.testing.assert_array_equal(batch["tokens"], np.arange(16).reshape(8, 2))
  assert batch["odd"].is_fully_replicated
  assert jax.device_put(1.0, sharding.replicated(mesh)).is_fully_replicated


@pytest.mark.parametrize(
  ("sizes", "chips", "expected"),
  [
    ({"fsdp": 8}, 2, [(0, 4), (1, 4), (2, 4), (3, 4)]),
    ({"fsdp": 2, "context": 4}, 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ({"data": 2, "fsdp": 2, "context": 2}, 4, [(0, 2), (1, 2)]),
    ({"context": 8}, 2, [(0, 1)] * 4),
    ({"tensor": 4, "fsdp": 2}, 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
  ],
  ids=str,
)
def test_hosts_that_work_on_the_same_rows_load_the_same_part(sizes, chips, expected):
  mesh = sharding.make_mesh(**{"fsdp": 1, **sizes})
  host_of = lambda device: device.id // chips
  found = [sharding.row_shard(mesh, host, host_of) for host in range(8 // chips)]
  assert found == expected


def test_hosts_with_scattered_chips_load_rows_of_their_own():
  devices = [jax.devices()[i] for i in (0, 2, 1, 3, 4, 6, 5, 7)]  # Hosts 0 1 0 1 2 3 2 3.
  mesh = sharding.make_mesh(devices=devices)
  found = [sharding.row_shard(mesh, host, lambda d: d.id // 2) for host in range(4)]
  assert sorted(found) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_hosts_that_share_some_rows_and_not_others_are_refused():
  mesh = sharding.make_mesh(fsdp=2, context=4)
  with pytest.raises(ConfigError, match="share some of their rows"):
    sharding.row_shard(mesh, 0, lambda device: device.id // 3)
