"""Compiles the layouts that docs/pods.md compares, and writes its tables.

    python -m launch_tpu.compare                       # what docs/pods.json lacks
    python -m launch_tpu.compare --only=v6e --again    # those of v6e, also if it has them

All of it takes an hour on two cores, that of hosts (`--only=host`) two minutes.

Each is one run of `launch_tpu.aot` in a process of its own.
"""

from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import app, flags

from configs import pods as layouts

_ONLY = flags.DEFINE_string("only", "", "Only what has this in its key")
_AGAIN = flags.DEFINE_bool("again", False, "Compile what docs/pods.json has already, too")
_DOCS = pathlib.Path(__file__).parents[1] / "docs"
_MARKS = ("<!-- begin {} -->", "<!-- end {} -->")

# Of an update of SFT: pod, length, remat, data, further overrides. One row a chip, unless a row
# is split over several.
_SFT = [
  ("v5p-128", 4096, "minimal", 2),
  ("v5p-128", 4096, "minimal", 1),
  ("v5p-128", 4096, "minimal", 4),
  ("v5p-128", 4096, "projections", 2),
  ("v5p-128", 4096, "full", 2),
  ("v5p-128", 8192, "projections", 2),
  ("v5p-256", 4096, "minimal", 4),
  ("v5p-256", 8192, "projections", 4),
  ("v6e-64", 4096, "projections", 1),
  ("v6e-64", 4096, "full", 1),
  ("v6e-64", 4096, "full", 2),
  ("v6e-64", 8192, "full", 1),
  ("v6e-64", 8192, "full", 2),
  ("v6e-256", 4096, "projections", 4),
  ("v6e-256", 4096, "full", 1),
  ("v6e-256", 8192, "full", 4),
  ("2xv6e-256", 4096, "projections", 8),
  ("2xv6e-256", 8192, "full", 8),
]
# 32 rows of 131,072 tokens: pod, context, micro-batches.
_LONG = [
  ("v5p-16", 8, 32),
  ("v5p-32", 8, 16),
  ("v6e-32", 16, 16),
  ("v6e-64", 16, 8),
]
_CHIPS = {"v5p-128": 64, "v5p-256": 128, "v6e-64": 64, "v6e-256": 256, "2xv6e-256": 512}


def variants() -> dict[str, list[str]]:
  """Key -> arguments of launch_tpu.aot."""
  found = {}
  for pod, length, remat, data in _SFT:
    found[f"sft {pod} {length} {remat} data={data}"] = [
      f"--config=configs/sft.py:{pod}",
      f"--config.batch_size={_CHIPS[pod]}",
      f"--config.data.length={length}",
      f"--config.remat={remat}",
      f"--config.mesh.data={data}",
    ]
  for pod, context, parts in _LONG:
    found[f"long {pod} context={context} micro_batches={parts}"] = [
      "--config=configs/sft.py",
      f"--pod={pod}",
      "--config.batch_size=32",
      "--config.data.length=131072",
      f"--config.mesh.context={context}",
      f"--config.micro_batches={parts}",
    ]
  for pod in layouts.TRAINING["rl"]:
    found[f"rl {pod}"] = [f"--config=configs/rl.py:{pod}", "--programs=train,gather"]
  for pod in layouts.ENGINE:
    found[f"host {pod}"] = [f"--config=configs/rl.py:{pod}", "--programs=prefill,decode"]
  return found


