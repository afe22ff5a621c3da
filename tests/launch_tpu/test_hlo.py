"""launch_tpu/hlo.py and roofline.py: what they count equals arithmetic done by hand.

The programs are compiled for eight fake CPU devices.
"""

import textwrap

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import pytest

from launch_tpu import hlo, hlo_text
from launch_tpu.roofline import CHIPS, Roofline, roofline, usable_hbm_gib

_M, _K, _N = 64, 128, 32
_ROWS, _WIDTH, _LAYERS = 16, 32, 5
_LAYER_FLOPS = 2 * _ROWS * _WIDTH * _WIDTH


def _text(function, *arguments, **options) -> str:
  return jax.jit(function, **options).lower(*arguments).compile().as_text()


def _count(function, *arguments, **options) -> hlo.Counts:
  return hlo.count(_text(function, *arguments, **options), devices=8)


def _array(*shape, dtype=jnp.float32, sharding=None):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _layers(x, weights):
  return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


_X, _WEIGHTS = _array(_ROWS, _WIDTH), _array(_LAYERS, _WIDTH, _WIDTH)


@pytest.fixture(scope="module", autouse=True)
def _eight_devices():
  assert jax.device_count() == 8, "tests/conftest.py must run before JAX is imported."


# Matrix products and loops.


def test_matmul_counts_flops_and_each_array_once():
  counts = _count(jnp.matmul, _array(_M, _K), _array(_K, _N))
  assert counts.matmul_flops == 2 * _M * _K * _N
  assert counts.flops == {"forward": 2 * _M * _K * _N}
  assert counts.hbm_bytes == 4 * (_M * _K + _K * _N + _M * _N)
  assert counts.unread_loops == () and not counts.wire_bytes and not counts.kernel_calls


def test_batched_matmul():
  counts = _count(jnp.matmul, _array(3, _M, _K), _array(3, _K, _N))
  assert counts.matmul_flops == 3 * 2 * _M * _K * _N


@pytest.mark.parametrize(
  "stride, pairs",
  [
    (1, 14 * 3 + 2 * 2),  # 16 windows of 3; the first and the last meet 2 inputs.
    (2, 7 * 3 + 2),  # 8 windows; the last meets 2.
  ],
)
def test_convolution_leaves_padding_out(stride, pairs):
  def convolve(x, kernel):
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, kernel, (stride,), "SAME", dimension_numbers=numbers)

  counts = _count(convolve, _array(2, 16, 8), _array(3, 8, 4))
  assert counts.matmul_flops == 2 * 2 * 4 * 8 * pairs


def test_scan_counts_every_layer():
  counts = _count(_layers, _X, _WEIGHTS)
  assert counts.matmul_flops == _LAYERS * _LAYER_FLOPS
  assert list(counts.trip_counts.values()) == [_LAYERS]


def test_nested_scans_multiply():
  def blocks(x, weights):
    return lax.scan(lambda x, _: (_layers(x, weights), None), x, None, length=3)[0]

  counts = _count(blocks, _X, _WEIGHTS)
  assert counts.matmul_flops == 3 * _LAYERS * _LAYER_FLOPS
  assert sorted(counts.trip_counts.values()) == [3, _LAYERS]


def test_scan_reads_its_slice_of_the_weights_and_not_all_of_them():
  layers, width = 50, 64
  counts = _count(_layers, _array(1, width), _array(layers, width, width))
  once = 4 * layers * width * width
  # XLA copies each slice out and multiplies by the copy: three times the weights. Reading
  # the whole stack in each step would be fifty times.
  assert once <= counts.hbm_bytes <= 3.5 * once


