"""The tree kernel inside a program: what is kept, what is compiled, how it is spread."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from her_jax.models import dispatch
from her_jax.models.block_pairs import block_pairs, block_sizes, round_up
from her_jax.models.tree_attention import SAVED_NAMES, tree_attention
from her_jax.sharding import make_mesh
from tests.models.tree_rows import (
  BLOCK,
  QUICK_COMPILE,
  SLOTS,
  assert_equal,
  named_row,
  qkv_of,
  reference,
  scaled_error,
)


def _primitives(jaxpr, inside: str = "") -> list[tuple[str, str]]:
  """(enclosing primitives, primitive) of a program; a Pallas kernel by its own name.

  JAX leaves kernels in a program whose results nobody reads, and XLA drops them: so here.
  """
  read = {id(x) for eqn in jaxpr.eqns for x in eqn.invars} | {id(x) for x in jaxpr.outvars}
  found = []
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    if name == "pallas_call":
      if any(id(x) in read for x in eqn.outvars):
        found.append((inside, eqn.params["name"]))
      continue
    found.append((inside, name))
    for value in eqn.params.values():
      for inner in value if isinstance(value, (tuple, list)) else [value]:
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          found += _primitives(inner, f"{inside}/{name}")
  return found


_POLICIES = {
  "saving": jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES),
  "nothing": jax.checkpoint_policies.nothing_saveable,
}


def _layers_gradient(policy: str, blocks: tuple[int, int], **options):
  """The gradient of scanned layers by their weights [layers, heads, heads] and k and v."""

  def loss(weights, kv, x, visible_until):
    pairs = block_pairs(visible_until, *blocks)

    @functools.partial(jax.checkpoint, prevent_cse=False, policy=_POLICIES[policy])
    def layer(x, weight):
      q = jnp.einsum("blhd,hi->blid", x, weight)
      return x + tree_attention(q, *kv, visible_until, pairs, **options), None

    return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

  return jax.grad(loss, argnums=(0, 1))


def test_a_policy_that_saves_the_names_runs_the_forward_kernel_once():
  visible_until = jnp.asarray(named_row("packed", SLOTS))[None]
  x, *kv = qkv_of(11, 1, SLOTS, 4, 2, 16)
  weights = np.random.default_rng(12).normal(size=(3, 4, 4)).astype(np.float32)
  arguments = (weights, tuple(kv), x, visible_until)
  counts, results = {}, {}
  for policy in _POLICIES:
    gradient = _layers_gradient(policy, (BLOCK, BLOCK), interpret=True)
    program = _primitives(jax.make_jaxpr(gradient)(*arguments).jaxpr)
    names = [name for _, name in program]
    counts[policy] = [names.count(f"tree_attention_{x}") for x in ("forward", "dq", "dkv")]
    # The lists are built before the layers, not in each.
    packing = [place for place, name in program if name == "shift_left"]
    assert packing and not any("scan" in place for place in packing)
    results[policy] = jax.jit(gradient, compiler_options=QUICK_COMPILE)(*arguments)
  assert counts == {"saving": [1, 1, 1], "nothing": [2, 1, 1]}
  for a, b in zip(*map(jax.tree.leaves, results.values()), strict=True):
    assert scaled_error(a, b) <= 1e-6


def test_the_gradient_keeps_no_matrix_of_scores():
  qkv = qkv_of(13, 1, SLOTS, 4, 2, 16)
  visible_until = jnp.asarray(named_row("causal", SLOTS))[None]

  def residuals(*qkv):
    pairs = block_pairs(visible_until, BLOCK, BLOCK)
    run = lambda *qkv: tree_attention(*qkv, visible_until, pairs, interpret=True)
    return jax.tree.leaves(jax.vjp(run, *qkv)[1])

  kept = jax.eval_shape(residuals, *qkv)
  kept = [x for x in kept if x.dtype == jnp.float32 and x.ndim]
  padded = round_up(SLOTS, BLOCK)
  q, kv, lse = (1, 4, padded, 16), (1, 2, padded, 16), (1, 4, 1, padded)
  assert sorted(x.shape for x in kept) == sorted([q, kv, kv, q, lse])


def _split(mesh, **options):
  """The kernel over `mesh`: rows over data and fsdp, heads over tensor."""
  rows, heads = P(("data", "fsdp")), P(("data", "fsdp"), None, "tensor")
  call = functools.partial(tree_attention, **options)
  specs = (heads, heads, heads, rows, rows)
  # check_vma: Pallas does not say over which axes its outputs vary.
  return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)


def test_eight_devices_compute_what_one_does():
  mesh = make_mesh(data=2, fsdp=2, tensor=2)
  qkv = qkv_of(14, 8, SLOTS, 4, 2, 16)
  d_out = qkv_of(15, 8, SLOTS, 4, 4, 16)[0]
  names = ("causal", "packed", "padded", "packed")
  visible_until = jnp.asarray([named_row(name, SLOTS) for name in names * 2])

  @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
  def run(qkv, visible_until, d_out):
    pairs = block_pairs(visible_until, BLOCK, BLOCK)
    sharded = _split(mesh, interpret=True)
    out, vjp = jax.vjp(lambda *qkv: sharded(*qkv, visible_until, pairs), *qkv)
    return out, vjp(d_out)

  rows = NamedSharding(mesh, P(("data", "fsdp")))
  heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor"))
  arguments = jax.device_put((qkv, visible_until, d_out), (heads, rows, heads))
  assert_equal(run(*arguments), reference(qkv, visible_until, d_out))
  assert "all-gather" not in run.lower(*arguments).compile().as_text()


def _kernels(program: str) -> list[str]:
  """Names of the Pallas kernels that a compiled program calls."""
  calls = [x for x in program.splitlines() if 'custom_call_target="tpu_custom_call"' in x]
  return sorted(re.search("tree_attention_(forward|dq|dkv)", x)[1] for x in calls)


@pytest.mark.slow
def test_compiles_for_a_pod_without_one(chips):
  """Forward and backward, 64/8 heads of 128 as in Qwen3-32B, over rows and heads."""
  mesh = make_mesh(fsdp=2, tensor=2, devices=chips)
  slots, head_dim = 4096, 128

  def run(q, k, v, visible_until, d_out):
    pairs = block_pairs(visible_until, *block_sizes(slots, head_dim))

    def call(*qkv):
      # Heads first outside too, so that the memory counted is the kernel's own.
      qkv = (x.swapaxes(1, 2) for x in qkv)
      return _split(mesh)(*qkv, visible_until, pairs).swapaxes(1, 2)

    out, vjp = jax.vjp(call, q, k, v)
    return out, vjp(d_out)

  heads, rows = (NamedSharding(mesh, P("fsdp", *axes)) for axes in (("tensor",), ()))
  q, kv = (
    jax.ShapeDtypeStruct((2, n, slots, head_dim), jnp.bfloat16, sharding=heads) for n in (64, 8)
  )
  visible_until = jax.ShapeDtypeStruct((2, slots), jnp.int32, sharding=rows)
  compiled = jax.jit(run).lower(q, kv, kv, visible_until, q).compile()
  program = compiled.as_text()
  assert _kernels(program) == ["dkv", "dq", "forward"]
  assert "all-gather" not in program and "all-reduce" not in program
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * 2**20


@pytest.mark.slow
def test_split_rows_compile_for_a_pod_without_one(chips):
  """As above, over context: q and its gradient change places, keys are gathered."""
  mesh = make_mesh(fsdp=2, context=2, devices=chips)
  slots, head_dim = 4096, 128

  def run(q, k, v, visible_until, d_out):
    plan = dispatch.prepare("tree", visible_until, head_dim, "bfloat16")
    call = lambda *qkv: dispatch.attend(plan, *qkv, visible_until)
    out, vjp = jax.vjp(call, q, k, v)
    return out, vjp(d_out)

  place = NamedSharding(mesh, P("fsdp", "context"))
  q, kv = (
    jax.ShapeDtypeStruct((2, slots, n, head_dim), jnp.bfloat16, sharding=place) for n in (64, 8)
  )
  rows = NamedSharding(mesh, P("fsdp"))
  visible_until = jax.ShapeDtypeStruct((2, slots), jnp.int32, sharding=rows)
  with jax.set_mesh(mesh):
    compiled = jax.jit(run).lower(q, kv, kv, visible_until, q).compile()
  program = compiled.as_text()
  assert _kernels(program) == ["dkv", "dq", "forward"]
  # A device's q has 32 MiB, keys and values have 16 once gathered; measured: 74.
  assert compiled.memory_analysis().temp_size_in_bytes < (2 * 32 + 16) * 2**20
  # The halves that stay where they are take no part: one of two moves in each of four deals.
  assert len(re.findall(r" collective-permute(?:-start)?\(", program)) == 4


@pytest.mark.slow
def test_the_compiled_layers_run_the_forward_kernel_once(chips):
  chip = SingleDeviceSharding(chips[0])
  shapes = ((3, 4, 4), ((1, 256, 2, 128),) * 2, (1, 256, 4, 128))
  array = lambda shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=chip)
  is_shape = lambda x: isinstance(x[0], int)
  arguments = jax.tree.map(array, shapes, is_leaf=is_shape)
  found = {}
  for policy in _POLICIES:
    gradient = jax.jit(_layers_gradient(policy, (128, 128)))
    program = gradient.lower(*arguments, array((1, 256), jnp.int32)).compile().as_text()
    found[policy] = _kernels(program)
  once = ["dkv", "dq", "forward"]
  assert found == {"saving": once, "nothing": [*once, "forward"]}
