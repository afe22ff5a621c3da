"""Turns plain conversations, or a book, into trajectories and data sets, by calls of a teacher."""

from collections.abc import Callable, Iterator, Sequence
import hashlib
import json
import pathlib
from typing import Any, TypeVar

from absl import logging
import ml_collections

from data_pipeline import finish, own_inputs, samples, splits
from data_pipeline.builders import card
from data_pipeline.files import write_whole
from data_pipeline.sources import encoding as enc
from data_pipeline.sources import folders
from data_pipeline.sources.book_find import Options as BookOptions
from data_pipeline.synthesis import (
  ask,
  from_book,
  pipeline,
  prepare,
  prompts,
  role_thinking,
  setting,
  system_thinking,
)
from data_pipeline.synthesis.stage import Stage
from her_jax.errors import ConfigError
from her_jax.llm import build
from her_jax.llm.client import Client, Sampling
from her_jax.roleplay import jsonl, schema
from her_jax.roleplay.schema import DataError, Trajectory
from her_jax.training import workdirs

_S = TypeVar("_S")
_BOOK = "book"
_LINES = (".jsonl", ".ndjson")  # trajectories
_FOLDERS = {
  "0": (pipeline.PREPARE,), "1": ("stage_1",), "2": ("stage_2a", "stage_2b"),
  "2a": ("stage_2a",), "2b": ("stage_2b",), "3": ("stage_3",),
}  # fmt: skip


def run(config: ml_collections.ConfigDict, workdir: str, mesh: Any = None) -> dict[str, Any]:
  """Runs the stages that the config names; returns what synthesis.json holds.

  Args:
    mesh: of the devices, which are not used; on further hosts of a pod there is nothing to do.

  Raises:
    ConfigError: settings contradict each other or the workdir; also, when calls can't go on.
    DataError: the source can't be read.
  """
  if mesh is not None:
    import jax

    if jax.process_index():
      return {}
  if config.source not in ("", "samples"):
    own_inputs.refuse([workdir], [config.source])
  with workdirs.alone_in(workdir):
    return _run(config, workdir)


