"""The two programs of a host's engine, lowered on shapes alone, and the load they are taken at.

A pod's hosts sample each on their own. The work of the engine's loops is data to the compiler:
`load` says what a host in the middle of its work would have them do.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import ml_collections

from her_jax import sharding
from her_jax.inference import batches
from her_jax.inference.batches import Limits
from her_jax.inference.pages import Groups, Pool, init_pool
from her_jax.inference.programs import Chunk, Programs, Rows
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import abstract_model
from her_jax.tasks import start
from launch_tpu import arithmetic
from launch_tpu.programs import VALID_VOCAB, model_config, placed


def limits(config: ml_collections.ConfigDict) -> Limits:
  """Of the engine that a task of `config` samples with; as `start.engine_limits`."""
  return start.engine_limits(config.engine, config.sampling)


def least_pages(config: ml_collections.ConfigDict) -> int:
  """What one of the longest requests fills."""
  alone = ml_collections.ConfigDict(config.engine.to_dict() | {"rows": 1, "pages": 0})
  return start.engine_limits(alone, config.sampling).pages


def prefill(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """The largest chunk of prompts is read."""
  return Programs.prefill.lower(*arguments(config, mesh, _chunk(limits(config))))


def decode(config: ml_collections.ConfigDict, mesh: Mesh) -> Any:
  """All rows grow by a few tokens, none of them with more than a temperature."""
  return Programs.decode.lower(*arguments(config, mesh, _rows(limits(config))))


# Name of a program -> lowers it; the mesh is that of `jax.set_mesh`.
ON_HOST: Mapping[str, Callable[[ml_collections.ConfigDict, Mesh], Any]] = {
  "prefill": prefill,
  "decode": decode,
}


def arguments(
  config: ml_collections.ConfigDict, mesh: Mesh, work: Chunk | Rows
) -> tuple[Programs, nnx.State, Pool, Any]:
  """What `Engine` hands to a program, as shapes: weights in the dtype of the computation, and
  pages, both split over the host's chips."""
  model, kept = model_config(config), limits(config)
  graphdef, abstract = abstract_model(dataclasses.replace(model, param_dtype=model.dtype))
  params = jax.tree.map(placed, abstract, sharding.shardings(abstract, mesh))
  programs = Programs(graphdef=graphdef, valid_vocab=VALID_VOCAB)
  everywhere = sharding.replicated(mesh)
  on_all = jax.tree.map(lambda x: placed(x, everywhere), work)
  return programs, params, _pool(model, kept, mesh), on_all


@dataclasses.dataclass(frozen=True)
class Load:
  """What a program of a host does.

  Attributes:
    rows: That are worked on together.
    length: Tokens of a row.
    repeats: How often one run does so: figures are given for one of them.
    trips: For `hlo.count`, of the loops that stop on data.
    flops: Matrix products that the model needs, on all chips.
    hbm_bytes: That one chip must read: its part of the weights once, and once the keys and
      values that some row sees.
  """

  rows: int
  length: int
  repeats: int
  trips: Mapping[str, int]
  flops: float
  hbm_bytes: float


def load(config: ml_collections.ConfigDict, name: str, chips: int) -> Load:
  """What the middle of an RL step asks of a program.

  `decode`: all rows busy, in groups that share a prompt of `prompt_length` tokens, each with half
  of its longest reply. `prefill`: a chunk of a prompt of which half has been read before it.
  """
  model, kept = model_config(config), limits(config)
  prompt, drawn = config.sampling.prompt_length, config.sampling.max_new_tokens // 2
  weights = arithmetic.multiplied_weights(model)
  if name == "prefill":
    tokens, seen = kept.chunk, prompt // 2
    (reading,) = _chunk(kept).lists
    trips = _trips(reading, -(-tokens // kept.query_block), seen, kept.page_size)
    # Nothing is multiplied with the head, and no logits come of it.
    weights -= model.vocab_size * model.hidden_size
    return Load(
      rows=1,
      length=tokens,
      repeats=1,
      trips=trips,
      flops=tokens * (2 * weights + _attention_flops(model, seen)),
      hbm_bytes=(2 * weights + seen * _token_bytes(model)) / chips,
    )
  group = config.rl.group_size if config.task == "rl" else 1
  own, several = _rows(kept).lists
  prompts = -(-kept.rows // group)
  alone = drawn if group > 1 else prompt + drawn
  together = prompts * -(-group // kept.shared) if group > 1 else 0
  trips = {"jit(decode)/while": kept.steps}
  trips |= _trips(own, kept.rows, alone, kept.page_size)
  trips |= _trips(several, together, prompt, kept.page_size)
  seen = prompts * prompt + kept.rows * drawn
  return Load(
    rows=kept.rows,
    length=1,
    repeats=kept.steps,
    trips=trips,
    flops=kept.rows * (2 * weights + _attention_flops(model, prompt + drawn)),
    hbm_bytes=(2 * weights + seen * _token_bytes(model)) / chips,
  )


def _trips(groups: Groups, count: int, seen: int, page_size: int) -> dict[str, int]:
  """Of the loops over blocks of groups, and over the pages of their stretches."""
  scope = f"shared_by_{groups.queries.shape[1]}/while"
  return {
    scope: -(-count // groups.block),
    f"{scope}/body/while": -(-seen // (page_size * groups.wide)),
  }


def _chunk(kept: Limits) -> Chunk:
  chunks = [work for work in batches.shapes(kept) if isinstance(work, Chunk)]
  return max(chunks, key=lambda chunk: chunk.tokens.size)


def _rows(kept: Limits) -> Rows:
  plain = [w for w in batches.shapes(kept) if isinstance(w, Rows) and w.history is None]
  return max(plain, key=lambda rows: rows.token.size)


def _pool(model: ModelConfig, kept: Limits, mesh: Mesh) -> Pool:
  """As `init_pool` places it."""
  with jax.set_mesh(mesh):
    shapes = jax.eval_shape(lambda: init_pool(model, kept.pages, kept.page_size))
  names = ("layers", "pages", "slots", "kv_heads", "head_dim")
  spec = sharding.RULES.spec(names, shapes.keys.shape, mesh)
  place = jax.sharding.NamedSharding(mesh, spec)
  return Pool(keys=placed(shapes.keys, place), values=placed(shapes.values, place))


def _attention_flops(model: ModelConfig, seen: int) -> float:
  """Of one token that sees so many: two products in every layer."""
  return 2 * 2 * model.num_layers * model.num_heads * model.head_dim * seen


def _token_bytes(model: ModelConfig) -> int:
  """Of the keys and values of one token."""
  size = jnp.dtype(model.dtype).itemsize
  return 2 * model.num_layers * model.num_kv_heads * model.head_dim * size
