"""Counts what a compiled program does on each device, from its text, without running it.

    compiled = jax.jit(step).lower(...).compile()  # for a TPU topology, on any machine
    counts = count(compiled.as_text(), devices=64)
    counts.matmul_flops, counts.wire_bytes["all-gather"], counts.unread_loops

XLA's own `cost_analysis` counts the body of a loop once, so a program that scans its layers
is off by their number. Here each loop counts as often as it runs.
"""

from collections import Counter
from collections.abc import Mapping
import dataclasses
import math
import re

import numpy as np

from launch_tpu import hlo_text
from launch_tpu.hlo_text import Computation, Op

# How a gather appears that the compiler made from an all-reduce of zeros and the own shard;
# it moves twice the bytes of a gather.
GATHER_BY_REDUCTION = "all-gather as all-reduce"

_COLLECTIVES = {
  "all-gather",
  "all-reduce",
  "all-to-all",
  "collective-broadcast",
  "collective-permute",
  "ragged-all-to-all",
  "reduce-scatter",
}
# What moves no bytes of its own: names for parts of buffers, and calls, whose ops count.
_FREE = {
  "add-dependency",
  "after-all",
  "bitcast",
  "call",
  "conditional",
  "constant",
  "get-tuple-element",
  "opt-barrier",
  "parameter",
  "partition-id",
  "replica-id",
  "tuple",
  "while",
}
_SLICES = {"dynamic-slice", "gather", "slice"}


@dataclasses.dataclass(frozen=True)
class Counts:
  """What one run of a program does on one device.

  Attributes:
    flops: Floating-point operations of matrix products, two for a multiplication and its
      addition, by pass: "forward", "backward", "rematerialised" (the forward pass run again
      for the backward one) and "unlabelled" (ops without JAX's name). What a Pallas kernel
      computes is not in it.
    wire_bytes: Bytes that a device sends, by kind of collective, in a ring over its group of
      g: a gather sends its shard g - 1 times, a reduce-scatter (g - 1) / g of its input, an
      all-reduce twice that.
    collective_calls: Collectives run, by kind.
    kernel_calls: Pallas kernels run, by the `name` given to `pallas_call`; without one the
      compiler names them after the function around.
    hbm_bytes: Bytes read from and written to HBM: an estimate from above, see `count`.
    trip_counts: How often each loop (the name of its `while`) runs when it is reached; None
      where that could not be read, and the loop is in the counts once.
  """

  flops: Counter[str] = dataclasses.field(default_factory=Counter)
  wire_bytes: Counter[str] = dataclasses.field(default_factory=Counter)
  collective_calls: Counter[str] = dataclasses.field(default_factory=Counter)
  kernel_calls: Counter[str] = dataclasses.field(default_factory=Counter)
  hbm_bytes: int = 0
  trip_counts: dict[str, int | None] = dataclasses.field(default_factory=dict)

  @property
  def matmul_flops(self) -> int:
    return sum(self.flops.values())

  @property
  def total_wire_bytes(self) -> int:
    return sum(self.wire_bytes.values())

  @property
  def unread_loops(self) -> tuple[str, ...]:
    """Loops that count once because nobody knows better: the counts are too low by them."""
    return tuple(name for name, trips in self.trip_counts.items() if trips is None)

  def __add__(self, other: "Counts") -> "Counts":
    return Counts(
      flops=self.flops + other.flops,
      wire_bytes=self.wire_bytes + other.wire_bytes,
      collective_calls=self.collective_calls + other.collective_calls,
      kernel_calls=self.kernel_calls + other.kernel_calls,
      hbm_bytes=self.hbm_bytes + other.hbm_bytes,
      trip_counts=self.trip_counts | other.trip_counts,
    )

  def times(self, n: float) -> "Counts":
    """The counts of `n` runs; of a part of one, where a run does the same several times."""

    def scale(counter: Counter[str]) -> Counter[str]:
      return Counter({key: round(n * value) for key, value in counter.items()})

    return Counts(
      flops=scale(self.flops),
      wire_bytes=scale(self.wire_bytes),
      collective_calls=scale(self.collective_calls),
      kernel_calls=scale(self.kernel_calls),
      hbm_bytes=round(n * self.hbm_bytes),
      trip_counts=self.trip_counts,
    )


