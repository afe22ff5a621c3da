"""One HTML file of a data set, to be looked at: scenes in coloured layers, flags, diversity.

The page holds all that it shows: no script, font or picture comes from elsewhere, and its one
script is named by its hash in the page's policy, so that nothing in a scene can run. Of a large
set it shows a sample and says so; counts and plots are of the whole.
"""

import base64
from collections.abc import Iterable
import dataclasses
import hashlib
import heapq
import os
import pathlib
from typing import Any

import jinja2
import markupsafe

from data_pipeline import diversity, own_inputs
from data_pipeline.page import plots, scenes
from data_pipeline.quality import MEANINGS, report, scan
from data_pipeline.quality.scan import Scanned
from her_jax.roleplay.jsonl import DataError

FOLDER = pathlib.Path(__file__).parent
SCENES = 120
PER_FLAG = 5  # further scenes for each flag
MEGABYTES = 8.0


@dataclasses.dataclass(frozen=True)
class Written:
  """What became of a page: how many scenes it shows of how many, its size in bytes, and the
  reports that it was made of."""

  shown: int
  scenes: int
  size: int
  unreadable: int
  quality: report.Report
  variety: diversity.Diversity


class Chosen:
  """The scenes that a page shows: so many by the smallest hash of id and line, and of each flag
  some more. It holds no others, however many it is offered."""

  def __init__(self, size: int, per_flag: int):
    self._size, self._per_flag = size, per_flag
    self._even: list[tuple[int, int, Scanned]] = []
    self._flagged: dict[str, list[tuple[int, int, Scanned]]] = {name: [] for name in MEANINGS}

  def offer(self, scanned: Scanned) -> None:
    key = f"{scanned.scene.id}\0{scanned.line}".encode()
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    entry = (-digest, -scanned.line, scanned)
    _keep(self._even, entry, self._size)
    for name in {flag.name for flag in scanned.flags}:
      _keep(self._flagged[name], entry, self._per_flag)

  def scenes(self) -> list[Scanned]:
    """Those of the even sample, then the flagged ones, each part in the file's order."""
    even = {line: s for _, line, s in self._even}
    more = {line: s for heap in self._flagged.values() for _, line, s in heap}
    parts = (even, {line: s for line, s in more.items() if line not in even})
    return [part[line] for part in parts for line in sorted(part, reverse=True)]


def _keep(
  heap: list[tuple[int, int, Scanned]], entry: tuple[int, int, Scanned], most: int
) -> None:
  if len(heap) < most:
    heapq.heappush(heap, entry)
  elif heap and entry[:2] > heap[0][:2]:
    heapq.heapreplace(heap, entry)


def write(
  path: str | os.PathLike[str],
  out: str | os.PathLike[str],
  most: int = SCENES,
  per_flag: int = PER_FLAG,
  megabytes: float = MEGABYTES,
  title: str = "",
  lenient: bool = False,
) -> Written:
  """Reads a JSON Lines file of scenes once and writes its page.

  Args:
    most: scenes of the even sample; `per_flag` more are shown for each flag.
    megabytes: the size that the scenes may take together; the rest of the sample is left out.
    title: of the page; the file's name if empty.
    lenient: count lines that can't be read, instead of stopping at the first.

  Raises:
    DataError: a line is no scene.
    ConfigError: the page would take the place of the scenes.
    OSError: the page can't be written.
  """
  own_inputs.refuse([out], [path])
  chosen, quality, variety = Chosen(most, per_flag), report.Report(0), diversity.Diversity()
  for scanned in scan.scan(path):
    if isinstance(scanned, DataError):
      if not lenient:
        raise scanned
      quality.reject(str(scanned))
      continue
    quality.add(scanned)
    variety.add(scanned.scene)
    chosen.offer(scanned)
  page, shown = render(
    chosen.scenes(), quality, variety, megabytes, title or os.path.basename(path)
  )
  data = page.encode("utf-8", errors="replace")
  pathlib.Path(out).write_bytes(data)
  return Written(
    shown, quality.scene_count, len(data), quality.unreadable_count, quality, variety
  )


def render(
  chosen: Iterable[Scanned],
  quality: report.Report,
  variety: diversity.Diversity,
  megabytes: float,
  title: str,
) -> tuple[str, int]:
  """The page, and how many scenes it shows."""
  environment = _environment()
  template = environment.get_template("scene.html.jinja")
  articles: list[markupsafe.Markup] = []
  views: list[dict[str, Any]] = []
  left = megabytes * 1e6
  for scanned in chosen:
    view = scenes.view_of(scanned)
    article = template.render(scene=view, meanings=MEANINGS)
    left -= len(article.encode("utf-8", errors="replace"))
    if left < 0 and articles:
      break
    articles.append(markupsafe.Markup(article))
    views.append(view)
  script = (FOLDER / "page.js").read_text(encoding="utf-8")
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
  told, varied = quality.as_dict(), variety.as_dict()
  page = environment.get_template("page.html.jinja").render(
    title=title,
    articles=articles,
    choices={
      field: sorted({view[field] for view in views} - {""})
      for field in ("book", "split", "purpose", "language")
    },
    flagged=sorted(
      {name for view in views for name in view["flags"]}, key=list(MEANINGS).index
    ),
    quality=told,
    diversity=varied,
    meanings=MEANINGS,
    plots={"layouts": plots.layouts(varied), "lengths": plots.lengths(varied)},
    script=markupsafe.Markup(script),
    script_hash=digest,
  )
  return page.lstrip(), len(articles)


def _environment() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER),
    autoescape=True,  # Scenes are untrusted text.
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {"label": lambda name: name.replace("_", " "), "number": _number}
  return environment


def _number(value: float | None, style: str) -> str:
  return "–" if value is None else format(value, style)
