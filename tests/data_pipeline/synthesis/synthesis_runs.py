"""Pipelines and scenes as the tests of synthesis use them."""

import dataclasses
import json
import pathlib

from data_pipeline.synthesis import pipeline, prepare
from data_pipeline.synthesis.role_thinking import RoleThinking
from data_pipeline.synthesis.role_thinking import Settings as ThinkingSettings
from data_pipeline.synthesis.setting import SettingCompletion
from data_pipeline.synthesis.setting import Settings as SettingSettings
from data_pipeline.synthesis.system_thinking import Backward, Forward
from data_pipeline.synthesis.system_thinking import Settings as PlanSettings
from her_jax.llm.client import Client
from her_jax.llm.scripted import Scripted
from her_jax.roleplay import formats, schema
from her_jax.roleplay.schema import Character, Trajectory, Turn

FILES = ("trajectories.jsonl", "failures.json", "retry.jsonl", "synthesis.json")


def stages(**window):
  return (
    RoleThinking(ThinkingSettings(**window)),
    Forward(PlanSettings()),
    Backward(PlanSettings()),
    SettingCompletion(SettingSettings()),
  )


def make(workdir, teacher, *, client_of=None, block=8, **window) -> pipeline.Pipeline:
  """A pipeline in which a scripted teacher answers."""
  backend = Scripted("teacher", teacher)
  return pipeline.Pipeline(
    pathlib.Path(workdir),
    stages(**window),
    client_of or (lambda stage: Client(backend, concurrency=4)),
    block=block,
  )


def source(scenes, identity="scenes", **more) -> pipeline.Source:
  return pipeline.Source(lambda: iter(scenes), identity, **more)


def files(workdir) -> dict[str, bytes]:
  return {name: (pathlib.Path(workdir) / name).read_bytes() for name in FILES}


def read(workdir) -> list[Trajectory]:
  return schema.read_trajectories(pathlib.Path(workdir) / "trajectories.jsonl")


def real_cases(path) -> list[Trajectory]:
  """The CoSER cases, every one with its plot's summary as the passage."""
  rows = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  made = []
  for row in rows:
    scene = formats.from_coser_case(row)
    extra = {**scene.extra, "her": {"passage": scene.summary}}
    made.append(dataclasses.replace(scene, extra=extra))
  return made


def scene(*lines, id="s", language="en", passage="", sheet="A keeper of bees.") -> Trajectory:
  """A scene of (speaker, reply) lines, each speaker with a sheet."""
  names = dict.fromkeys(who for who, _ in lines if who not in ("Environment", "环境"))
  return Trajectory(
    id=id,
    scenario="A kitchen in winter." if language == "en" else "冬天的灶间，窗外在下雪。",
    characters=tuple(Character(name, sheet) for name in names),
    language=language,
    turns=tuple(Turn(who, text) for who, text in lines),
    extra={"her": {"passage": passage}} if passage else {},
  )


def prepared(trajectory: Trajectory) -> Trajectory:
  """A scene as stage 0 leaves it."""
  from collections import Counter

  made = prepare.prepare(trajectory, prepare.Settings(), Counter())
  assert made is not None
  return made
