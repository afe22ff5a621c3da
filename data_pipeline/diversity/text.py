"""The report for a terminal or a log."""

from collections.abc import Mapping
from typing import Any

from data_pipeline.diversity.figures import QUANTILES


def text_of(report: Mapping[str, Any], name: str) -> str:
  """The report as tables, for a terminal or a log."""
  sides = {"all replies": report["layouts"]}
  if report["edit"]:
    sides |= {"before the edit": report["edit"]["before"], "after it": report["edit"]["after"]}
  lines = [f"{name}: {report['scenes']} scenes", ""]
  lines.append(f"{'layouts':28}" + "".join(f"{side:>18}" for side in sides))
  rows = {
    "replies": ("replies", "d"),
    "different layouts": ("layouts", "d"),
    "entropy, bits": ("entropy_bits", ".3f"),
    "... of the most it could be": ("evenness", ".1%"),
    "share of the most frequent": ("top_share", ".1%"),
    "beyond two in a row": ("beyond_two_in_a_row", ".1%"),
  }
  for label, (key, style) in rows.items():
    lines.append(
      f"{label:28}" + "".join(f"{_number(s[key], style):>18}" for s in sides.values())
    )
  runs = (s["longest_run"] for s in sides.values())
  shown = (f"{run['turns']} × {run['layout'][:8]}" for run in runs)
  lines.append(f"{'longest run':28}" + "".join(f"{run:>18}" for run in shown))
  if report["edit"]:
    lines.append(f"{'replies that the edit changed':28}{report['edit']['changed']:>17.1%}")
  top = report["layouts"]["top"]
  lines += ["", "most frequent: " + ", ".join(f"{t['layout']} {t['share']:.1%}" for t in top)]
  heads = "".join(f"{f'distinct-{n}':>12}" for n in (1, 2, 3))
  lines += ["", f"{'wording':28}{'sampled':>9}{'self-BLEU-4':>13}{heads}"]
  for language, kinds in report["wording"].items():
    for kind, w in kinds.items():
      figures = "".join(f"{_number(w[f'distinct_{n}'], '.3f'):>12}" for n in (1, 2, 3))
      bleu = _number(w["self_bleu_4"], ".3f")
      lines.append(f"{f'{kind} ({language})':28}{w['sampled']:>9}{bleu:>13}{figures}")
  columns = ("mean", *(f"p{q:.0%}".rstrip("%") for q in QUANTILES), "max")
  lines += ["", f"{'length, words (zh: signs)':28}" + "".join(f"{c:>8}" for c in columns)]
  for language, kinds in report["lengths"].items():
    for kind, found in kinds.items():
      if found:
        figures = f"{found['mean']:>8.1f}" + "".join(f"{found[c]:>8}" for c in columns[1:])
        lines.append(f"{f'{kind} ({language})':28}{figures}")
  return "\n".join(lines)


def _number(value: float | None, style: str) -> str:
  return "–" if value is None else format(value, style)