def _run(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
  _check_source(config)
  stages, chosen, purposes = _stages(config), _chosen(config.stages), _purposes(config)
  clients = _Clients(config, pathlib.Path(workdir))
  chain = pipeline.Pipeline(
    pathlib.Path(workdir),
    stages,
    clients.of,
    prepare.Settings(**config.prepare),
    config.block,
    config.give_up_after,
    depends_on=clients.depends_on,
    check=lambda path: finish.check_books(path, purposes) if purposes else None,
  )
  try:
    source = _source(config, pathlib.Path(workdir), pipeline.PREPARE in chosen, clients)
    summary = chain.run(source, chosen, config.retry_failed)
    from_book.end_round(pathlib.Path(workdir))
  finally:
    clients.report()
  if purposes:
    summary["data_sets"] = _finish(config, pathlib.Path(workdir), purposes)
  return summary


def _stages(config: ml_collections.ConfigDict) -> list[Stage]:
  """Raises ConfigError for a setting that can't be."""
  for field, least in (
    ("block", 1),
    ("give_up_after", 1),
    ("limit", 0),
    ("prepare.min_turns", 1),
    ("book.piece", 1000),
    ("book.chapters", 0),
  ):
    section, _, name = field.rpartition(".")
    if (value := (config[section] if section else config)[name]) < least:
      raise ConfigError(f"config.{field} is {value}; it must be {least} or more")
  if config.prepare.notation not in prepare.NOTATIONS:
    raise ConfigError(
      f"config.prepare.notation is {config.prepare.notation!r}; there are"
      f" {', '.join(prepare.NOTATIONS)}"
    )
  count = _counter(config.tokenizer)
  plans = [
    _settings(system_thinking.Settings, config, name) for name in ("forward", "backward")
  ]
  return [
    role_thinking.RoleThinking(
      _settings(role_thinking.Settings, config, "role_thinking"), count
    ),
    system_thinking.Forward(plans[0], count),
    system_thinking.Backward(plans[1], count),
    setting.SettingCompletion(_settings(setting.Settings, config, "setting"), count),
  ]


def _check_source(config: ml_collections.ConfigDict) -> None:
  """Raises ConfigError where a book is wanted of what holds none, or an encoding is not known."""
  if config.encoding:
    try:
      enc.known(config.encoding, "config.encoding")
    except DataError as error:
      raise ConfigError(str(error)) from None
    if config.format == "trajectories":
      raise ConfigError(
        f"config.encoding is {config.encoding!r}, but trajectories are UTF-8; leave it empty, or"
        f" save the file in UTF-8"
      )
  if config.format != _BOOK:
    return
  if config.source == "samples":
    raise ConfigError(
      "config.source is 'samples', which are conversations; pass a plain book or a folder of them"
    )
  if config.llm.recorded == "samples":
    raise ConfigError(
      "config.llm.recorded is 'samples', which holds no replies about a book; use"
      " --config=configs/synthesize.py:book with an endpoint"
    )


def _purposes(config: ml_collections.ConfigDict) -> dict[str, float]:
  """The shares of what is built in the end; none if nothing is.

  Raises:
    ConfigError: they are none, or a book is to be split into more purposes than there are books.
  """
  if not config.build:
    return {}
  purposes = splits.parse_purposes(config.purposes) if config.purposes else splits.DEFAULT
  splits.check_purposes(purposes)
  if config.format == _BOOK and config.source:
    finish.check_count(from_book.count_books(config.source, config.encoding), purposes)
  return dict(purposes)


def _finish(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, purposes: dict[str, float]
) -> dict[str, Any]:
  origin = f"synthesised from {pathlib.Path(config.source).name}"
  about = card.About(f"{pathlib.Path(config.source).stem}, with reasoning", origin=origin)
  made = finish.finish(workdir / pipeline.TRAJECTORIES, workdir, purposes, config.seed, about)
  for kind, counts in made["records"].items():
    if counts:
      logging.info("built/her_%s: %s", kind, counts)
  logging.info("turns with flags: %s; shown in page.html", made["flags"] or "none")
  return made


def _settings(make: Callable[..., _S], config: ml_collections.ConfigDict, name: str) -> _S:
  """A stage's settings from the section `name`."""
  section = config[name].to_dict()
  for field, least in (("tries", 1), ("max_tokens", 1), ("input_tokens", 1), ("window", 1),
                       ("context", 0), ("turns", 1), ("leak_run_en", 1), ("leak_run_zh", 1)):  # fmt: skip
    if section.get(field, least) < least:
      raise ConfigError(
        f"config.{name}.{field} is {section[field]}; it must be {least} or more"
      )
  for field, above in (("leak_share", 0.0), ("most_changed", -1e-9), ("most_moved", -1e-9)):
    if not above < section.get(field, 1.0) <= 1.0:
      raise ConfigError(f"config.{name}.{field} is {section[field]}; it is a share, at most 1")
  if section.get("speakers", "all") not in system_thinking.SPEAKERS:
    raise ConfigError(
      f"config.{name}.speakers is {section['speakers']!r}; there are"
      f" {', '.join(system_thinking.SPEAKERS)}"
    )
  for field in ("length_en", "length_zh"):
    if field in section:
      section[field] = tuple(section[field])
      if len(section[field]) != 2 or not 0 <= section[field][0] <= section[field][1]:
        raise ConfigError(f"config.{name}.{field} is {section[field]}; give (from, to)")
  temperature, top_p, most = (section.pop(f) for f in ("temperature", "top_p", "max_tokens"))
  try:
    sampling = Sampling(temperature, top_p, most, config.seed)
  except ConfigError as error:
    raise ConfigError(f"config.{name}.{error}") from None
  return make(sampling=sampling, **section)


def _counter(path: str) -> ask.Counter:
  """Counts tokens with the tokenizer at `path`, or estimates them without one."""
  if not path:
    return prompts.estimated_tokens
  from her_jax.hf import tokenizer as hf_tokenizer

  tokenizer = hf_tokenizer.load(path)

  def count(texts: Sequence[str], _: str) -> int:
    return sum(
      len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    )

  return count


def _chosen(stages: str) -> list[str]:
  wanted = [name.strip() for name in str(stages).split(",") if name.strip()]
  if not wanted or (unknown := [name for name in wanted if name not in _FOLDERS]):
    shown = "empty" if not wanted else f"holds {unknown[0]!r}"
    raise ConfigError(f"config.stages {shown}; name some of {', '.join(_FOLDERS)}")
  return [folder for name in wanted for folder in _FOLDERS[name]]


class _Clients:
  """The client of each stage, made when it is first needed: a run that is done needs none."""

  def __init__(self, config: ml_collections.ConfigDict, workdir: pathlib.Path):
    self._config, self._workdir = config, workdir
    self._made: dict[str, Client] = {}

  def of(self, stage: Stage) -> Client:
    own = stage.name == system_thinking.FORWARD and bool(self._config.reasoner.model)
    return self._get("calls_reasoner", self._config.reasoner) if own else self.main()

  def depends_on(self, stage: Stage) -> dict[str, str]:
    """Who answers a stage and what counts its tokens, as far as the config names them."""
    config, own = self._config, ""
    if stage.name == system_thinking.FORWARD:
      own = config.reasoner.model
    recorded = config.llm.recorded if config.llm.backend == "replay" else ""
    found = {
      "model": own or config.llm.model,
      "recorded": recorded and str(pathlib.Path(recorded).resolve()),
      "tokenizer": config.tokenizer and str(pathlib.Path(config.tokenizer).resolve()),
    }
    return {name: value for name, value in found.items() if value}

  def main(self) -> Client:
    """The client of all that has no other."""
    return self._get("calls")

  def _get(self, name: str, own: ml_collections.ConfigDict | None = None) -> Client:
    if name not in self._made:
      settings = ml_collections.ConfigDict(self._config.llm.to_dict())
      settings.update({k: v for k, v in (own or {}).items() if v or k.startswith("budget")})
      if settings.recorded == "samples":
        settings.recorded = str(samples.RECORDED)
      self._made[name] = build.client(settings, self._workdir / f"{name}.jsonl")
    return self._made[name]

  def report(self) -> None:
    """Tells what the calls of this run came to, and writes it into the workdir."""
    for name, client in self._made.items():
      logging.info("%s\n%s", name, client.report.table())
      text = json.dumps(client.report.as_dict(), indent=2)
      write_whole(self._workdir / f"{name}_report.json", text + "\n")


def _source(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, needed: bool, clients: _Clients
) -> pipeline.Source:
  """The conversations that the config names; `needed` says whether stage 0 reads them."""
  if not needed:
    return pipeline.Source(lambda: (), "")
  if not config.source:
    raise ConfigError("config.source is empty; pass a file or a folder of conversations")
  path = samples.PLAIN if config.source == "samples" else pathlib.Path(config.source)
  format = config.format
  if format == _BOOK:
    options = BookOptions(piece=config.book.piece, chapters=config.book.chapters)
    path = from_book.find_scenes(
      path, workdir, clients.main, options, config.give_up_after, config.retry_failed,
      config.encoding,
    )  # fmt: skip
    format = "trajectories"
  if format == "trajectories":
    read = lambda: _trajectories(path)
  else:
    read = lambda: _foreign(config, path, workdir / pipeline.PREPARE)
  read_as = f"{format} {config.encoding}".strip()
  return pipeline.Source(read, _identity(path, read_as), config.lenient, config.limit)


def _foreign(
  config: ml_collections.ConfigDict, path: pathlib.Path, folder: pathlib.Path
) -> Iterator[Trajectory]:
  """Conversations in another project's format; what became of its rows goes to source.json."""
  from data_pipeline.sources import reader, report

  format = config.format
  if format not in reader.FORMATS:
    raise ConfigError(f"config.format is {format!r}; there are {', '.join(reader.FORMATS)}")
  counts = report.Report()
  rejected = folder / "rejected.jsonl" if config.lenient else None
  options = reader.Options(encoding=config.encoding)
  yield from reader.read(
    path, format, not config.lenient, report=counts, rejected=rejected, options=options
  )
  text = json.dumps(counts.as_dict(), ensure_ascii=False, indent=2)
  write_whole(folder / "source.json", text + "\n")


def _trajectories(path: pathlib.Path) -> Iterator[Trajectory | DataError]:
  """Of JSON Lines, of which only the fields' types are checked: stage 0 does the rest."""
  found, left = folders.parted(path, _LINES) if path.is_dir() else (_files(path), [])
  if left:
    logging.warning("%s: %d x %s", path, len(left), folders.told(left, _LINES))
  if not found:
    raise DataError(f"config.source={path}: a folder without {' or '.join(_LINES)}")
  for file in found:
    for number, made in jsonl.each_line(file, schema.build_trajectory):
      yield DataError(f"{file}:{number}{made}") if isinstance(made, DataError) else made


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_file():
    return [path]
  found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
  if not found:
    raise DataError(f"config.source={path}: no such file, and no folder with files in it")
  return found


def _identity(path: pathlib.Path, format: str) -> str:
  """A hash of all that a source holds."""
  digest = hashlib.sha256(format.encode())
  for file in _files(path):
    with file.open("rb") as f:
      digest.update(hashlib.file_digest(f, "sha256").digest())
  return digest.hexdigest()