def count(text: str, devices: int, trips: Mapping[str, int] | None = None) -> Counts:
  """Counts one run of a compiled program on one device.

  Of a conditional the branch with most FLOPs counts (then bytes sent, then HBM bytes).

  HBM bytes are what each op outside of fusions reads and writes, once each. A fusion that
  reads a slice of its input counts that slice, and one that updates a slice in place, or
  scatters into its input, counts what it updates. Arrays that the compiler put into a TPU's
  vector memory count nothing. It is an estimate from above, as nothing is said to stay on the
  chip between two ops, with two exceptions: padding of tiles is left out, and a Pallas kernel
  counts each operand once, though it may fetch a block again.

  Args:
    text: `compiled.as_text()` of a program for TPU or CPU.
    devices: Devices the program runs on; the group of a collective that names none.
    trips: Trip counts for loops that stop on data, by the name in `unread_loops`, or by the end
      of JAX's path to the loop: "jit(step)/while".

  Raises:
    ValueError: the text is cut or not HLO, or the group of a collective cannot be read.
  """
  module = hlo_text.parse(text)
  return _Reader(module, devices, trips or {}).computation(module.entry)


@dataclasses.dataclass(frozen=True)
class _Reader:
  module: hlo_text.Module
  devices: int
  trips: Mapping[str, int]

  def computation(self, computation: Computation, fused=False, again=False) -> Counts:
    """Counts one run of `computation`.

    `fused`: its values stay on the chip. `again`: XLA itself rematerialises it.
    """
    total = Counts()
    for op in computation.ops.values():
      total += self.op(computation, op, fused, again)
    return total

  def op(self, computation: Computation, op: Op, fused: bool, again: bool) -> Counts:
    again = again or ".remat" in op.name
    if op.opcode == "while":
      return self.loop(computation, op, again)
    if op.opcode == "conditional":
      runs = (self.computation(branch, fused, again) for branch in self.branches(op))
      return max(runs, key=lambda c: (c.matmul_flops, c.total_wire_bytes, c.hbm_bytes))
    counts = Counts(hbm_bytes=0 if fused else self.hbm_bytes(computation, op))
    opcode = op.opcode.removesuffix("-start")
    calls = re.search(r"\b(calls|to_apply)=", op.attributes)
    if opcode in ("fusion", "call", "async") and calls:
      called = self.module.called(op, "calls", "to_apply")
      counts += self.computation(called, fused or opcode == "fusion", again)
    elif opcode in _MATMULS:
      counts.flops[_pass(op.op_name, again)] += _MATMULS[opcode](computation, op)
    elif opcode in _COLLECTIVES:
      kind, sent = self.collective(computation, op, opcode)
      counts.wire_bytes[kind] += sent
      counts.collective_calls[kind] += 1
    elif 'custom_call_target="tpu_custom_call"' in op.attributes:
      counts.kernel_calls[re.sub(r"(\.\d+|\.clone|\.remat)+$", "", op.name)] += 1
    return counts

  def loop(self, computation: Computation, op: Op, again: bool) -> Counts:
    n = hlo_text.trip_count(self.module, computation, op)
    for key, given in self.trips.items():
      if key == op.name or op.op_name.endswith(key):
        n = given
    body = self.computation(self.module.called(op, "body"), again=again)
    return Counts(trip_counts={op.name: n}) + body.times(1 if n is None else n)

  def branches(self, op: Op) -> list[Computation]:
    if found := re.search(r"branch_computations=\{([^}]*)\}", op.attributes):
      return [self.module.computations[name] for name in re.findall(r"%([\w.\-]+)", found[1])]
    return [self.module.called(op, f"{which}_computation") for which in ("true", "false")]

  def collective(self, computation: Computation, op: Op, opcode: str) -> tuple[str, int]:
    """The kind of a collective and the bytes that a device sends for it."""
    size = sum(computation.ops[operand].bytes for operand in op.operands)
    if opcode in ("collective-broadcast", "collective-permute", "ragged-all-to-all"):
      return opcode, size
    group = _group(op, self.devices)
    if opcode == "all-gather":
      return opcode, size * (group - 1)
    if opcode == "all-reduce" and not computation.name.startswith("all-reduce-scatter"):
      gathers = all(self.is_own_shard(computation, operand) for operand in op.operands)
      kind = GATHER_BY_REDUCTION if gathers else opcode
      return kind, 2 * size * (group - 1) // group
    # A TPU's fused reduce-scatter is a fusion `all-reduce-scatter` of an all-reduce and a
    # slice, but runs as a reduce-scatter.
    kind = "reduce-scatter" if opcode == "all-reduce" else opcode
    return kind, size * (group - 1) // group

  def is_own_shard(self, computation: Computation, name: str) -> bool:
    """Whether `name` is a shard written into a buffer filled with one value."""
    op, base = computation.ops[name], None
    if op.opcode == "fusion":
      inner = self.module.called(op, "calls")
      if inner.root.opcode == "dynamic-update-slice":
        base = inner.ops[inner.root.operands[0]]
        if base.opcode == "parameter":
          base = computation.ops[op.operands[int(base.literal)]]
    elif op.opcode == "dynamic-update-slice":
      base = computation.ops[op.operands[0]]
    # A stack of gradients is updated in place too, but its base is no broadcast.
    return base is not None and base.opcode == "broadcast"

  def hbm_bytes(self, computation: Computation, op: Op) -> int:
    """Bytes that an op outside of fusions reads from and writes to HBM."""
    done = op.opcode.endswith(("-done", "-update"))  # Its start has counted them.
    if op.opcode in _FREE or done or op.opcode == "async-start" or _allocates(op):
      return 0
    operands = [computation.ops[name] for name in op.operands]
    if op.opcode == "fusion":
      inner = self.module.called(op, "calls")
      read = sum(
        self.read(inner, inner.parameters[i].name, _hbm(operand))
        for i, operand in enumerate(operands)
      )
      return read + self.written(inner, inner.root, op)
    if op.opcode in _SLICES:
      return min(_hbm(operands[0]), op.bytes) + sum(map(_hbm, operands[1:])) + _hbm(op)
    if update := _update(op):
      new = computation.ops[update]
      places = _hbm(operands[1]) if op.opcode == "scatter" else 0
      return places + _hbm(new) + min(_hbm(op), new.bytes)
    read = sum(map(_hbm, operands))
    # The result of a start holds its operands beside what it writes.
    held = read if op.opcode.endswith("-start") and op.opcode != "all-reduce-start" else 0
    return read + max(0, _hbm(op) - held)

  def read(self, fused: Computation, name: str, size: int) -> int:
    """Bytes of `size` that the fusion `fused` reads of `name`, an input or a view of one."""
    if name == fused.root.name:
      return size
    total = 0
    for user in fused.users[name]:
      positions = [i for i, operand in enumerate(user.operands) if operand == name]
      if user.opcode == "bitcast":
        total += self.read(fused, user.name, size)
      elif user.opcode in _SLICES and positions == [0]:
        total += user.bytes
      elif user.opcode == "fusion":
        inner = self.module.called(user, "calls")
        total += sum(self.read(inner, inner.parameters[i].name, size) for i in positions)
      elif (update := _update(user)) and positions == [0]:
        # A scatter may add to what was there.
        total += fused.ops[update].bytes if user.opcode == "scatter" else 0
      else:
        return size
    return min(total, size)

  def written(self, fused: Computation, root: Op, result: Op) -> int:
    """Bytes that a fusion with the output `root` writes to HBM, where `result` lies."""
    if root.opcode == "tuple" and len(root.operands) == len(result.arrays):
      parts = zip(root.operands, result.arrays, strict=True)
      return sum(
        self.written(fused, fused.ops[name], dataclasses.replace(result, arrays=(array,)))
        for name, array in parts
      )
    if root.opcode == "bitcast":
      return self.written(fused, fused.ops[root.operands[0]], result)
    if root.opcode == "fusion":
      inner = self.module.called(root, "calls")
      return self.written(inner, inner.root, result)
    if name := _update(root):
      base, update = fused.ops[root.operands[0]], fused.ops[name]
      in_place = base.opcode in ("bitcast", "parameter")
      return min(_hbm(result), update.bytes) if in_place else _hbm(result)
    return _hbm(result)