def compile_one(args: Sequence[str]) -> list[dict[str, Any]]:
  """Results of one run of launch_tpu.aot."""
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "aot.json"
    command = [sys.executable, "-m", "launch_tpu.aot", *args, f"--out={out}", "--nosuggest"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not out.exists():
      raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(out.read_text())


def table(found: dict[str, list[dict[str, Any]]], begins: str) -> str:
  """The Markdown table of the programs whose key begins so."""
  lines = [
    "| program | pod | rows x tokens | mesh | remat | HBM GiB (free) | arguments | temporary |"
    " FLOPs | of weights | sent GiB (/ needed) | least s: compute, HBM, ICI | MFU at most |",
    "|---" * 13 + "|",
  ]
  for key, results in found.items():
    if key.startswith(begins):
      lines += [_line(key, result) for result in results]
  return "\n".join(lines)


def host_table(found: dict[str, list[dict[str, Any]]]) -> str:
  """The Markdown table of the programs of one host."""
  lines = [
    "| program | host of | tokens | rows, pages of tokens | requests in full | HBM GiB (free) |"
    " arguments | temporary | FLOPs | through HBM GiB (/ needed) | least ms: compute, HBM, ICI |"
    " tokens/s a chip at most (by need) |",
    "|---" * 12 + "|",
  ]
  for key, results in found.items():
    if key.startswith("host"):
      lines += [_host_line(key, result) for result in results]
  return "\n".join(lines)


def _host_line(key: str, r: dict[str, Any]) -> str:
  if "error" in r:
    return _missing(key, r)
  engine, rates = r["engine"], r["tokens_per_second_per_chip"]
  kept = (engine["pages"] - 1) * engine["page_size"]
  milliseconds = (f"{1e3 * r['roofline_seconds'][k]:.3g}" for k in ("compute", "hbm", "ici"))
  through, needed = r["hbm_gib_per_chip"], r["needed_hbm_gib_per_chip"]
  cells = [
    r["program"], r["topology"].removesuffix(" host"), f"{r['rows']} x {r['length']}",
    f"{engine['rows']}, {engine['pages']:,} of {engine['page_size']}",
    f"{kept / engine['context']:.0f} of {engine['context']:,}", *_memory(r),
    f"{r['flops_per_chip'] / r['model_flops_per_chip']:.3f} x",
    f"{through:.1f} ({through / needed:.2f} x)", ", ".join(milliseconds),
    f"{rates['compiled']:,.0f} ({rates['needed']:,.0f})",
  ]  # fmt: skip
  return "| " + " | ".join(cells) + " |"


def _memory(r: dict[str, Any]) -> list[str]:
  free = 1 - r["hbm_peak_gib"] / r["hbm_limit_gib"]
  return [
    f"{r['hbm_peak_gib']:.1f} of {r['hbm_limit_gib']:g} ({free:.0%})",
    f"{r['argument_gib']:.1f}",
    f"{r['temporary_gib']:.1f}",
  ]


def _missing(key: str, r: dict[str, Any]) -> str:
  return f"| {r['program']} | {r['topology']} | {key} | does not fit: {r['error']} |"


def _line(key: str, r: dict[str, Any]) -> str:
  if "error" in r:
    return _missing(key, r)
  mesh = ", ".join(f"{name} {size}" for name, size in r["mesh"].items() if size > 1)
  sent, needed = (sum(r[f"{name}_gib_per_chip"].values()) for name in ("collective", "needed"))
  flops = r["flops_per_chip"] / r["model_flops_per_chip"] if r["model_flops_per_chip"] else 0
  seconds = ", ".join(f"{r['roofline_seconds'][k]:.3g}" for k in ("compute", "hbm", "ici"))
  cells = [
    r["program"], r["topology"], f"{r['rows']} x {r['length']}", mesh, r["remat"],
    *_memory(r),
    f"{flops:.3f} x" if flops else "", f"{r['weight_flops_ratio']:.3f} x" if r["weight_flops_ratio"] else "",
    f"{sent:.1f}" + (f" ({sent / needed:.2f} x)" if needed else ""), seconds,
    f"{r['mfu_bound']:.2f}" if flops else "",
  ]  # fmt: skip
  return "| " + " | ".join(cells) + " |"


def main(argv: Sequence[str]) -> None:
  del argv
  store, page = _DOCS / "pods.json", _DOCS / "pods.md"
  found = json.loads(store.read_text()) if store.exists() else {}
  for key, args in variants().items():
    if _ONLY.value not in key or (key in found and not _AGAIN.value):
      continue
    print(key, flush=True)
    found[key] = compile_one(args)
    ordered = {key: found[key] for key in variants() if key in found}
    store.write_text(json.dumps(ordered, indent=1) + "\n")
  text = page.read_text()
  tables = {name: table(found, name) for name in ("sft", "long", "rl")}
  for name, lines in (tables | {"host": host_table(found)}).items():
    begin, end = (mark.format(name) for mark in _MARKS)
    before, _, rest = text.partition(begin)
    text = f"{before}{begin}\n{lines}\n{end}{rest.partition(end)[2]}"
  page.write_text(text)


if __name__ == "__main__":
  app.run(main)
