"""From the judge's verdicts to rewards."""

from collections.abc import Sequence

SCORES = {"win": 1.0, "tie": 0.0, "lose": -1.0}


def outcome(verdicts: Sequence[str | None], places: Sequence[str]) -> str | None:
  """What one comparison says of the policy's reply.

  Args:
    verdicts: the winner in each order that was judged; None where it could not be read.
    places: where the policy's reply stood in each, "cand_1" or "cand_2".

  Returns:
    "win", "tie" or "lose". Orders that contradict each other are a tie, so a judge that
    always names the first gives ties alone. None if no verdict could be read.

  Example:
    outcome(["cand_1", "cand_2"], ["cand_1", "cand_2"]) == "win"
    outcome(["cand_1", "cand_1"], ["cand_1", "cand_2"]) == "tie"
  """
  read = [
    "tie" if verdict == "tie" else "win" if verdict == place else "lose"
    for verdict, place in zip(verdicts, places, strict=True)
    if verdict is not None
  ]
  if not read:
    return None
  return read[0] if len(set(read)) == 1 else "tie"


def reward(result: str | None) -> float:
  """+1, 0 or −1; 0 for a missing outcome, which `advantages` leaves out."""
  return 0.0 if result is None else SCORES[result]
