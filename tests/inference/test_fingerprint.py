"""Weights are told apart by what they hold, not by where they lie."""

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from her_jax import sharding
from her_jax.inference.fingerprint import fingerprint


def _params(dtype=jnp.float32) -> nnx.State:
  numbers = np.random.default_rng(0).normal(size=(4, 16, 8))
  model = {
    "layers": nnx.Param(jnp.asarray(numbers, dtype)),
    "norm": nnx.Param(jnp.ones(8, dtype)),
  }
  return nnx.State(model)


def test_the_same_wherever_it_lies():
  params, mesh = _params(), sharding.make_mesh(fsdp=4, tensor=2)
  found = fingerprint(params)
  assert len(found) == 16 and int(found, 16) and fingerprint(_params()) == found
  for spec in ((None, "fsdp", "tensor"), (("fsdp",),), (None, None, ("tensor", "fsdp"))):
    place = lambda x, spec=spec: NamedSharding(mesh, PartitionSpec(*spec[: x.ndim]))
    moved = jax.tree.map(
      lambda x, place=place: jax.device_put(x, place(x)), {"a": params["layers"][...]}
    )
    assert fingerprint(moved) == fingerprint({"a": params["layers"][...]}), spec
  on_all = jax.tree.map(lambda x: jax.device_put(x, sharding.replicated(mesh)), params)
  assert fingerprint(on_all) == found


def _swap(x):
  return x.at[0, 3, 1].set(x[2, 7, 5]).at[2, 7, 5].set(x[0, 3, 1])


@pytest.mark.parametrize(
  "change",
  [
    lambda x: x.at[3, 15, 7].set(jnp.nextafter(x[3, 15, 7], jnp.inf)),
    lambda x: -x,
    _swap,
    lambda x: jnp.roll(x, 1, axis=0),
    lambda x: x[:, ::-1],
    lambda x: jnp.moveaxis(x, 1, 2).reshape(x.shape),
    lambda x: x.reshape(8, 8, 8),
    lambda x: x.astype(jnp.bfloat16),
    lambda x: jnp.zeros_like(x),
  ],
)
def test_another_where_anything_differs(change):
  params = _params()["layers"][...]
  assert fingerprint({"a": change(params)}) != fingerprint({"a": params})


def test_names_and_all_kinds_of_numbers_bear_on_it():
  x = jnp.arange(6)
  found = {
    fingerprint({name: x.astype(d)}) for name in "ab" for d in ("int8", "bfloat16", "uint32")
  }
  assert (
    len(found | {fingerprint({"a": x > 2}), fingerprint({"a": x > 3}), fingerprint({})}) == 9
  )
