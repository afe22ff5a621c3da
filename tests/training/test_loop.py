"""The loop: every step's metrics are written, and a loss that is no number ends the run."""

import itertools
import json
import multiprocessing
import struct

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from data_pipeline import loaders, trees
from her_jax import sharding
from her_jax.training import loop, metrics
from her_jax.training.state import TrainState


@pytest.fixture
def fit(tmp_path):
  """Runs a loop whose losses are given, over rows of four tokens; returns metrics.jsonl."""

  def run(losses, norms=None):
    losses = jnp.asarray(losses, jnp.float32)
    norms = losses if norms is None else jnp.asarray(norms, jnp.float32)

    @jax.jit
    def step_fn(state, batch):
      found = {"loss": losses[state.step], "gradient_norm": norms[state.step]}
      return state.replace(step=state.step + 1), found

    stream = ({"tokens": np.full((8, 4), i + 1, np.int32)} for i in itertools.count())
    with metrics.MetricWriter(tmp_path) as writer:
      state = loop.fit(
        TrainState(jnp.int32(0), None, None),
        step_fn,
        stream,
        steps=len(losses),
        schedule=lambda step: 0.5 * step,
        writer=writer,
        mesh=sharding.make_mesh(),
        log_every=1,
        name="SFT",
        workdir=str(tmp_path),
      )
    assert state.step == len(losses)
    return metrics.read(tmp_path / "metrics.jsonl")

  return run


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_in_words():
  if not flags.FLAGS.is_parsed():  # Grain hands them on to its workers.
    flags.FLAGS.mark_as_parsed()
  rows = [trees.lay_out([1, 2, 3], [], trunk_weight=1.0)] * 8
  stream = iter(
    loaders.batches(rows, length=4, batch_size=1, seed=0, pad_id=0, workers=1, packing=False)
  )
  next(stream)
  (worker,) = multiprocessing.active_children()
  worker.kill()
  told = "SFT: before step 7 a process that prepares batches ended with exit code -9 .killed"
  with pytest.raises(loop.WorkerLost, match=f"{told}.*The same command continues"):
    while True:  # What it had prepared is there still.
      loop._next(stream, "SFT", 7)


def test_other_errors_of_the_data_are_raised_as_they_are():
  def broken():
    yield 1
    raise RuntimeError("another")

  stream = broken()
  assert loop._next(stream, "SFT", 1) == 1
  with pytest.raises(RuntimeError, match="^another$"):
    loop._next(stream, "SFT", 2)


@pytest.mark.parametrize("losses", [[3.0], [3.0, 2.0, 1.0]])
def test_each_step_is_written_once_with_its_own_numbers(fit, losses):
  rows = fit(losses)
  assert [row["step"] for row in rows] == list(range(1, len(losses) + 1))
  assert [row["loss"] for row in rows] == losses
  assert [row["tokens"] for row in rows] == [32 * row["step"] for row in rows]
  assert [row["learning_rate"] for row in rows] == [0.5 * i for i in range(len(losses))]
  assert all(row["tokens_per_second"] > 0 for row in rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad", [1, 2, 4])
def test_a_loss_that_is_no_number_ends_the_run(fit, tmp_path, value, bad):
  """Also in the last step, and with every step before it on record."""
  losses = [1.0] * 4
  losses[bad - 1] = value
  with pytest.raises(loop.NotFinite, match=f"loss of step {bad} is .*learning_rate"):
    fit(losses)
  assert len(metrics.read(tmp_path / "metrics.jsonl")) == bad - 1


@pytest.mark.parametrize("bad", [1, 3, 4])
def test_the_batch_of_a_loss_that_is_no_number_is_left(fit, tmp_path, bad):
  """That of the very step, though it is seen when the next one is under way."""
  losses = [1.0] * 4
  losses[bad - 1] = float("nan")
  with pytest.raises(loop.NotFinite, match=f"its batch is in {tmp_path}/nan_batch.npz"):
    fit(losses)
  with np.load(tmp_path / "nan_batch.npz") as left:
    assert left["step"] == bad
    np.testing.assert_array_equal(left["tokens"], np.full((8, 4), bad))


def test_a_gradient_that_is_no_number_ends_the_run(fit):
  """The loss of its step is one still; the weights are none any more."""
  with pytest.raises(loop.NotFinite, match="gradient_norm of step 2 is inf"):
    fit([1.0, 1.0, 1.0], [1.0, float("inf"), 1.0])


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_are_cut_back_to_the_step_that_a_run_goes_on_from(tmp_path):
  path = tmp_path / "metrics.jsonl"
  with metrics.MetricWriter(tmp_path) as writer:
    for step in range(1, 8):
      writer.write(step, {"loss": 1.0 / step})
  path.write_text(path.read_text() + '{"step": 8, "lo')  # Killed while it wrote.
  with metrics.MetricWriter(tmp_path, after=5) as writer:
    writer.write(6, {"loss": 0.25})
  found = _lines(path)
  assert [row["step"] for row in found] == [1, 2, 3, 4, 5, 6]
  assert [row["loss"] for row in found] == [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0.25]
  files = list((tmp_path / "metrics").iterdir())
  events = [event for file in files for event in _events(file)]
  # One file says that what others hold from step 6 on does not count.
  (start,) = [e for e in events if e.HasField("session_log")]
  assert start.step == 6
  with metrics.MetricWriter(tmp_path) as writer:
    writer.write(1, {"loss": 3.0})
  assert _lines(path) == [{"step": 1, "loss": 3.0}]


def _events(path):
  """What TensorBoard reads of a file: a length, its checksum, an event and its checksum, …"""
  content, at = path.read_bytes(), 0
  while at < len(content):
    (size,) = struct.unpack_from("<Q", content, at)
    yield event_pb2.Event.FromString(content[at + 12 : at + 12 + size])
    at += 16 + size
