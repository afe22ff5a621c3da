"""Rewrites `pairs.jsonl` from `scenes.jsonl`: `python -m data_pipeline.samples.make_pairs`."""

from data_pipeline import samples
from data_pipeline.preferences import corruptions
from her_jax.roleplay import schema

SEED = 0
PER_REPLY = 2


def build() -> list[schema.PreferencePair]:
  """The pairs as they ship; scenes and seed alone decide them."""
  return corruptions.make_pairs(schema.read_trajectories(samples.SCENES), SEED, PER_REPLY)


def main() -> None:
  pairs = build()
  schema.write_jsonl(samples.PAIRS, pairs)
  heldout = sum(pair.split == "heldout" for pair in pairs)
  ties = sum(pair.winner == "tie" for pair in pairs)
  print(f"{len(pairs)} pairs, {heldout} of them held out, {ties} ties: {samples.PAIRS}")


if __name__ == "__main__":
  main()
