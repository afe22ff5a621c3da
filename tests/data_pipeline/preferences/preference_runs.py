"""Runs of the commands' functions on the sample scenes, with a scripted model."""

from collections.abc import Callable
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from data_pipeline import samples
from data_pipeline.asking.runner import Runner
from data_pipeline.preferences import candidates, labels
from data_pipeline.preferences.inputs import Refused, Scenes
from her_jax.llm.client import Client
from her_jax.llm.guarded import Guarded
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import principles, schema
from tests.data_pipeline.preferences import scripted

ROOT = pathlib.Path(__file__).parents[3]
ALL = schema.read_trajectories(samples.SCENES)
# Both languages and both splits.
FEW = tuple(
  next(s for s in ALL if (s.language, s.split) == key)
  for key in (("en", "train"), ("zh", "train"), ("en", "heldout"), ("zh", "heldout"))
)


def runner(function: Callable = scripted.reply) -> Runner:
  return Runner(Guarded(Client(Scripted("scripted", function))))


def scene_file(folder: pathlib.Path, scenes=FEW) -> str:
  path = folder / "scenes.jsonl"
  schema.write_jsonl(path, scenes)
  return str(path)


def make_candidates(folder: pathlib.Path, scenes=FEW, function=scripted.reply, **settings):
  """Path and report of a file of candidates."""
  out = str(folder / "candidates.jsonl")
  report = candidates.run(
    [scene_file(folder, scenes)], out, runner(function), candidates.Settings(**settings),
    "scripted", Refused(),
  )  # fmt: skip
  return out, report


def make_labels(folder: pathlib.Path, path: str, function=scripted.reply, **settings):
  """Path and report of labelled pairs; the scenes lie beside the candidates."""
  out = str(folder / "labelled.jsonl")
  settings = {"library": principles.library(), **settings}
  report = labels.run(
    path, Scenes([str(pathlib.Path(path).with_name("scenes.jsonl"))], Refused()), out,
    runner(function), labels.Settings(**settings), "scripted", Refused(),
  )  # fmt: skip
  return out, report


def rows(path: str | pathlib.Path) -> list[dict[str, Any]]:
  return [
    json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()
  ]


def command(name: str, *arguments: str) -> list[str]:
  return [sys.executable, "-m", f"data_pipeline.preferences.{name}", *arguments]


def call(name: str, *arguments: str) -> subprocess.CompletedProcess:
  """Runs a command as a person does."""
  return subprocess.run(
    command(name, *arguments), cwd=ROOT, env=environment(), capture_output=True, text=True,
    timeout=120,
  )  # fmt: skip


def environment() -> dict[str, str]:
  return {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"}
