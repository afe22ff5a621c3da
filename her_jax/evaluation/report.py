"""`report.html`: one self-contained page of what a workdir's stages measured and sampled.

Everything comes from the files of the workdir and the summary. What they lack is shown as
"not measured"; nothing is filled in.
"""

import io
import json
import os
import pathlib
import re
import statistics
from typing import Any, TypeAlias

import jinja2
import markupsafe
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
import numpy as np

from her_jax.evaluation import console

Rows: TypeAlias = list[dict[str, Any]]

# matplotlib knows no CSS variables. It draws with these stand-ins, which `_svg` replaces, so
# that one drawing follows the reader's light or dark theme.
_COLOURS = {
  name: f"#0{i}0{i}0{i}"
  for i, name in enumerate(("muted", "line", "blue", "orange", "grey"), start=1)
}
_STYLE: Any = {
  "svg.fonttype": "none",  # Text stays text: selectable, in the page's font.
  "svg.hashsalt": "her_jax",  # The same data gives the same bytes.
  "text.parse_math": False,
  "font.size": 9.5,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.grid.axis": "y",
  "axes.axisbelow": True,
  "axes.titlesize": 9.5,
  "axes.titlelocation": "left",
  "axes.edgecolor": _COLOURS["line"],
  "grid.color": _COLOURS["line"],
  "legend.frameon": False,
  **dict.fromkeys(
    ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"),
    _COLOURS["muted"],
  ),
}
_MOST_POINTS = 600  # More would make the page heavier and no clearer.
_FEW_POINTS = 12  # Fewer are drawn as points and not smoothed.
_NATS, _SHARE = "nats per target token", "share of replies"
# Plot -> stage, unit, and the curves: metric -> label.
_CURVES = {
  "sft_loss": ("sft", _NATS, {"loss": "training", "heldout_loss": "held out"}),
  "judge_loss": ("genrm", _NATS, {"loss": "training"}),
  "reward": ("rl", "reward", {"reward_mean": "mean reward"}),
  "layout_entropy": ("rl", "bits", {"layout_entropy": "entropy of layouts"}),
  "layout_top1": ("rl", _SHARE, {"layout_top1": "most frequent layout"}),
  "length": ("rl", "tokens", {"completion_tokens": "completion length"}),
  "validity": ("rl", _SHARE, {"grammar_valid": "whole turns", "truncated": "cut off"}),
}


def write_report(workdir: str | os.PathLike[str], summary: dict[str, Any]) -> pathlib.Path:
  """Writes `workdir/report.html` and returns its path.

  Args:
    workdir: holds `sft genrm rl evaluate`, each with what its stage wrote: `metrics.jsonl`,
      `samples/before.json`, `samples/after.json`, `evaluation.json`. Any may be missing.
    summary: the headline figures by name; a missing key, None or NaN is "not measured".
  """
  workdir = pathlib.Path(workdir)
  rows = {stage: _read_rows(workdir / stage) for stage in ("sft", "genrm", "rl")}
  _add_heldout(rows["sft"], summary)
  path = workdir / "evaluate" / "evaluation.json"
  evaluation = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
  template = _environment().get_template("report.html.jinja")
  page = template.render(
    summary=summary,
    evaluation=evaluation,
    facts={stage: _facts(stage_rows) for stage, stage_rows in rows.items()},
    plots=_plots(rows, evaluation.get("judge") or {}),
    samples={stage: _sample_pairs(workdir / stage / "samples") for stage in ("sft", "rl")},
    layers=console.LAYERS,
    not_measured=console.NOT_MEASURED,
  )
  path = workdir / "report.html"
  path.write_text(page.lstrip(), encoding="utf-8", errors="replace")
  return path


