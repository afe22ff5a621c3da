"""Two real processes: each samples from its own copy of what both train."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax

from her_jax.inference.engine import Engine
from her_jax.inference.sampling import Sampling
from tests import tiny_model
from tests.tiny_model import CONFIG, LIMITS, VALID

_ROOT = pathlib.Path(__file__).parents[2]
_PROMPTS = {0: [[5, 6, 7]], 1: [[9] * 20, [11, 12]]}
_TOKENS = {0: 3, 1: 30}

_HOST = """
import json, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_disable_most_optimizations", True)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from jax.experimental import multihost_utils
from her_jax import sharding
from her_jax.inference.engine import Engine
from her_jax.inference.fingerprint import fingerprint
from her_jax.inference.replicas import RolloutWeights
from her_jax.inference.sampling import Sampling
from tests import tiny_model
from tests.inference.test_rollout_hosts import _PROMPTS, _TOKENS

host = jax.process_index()
mesh = sharding.make_mesh(fsdp=-1)
graphdef, whole = tiny_model.make()
place = lambda x, at: jax.make_array_from_callback(x.shape, at, lambda i: np.asarray(x)[i])
params = jax.tree.map(place, whole, sharding.shardings(whole, mesh))
weights = RolloutWeights(params, mesh, "float32")

copies = weights._gather(params)
ours = weights._own(copies)
pairs = list(zip(jax.tree.leaves(copies), jax.tree.leaves(ours), strict=True))
pointers = lambda x: sorted(s.data.unsafe_buffer_pointer() for s in x.addressable_shards)
assert all(pointers(one) == pointers(two) for one, two in pairs)
for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(ours), strict=True):
  assert two.is_fully_addressable
  np.testing.assert_array_equal(np.asarray(one), np.asarray(two))

policy = weights(params)
with jax.set_mesh(weights.mesh):
  engine = Engine(tiny_model.CONFIG, graphdef, policy, tiny_model.LIMITS, valid_vocab=tiny_model.VALID)
  # One host draws ten times as much as the other, and neither waits.
  found = [c.ids for c in engine.generate(_PROMPTS[host], Sampling(max_tokens=_TOKENS[host]))]
multihost_utils.sync_global_devices("both have drawn")
judge = weights(jax.tree.map(lambda x: 1.5 * x, params))
with jax.set_mesh(weights.mesh):
  engine.load(judge)
  other = [c.ids for c in engine.generate(_PROMPTS[host], Sampling(max_tokens=_TOKENS[host]))]
  engine.load(policy)
  again = [c.ids for c in engine.generate(_PROMPTS[host], Sampling(max_tokens=_TOKENS[host]))]
assert again == found != other
print(json.dumps([len(pairs), found, other, fingerprint(policy)]), flush=True)
"""


def _alone(host: int, scale: float) -> list[list[int]]:
  graphdef, params = tiny_model.make()
  params = jax.tree.map(lambda x: scale * x, params)
  engine = Engine(CONFIG, graphdef, params, LIMITS, valid_vocab=VALID)
  settings = Sampling(max_tokens=_TOKENS[host])
  return [done.ids for done in engine.generate(_PROMPTS[host], settings)]


def test_each_host_samples_from_its_own_arrays_without_a_copy(quick_compile):
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  environment = {
    **os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "JAX_PLATFORMS": "cpu",
  }  # fmt: skip
  hosts = [
    subprocess.Popen(
      [sys.executable, "-c", _HOST, address, str(i)], cwd=_ROOT, env=environment,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for i in range(2)
  ]  # fmt: skip
  told = []
  for process in hosts:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    told.append(json.loads(out.splitlines()[-1]))
  for host, (leaves, policy, judge, _) in enumerate(told):
    assert leaves > 10
    assert policy == _alone(host, 1.0) and judge == _alone(host, 1.5)
  assert told[0][3] == told[1][3]