@pytest.mark.parametrize(
  "start, step, test, trips",
  [
    (0, 1, lambda i: i < 7, 7),
    (3, 2, lambda i: i < 8, 3),  # 3, 5, 7
    (3, 2, lambda i: i <= 9, 4),
    (9, -2, lambda i: i > 2, 4),  # 9, 7, 5, 3
    (9, -3, lambda i: i >= 3, 3),
    (1, 3, lambda i: i != 13, 4),
    (0, 1, lambda i: i + 2 < 8, 6),
    (0, 1, lambda i: 7 > i, 7),
  ],
)
def test_trip_counts_are_worked_out_where_the_compiler_gives_none(start, step, test, trips):
  def loop(x, w):
    step_once = lambda c: (c[0] + step, c[1] @ w)
    return lax.while_loop(lambda c: test(c[0]), step_once, (start, x))[1]

  text = _text(loop, _X, _array(_WIDTH, _WIDTH)).replace("known_trip_count", "hidden")
  counts = hlo.count(text, 8)
  assert list(counts.trip_counts.values()) == [trips]
  assert counts.matmul_flops == trips * _LAYER_FLOPS


def test_a_loop_that_stops_on_data_is_reported():
  def loop(n, x, w):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ w), (0, x))

  text = _text(loop, _array(dtype=jnp.int32), _X, _array(_WIDTH, _WIDTH))
  counts = hlo.count(text, 8)
  assert len(counts.unread_loops) == 1
  assert counts.matmul_flops == _LAYER_FLOPS
  with pytest.raises(ValueError, match=counts.unread_loops[0]):
    roofline(counts, "v5p", model_flops=1.0)
  told = hlo.count(text, 8, trips={counts.unread_loops[0]: 9})
  assert told.unread_loops == () and told.matmul_flops == 9 * _LAYER_FLOPS
  assert hlo.count(text, 8, trips={"jit(loop)/while": 9}) == told
  part = told.times(1 / 9)
  assert part.matmul_flops == _LAYER_FLOPS and part.hbm_bytes == round(told.hbm_bytes / 9)


def test_a_scatter_in_place_counts_what_it_writes():
  # As a TPU has it, in a fusion of its own.
  text = _module(
    """
      %pool = f32[9,50,64]{2,1,0} parameter(0)
      %at = s32[3,2]{1,0} parameter(1)
      %new = f32[3,64]{1,0} parameter(2)
      ROOT %written = f32[9,50,64]{2,1,0} fusion(%pool, %at, %new), kind=kCustom, calls=%write
    """,
    textwrap.dedent(
      """
      %replace (a: f32[], b: f32[]) -> f32[] {
        %a = f32[] parameter(0)
        ROOT %b = f32[] parameter(1)
      }

      %write (pool.1: f32[9,50,64], at.1: s32[3,2], new.1: f32[3,64]) -> f32[9,50,64] {
        %pool.1 = f32[9,50,64]{2,1,0} parameter(0)
        %at.1 = s32[3,2]{1,0} parameter(1)
        %new.1 = f32[3,64]{1,0} parameter(2)
        ROOT %scatter = f32[9,50,64]{2,1,0} scatter(%pool.1, %at.1, %new.1), update_window_dims={1}, to_apply=%replace
      }
      """
    ),
  )
  # What is written is read before, and the old numbers, as some scatters add to them.
  assert hlo.count(text, devices=1).hbm_bytes == 4 * 3 * 2 + 3 * 4 * 3 * 64


def test_checkpointed_layers_count_what_they_recompute():
  def loss(x, weights):
    layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
    return lax.scan(layer, x, weights)[0].sum()

  flops = _count(jax.grad(loss, argnums=(0, 1)), _X, _WEIGHTS).flops
  stack = _LAYERS * _LAYER_FLOPS
  # Backward: the gradients of the input and of the weight.
  assert flops == {"forward": stack, "rematerialised": stack, "backward": 2 * stack}


