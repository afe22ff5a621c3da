"""Reading the text of a compiled program: its computations, and how often its loops run.

`compiled.as_text()` is a list of computations, the last of them ENTRY; each is a list of ops:

    %body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
      %p = (s32[], f32[8,4]{1,0}) parameter(0)
      %i = s32[] get-tuple-element(%p), index=0
      ...
      ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%next, %x), metadata={op_name="jit(f)/while"}
    }

Only what counting needs is kept: shapes, opcodes, operands, and the attributes as text.
Opcodes are not checked against a list: an op nobody asks about costs nothing.
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
import re

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OP = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)", re.DOTALL)
_LEAF = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^}]*)\})?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}]', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Array:
  """An array's type: dtype, dimensions, and the memory it lies in.

  `space` is the S(n) of a TPU layout: 0 HBM, 1 vector memory, 2 semaphores, 5 the host's
  memory, 6 scalar memory. CPU programs name none, so all of their arrays count as 0.
  """

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def bytes(self) -> int:
    """Bytes of the elements alone; the padding of a TPU's (8, 128) tiles is not in it."""
    if self.dtype == "pred":
      return math.prod(self.dims)
    bits = re.match(r"[a-z]+(\d+)", self.dtype)  # f8e4m3fn has 8; token and opaque have none.
    return -(-int(bits[1]) * math.prod(self.dims) // 8) if bits else 0


@dataclasses.dataclass(frozen=True)
class Op:
  """One op: `%name = arrays opcode(%operands), attributes`.

  `arrays` holds the result's leaves, a nested tuple flattened; `literal` is the text between
  the parentheses (a constant's value, a parameter's number).
  """

  name: str
  opcode: str
  arrays: tuple[Array, ...]
  operands: tuple[str, ...]
  literal: str
  attributes: str

  def attribute(self, key: str) -> str | None:
    """The word after `key=`, without the % of a computation's name."""
    found = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
    return found[1] if found else None

  def numbers(self, key: str) -> list[int]:
    """The integers of `key={1,2}`; [] where the op has no such attribute."""
    found = re.search(rf"\b{key}=\{{([\d,]*)\}}", self.attributes)
    return [int(n) for n in found[1].split(",") if n] if found else []

  @property
  def op_name(self) -> str:
    """JAX's path to the op, such as `jit(step)/transpose(jvp())/while/body/dot_general`."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found[1] if found else ""

  @property
  def bytes(self) -> int:
    return sum(array.bytes for array in self.arrays)


@dataclasses.dataclass(frozen=True)
class Computation:
  """Ops by name, in the order of the text."""

  name: str
  ops: dict[str, Op]
  root: Op

  @functools.cached_property
  def users(self) -> dict[str, list[Op]]:
    """The ops that read each op."""
    users: dict[str, list[Op]] = {name: [] for name in self.ops}
    for op in self.ops.values():
      for operand in dict.fromkeys(op.operands):
        users[operand].append(op)
    return users

  @functools.cached_property
  def parameters(self) -> dict[int, Op]:
    return {int(op.literal): op for op in self.ops.values() if op.opcode == "parameter"}


@dataclasses.dataclass(frozen=True)
class Module:
  """A whole program."""

  computations: dict[str, Computation]
  entry: Computation

  def called(self, op: Op, *keys: str) -> Computation:
    """The computation that the first of the attributes `keys` names."""
    name = next((found for key in keys if (found := op.attribute(key))), None)
    if name not in self.computations:
      raise ValueError(f"{op.name} calls {name}, which the text lacks: is it cut?")
    return self.computations[name]

  @functools.cached_property
  def loops(self) -> dict[str, tuple[Computation, Op]]:
    """For the body and the condition of each loop: where its `while` stands."""
    return {
      name: (computation, op)
      for computation in self.computations.values()
      for op in computation.ops.values()
      if op.opcode == "while"
      for name in (op.attribute("body"), op.attribute("condition"))
      if name
    }


def parse(text: str) -> Module:
  """Parses what `compiled.as_text()` gives.

  Raises:
    ValueError: the text is not HLO, or it is cut: a computation does not end, ENTRY is
      missing, or an op reads one that is not there.
  """
  computations: dict[str, Computation] = {}
  entry = None
  header: re.Match[str] | None = None
  ops: list[tuple[bool, Op]] = []
  pending = ""
  for line in text.splitlines():
    if header is None:
      header, ops = _HEADER.match(line), []
      continue
    # Metadata of Pallas kernels spills over lines, some of which begin like the end of a
    # computation: an op lasts until its brackets are closed.
    pending = f"{pending}\n{line}" if pending else line
    bare = _STRING.sub("", pending)
    if bare.startswith("}"):
      computations[header[2]] = done = _computation(header[2], ops)
      entry = done if header[1] else entry
      header, pending = None, ""
    elif bare.count("(") == bare.count(")") and bare.count("{") == bare.count("}"):
      if op := _op(pending):
        ops.append(op)
      pending = ""
  if header is not None:
    raise ValueError(f"the HLO text is cut: it ends within the computation {header[2]}")
  if entry is None:
    raise ValueError("no ENTRY computation: the text is cut, or it is not HLO")
  return Module(computations, entry)


def _computation(name: str, ops: list[tuple[bool, Op]]) -> Computation:
  by_name = {op.name: op for _, op in ops}
  for _, op in ops:
    if missing := [operand for operand in op.operands if operand not in by_name]:
      raise ValueError(f"{op.name} reads {missing[0]}, which {name} lacks: is the text cut?")
  root = next((op for is_root, op in ops if is_root), None)
  if root is None:
    raise ValueError(f"the computation {name} has no ROOT: is the text cut?")
  return Computation(name, by_name, root)


def _op(line: str) -> tuple[bool, Op] | None:
  """An op and whether it is the root; None for a line that is no op."""
  found = _OP.match(line)
  if not found:
    return None
  rest = found[3]
  shape_end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
  opcode = re.compile(r"\s*([\w\-]+)\(").match(rest, shape_end)
  if not opcode:
    return None
  end = _closing(rest, opcode.end() - 1)
  literal = rest[opcode.end() : end - 1]
  return bool(found[1]), Op(
    name=found[2],
    opcode=opcode[1],
    arrays=_arrays(rest[:shape_end]),
    operands=tuple(re.findall(r"%([\w.\-]+)", literal)),
    literal=literal,
    attributes=rest[end:],
  )


def _closing(text: str, start: int) -> int:
  """The position after the bracket that closes the one at `start`."""
  depth = 0
  for found in _BRACKET.finditer(text, start):
    depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(found[0], 0)
    if depth == 0:
      return found.end()
  raise ValueError(f"a bracket is not closed: {text[:80]}")


def _arrays(shape: str) -> tuple[Array, ...]:
  arrays = []
  for dtype, dims, layout in _LEAF.findall(shape):
    space = re.search(r"S\((\d+)\)", layout)
    # `<=8` is a dimension of at most 8.
    sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
    arrays.append(Array(dtype, sizes, int(space[1]) if space else 0))
  return tuple(arrays)


@dataclasses.dataclass(frozen=True)
class _Scalar:
  """A scalar as the element of the loop's tuple plus an offset; None: the offset alone."""

  element: int | None
  offset: int


_FORWARDS = {"copy", "copy-start", "copy-done", "convert", "bitcast", "reshape", "opt-barrier"}
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def trip_count(module: Module, outer: Computation, loop: Op) -> int | None:
  """How often the `while` op `loop` of the computation `outer` runs its body.

  CPU programs write it down (known_trip_count). TPU programs do not, so it is worked out
  from the first value, the step and the limit of the counter. All three matter: a gather
  that the compiler turned into a ring of permutes counts to 8 in steps of 2.

  Returns:
    The count, or None where it depends on data or has a form not known here.
  """
  if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
    return int(known[1])
  body, test = module.called(loop, "body"), module.called(loop, "condition")
  found = _comparison(module, test)
  if found is None:
    return None
  direction, left, right = found
  if left.element is None or _unchanged(module, body, left.element):
    # The limit stands on the left: `8 > i` is `i < 8`.
    direction, left, right = _MIRRORED.get(direction, ""), right, left
  limit = _constant(module, body, right)
  if left.element is None or limit is None:
    return None
  start = _element(module, outer, loop.operands[0], left.element)
  first = _constant(module, outer, start) if start else None
  step = _element(module, body, body.root.name, left.element)
  if first is None or step is None or step.element != left.element or not step.offset:
    return None
  return _steps(direction, first + left.offset, step.offset, limit)


def _steps(direction: str, first: int, step: int, limit: int) -> int | None:
  """How often `first + k * step` meets the test, k counting from 0, until it first fails.

  `0 < 8` in steps of 2 gives 4; `3 <= 8` in steps of 2 gives 3 (3, 5, 7).
  """
  if direction in ("GT", "GE"):
    direction, first, step, limit = _MIRRORED[direction], -first, -step, -limit
  if direction == "NE":
    steps, rest = divmod(limit - first, step)
    return steps if steps >= 0 and not rest else None
  if direction not in ("LT", "LE") or step < 0:
    return None
  return max(0, -(-(limit + (direction == "LE") - first) // step))


def _comparison(module: Module, test: Computation) -> tuple[str, _Scalar, _Scalar] | None:
  """Direction and both sides of the comparison that a loop's condition returns."""
  inner, bound = test, None
  if test.root.opcode in ("fusion", "call"):
    inner = module.called(test.root, "calls", "to_apply")
    bound = _bound(module, test, test.root)
  if inner.root.opcode != "compare":
    return None
  left, right = (_scalar(module, inner, name, bound) for name in inner.root.operands)
  direction = inner.root.attribute("direction")
  return (direction, left, right) if direction and left and right else None


def _scalar(
  module: Module,
  computation: Computation,
  name: str,
  bound: Mapping[int, _Scalar | None] | None = None,
) -> _Scalar | None:
  """The op `name` in terms of the tuple of the loop that `computation` belongs to.

  `bound` gives the parameters' values where `computation` is a fusion's.
  """
  op = computation.ops[name]
  if op.opcode == "constant":
    return _Scalar(None, int(op.literal)) if re.fullmatch(r"-?\d+", op.literal) else None
  if op.opcode in _FORWARDS:
    return _scalar(module, computation, op.operands[0], bound)
  if op.opcode == "parameter":
    return bound.get(int(op.literal)) if bound else None
  if op.opcode == "get-tuple-element":
    return _element(module, computation, op.operands[0], int(op.attribute("index") or 0))
  if op.opcode in ("add", "subtract"):
    a, b = (_scalar(module, computation, operand, bound) for operand in op.operands)
    if a and b and op.opcode == "subtract" and b.element is None:
      return _Scalar(a.element, a.offset - b.offset)
    if a and b and op.opcode == "add" and None in (a.element, b.element):
      element = b.element if a.element is None else a.element
      return _Scalar(element, a.offset + b.offset)
    return None
  if op.opcode in ("fusion", "call"):
    inner = module.called(op, "calls", "to_apply")
    return _scalar(module, inner, inner.root.name, _bound(module, computation, op))
  return None


def _bound(module: Module, computation: Computation, op: Op) -> dict[int, _Scalar | None]:
  """The parameters' values inside of the fusion `op`."""
  return {i: _scalar(module, computation, operand) for i, operand in enumerate(op.operands)}


def _element(module: Module, computation: Computation, name: str, i: int) -> _Scalar | None:
  """Element `i` of the tuple `name`."""
  op = computation.ops[name]
  if op.opcode == "tuple":
    return _scalar(module, computation, op.operands[i])
  if op.opcode == "parameter":
    return _Scalar(i, 0)
  if op.opcode == "while" and _unchanged(module, module.called(op, "body"), i):
    return _element(module, computation, op.operands[0], i)
  return None


def _unchanged(module: Module, body: Computation, i: int) -> bool:
  """Whether a loop's body hands element `i` on as it came."""
  return _element(module, body, body.root.name, i) == _Scalar(i, 0)


def _constant(module: Module, computation: Computation, value: _Scalar) -> int | None:
  """The number behind `value`, sought in the loops around where no loop changes it."""
  if value.element is None:
    return value.offset
  if computation.name not in module.loops:
    return None
  outer, loop = module.loops[computation.name]
  if not _unchanged(module, module.called(loop, "body"), value.element):
    return None
  start = _element(module, outer, loop.operands[0], value.element)
  first = _constant(module, outer, start) if start else None
  return None if first is None else first + value.offset
