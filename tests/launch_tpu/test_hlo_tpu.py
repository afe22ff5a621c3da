"""launch_tpu/hlo.py: what it counts of programs compiled for TPU pods of 16 chips.

To compile them needs libtpu but no TPU.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from launch_tpu import hlo

_TPU_LAYERS, _TPU_WIDTH, _TPU_HIDDEN, _TPU_ROWS = 4, 512, 2048, 4096
_COMPILE = f"""\
import pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import pallas as pl, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

L = {_TPU_LAYERS}
V5P = dict(topology_name="v5:2x2x4", chip_config_name="megacore",
           chips_per_host_bounds=(2, 2, 1), wrap=(True, True, True))
V6E = dict(topology_name="v6e:4x4")

def write(name, function, *arguments, **options):
  text = jax.jit(function, **options).lower(*arguments).compile().as_text()
  (pathlib.Path(sys.argv[1]) / name).write_text(text)

def mesh(chip, **axes):
  devices = topologies.get_topology_desc(platform="tpu", num_slices=1, **chip).devices
  auto = (AxisType.Auto,) * len(axes)
  return Mesh(np.array(devices).reshape(*axes.values()), tuple(axes), axis_types=auto)

def array(mesh, *shape, spec):
  return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

def train(name, mesh, width, hidden, rows):
  batch = NamedSharding(mesh, P(mesh.axis_names, None))
  up = array(mesh, L, width, hidden, spec=(None, "fsdp", None))
  down = array(mesh, L, hidden, width, spec=(None, "fsdp", None))
  def layer(x, weights):
    y = jax.nn.relu(x @ weights[0]) @ weights[1]
    return jax.lax.with_sharding_constraint(y, batch), None
  def loss(weights, x):
    x = jax.lax.scan(jax.checkpoint(layer), x, weights)[0]
    return (x.astype(jnp.float32) ** 2).sum()
  def step(weights, x):
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x))
  x = array(mesh, rows, width, spec=batch.spec)
  write(name, step, (up, down), x, out_shardings=(up.sharding, down.sharding))

for name, chip in (("v5p", V5P), ("v6e", V6E)):
  sizes = ({_TPU_WIDTH}, {_TPU_HIDDEN}, {_TPU_ROWS})
  train(name + "-fsdp", mesh(chip, fsdp=16), *sizes)
  train(name + "-data-fsdp", mesh(chip, data=4, fsdp=4), *sizes)
train("v5p-ring", mesh(V5P, fsdp=16), 2048, 8192, 32768)

def double_kernel(x, out):
  out[...] = 2 * x[...]

def double(x):
  block = pl.BlockSpec((128, 512), lambda i: (i, 0))
  return pl.pallas_call(double_kernel, name="double", grid=(2,), in_specs=[block],
                        out_specs=block, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

one = mesh(V5P, fsdp=16)
seven = lambda x: jax.lax.scan(lambda x, _: (double(x), None), x, None, length=7)[0]
write("v5p-kernel",
      jax.shard_map(seven, mesh=one, in_specs=P("fsdp"), out_specs=P("fsdp"), check_vma=False),
      array(one, 4096, 512, spec=("fsdp",)))
write("v5p-batched", lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
      array(one, 4, 64, 128, spec=()), array(one, 4, 128, 256, spec=()))
"""


@pytest.fixture(scope="module")
def tpu_counts(tmp_path_factory):
  """Counts of the programs above, by name."""
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("no libtpu: pip install -e '.[tpu]' brings the compiler for TPU programs")
  folder = tmp_path_factory.mktemp("tpu")
  # libtpu holds a lock of the machine, and lets other processes compile only if told so.
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  }
  command = [sys.executable, "-c", _COMPILE, str(folder)]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
  assert done.returncode == 0, done.stderr[-3000:]

  def counts(name: str) -> hlo.Counts:
    return hlo.count(pathlib.Path(folder, name).read_text(), devices=16)

  return counts


_TPU_PRODUCT = _TPU_LAYERS * 2 * _TPU_ROWS // 16 * _TPU_WIDTH * _TPU_HIDDEN
_TPU_WEIGHT = 2 * _TPU_WIDTH * _TPU_HIDDEN  # Bytes.


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5p", "v6e"])
@pytest.mark.parametrize("mesh", ["fsdp", "data-fsdp"])
def test_tpu_flops(tpu_counts, chip, mesh):
  flops = tpu_counts(f"{chip}-{mesh}").flops
  # Two products a layer; of them the backward pass needs the first again, and two gradients
  # of each.
  assert flops == {
    "forward": 2 * _TPU_PRODUCT,
    "rematerialised": _TPU_PRODUCT,
    "backward": 4 * _TPU_PRODUCT,
  }


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5p", "v6e"])
def test_tpu_collectives(tpu_counts, chip):
  counts = tpu_counts(f"{chip}-fsdp")
  # Both weights are gathered forward and backward. Over the whole slice the compiler takes
  # an all-reduce for the gradients, twice the bytes of a reduce-scatter.
  gathers = 4 * _TPU_LAYERS * _TPU_WEIGHT * 15 // 16
  reductions = 2 * 2 * _TPU_LAYERS * _TPU_WEIGHT * 15 // 16
  assert counts.wire_bytes == {"all-gather": gathers, "all-reduce": reductions}
  assert counts.collective_calls["all-gather"] == 4 * _TPU_LAYERS
  assert list(counts.trip_counts.values()) == [_TPU_LAYERS] * 2

  counts = tpu_counts(f"{chip}-data-fsdp")
  # Groups of four: gradients are scattered over fsdp, and those shards reduced over data.
  assert counts.wire_bytes == {
    "all-gather": 4 * _TPU_LAYERS * _TPU_WEIGHT * 3 // 4,
    "reduce-scatter": 2 * _TPU_LAYERS * _TPU_WEIGHT * 3 // 4,
    "all-reduce": 2 * 2 * _TPU_LAYERS * (_TPU_WEIGHT // 4) * 3 // 4,
  }


@pytest.mark.slow
def test_tpu_gathers_that_became_rings(tpu_counts):
  counts = tpu_counts("v5p-ring")
  product = _TPU_LAYERS * 2 * (32768 // 16) * 2048 * 8192
  assert counts.flops["forward"] == 2 * product
  assert counts.flops["backward"] == 4 * product
  assert counts.flops["rematerialised"] == product
  # Beside the two loops over layers each loop is a ring, in both directions at once: a first
  # permute, then a counter to eight in steps of two, four permutes a step.
  rings = len(counts.trip_counts) - 2
  permutes = rings * _TPU_LAYERS * (1 + 4 * 4)
  assert rings >= 2 and set(counts.trip_counts.values()) == {4}
  assert counts.collective_calls["collective-permute"] == permutes
  assert counts.wire_bytes["collective-permute"] == permutes * 2 * 2048 * 8192 // 16


@pytest.mark.slow
def test_tpu_kernels_and_batched_products(tpu_counts):
  assert tpu_counts("v5p-kernel").kernel_calls == {"double": 7}
  assert tpu_counts("v5p-batched").matmul_flops == 4 * 2 * 64 * 128 * 256
