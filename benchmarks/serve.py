"""A server under load: requests and tokens a second, and how long each waits.

    python -m benchmarks.serve --policy=out/quickstart/sft --out=serve.json   # wants the test extra

Starts `configs/serve.py:tiny` on a free port of loopback, and asks it with the `openai` client for
replies to the held-out turns of the sample scenes, `--concurrency` at a time. Writes one JSON row:
requests, failed, requests_per_second, tokens_per_second, seconds to the first piece of text and to
the end (p50, p95), and the server's memory after a tenth of the requests and after all.
"""

import asyncio
import json
import logging
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from absl import app, flags
import numpy as np
import openai
import psutil

from data_pipeline import samples
from her_jax.evaluation.policy import pick_turns
from her_jax.roleplay import chat, prompts, schema

_POLICY = flags.DEFINE_string("policy", None, "Workdir of a tiny policy", required=True)
_OUT = flags.DEFINE_string("out", None, "File for the row, as JSON")
_REQUESTS = flags.DEFINE_integer("requests", 1000, "In all")
_CONCURRENCY = flags.DEFINE_integer("concurrency", 64, "At a time")

_VARIANT = prompts.Variant("brief")  # As the tiny policy was trained.
_HEARD = 4  # Turns.


def _start(port: int) -> subprocess.Popen:
  return subprocess.Popen(
    [
      sys.executable, "-m", "her_jax.main", "--config=configs/serve.py:tiny",
      "--workdir=out/serve_benchmark", f"--config.policy={_POLICY.value}",
      f"--config.serve.port={port}", f"--config.serve.max_queue={_CONCURRENCY.value}",
    ],
    stderr=subprocess.DEVNULL,
  )  # fmt: skip


def _wait(process: subprocess.Popen, port: int) -> None:
  while process.poll() is None:
    try:
      urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
      return
    except (urllib.error.URLError, OSError):
      time.sleep(0.2)
  raise RuntimeError("the server has ended before it answered")


def _conversations() -> list[tuple[str, list[dict[str, str]]]]:
  """Who is to speak, and the messages of OpenAI's protocol."""
  scenes = [s for s in schema.read_trajectories(samples.SCENES) if s.split == "heldout"]
  found = []
  for scene, turn in pick_turns(scenes, 48):
    name = scene.turns[turn].speaker
    character = next(c for c in scene.characters if c.name == name)
    heard = range(max(turn - _HEARD, 0), turn)
    messages = [
      chat.Message("system", prompts.system_prompt(scene, character, _VARIANT)),
      *chat.messages_of(scene, heard, name, _VARIANT),
    ]
    found.append((name, [{"role": m.role, "content": m.text} for m in messages]))
  return found


async def _load(port: int, server: psutil.Process) -> dict[str, float]:
  client = openai.AsyncOpenAI(
    base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=600
  )
  model = (await client.models.list()).data[0].id
  conversations, room = _conversations(), asyncio.Semaphore(_CONCURRENCY.value)
  first: list[float] = []
  whole: list[float] = []
  tokens, failed, early = 0, 0, 0

  async def ask(i: int) -> None:
    nonlocal tokens, failed, early
    name, messages = conversations[i % len(conversations)]
    async with room:
      start, begun = time.monotonic(), False
      try:
        stream = await client.chat.completions.create(
          model=model, messages=messages, seed=i, stream=True,
          stream_options={"include_usage": True},
          extra_body={"character": name, "hidden": "shown"},
        )  # fmt: skip
        async for chunk in stream:
          if not begun and chunk.choices and chunk.choices[0].delta.content:
            begun = True
            first.append(time.monotonic() - start)
          if chunk.usage:
            tokens += chunk.usage.completion_tokens
      except openai.OpenAIError as error:
        failed += 1
        print(error, file=sys.stderr)
      whole.append(time.monotonic() - start)
      if len(whole) == _REQUESTS.value // 10:
        early = server.memory_info().rss

  start = time.monotonic()
  await asyncio.gather(*(ask(i) for i in range(_REQUESTS.value)))
  seconds = time.monotonic() - start
  return {
    "requests": _REQUESTS.value,
    "concurrency": _CONCURRENCY.value,
    "failed": failed,
    "requests_per_second": _REQUESTS.value / seconds,
    "tokens_per_second": tokens / seconds,
    "first_text_p50_s": float(np.percentile(first, 50)),
    "first_text_p95_s": float(np.percentile(first, 95)),
    "whole_p50_s": float(np.percentile(whole, 50)),
    "whole_p95_s": float(np.percentile(whole, 95)),
    "rss_after_a_tenth_mib": early / 2**20,
    "rss_at_the_end_mib": server.memory_info().rss / 2**20,
  }


def main(_: list[str]) -> None:
  logging.getLogger("httpx2").setLevel(logging.WARNING)  # A line a request.
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  process = _start(port)
  try:
    _wait(process, port)
    row = asyncio.run(_load(port, psutil.Process(process.pid)))
  finally:
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
  print(json.dumps(row))
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(json.dumps(row, indent=2))


if __name__ == "__main__":
  app.run(main)
