"""Every host's chips hold the whole policy, wherever they lie in the mesh."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh
import numpy as np
import pytest

from her_jax import sharding
from her_jax.errors import ConfigError
from her_jax.inference import replicas
from her_jax.models.config import PRESETS
from her_jax.models.qwen3 import abstract_model

_CONFIG = dataclasses.replace(
  PRESETS["tiny"], vocab_size=96, hidden_size=32, intermediate_size=64, num_layers=2
)


def _mesh(order: list[int], **sizes: int) -> Mesh:
  shape = [sizes.get(axis, 1) for axis in sharding.MESH_AXES]
  devices = np.asarray(jax.devices())[order].reshape(shape)
  return Mesh(devices, sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 4)


def _host(device: jax.Device) -> int:
  return device.id // 4


@pytest.mark.parametrize(
  ("order", "sizes"),
  [
    ([0, 1, 2, 3, 4, 5, 6, 7], {"fsdp": 8}),
    ([0, 1, 4, 5, 2, 3, 6, 7], {"fsdp": 8}),  # Hosts 0 0 1 1 0 0 1 1.
    ([0, 4, 1, 5, 2, 6, 3, 7], {"data": 4, "fsdp": 2}),
    ([0, 1, 4, 5, 2, 3, 6, 7], {"data": 2, "fsdp": 2, "tensor": 2}),
    ([0, 1, 2, 3, 4, 5, 6, 7], {"fsdp": 2, "context": 2, "tensor": 2}),
  ],
  ids=str,
)
def test_each_host_holds_every_weight_once(order, sizes):
  mesh = _mesh(order, **sizes)
  _, params = sharding.init_sharded(_CONFIG, seed=0, mesh=mesh)
  copies = replicas.gather(params, mesh, "bfloat16", _host)(params)
  split = 0
  for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(copies), strict=True):
    whole = np.asarray(before.astype(jnp.bfloat16))
    np.testing.assert_array_equal(np.asarray(after), whole)
    for host in (0, 1):
      shards = [s for s in after.addressable_shards if _host(s.device) == host]
      seen = np.zeros(whole.shape, np.int32)
      for shard in shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])
        seen[shard.index] += 1
      assert len(shards) == 4 and seen.min() == seen.max() >= 1
      split += seen.max() == 1
  assert split > 10  # Most weights are cut in four; norms are whole on each chip.


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_gets_the_weights_as_arrays_of_its_own(host):
  mesh = _mesh([0, 1, 4, 5, 2, 3, 6, 7], fsdp=8)
  _, params = sharding.init_sharded(_CONFIG, seed=0, mesh=mesh)
  weights = replicas.RolloutWeights(params, mesh, "bfloat16", host=host, host_of=_host)
  assert weights.mesh.shape == {"data": 1, "fsdp": 1, "context": 1, "tensor": 4}
  assert [_host(device) for device in weights.mesh.devices.flat] == [host] * 4
  copies = weights(params)
  _, abstract = abstract_model(dataclasses.replace(_CONFIG, param_dtype="bfloat16"))
  wanted = jax.tree.map(
    lambda x, at: (x.dtype, at), abstract, sharding.shardings(abstract, weights.mesh)
  )
  found = jax.tree.map(lambda x: (x.dtype, x.sharding), copies)
  assert wanted == found  # Names of axes and all.
  for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(copies), strict=True):
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before.astype(jnp.bfloat16)))


def test_nothing_is_copied_that_is_as_it_has_to_be():
  alone = sharding.make_mesh(fsdp=1, tensor=2, devices=jax.devices()[:2])
  _, params = sharding.init_sharded(_CONFIG, seed=0, mesh=alone)
  assert replicas.RolloutWeights(params, alone, "float32")(params) is params
  assert replicas.RolloutWeights(params, alone, "bfloat16")(params) is not params


def test_hosts_that_no_axis_names_are_refused():
  # Hosts 0 0 0 1 1 0 1 1: no factor of the mesh stays on a host.
  mesh = _mesh([0, 1, 2, 4, 5, 3, 6, 7], fsdp=8)
  _, params = sharding.init_sharded(_CONFIG, seed=0, mesh=mesh)
  with pytest.raises(ConfigError, match="4 chips of a host do not lie along axes"):
    replicas.gather(params, mesh, "bfloat16", _host)