def _hbm(op: Op) -> int:
  return sum(array.bytes for array in op.arrays if array.space == 0)


def _update(op: Op) -> str | None:
  """Operand of an op that changes a part of its first one; None: it is no such op."""
  if op.opcode == "dynamic-update-slice":
    return op.operands[1]
  # Of base, places and what is written there; of several arrays at once it has more.
  return op.operands[2] if op.opcode == "scatter" and len(op.operands) == 3 else None


def _allocates(op: Op) -> bool:
  return 'custom_call_target="AllocateBuffer"' in op.attributes


def _pass(op_name: str, again: bool) -> str:
  """The pass an op belongs to, by the transformations in JAX's path to it."""
  if again or "rematted_computation" in op_name:
    return "rematerialised"
  if not op_name:
    return "unlabelled"
  return "backward" if "transpose(" in op_name else "forward"


def _group(op: Op, devices: int) -> int:
  """Devices in a group of the collective `op`, in any of the notations of replica_groups.

  `{{0,1},{2,3}}`, `[2,4]<=[8]` (2 groups of 4), `mesh['x'=4,'y'=2] {'x'}` (groups of 4; of
  2 with `{'x':(1)2}`), and `{}` or nothing: all devices.
  """
  found = re.search(r"replica_groups=(.*)", op.attributes)
  groups = found[1] if found else "{}"
  if groups.startswith("{}"):
    return devices
  if listed := re.match(r"\{\{([\d,]+)\}", groups):
    return listed[1].count(",") + 1
  if iota := re.match(r"\[[\d,]*?(\d+)\]<=", groups):
    return int(iota[1])
  if mesh := re.match(r"mesh\[([^\]]*)\][^{]*\{([^}]*)\}", groups):
    sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
    axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
    return math.prod(int(part) if part else sizes[axis] for axis, part in axes)
  raise ValueError(f"{op.name}: the notation of replica_groups is new here: {groups[:80]}")


