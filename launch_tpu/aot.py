"""Compiles the programs that a task runs for a pod, without the pod, and says what they take.

    python -m launch_tpu.aot --config=configs/sft.py:v5p-128 --programs=train --out=aot.json
    python -m launch_tpu.aot --config=configs/rl.py:v5p-128 --programs=train,gather,prefill,decode

Needs libtpu (`pip install '.[tpu]'`) and no TPU. Overrides of the config are those of the task:
--config.batch_size=64, --config.remat=full, --config.mesh.data=4. Ends with exit code 1 if a
program does not fit, and names a change by which it does. Times are bounds by the chip's peaks
(`launch_tpu.roofline` says what they assume), not predictions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

from absl import app, flags, logging

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import ml_collections
from ml_collections import config_flags
from rich.console import Console
from rich.table import Table

from her_jax import command_line, sharding
from her_jax.errors import ConfigError
from launch_tpu import arithmetic, hlo, host_programs, pods, programs, roofline

_DEFAULT = "configs/sft.py:v5p-128"
_CONFIG = config_flags.DEFINE_config_file("config", None, f"Config of a task, or {_DEFAULT}")
_PROGRAMS = flags.DEFINE_list(
  "programs", ["train"], f"Of {', '.join([*programs.ON_POD, *host_programs.ON_HOST])}"
)
_POD = flags.DEFINE_enum(
  "pod", None, list(pods.PODS), "What to compile for; the config's own pod where it names one"
)
_SUGGEST = flags.DEFINE_bool("suggest", True, "Find a change with which a program fits")
_OUT = flags.DEFINE_string("out", None, "File for the results as JSON")
_TASKS = ("sft", "genrm", "rl")
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Result:
  """One program on one topology; bytes, FLOPs and times are a chip's.

  Those of a host's program are at the load of `host_programs.load`; of `decode`, which grows all
  rows by a few tokens, for one token a row.

  Attributes:
    program: Its name in `launch_tpu.programs`.
    topology: The pod, and for a program of one host " host".
    chips: That the program runs on.
    mesh: Size of each axis.
    remat: Policy of the backward pass.
    rows: Of the batch.
    length: Tokens a row.
    hbm_peak_gib: Arguments and temporaries.
    hbm_limit_gib: What a program may use.
    fits: Whether it does.
    argument_gib: Weights, moments, cache, batch.
    temporary_gib: What lives only inside of the program.
    flops_per_chip: Executed matrix products, those of the attention kernel included.
    kernel_flops_per_chip: Those of the attention kernel, by its calls and visited blocks.
    model_flops_per_chip: What the model needs, without anything computed twice.
    weight_flops_ratio: Executed / needed, of products with weights alone; None where they
      cannot be told from attention's.
    hbm_gib_per_chip: Read and written, an estimate from above.
    collective_gib_per_chip: Sent, by kind of collective.
    needed_gib_per_chip: What the sharding needs, by purpose.
    roofline_seconds: Least time by what would limit it.
    mfu_bound: MFU of a step as long as the longest of them.
    compile_seconds: On this machine.
    engine: Of a host's program: rows, pages, page_size and context of its engine.
    needed_hbm_gib_per_chip: Of a host's program: weights and pages, each read once.
    tokens_per_second_per_chip: Of a host's program, at most: "compiled" by `roofline_seconds`,
      "needed" by what no program could do without.
  """

  program: str
  topology: str
  chips: int
  mesh: dict[str, int]
  remat: str
  rows: int
  length: int
  hbm_peak_gib: float
  hbm_limit_gib: float
  fits: bool
  argument_gib: float
  temporary_gib: float
  flops_per_chip: float
  kernel_flops_per_chip: float
  model_flops_per_chip: float
  weight_flops_ratio: float | None
  hbm_gib_per_chip: float
  collective_gib_per_chip: dict[str, float]
  needed_gib_per_chip: dict[str, float]
  roofline_seconds: dict[str, float]
  mfu_bound: float
  compile_seconds: float
  engine: dict[str, int] | None = None
  needed_hbm_gib_per_chip: float | None = None
  tokens_per_second_per_chip: dict[str, float] | None = None


class DoesNotFit(Exception):
  """The compiler gave up: the program needs more memory than a chip has."""


def compile_for(config: ml_collections.ConfigDict, name: str, pod_name: str) -> Result:
  """Compiles one program of `config` for a pod.

  Raises:
    DoesNotFit: with the compiler's own words.
    ConfigError: the mesh does not fit the pod.
  """
  pod = pods.PODS[pod_name]
  if name in programs.ON_POD:
    mesh = sharding.make_mesh(**config.mesh, devices=pods.devices(pod))
    lower = programs.ON_POD[name]
  else:
    mesh = sharding.make_mesh(tensor=-1, fsdp=1, devices=pods.host_devices(pod))
    lower = host_programs.ON_HOST[name]
  start = time.perf_counter()
  try:
    with jax.set_mesh(mesh):
      compiled = lower(config, mesh).compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    message = str(error).strip().splitlines()[0]
    # "… the total memory required for HLO temporaries (68.19G) exceeds available HBM (31.25G)."
    short = re.search(r"[^.:]*\([\d.]+G\) exceeds .*\([\d.]+G\)", message)
    raise DoesNotFit(short[0].strip() if short else message) from None
  seconds = time.perf_counter() - start
  return _measure(config, name, pod_name, mesh, compiled, seconds)


def _measure(
  config: ml_collections.ConfigDict,
  name: str,
  pod_name: str,
  mesh: jax.sharding.Mesh,
  compiled: Any,
  seconds: float,
) -> Result:
  pod, model = pods.PODS[pod_name], programs.model_config(config)
  load = host_programs.load(config, name, mesh.size) if name in host_programs.ON_HOST else None
  counts = hlo.count(compiled.as_text(), mesh.size, load.trips if load else None)
  if load:
    counts = counts.times(1 / load.repeats)
    rows, length, kernel, weights, useful = load.rows, load.length, 0.0, load.flops, load.flops
  else:
    rows, length = programs.rows(config), config.data.length
    parts = config.micro_batches if name == "train" else 1
    work = arithmetic.Work(rows, length, dict(mesh.shape), parts)
    kernel = arithmetic.kernel_flops(model, work, counts.kernel_calls)
    weights, useful = programs.needed_flops(config, name)
  whole = name == "train" and not programs.adapted(config).rank
  needed = arithmetic.needed_bytes(model, work) if whole else {}
  bound = roofline.roofline(counts, pod.chip, useful / mesh.size, kernel_flops=kernel)
  limit = roofline.usable_hbm_gib(pod.chip)
  memory = compiled.memory_analysis()
  arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
  # Results that are no donated argument's buffer live beside both.
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  peak = (arguments + temporary + results) / _GIB
  gib = lambda sizes: {k: round(v / _GIB, 2) for k, v in sizes.items() if v}
  return Result(
    program=name,
    topology=pod_name + ("" if name in programs.ON_POD else " host"),
    chips=mesh.size,
    mesh=dict(mesh.shape),
    remat=model.remat,
    rows=rows,
    length=length,
    hbm_peak_gib=round(peak, 2),
    hbm_limit_gib=limit,
    fits=peak <= limit,
    argument_gib=round(arguments / _GIB, 2),
    temporary_gib=round(temporary / _GIB, 2),
    flops_per_chip=counts.matmul_flops + kernel,
    kernel_flops_per_chip=kernel,
    model_flops_per_chip=useful / mesh.size,
    weight_flops_ratio=(
      # Without the kernel, attention's products stand in the text among all others.
      round(counts.matmul_flops * mesh.size / weights, 4) if counts.kernel_calls else None
    ),
    hbm_gib_per_chip=round(counts.hbm_bytes / _GIB, 2),
    collective_gib_per_chip=gib(counts.wire_bytes),
    needed_gib_per_chip=gib(needed),
    roofline_seconds={"compute": bound.compute_s, "hbm": bound.hbm_s, "ici": bound.ici_s},
    mfu_bound=round(bound.mfu, 4),
    compile_seconds=round(seconds, 1),
    **(_of_host(config, load, pod.chip, mesh.size, bound) if load else {}),
  )


def _of_host(
  config: ml_collections.ConfigDict,
  load: host_programs.Load,
  chip: str,
  chips: int,
  bound: roofline.Roofline,
) -> dict[str, Any]:
  """The fields of `Result` that a host's program has beside."""
  kept = host_programs.limits(config)
  least = hlo.Counts(
    flops=Counter(forward=round(load.flops / chips)), hbm_bytes=round(load.hbm_bytes)
  )
  seconds = {
    "compiled": bound.step_s,
    "needed": roofline.roofline(least, chip, load.flops / chips).step_s,
  }
  tokens = load.rows * load.length / chips
  return {
    "engine": {k: getattr(kept, k) for k in ("rows", "pages", "page_size", "context")},
    "needed_hbm_gib_per_chip": round(load.hbm_bytes / _GIB, 2),
    "tokens_per_second_per_chip": {k: round(tokens / s, 1) for k, s in seconds.items()},
  }


