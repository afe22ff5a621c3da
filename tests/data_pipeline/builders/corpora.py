"""What is built from small corpora."""

from data_pipeline.builders import source as sources

EVEN = dict.fromkeys(sources.KINDS["trajectories"], 1.0)


def pairs_of(rows):
  return [
    {
      "id": f"pair {row['id']}",
      "scene": row["id"],
      "turn": 2,
      "candidate_1": row["turns"][2]["reply"],
      "candidate_2": "又是你。\u0001",
      "winner": "cand_1",
      "violates_2": ["too-short"],
      "note": {"by": "hand"},
    }
    for row in rows[::-1]
  ]
