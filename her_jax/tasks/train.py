"""What SFT and the judge have in common: the run from its first batch, or a later one, to its end."""

from collections.abc import Callable, Sequence
from typing import Any

from absl import logging
from flax import nnx
import jax
from jax.experimental import multihost_utils
import ml_collections

from data_pipeline import loaders, mixing
from her_jax import sharding
from her_jax.roleplay import chat
from her_jax.tasks import start
from her_jax.tasks.data import Scenes
from her_jax.tasks.heldout import BEST, HeldOut, Intervals
from her_jax.training import checkpoint, continuation, loop, lora, metrics, origin, workdirs
from her_jax.training import optimizer as optimizers
from her_jax.training import step as steps
from her_jax.training.preemption import Notice, Preempted
from her_jax.training.saver import Saver
from her_jax.training.state import TrainState

_MEASURED = 10_000  # Rows of a mixture whose shares are told.


def start_model(
  config: ml_collections.ConfigDict,
  workdir: str,
  mesh: jax.sharding.Mesh,
  scenes: Scenes,
) -> tuple[checkpoint.Checkpoint, continuation.Earlier | None]:
  """The model that the first step of this run starts from, and the earlier run that it is of."""
  checkpoint.refuse_sources(workdir, config.init_from)
  earlier = continuation.find(config, workdir)
  model = earlier.load_model(mesh) if earlier else start.start_model(config, mesh, scenes)
  return model.with_remat(config.remat), earlier


def fit(
  config: ml_collections.ConfigDict,
  workdir: str,
  mesh: jax.sharding.Mesh,
  model: checkpoint.Checkpoint,
  earlier: continuation.Earlier | None,
  scenes: Scenes,
  rows: Sequence[loaders.Row],
  before: Callable[[], dict[str, Any]],
  heldout: HeldOut,
  name: str,
) -> tuple[nnx.State, dict[str, Any]]:
  """Trains to `config.steps`, saving all the way.

  Args:
    model, earlier: of `start_model`; the parameters of an earlier run are donated.
    rows: the training data.
    before: measures `model`, unless an earlier run has.
    heldout: measures every `config.eval_every` steps.
    name: of the stage, for people.

  Returns:
    The trained parameters, adapters merged into them, and what `before` gave.
  """
  host, hosts = sharding.row_shard(mesh)
  words = start.word_ids(model.tokenizer, scenes)
  batches = iter(
    loaders.batches(
      rows,
      length=config.data.length,
      batch_size=config.batch_size,
      seed=config.seed,
      pad_id=chat.control_id(chat.PAD, model.tokenizer),
      host=host,
      hosts=hosts,
      word_dropout=config.data.word_dropout,
      word_ids=words,
      packing=config.data.packing,
      workers=config.data.workers,
    )
  )
  data = loaders.fingerprint(rows, words)
  padding = loaders.padding_share(
    rows, length=config.data.length, batch_size=config.batch_size, seed=config.seed,
    packing=config.data.packing,
  )  # fmt: skip
  epoch = sum(len(row["tokens"]) for row in rows) / (1 - padding)
  per_step = config.batch_size * config.data.length
  logging.info(
    "%s: %.1f %% of the slots are padding; an epoch is %.1f steps, so %d steps are %.2f epochs",
    name, 100 * padding, epoch / per_step, config.steps, config.steps * per_step / epoch,
  )  # fmt: skip
  if isinstance(rows, mixing.Mixture):
    _tell_mixture(rows, config, config.steps * per_step * (1 - padding))
  _tell_what_is_never_due(config, heldout, name)
  optimizer, schedule = optimizers.build(config.optimizer, config.steps)
  loss_fn = steps.next_token_loss(len(model.tokenizer))
  settings = lora.settings(config.lora)

  with workdirs.alone_in(workdir), Notice() as notice:
    if earlier:
      tuning, state = earlier.restore(model, settings, optimizer, batches, mesh, data)
      found = earlier.before
      _tell(earlier, config, name)
    else:
      found = before()
      _wait_for_all("the workdir is cleared")
      checkpoint.clear(workdir, config.init_from)
      for apart in (BEST, "ema"):
        checkpoint.clear(f"{workdir}/{apart}")
      checkpoint.write_tokenizer(workdir, model.tokenizer)
      tuning, trained = lora.begin(model.config, model.params, settings, config.seed, mesh)
      state = TrainState.create(trained, optimizer)
    checkpoint.clear_unfinished(workdir)
    started = earlier.origin if earlier else origin.identity(config.init_from)
    run = continuation.describe(config, found, data, started)
    saver = Saver(workdir, config.checkpoint, model, tuning, batches, run)
    step_fn = steps.make_train_step(tuning.graphdef, optimizer, loss_fn, config.micro_batches)
    intervals = Intervals(config.eval_every, heldout, model, tuning, workdir, int(state.step))
    if int(state.step) < config.steps:
      saver.require_space(state)
    with metrics.MetricWriter(workdir, int(state.step)) as writer, saver:
      state = loop.fit(
        state,
        lambda state, batch: step_fn(state, batch, *tuning.frozen),
        batches,
        steps=config.steps,
        schedule=schedule,
        writer=writer,
        mesh=mesh,
        log_every=config.log_every,
        name=name,
        model=model.config,
        adapted=settings,
        saver=saver,
        notice=notice,
        workdir=workdir,
        evaluate=intervals,
        profile=(config.profile.step, config.profile.steps),
      )
    if (mean := optimizers.averaged(state.opt_state)) is not None:
      checkpoint.save(
        f"{workdir}/ema", config.steps, model.config, tuning.whole(mean), model.tokenizer,
        model.variant,
      )  # fmt: skip
    if notice.given(config.steps + 1):  # While the last state was saved.
      raise Preempted(
        f"{name}: ended by SIGTERM after its last step, which is saved; the same command goes on"
        f" with what comes after it"
      )
  batches.close()  # Ends its workers.
  return tuning.whole(state.params), found