def changes(config: ml_collections.ConfigDict, name: str, pod_name: str) -> Iterator[dict]:
  """Overrides that lower a program's memory, the cheapest first; "pod" among them last."""
  mesh, chips = config.mesh, pods.chips(pods.PODS[pod_name])
  if name in host_programs.ON_HOST:
    pages, least = config.engine.pages, host_programs.least_pages(config)
    for rows in _halves(config.engine.rows):
      pages = pages and max(pages // 2, least)  # 0: as many as the rows fill.
      yield {"engine.rows": rows, "engine.pages": pages}
    return
  if name == "train":
    if programs.model_config(config).remat != "full":
      yield {"remat": "full"}
    if mesh.data % 2 == 0 and mesh.data // 2 >= pods.PODS[pod_name].slices:
      yield {"remat": "full", "mesh.data": mesh.data // 2}
    shards = chips // mesh.context // mesh.tensor
    for context in (2, 4, 8, 16):
      # Half of the rows at a time, each on twice the chips.
      if shards % context == 0 and config.data.length // context >= 1024:
        rows = programs.rows(config)
        parts = max(rows * context // shards, 1) * config.micro_batches
        if rows % parts == 0:
          yield {
            "remat": "full", "mesh.data": pods.PODS[pod_name].slices,
            "mesh.context": mesh.context * context, "micro_batches": parts,
          }  # fmt: skip
  larger = [
    (pods.chips(pod), other)
    for other, pod in pods.PODS.items()
    if pod.chip == pods.PODS[pod_name].chip and pods.chips(pod) > chips and pod.slices == 1
  ]
  for _, other in sorted(larger):
    yield {"pod": other, "remat": "full"}


def _halves(number: int) -> Iterator[int]:
  while number > 1:
    number //= 2
    yield number


def what_would_fit(
  config: ml_collections.ConfigDict, name: str, pod_name: str
) -> tuple[dict, Result] | None:
  """The first of `changes` with which the program compiles and fits, and what it takes then."""
  for change in changes(config, name, pod_name):
    other = ml_collections.ConfigDict(config.to_dict())
    other.update_from_flattened_dict({k: v for k, v in change.items() if k != "pod"})
    try:
      result = compile_for(other, name, change.get("pod", pod_name))
    except DoesNotFit:
      continue
    if result.fits:
      return change, result
  return None


def print_results(results: Sequence[Result]) -> None:
  """One line a program, and beneath it what moves between chips."""
  table = Table("program", "chips", "HBM GiB", "arguments", "temporary", "FLOPs", "weights'",
                "sent GiB", "least s: compute", "HBM", "ICI", "MFU <=", "compiled in")  # fmt: skip
  for r in results:
    seconds = [f"{r.roofline_seconds[k]:.3g}" for k in ("compute", "hbm", "ici")]
    ratio = r.flops_per_chip / r.model_flops_per_chip if r.model_flops_per_chip else 0
    table.add_row(
      f"{r.program} {r.rows} x {r.length}", f"{r.topology}: {r.chips}",
      f"{r.hbm_peak_gib:.1f} of {r.hbm_limit_gib:g}", f"{r.argument_gib:.1f}",
      f"{r.temporary_gib:.1f}", f"{ratio:.3f} x" if ratio else "",
      f"{r.weight_flops_ratio:.3f} x" if r.weight_flops_ratio else "",
      f"{sum(r.collective_gib_per_chip.values()):.1f}", *seconds, f"{r.mfu_bound:.2f}",
      f"{r.compile_seconds:.0f} s",
    )  # fmt: skip
  console = Console(width=max(Console().width, 150))
  console.print(table)
  for r in results:
    sent = ", ".join(f"{k} {v:g}" for k, v in r.collective_gib_per_chip.items()) or "nothing"
    needed = ", ".join(f"{k} {v:g}" for k, v in r.needed_gib_per_chip.items())
    console.print(f"{r.program} on {r.topology}, mesh {r.mesh}, remat {r.remat}")
    console.print(f"  a chip sends {sent} GiB" + (f"; needed: {needed}" if needed else ""))
    if rates := r.tokens_per_second_per_chip:
      console.print(
        f"  {r.hbm_gib_per_chip:g} GiB through HBM, of which {r.needed_hbm_gib_per_chip:g} are"
        f" needed: at most {rates['compiled']:,.0f} tokens/s and chip, {rates['needed']:,.0f}"
        f" without the rest; {r.engine}"
      )
  console.print(
    "FLOPs: executed / needed by the model, all matrix products, and those with weights alone."
    " Least times assume full peaks and full overlap; see launch_tpu/roofline.py."
  )


def _check(config: ml_collections.ConfigDict, pod_name: str) -> None:
  """Raises, before anything is compiled, what can be told without."""
  command_line.check(config)
  if pod_name not in pods.PODS:
    raise ConfigError(f"config.pod: no pod {pod_name!r}; there are {', '.join(pods.PODS)}")
  if config.task not in _TASKS:
    raise ConfigError(f"task {config.task} has no programs; those of {', '.join(_TASKS)} have")
  if hosts := [name for name in _PROGRAMS.value if name in host_programs.ON_HOST]:
    if "sampling" not in config:
      raise ConfigError(
        f"{hosts[0]} is no program of task {config.task}, which samples nothing"
      )
    host_programs.limits(config)  # Raises where it has no room for a request.
  out = pathlib.Path(_OUT.value) if _OUT.value else None
  if out and (out.is_dir() or not os.access(out.parent, os.W_OK)):
    raise ConfigError(f"--out={out} is no file that can be written; make its folder first")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Overrides begin with --config.")
  config = _CONFIG.value
  known = [*programs.ON_POD, *host_programs.ON_HOST]
  if not _PROGRAMS.value:
    raise app.UsageError(f"--programs names none; there are {', '.join(known)}")
  if unknown := [name for name in _PROGRAMS.value if name not in known]:
    raise app.UsageError(f"no program {unknown[0]!r}; there are {', '.join(known)}")
  if not (_POD.value or config.get("pod")):
    raise app.UsageError(f"name a pod with --pod: {', '.join(pods.PODS)}")
  pod_name = _POD.value or config.pod
  _check(config, pod_name)
  results, failed = [], {}
  for name in _PROGRAMS.value:
    try:
      results.append(compile_for(config, name, pod_name))
      if not results[-1].fits:
        failed[name] = f"needs {results[-1].hbm_peak_gib} GiB"
    except DoesNotFit as error:
      failed[name] = str(error)
  if results:
    print_results(results)
  if _OUT.value:
    rows = [dataclasses.asdict(result) for result in results]
    fitted = {result.program for result in results}
    rows += [
      {"program": name, "topology": pod_name, "fits": False, "error": why}
      for name, why in failed.items()
      if name not in fitted
    ]
    pathlib.Path(_OUT.value).write_text(json.dumps(rows, indent=2) + "\n")
  for name, why in failed.items():
    print(f"aot: {name} does not fit {pod_name}: {why}", file=sys.stderr)
    if not _SUGGEST.value:
      continue
    logging.info("trying what would fit")
    if found := what_would_fit(config, name, pod_name):
      change, result = found
      spelt = " ".join(
        f"--pod={v}" if k == "pod" else f"--config.{k}={v}" for k, v in change.items()
      )
      print(
        f"aot: it fits with {spelt}: {result.hbm_peak_gib} of {result.hbm_limit_gib} GiB",
        file=sys.stderr,
      )
    else:
      print("aot: nothing tried fits: take a smaller model or shorter rows", file=sys.stderr)
  sys.exit(1 if failed else 0)


if __name__ == "__main__":
  command_line.run(main, "aot", _DEFAULT)
