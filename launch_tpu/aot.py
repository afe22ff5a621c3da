"""Compiles the program that a task runs for a pod, without the pod, and says what it takes.

    python -m launch_tpu.aot --config=configs/sft.py --pod=v5p-128 --out=aot.json

Needs libtpu (`pip install '.[tpu]'`) and no TPU. Overrides of the config are those of the task:
--config.batch_size=64, --config.data.length=4096, --config.mesh.data=4. Ends with exit code 1 if
the program does not fit. Times are bounds by the chip's peaks (`launch_tpu.roofline`), not
predictions.
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

from absl import app, flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax.experimental import mesh_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
import ml_collections
from ml_collections import config_flags
import numpy as np

from her_jax import sharding
from her_jax.models.config import PRESETS, ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.state import TrainState
from launch_tpu import hlo, pods, roofline

_CONFIG = config_flags.DEFINE_config_file("config", "configs/sft.py", "Config of a task")
_POD = flags.DEFINE_enum("pod", "v5p-128", list(pods.PODS), "What to compile for")
_REMAT = flags.DEFINE_string("remat", None, "Instead of the model's: full, attention or none")
_OUT = flags.DEFINE_string("out", None, "File for the results as JSON")
_VALID_VOCAB = 151_669  # Qwen3's tokenizer.
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Result:
  """One program on one topology; bytes, FLOPs and times are a chip's."""

  program: str
  topology: str
  chips: int
  rows: int
  length: int
  hbm_peak_gib: float
  hbm_limit_gib: float
  fits: bool
  argument_gib: float
  temporary_gib: float
  flops_per_chip: float
  model_flops_per_chip: float
  collective_gib_per_chip: dict[str, float]
  roofline_seconds: dict[str, float]
  mfu_bound: float
  compile_seconds: float


def make_mesh(sizes: dict[str, int], devices: Sequence[jax.Device], slices: int) -> Mesh:
  """As `sharding.make_mesh`, with the devices laid out for the pod's network."""
  sizes = dict(sizes)
  fixed = int(np.prod([s for s in sizes.values() if s != -1]))
  sizes = {k: len(devices) // fixed if s == -1 else s for k, s in sizes.items()}
  shape = [sizes[axis] for axis in sharding.MESH_AXES]
  if slices > 1:
    # Replicas talk once a step: they are what the slow network between slices carries.
    inner = [shape[0] // slices, *shape[1:]]
    made = mesh_utils.create_hybrid_device_mesh(
      inner, [slices, 1, 1, 1], devices, allow_split_physical_axes=True
    )
  else:
    made = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  return Mesh(made, sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 4)


def train_program(config: ml_collections.ConfigDict, model: ModelConfig, mesh: Mesh) -> Any:
  """The update of SFT and of the judge, lowered on shapes alone."""
  graphdef, abstract = abstract_model(model)
  places = sharding.shardings(abstract, mesh)
  params = jax.tree.map(_placed, abstract, places)
  optimizer, _ = optimizers.build(config.optimizer, config.steps)
  everywhere = sharding.replicated(mesh)
  like: Any = jax.tree.structure(params)
  moments = jax.tree.map(
    lambda part: jax.tree.map(
      _placed, part, places if like == jax.tree.structure(part) else _same(part, everywhere)
    ),
    jax.eval_shape(optimizer.init, abstract),
    is_leaf=lambda part: like == jax.tree.structure(part),
  )
  count: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
  shape = (config.batch_size, config.data.length)
  rows = NamedSharding(mesh, sharding.RULES.spec(("batch",), shape[:1], mesh))
  batch = {
    name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows)
    for name, dtype in (
      ("tokens", jnp.int32),
      ("targets", jnp.int32),
      ("positions", jnp.int32),
      ("visible_until", jnp.int32),
      ("loss_weights", jnp.float32),
    )
  }
  step: Any = steps.make_train_step(
    graphdef, optimizer, steps.next_token_loss(_VALID_VOCAB), config.micro_batches
  )
  return step.lower(TrainState(count, params, moments), batch)


def model_flops(model: ModelConfig, rows: int, length: int) -> float:
  """Matrix products of one update: 6 a weight and token, and causal attention's.

  The embedding is looked up and not multiplied; attention's products are 2 forward and 4
  backward, each 2 · heads · head_dim FLOPs a pair of slots.
  """
  table = model.vocab_size * model.hidden_size
  weights = model.num_params() - (0 if model.tie_embeddings else table)
  pairs = length * (length + 1) / 2
  attention = 6 * 2 * model.num_layers * model.num_heads * model.head_dim * pairs
  return rows * (6 * weights * length + attention)


def report(config: ml_collections.ConfigDict, pod_name: str, remat: str | None) -> Result:
  """Compiles `config`'s update for a pod."""
  pod = pods.PODS[pod_name]
  devices = pods.devices(pod)
  changes: dict[str, Any] = {"attention": "tree" if config.mesh.context == 1 else "reference"}
  if remat:
    changes["remat"] = remat
  model = dataclasses.replace(PRESETS[config.model], **changes)
  mesh = make_mesh(config.mesh.to_dict(), devices, pod.slices)
  start = time.perf_counter()
  with jax.set_mesh(mesh):
    compiled = train_program(config, model, mesh).compile()
  seconds = time.perf_counter() - start
  memory = compiled.memory_analysis()
  counts = hlo.count(compiled.as_text(), devices=len(devices))
  chips = len(devices)
  rows, length = config.batch_size, config.data.length
  useful = model_flops(model, rows, length) / chips
  # The kernel's products do not stand in the program's text.
  pairs = rows * length * (length + 1) / 2
  attention = 6 * 2 * model.num_layers * model.num_heads * model.head_dim * pairs / chips
  bound = roofline.roofline(counts, pod.chip, useful, kernel_flops=attention)
  limit = roofline.usable_hbm_gib(pod.chip)
  peak = (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / _GIB
  return Result(
    program="train",
    topology=pod_name,
    chips=chips,
    rows=rows,
    length=length,
    hbm_peak_gib=round(peak, 2),
    hbm_limit_gib=limit,
    fits=peak <= limit,
    argument_gib=round(memory.argument_size_in_bytes / _GIB, 2),
    temporary_gib=round(memory.temp_size_in_bytes / _GIB, 2),
    flops_per_chip=counts.matmul_flops + attention,
    model_flops_per_chip=useful,
    collective_gib_per_chip={k: round(v / _GIB, 2) for k, v in counts.wire_bytes.items()},
    roofline_seconds={"compute": bound.compute_s, "hbm": bound.hbm_s, "ici": bound.ici_s},
    mfu_bound=bound.mfu,
    compile_seconds=round(seconds, 1),
  )


def _placed(value: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)


def _same(tree: Any, place: NamedSharding) -> Any:
  return jax.tree.map(lambda _: place, tree)


def main(argv: Sequence[str]) -> None:
  del argv
  result = report(_CONFIG.value, _POD.value, _REMAT.value)
  for name, value in dataclasses.asdict(result).items():
    print(f"{name:24s}{value}")
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(
      json.dumps([dataclasses.asdict(result)], indent=2) + "\n"
    )
  sys.exit(0 if result.fits else 1)


if __name__ == "__main__":
  app.run(main)