def test_the_largest_branch_counts():
  def choose(which, x, w):
    branches = [lambda x: x, lambda x: x @ w @ w @ w, lambda x: x @ w]
    return lax.switch(which, branches, x)

  counts = _count(choose, _array(dtype=jnp.int32), _X, _array(_WIDTH, _WIDTH))
  assert counts.matmul_flops == 3 * _LAYER_FLOPS

  def either(which, x, w):
    return lax.cond(which, lambda x: x @ w, lambda x: x @ w @ w, x)

  counts = _count(either, _array(dtype=jnp.bool), _X, _array(_WIDTH, _WIDTH))
  assert counts.matmul_flops == 2 * _LAYER_FLOPS


# Collectives.


def _mesh(**axes: int):
  auto = (AxisType.Auto,) * len(axes)
  return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto)


def _sharded(mesh, *shape, spec):
  return _array(*shape, sharding=NamedSharding(mesh, P(*spec)))


def test_gathered_weights():
  mesh = _mesh(fsdp=8)
  x = _sharded(mesh, _M, _K, spec=("fsdp", None))
  w = _sharded(mesh, _K, _N, spec=("fsdp", None))
  counts = _count(jnp.matmul, x, w, out_shardings=x.sharding)
  assert counts.matmul_flops == 2 * _M * _K * _N // 8
  # Each device sends its eighth of the weight seven times around the ring.
  assert counts.wire_bytes == {"all-gather": 7 * 4 * _K * _N // 8}
  assert counts.collective_calls == {"all-gather": 1}


def test_gathers_in_a_scan_count_every_layer():
  mesh = _mesh(data=2, fsdp=4)
  x = _sharded(mesh, _ROWS, _WIDTH, spec=(("data", "fsdp"), None))
  weights = _sharded(mesh, _LAYERS, _WIDTH, _WIDTH, spec=(None, "fsdp", None))
  counts = _count(_layers, x, weights, out_shardings=x.sharding)
  assert counts.matmul_flops == _LAYERS * _LAYER_FLOPS // 8
  assert counts.wire_bytes == {"all-gather": _LAYERS * 3 * 4 * _WIDTH * _WIDTH // 4}
  assert counts.collective_calls == {"all-gather": _LAYERS}


@pytest.mark.parametrize(
  "axes, sharded, devices", [({"x": 8}, "x", 8), ({"y": 2, "x": 4}, "x", 4)]
)
def test_reduced_products(axes, sharded, devices):
  mesh = _mesh(**axes)
  x = _sharded(mesh, _M, _K, spec=(None, sharded))
  w = _sharded(mesh, _K, _N, spec=(sharded, None))
  size = 4 * _M * _N

  def product(reduce, out):
    run = lambda x, w: reduce(x @ w, sharded)
    return jax.shard_map(
      run, mesh=mesh, in_specs=(x.sharding.spec, w.sharding.spec), out_specs=out
    )

  counts = _count(product(lax.psum, P()), x, w)
  assert counts.matmul_flops == 2 * _M * _K * _N // devices
  assert counts.wire_bytes == {"all-reduce": 2 * size * (devices - 1) // devices}

  scatter = lambda y, axis: lax.psum_scatter(y, axis, scatter_dimension=0, tiled=True)
  counts = _count(product(scatter, P(sharded)), x, w)
  assert counts.wire_bytes == {"reduce-scatter": size * (devices - 1) // devices}


def test_exchanges():
  def exchange(x):
    ring = [(i, (i + 1) % 8) for i in range(8)]
    return lax.all_to_all(x, "x", 0, 1, tiled=True), lax.ppermute(x, "x", ring)

  mesh = _mesh(x=8)
  run = jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
  counts = _count(run, _sharded(mesh, 64, 64, spec=("x",)))
  shard = 4 * 64 * 64 // 8
  assert counts.wire_bytes == {"all-to-all": shard * 7 // 8, "collective-permute": shard}
  assert counts.collective_calls == {"all-to-all": 1, "collective-permute": 1}


# Text that only TPU compilers write, and text that is not a program.


def _module(body: str, before: str = "") -> str:
  return f"HloModule test\n\n{before}\nENTRY %main (p: f32[8,4]) -> f32[8,4] {{\n{body}\n}}\n"


@pytest.mark.parametrize(
  "groups, group",
  [
    ("{{0,1,2,3},{4,5,6,7}}", 4),
    ("[4,2]<=[2,4]T(1,0)", 2),
    ("[1,8]<=[8]", 8),
    ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", 2),
    ("mesh['a'=2,'b'=4] {'a','b'}", 8),
    ("mesh['a'=2,'b'=4] {'b':(2)2}", 2),
    ("{}", 8),
  ],
)
def test_notations_of_groups(groups, group):
  text = _module(
    "  %p = f32[8,4]{1,0} parameter(0)\n"
    f"  ROOT %r = f32[8,4]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
  )
  wire = hlo.count(text, devices=8).wire_bytes["all-reduce"]
  assert wire == 2 * 128 * (group - 1) // group


def test_an_unknown_notation_of_groups_is_an_error():
  text = _module(
    "  %p = f32[8,4]{1,0} parameter(0)\n"
    "  ROOT %r = f32[8,4]{1,0} all-reduce(%p), replica_groups=@every_other, to_apply=%add"
  )
  with pytest.raises(ValueError, match="@every_other"):
    hlo.count(text, devices=8)


def test_a_gather_made_from_a_reduction_has_a_name_of_its_own():
  fusion = textwrap.dedent("""\
    %place (b: f32[8,4], s: f32[1,4], i: u32[]) -> f32[8,4] {
      %b = f32[8,4]{1,0} parameter(0)
      %s = f32[1,4]{1,0} parameter(1)
      %i = u32[] parameter(2)
      ROOT %u = f32[8,4]{1,0} dynamic-update-slice(%b, %s, %i, %i)
    }
  """)
  body = """\
  %shard = f32[1,4]{1,0} parameter(0)
  %i = u32[] partition-id()
  %zero = f32[] constant(0)
  %base = f32[8,4]{1,0} BASE
  %placed = f32[8,4]{1,0} fusion(%base, %shard, %i), kind=kLoop, calls=%place
  ROOT %r = f32[8,4]{1,0} all-reduce(%placed), replica_groups={}, to_apply=%add"""
  zeros = _module(body.replace("BASE", "broadcast(%zero), dimensions={}"), fusion)
  sent = 2 * 128 * 7 // 8
  assert hlo.count(zeros, 8).wire_bytes == {hlo.GATHER_BY_REDUCTION: sent}
  # Gradients of which one layer's was just written are a reduction like any other.
  stacked = _module(body.replace("BASE", "parameter(1)"), fusion)
  assert hlo.count(stacked, 8).wire_bytes == {"all-reduce": sent}


@pytest.mark.parametrize("handed_on, trips", [("%limit", 5), ("%next", None)])
def test_an_inner_limit_is_sought_in_the_loops_around(handed_on, trips):
  # TPU programs keep constants in the tuples of their loops.
  loops = textwrap.dedent("""\
    %inner_body (c: (s32[], s32[])) -> (s32[], s32[]) {
      %c = (s32[], s32[]) parameter(0)
      %j = s32[] get-tuple-element(%c), index=0
      %limit = s32[] get-tuple-element(%c), index=1
      %one = s32[] constant(1)
      %next = s32[] add(%j, %one)
      ROOT %t = (s32[], s32[]) tuple(%next, %limit)
    }
    %test (c: (s32[], s32[])) -> pred[] {
      %c = (s32[], s32[]) parameter(0)
      %j = s32[] get-tuple-element(%c), index=0
      %limit = s32[] get-tuple-element(%c), index=1
      ROOT %less = pred[] compare(%j, %limit), direction=LT
    }
    %outer_body (c: (s32[], s32[])) -> (s32[], s32[]) {
      %c = (s32[], s32[]) parameter(0)
      %i = s32[] get-tuple-element(%c), index=0
      %limit = s32[] get-tuple-element(%c), index=1
      %zero = s32[] constant(0)
      %one = s32[] constant(1)
      %start = (s32[], s32[]) tuple(%zero, %limit)
      %inner = (s32[], s32[]) while(%start), condition=%test, body=%inner_body
      %next = s32[] add(%i, %one)
      ROOT %t = (s32[], s32[]) tuple(%next, HANDED_ON)
    }
  """).replace("HANDED_ON", handed_on)
  text = _module(
    "  %p = f32[8,4]{1,0} parameter(0)\n"
    "  %two = s32[] constant(2)\n"
    "  %five = s32[] constant(5)\n"
    "  %start = (s32[], s32[]) tuple(%two, %five)\n"
    "  %outer = (s32[], s32[]) while(%start), condition=%test, body=%outer_body\n"
    "  ROOT %n = f32[8,4]{1,0} negate(%p)",
    loops,
  )
  outer = None if trips is None else 3  # From two to five.
  assert hlo.count(text, 8).trip_counts == {"outer": outer, "inner": trips}


def test_arrays_in_vector_memory_are_not_hbm():
  text = _module(
    "  %p = f32[8,4]{1,0} parameter(0)\n"
    "  %s = (f32[8,4]{1,0:T(8,128)S(1)}, f32[8,4]{1,0}, u32[]{:S(2)}) copy-start(%p)\n"
    "  %d = f32[8,4]{1,0:T(8,128)S(1)} copy-done(%s)\n"
    "  %n = f32[8,4]{1,0:T(8,128)S(1)} negate(%d)\n"
    "  ROOT %o = f32[8,4]{1,0} strange-new-op(%n), mode={of=[1]}"
  )
  assert hlo.count(text, 8).hbm_bytes == 128 + 128  # In by the copy, out by the last op.


def test_metadata_over_several_lines():
  text = _module(
    "  %p = f32[8,4]{1,0} parameter(0)\n"
    '  ROOT %flash.3 = f32[8,4]{1,0} custom-call(%p), custom_call_target="tpu_custom_call", '
    'frontend_attributes={kernel_metadata={\n"a":"{\\"b\\": 1"\n}}, '
    'metadata={op_name="jit(f)/flash"}'
  )
  assert hlo.count(text, 8).kernel_calls == {"flash": 1}


def test_cut_text_says_so():
  text = _text(_layers, _X, _WEIGHTS)
  whole = hlo.count(text, 8)
  end = text.rindex("}")
  for length in range(0, end, 97):
    with pytest.raises(ValueError, match="cut"):
      hlo.count(text[:length], 8)
  assert hlo.count(text[: end + 1], 8) == whole
  with pytest.raises(ValueError, match="ends within the computation main"):
    hlo.count(text[: text.rindex("ROOT")], 8)


def test_array_sizes():
  sizes = {"pred": 32, "bf16": 64, "f8e4m3fn": 32, "s4": 16, "token": 0, "c64": 256}
  for dtype, size in sizes.items():
    assert hlo_text.Array(dtype, (8, 4)).bytes == size


# The bound.


def test_roofline_by_hand():
  counts = hlo.Counts(hbm_bytes=2765 * 10**9)
  counts.flops["forward"] = 459 * 10**12
  counts.wire_bytes["all-gather"] = 1200 * 10**9
  bound = roofline(counts, "v5p", model_flops=459e12, kernel_flops=459e12)
  assert bound == Roofline(compute_s=2.0, hbm_s=1.0, ici_s=2.0, model_s=1.0)
  assert bound.step_s == 2.0 and bound.mfu == 0.5 and bound.limit == "compute"
  # A device of tpu7x is half a chip.
  assert roofline(counts, "tpu7x", model_flops=2307e12).model_s == 2.0


def test_chips():
  assert [usable_hbm_gib(chip) for chip in ("v5p", "v6e", "v5e")] == [95, 31, 15.75]
  for chip in CHIPS.values():
    assert chip.usable_gib * chip.devices <= chip.hbm_gib
  with pytest.raises(ValueError, match="v5p"):
    usable_hbm_gib("v5")
