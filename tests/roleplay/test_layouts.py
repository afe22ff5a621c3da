"""Entropy and runs of layouts."""

from her_jax.roleplay.layouts import entropy_bits, longest_run


def test_entropy():
  assert entropy_bits({}) is None
  assert entropy_bits({"TS": 5}) == 0
  assert entropy_bits({"TS": 1, "AS": 1, "S": 2}) == 1.5
  assert entropy_bits({"TS": 1, "AS": 1, "gone": 0}) == 1.0


def test_the_longest_run():
  assert longest_run(["TS", "AS", "AS", "TS"]) == ("AS", 2)
  assert longest_run(["TS", "TS", "AS", "TS"]) == ("TS", 2)
  assert longest_run([]) == ("", 0)