def smooth(values: np.ndarray) -> np.ndarray:
  """Centred mean over about a tenth of the curve [steps], over what there is at its ends.

  Example:
    smooth([0, 2, 4, 6]) averages three values and gives [1, 2, 4, 5].
  """
  half = max(1, len(values) // 20)
  return np.array(
    [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
  )


# ---- What the workdir holds


def _read_rows(stage: pathlib.Path) -> Rows:
  # Not by training.metrics, so that a page is remade without waiting for JAX to start.
  path = stage / "metrics.jsonl"
  lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
  return [json.loads(line) for line in lines]


def _add_heldout(rows: Rows, summary: dict[str, Any]) -> None:
  """Puts the held-out losses of the summary at both ends of the curve, unless it has its own."""
  for at, when in ((0, "before"), (-1, "after")):
    loss = summary.get(f"sft_heldout_loss_{when}")
    if rows and console.is_measured(loss):
      rows[at].setdefault("heldout_loss", loss)


def _facts(rows: Rows) -> dict[str, Any]:
  """Steps and tokens of a stage, and its median speed; missing keys were not measured."""
  last = rows[-1] if rows else {}
  facts = {key: last[key] for key in ("step", "tokens") if key in last}
  speeds = _series(rows, "tokens_per_second")[1]
  return facts | ({"tokens_per_second": statistics.median(speeds)} if speeds.size else {})


def _sample_pairs(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Replies to the same turn, before and after; None where one side is missing."""
  pairs: dict[tuple, dict[str, Any]] = {}
  for side in ("before", "after"):
    path = folder / f"{side}.json"
    counts: dict[tuple, int] = {}
    for sample in console.read_samples(path) if path.exists() else ():
      turn = (sample.scene, sample.turn, sample.speaker)
      counts[turn] = counts.get(turn, 0) + 1
      pair = pairs.setdefault((*turn, counts[turn]), {"before": None, "after": None})
      pair["sample"] = sample
      pair["heard"] = console.layers(sample.heard)
      pair[side] = {
        "layers": console.layers(sample.reply, sample.speaker),
        "faults": console.faults(sample),
      }
  return list(pairs.values())


def _environment() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,  # Replies are untrusted text.
    # A figure missing anywhere in a nested object reaches `number`, which says so.
    undefined=jinja2.ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {
    "number": console.number,
    "share": console.share,
    "duration": console.duration,
  }
  environment.globals["is_measured"] = console.is_measured
  return environment


# ---- Plots


def _plots(rows: dict[str, Rows], judge: dict[str, Any]) -> dict[str, markupsafe.Markup | None]:
  """Inline SVG by name; None where nothing was measured."""
  with matplotlib.rc_context(_STYLE):
    plots = {
      name: _curves(name, rows[stage], unit, labels)
      for name, (stage, unit, labels) in _CURVES.items()
    }
    return plots | {"verdicts": _verdicts(rows["rl"]), "judge_kinds": _judge_kinds(judge)}


def _series(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
  """Steps and values [points] of the rows in which `key` was measured."""
  points = [(row["step"], row[key]) for row in rows if console.is_measured(row.get(key))]
  steps, values = np.array(points, np.float64).reshape(-1, 2).T
  return steps, values


def _curves(
  name: str, rows: Rows, unit: str, labels: dict[str, str]
) -> markupsafe.Markup | None:
  series = [_series(rows, key) for key in labels]
  if not any(steps.size for steps, _ in series):
    return None
  figure, axes = _axes(unit)
  colours = (_COLOURS["blue"], _COLOURS["orange"])
  described = [
    _draw(axes, label, steps, values, colour)
    for label, (steps, values), colour in zip(labels.values(), series, colours, strict=False)
  ]
  if unit == _SHARE:
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
  elif unit in ("bits", "tokens"):
    axes.set_ylim(bottom=0)
  elif unit == "reward":
    axes.axhline(0, color=_COLOURS["grey"], lw=1)
  if len(labels) > 1:
    axes.legend()
  return _svg(name, figure, f"Line plot over steps, in {unit}: {'; '.join(described)}.")


def _draw(axes: Axes, label: str, steps: np.ndarray, values: np.ndarray, colour: str) -> str:
  """Draws a curve, thin as measured and bold smoothed, and returns its description."""
  if not values.size:
    label = f"{label}: {console.NOT_MEASURED}"
    axes.plot(steps, values, color=colour, label=label)
    return label
  if values.size < _FEW_POINTS:
    axes.plot(steps, values, "o-", color=colour, ms=4, lw=1.2, label=label)
    return _describe(label, steps, values)
  smoothed = smooth(values)
  axes.plot(*_thinned(steps, values), color=colour, lw=0.8, alpha=0.4)
  axes.plot(*_thinned(steps, smoothed), color=colour, lw=2, label=label)
  return _describe(f"{label}, smoothed", steps, smoothed)


def _describe(label: str, steps: np.ndarray, values: np.ndarray) -> str:
  return f"{label}: {values[0]:.3g} at step {steps[0]:.0f}, {values[-1]:.3g} at {steps[-1]:.0f}"


def _verdicts(rows: Rows) -> markupsafe.Markup | None:
  colours = {"win": "blue", "tie": "grey", "lose": "orange"}
  rows = [row for row in rows if all(console.is_measured(row.get(key)) for key in colours)]
  if not rows:
    return None
  steps = _series(rows, "win")[0]
  shares = {key: smooth(_series(rows, key)[1]) for key in colours}
  figure, axes = _axes(f"{_SHARE}, smoothed")
  stack = [_thinned(steps, values)[1] for values in shares.values()]
  fills = [_COLOURS[colour] for colour in colours.values()]
  axes.stackplot(_thinned(steps, steps)[0], stack, labels=list(shares), colors=fills, alpha=0.8)
  axes.set_ylim(0, 1)
  axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
  axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
  alt = "; ".join(_describe(key, steps, values) for key, values in shares.items())
  return _svg("verdicts", figure, f"Stacked shares over steps, smoothed: {alt}.")


def _judge_kinds(judge: dict[str, Any]) -> markupsafe.Markup | None:
  """Bars by kind of flaw with the line of chance; below them, apart, the ties."""
  kinds = dict(judge.get("by_kind") or {})
  if not any(kind.startswith("tie") for kind in kinds):
    kinds["ties"] = {"accuracy": judge.get("tie_accuracy")}
  if not any(console.is_measured(kind.get("accuracy")) for kind in kinds.values()):
    return None
  names = sorted(kinds, key=lambda k: (k.startswith("tie"), -(kinds[k].get("accuracy") or 0)))
  flaws = sum(not name.startswith("tie") for name in names)
  places = [i + (i >= flaws > 0) * 0.8 for i in range(len(names))]
  figure, axes = _axes("", height=0.8 + 0.26 * len(names))
  labels = []
  for name, place in zip(names, places, strict=True):
    accuracy, judgements = (kinds[name].get(key) for key in ("accuracy", "judgements"))
    label = console.number(accuracy, ".0%") + f" of {judgements}" * (judgements is not None)
    width = accuracy if console.is_measured(accuracy) else 0
    axes.barh(place, width, 0.7, color=_COLOURS["grey" if name.startswith("tie") else "blue"])
    axes.text(1.03, place, label, va="center", color=_COLOURS["muted"], size=9)
    labels.append(f"{name.replace('_', ' ')} {label}")
  if flaws:
    axes.plot([0.5, 0.5], [-0.5, flaws - 0.5], "--", color=_COLOURS["orange"], lw=1.5)
    axes.text(0.5, -0.6, "chance", ha="center", color=_COLOURS["orange"], size=9)
  axes.set(yticks=places, yticklabels=[name.replace("_", " ")[:40] for name in names])
  axes.set(xlim=(0, 1.3), ylim=(places[-1] + 0.5, -1), xticks=[0, 0.25, 0.5, 0.75, 1])
  axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
  axes.grid(False)
  axes.set_xlabel("share of judgements that name the right winner")
  return _svg("judge_kinds", figure, f"Bars of judge accuracy: {'; '.join(labels)}.")


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  stride = -(-len(steps) // _MOST_POINTS)
  return steps[::stride], values[::stride]


def _axes(title: str, height: float = 2.6) -> tuple[Figure, Axes]:
  figure = Figure(figsize=(5.4, height), layout="constrained")
  axes = figure.subplots()
  axes.set(title=title, xlabel="step")
  axes.tick_params(length=0)
  return figure, axes


def _svg(name: str, figure: Figure, alt: str) -> markupsafe.Markup:
  """The figure as an inline SVG in the page's colours, ids unique by `name`."""
  buffer = io.StringIO()
  nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
  figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
  svg = buffer.getvalue()
  svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
  for css, stand_in in _COLOURS.items():
    svg = svg.replace(stand_in, f"var(--{css})")
  # Namespaces and pixel sizes belong to a file of its own; on the page CSS gives the width.
  box = figure.get_size_inches() * 72
  opening = markupsafe.Markup('<svg viewBox="0 0 {:.1f} {:.1f}" role="img" aria-label="{}">')
  body = svg[svg.index(">", svg.index("<svg")) + 1 :]
  return opening.format(*box, alt) + markupsafe.Markup(body)
