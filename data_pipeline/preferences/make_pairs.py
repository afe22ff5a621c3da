"""Makes judge pairs of scenes: each trained reply against spoilt ones, see `corruptions`.

    python -m data_pipeline.preferences.make_pairs --scenes=my.jsonl --pairs=my_pairs.jsonl

Without flags it writes the pairs of the sample corpus anew.
"""

from collections.abc import Sequence
import sys

from absl import app, flags

from data_pipeline import own_inputs, samples
from data_pipeline.preferences import corruptions
from her_jax.errors import ConfigError
from her_jax.roleplay import schema

SEED = 0
PER_REPLY = 2

_SCENES = flags.DEFINE_string("scenes", str(samples.SCENES), "JSON Lines file of scenes")
_PAIRS = flags.DEFINE_string(
  "pairs", None, "File to write; beside the samples if those are read"
)
_SEED = flags.DEFINE_integer("seed", SEED, "Pairs depend on it and on the scenes alone")
_PER_REPLY = flags.DEFINE_integer("per_reply", PER_REPLY, "Pairs made of one reply", 1)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"what is {argv[1]!r}? Pass --scenes=FILE and --pairs=FILE.")
  if _PAIRS.value is None and _SCENES.value != str(samples.SCENES):
    sys.exit("make_pairs: where shall the pairs be written? Pass --pairs=FILE")
  target = _PAIRS.value or samples.PAIRS
  try:
    own_inputs.refuse([target], [_SCENES.value])
    scenes = schema.read_trajectories(_SCENES.value)
  except (ConfigError, schema.DataError) as error:
    sys.exit(f"make_pairs: {error}")
  pairs = corruptions.make_pairs(scenes, _SEED.value, _PER_REPLY.value)
  if not pairs:
    sys.exit(
      f"make_pairs: {_SCENES.value} has no turn with a plan, so there is nothing to spoil"
    )
  try:
    schema.write_jsonl(target, pairs)
  except OSError as error:
    sys.exit(f"make_pairs: --pairs={target}: cannot be written ({error.strerror})")
  heldout = sum(pair.split == "heldout" for pair in pairs)
  ties = sum(pair.winner == "tie" for pair in pairs)
  print(f"{len(pairs)} pairs, {heldout} of them held out, {ties} ties: {target}")


if __name__ == "__main__":
  app.run(main)
