"""Imports point down only, and the ground floor knows no JAX."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# From the ground up. Rooms of one floor may use each other.
FLOORS = (
  ("her_jax.roleplay",),
  ("her_jax.models", "her_jax.sharding", "her_jax.hf"),
  ("her_jax.inference", "her_jax.training"),
  ("her_jax.llm", "data_pipeline"),
  ("her_jax.rl", "her_jax.evaluation", "her_jax.serving"),
  ("her_jax.tasks",),
  ("her_jax.command_line", "her_jax.main"),
)
# Tools of one file that belong to no floor: they import none of the rooms.
TOOLS = (
  "her_jax.distributed", "her_jax.peers", "her_jax.errors", "her_jax.locks", "her_jax.cpu_backend",
)  # fmt: skip
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "tensorflow", "torch"}


def _module(path: pathlib.Path) -> str:
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _modules() -> dict[str, pathlib.Path]:
  files = [*ROOT.glob("her_jax/**/*.py"), *ROOT.glob("data_pipeline/**/*.py")]
  return {_module(path): path for path in files}


def _imports(path: pathlib.Path) -> set[str]:
  """Absolute names of all that a file imports, also inside functions."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return found


def _room(module: str) -> str | None:
  rooms = [*(room for floor in FLOORS for room in floor), *TOOLS]
  return next((r for r in rooms if module == r or module.startswith(f"{r}.")), None)


def _floor(room: str) -> int:
  return next(i for i, floor in enumerate(FLOORS) if room in floor)


def _outside() -> set[str]:
  """Modules without a floor: packages that only hold others."""
  return {module for module in _modules() if _room(module) is None}


def test_every_module_has_a_floor():
  assert _outside() == {"her_jax"}


def test_imports_point_down():
  upward = []
  for module, path in _modules().items():
    room = _room(module)
    for imported in _imports(path):
      other = _room(imported)
      if room is None or other is None or other == room:
        continue
      if other in TOOLS:
        continue
      if room in TOOLS:
        upward.append(f"{module} (a tool) -> {imported}")
      elif _floor(other) > _floor(room):
        upward.append(f"{module} -> {imported}")
  assert not upward


def test_the_test_would_see_an_upward_import():
  assert _floor(_room("her_jax.rl.rollout")) > _floor(_room("her_jax.roleplay.chat"))
  assert _floor(_room("data_pipeline.trees")) > _floor(_room("her_jax.training.step"))
  assert _floor(_room("her_jax.rl.judge")) == _floor(_room("her_jax.evaluation.judge"))
  assert "her_jax.roleplay.chat" in _imports(ROOT / "her_jax/hf/tokenizer.py")


@pytest.mark.parametrize("package", ["roleplay"])
def test_the_ground_floor_imports_no_jax(package):
  heavy = {
    f"{module} -> {imported}"
    for module, path in _modules().items()
    if module.startswith(f"her_jax.{package}")
    for imported in _imports(path)
    if imported.split(".")[0] in HEAVY
  }
  assert not heavy


def test_configs_import_no_task():
  """A config is data: reading it starts nothing."""
  for path in ROOT.glob("configs/*.py"):
    rooms = {_room(name) for name in _imports(path)} - {None}
    assert rooms <= {"her_jax.models"}, path
