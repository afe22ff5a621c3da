"""Small plots as inline SVG in the page's colours, no wider than a phone."""

from collections.abc import Iterable, Mapping
from typing import Any

import markupsafe

_WIDTH = 360
_ROW = 20
_LANGUAGES = {"en": "English", "zh": "Chinese"}
_Markup = markupsafe.Markup


def layouts(report: Mapping[str, Any]) -> markupsafe.Markup | None:
  """Bars of the most frequent layouts; with an edit, those of before it beside them."""
  edit = report["edit"]
  if edit:
    rows = [(row["layout"], row["after"], row["before"]) for row in edit["shares"]]
  else:
    rows = [(row["layout"], row["share"], None) for row in report["layouts"]["top"]]
  if not rows:
    return None
  most = max(share for _, *shares in rows for share in shares if share is not None)
  parts: list[markupsafe.Markup] = []
  y, left, wide = 0, 74, 190
  for name, share, old in rows:
    parts.append(_text(0, y + 14, name if len(name) <= 8 else f"{name[:7]}…", "label"))
    label, length = f"{share:.1%}", wide * share / most
    if old is None:
      parts.append(_bar(left, y + 4, length, 12, "after"))
    else:
      if share:
        parts.append(_bar(left, y + 3, length, 7, "after"))
      if old:
        parts.append(_bar(left, y + 11, wide * old / most, 5, "before"))
      label, length = f"{old:.1%} → {label}", wide * max(share, old) / most
    parts.append(_text(left + 6 + length, y + 14, label, ""))
    y += _ROW
  alt = "Shares of layouts: " + ", ".join(f"{name} {share:.1%}" for name, share, _ in rows)
  return _svg(y, parts, alt)


def lengths(report: Mapping[str, Any]) -> markupsafe.Markup | None:
  """For each language and layer a box of the middle half, whiskers to 5 and 95 %, the median."""
  rows = [
    (f"{kind}, {_LANGUAGES.get(language, language)}", found)
    for language, kinds in report["lengths"].items()
    for kind, found in kinds.items()
    if found and kind != "turns of a scene"
  ]
  if not rows:
    return None
  most = max(max(found["p95"] for _, found in rows), 1)
  parts: list[markupsafe.Markup] = []
  told: list[str] = []
  y = 0
  left, wide = 116, _WIDTH - 116 - 34

  def at(value: float) -> float:
    return left + wide * value / most

  for name, found in rows:
    middle = y + _ROW / 2
    parts.append(_text(0, y + 14, name, "label"))
    parts.append(_line(at(found["p5"]), at(found["p95"]), middle))
    parts.append(_bar(at(found["p25"]), y + 4, at(found["p75"]) - at(found["p25"]), 12, "box"))
    parts.append(_bar(at(found["p50"]) - 1, y + 2, 2, 16, "median"))
    parts.append(_text(_WIDTH, y + 14, f"{found['p50']:g}", "end"))
    told.append(f"{name}: median {found['p50']:g}")
    y += _ROW
  return _svg(y, parts, "Lengths in words, signs in Chinese. " + "; ".join(told))


def _svg(height: float, parts: Iterable[markupsafe.Markup], alt: str) -> markupsafe.Markup:
  opening = _Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">')
  return opening.format(_WIDTH, height + 2, alt) + _Markup("").join(parts) + _Markup("</svg>")


def _bar(x: float, y: float, width: float, height: float, kind: str) -> markupsafe.Markup:
  rect = _Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="2"/>')
  return rect.format(kind, x, y, max(width, 1), height)


def _line(start: float, end: float, y: float) -> markupsafe.Markup:
  line = _Markup('<line class="whisker" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>')
  return line.format(start, end, y, y)


def _text(x: float, y: float, text: str, kind: str) -> markupsafe.Markup:
  return _Markup('<text x="{:.1f}" y="{:.0f}" class="{}">{}</text>').format(x, y, kind, text)