def _tell_mixture(
  rows: mixing.Mixture, config: ml_collections.ConfigDict, tokens: float
) -> None:
  """Of each source, what it holds and which part of the first `tokens` tokens is drawn of it."""
  drawn, looked_at = rows.drawn(config.seed, tokens, _MEASURED)
  whole = sum(part.weight for part in rows.parts)
  for part, found in zip(rows.parts, drawn, strict=True):
    logging.info(
      "source %s: %d rows, %d tokens; weight %g asks for %.1f %% of the tokens, and in the first"
      " %.0f it has %.1f %%, and %.1f %% of the loss's weight; %d steps are %.2f epochs of it",
      part.name, len(part.rows), part.tokens, part.weight, 100 * part.weight / whole, looked_at,
      100 * found.tokens, 100 * found.loss, config.steps, found.epochs * tokens / looked_at,
    )  # fmt: skip


def _tell_what_is_never_due(
  config: ml_collections.ConfigDict, heldout: HeldOut, name: str
) -> None:
  for field, step in (("eval_every", config.eval_every), ("profile.step", config.profile.step)):
    if step > config.steps:
      logging.warning(
        "%s: config.%s is %d, after the last of %d steps: it is never due",
        name, field, step, config.steps,
      )  # fmt: skip
  if config.eval_every and not heldout:
    logging.warning(
      "%s: config.eval_every is %d, and nothing that could be measured is held out (split)",
      name, config.eval_every,
    )  # fmt: skip


def _tell(earlier: continuation.Earlier, config: ml_collections.ConfigDict, name: str) -> None:
  if earlier.step < config.steps:
    logging.info("%s: continued after step %d of %d", name, earlier.step, config.steps)
  else:
    logging.info(
      "%s: the run in %s has done its %d steps, nothing is trained; to begin anew, pass"
      " --config.checkpoint.resume=False or another workdir",
      name, earlier.workdir, config.steps,
    )  # fmt: skip


def _wait_for_all(what: str) -> None:
  """No host clears what another is still looking at."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(what)