def _dot(computation: Computation, op: Op) -> int:
  left = computation.ops[op.operands[0]].arrays[0].dims
  contracted = math.prod(left[i] for i in op.numbers("lhs_contracting_dims"))
  return 2 * math.prod(op.arrays[0].dims) * contracted


def _convolution(computation: Computation, op: Op) -> int:
  """FLOPs of a convolution, the form that matrix products have in TPU programs.

  Two for each output of each batch and feature, input feature, and pair of an output
  position and a window position that meets an input, not padding or a hole of dilation.
  XLA writes a batched product as a window over the batch of which one position meets one.
  """
  labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", op.attributes)
  if not labels:
    raise ValueError(f"{op.name}: a convolution without dim_labels")
  left, right = (computation.ops[name].arrays[0].dims for name in op.operands[:2])
  out = op.arrays[0].dims
  left_label, right_label, out_label = labels.groups()
  flops = 2 * out[out_label.index("b")] * out[out_label.index("f")]
  flops *= right[right_label.index("i")]
  for i in range(len(out) - 2):
    window = {
      key: _window(op, key, i) for key in ("size", "stride", "lhs_dilate", "rhs_dilate")
    }
    extent = (left[left_label.index(str(i))] - 1) * window["lhs_dilate"] + 1
    at = np.arange(out[out_label.index(str(i))]) * window["stride"] - _window(op, "pad", i)
    flops *= sum(
      int(np.sum((p >= 0) & (p < extent) & (p % window["lhs_dilate"] == 0)))
      for p in (at + k * window["rhs_dilate"] for k in range(window["size"]))
    )
  return flops


def _window(op: Op, key: str, i: int) -> int:
  """Dimension `i` of a convolution's window: `window={size=3x3 pad=1_1x0_0}`; low padding."""
  found = re.search(rf"window=\{{(?:[^}}]* )?{key}=([^ }}]*)", op.attributes)
  if not found:
    return 0 if key == "pad" else 1
  return int(found[1].split("x")[i].split("_")[0])


_MATMULS = {"convolution": _convolution, "dot": _dot}
