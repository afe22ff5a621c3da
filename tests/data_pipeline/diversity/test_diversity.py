"""Figures of variety: against their definitions, on made and on shipped scenes."""

from collections import Counter
import dataclasses
import json
import math
import random
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from data_pipeline import diversity, samples
from data_pipeline.diversity import figures
from her_jax.roleplay import schema

SCENES = schema.read_trajectories(samples.SCENES)


def _scene(replies, originals=None, language="en", id="s"):
  people = tuple(schema.Character(name) for name in "AB")
  turns = tuple(
    schema.Turn(
      "AB"[i % 2], reply, extra={"her": {"original": originals[i]}} if originals else {}
    )
    for i, reply in enumerate(replies)
  )
  return schema.Trajectory(id, "There.", people, language, turns=turns)


def _naive_bleu(words, others):
  """BLEU by its definition, one reference after the other."""
  logs = 0.0
  for n in range(1, 5):
    mine = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    hits = 0
    for gram, count in mine.items():
      best = max(
        sum(tuple(o[i : i + n]) == gram for i in range(len(o) - n + 1)) for o in others
      )
      hits += min(count, best)
    logs += math.log((hits or 0.1) / mine.total())
  nearest = min((len(o) for o in others), key=lambda n: (abs(n - len(words)), n))
  penalty = 1 if len(words) >= nearest else math.exp(1 - nearest / len(words))
  return penalty * math.exp(logs / 4)


_WORDS = st.lists(st.sampled_from("abc"), min_size=4, max_size=9)


@hypothesis.given(st.lists(_WORDS, min_size=2, max_size=6))
def test_self_bleu_is_the_mean_of_bleu_against_all_others(texts):
  expected = [_naive_bleu(t, texts[:i] + texts[i + 1 :]) for i, t in enumerate(texts)]
  assert figures.self_bleu(texts) == pytest.approx(sum(expected) / len(expected))


def test_self_bleu_equals_that_of_nltk():
  """The figure that `sentence_bleu` of nltk 3.10 with `SmoothingFunction().method1` gives."""
  texts = [
    "the tide comes in over the flats at noon".split(),
    "the tide goes out over the flats at night".split(),
    "she counts the coal and then the coal again".split(),
    "over the flats at noon she counts the boats".split(),
  ]
  assert figures.self_bleu(texts) == pytest.approx(NLTK, abs=1e-9)


NLTK = 0.3981941616797722


def test_self_bleu_at_its_ends():
  same = ["one two three four five".split()] * 3
  assert figures.self_bleu(same) == pytest.approx(1)
  apart = [[f"{i}{k}" for k in range(8)] for i in range(3)]
  assert figures.self_bleu(apart) < 0.02
  assert figures.self_bleu([["one", "two", "three"]] * 5) is None  # too short for a 4-gram


def test_distinct():
  assert figures.distinct([["a", "b", "a", "b"]], 2) == pytest.approx(2 / 3)
  assert figures.distinct([["a"]], 2) is None


@hypothesis.given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_quantiles_of_counts_are_those_of_the_values(values):
  found = figures.quantiles(Counter(values))
  ordered = sorted(values)
  assert found["p50"] == ordered[math.ceil(0.5 * len(values)) - 1]
  assert found["p95"] == ordered[math.ceil(0.95 * len(values) - 1e-9) - 1]
  assert found["max"] == ordered[-1] and found["mean"] == pytest.approx(
    sum(values) / len(values)
  )


def test_an_edit_is_compared_on_the_same_turns():
  edited = _scene(
    ["<role_thinking>Hm.</role_thinking> Yes.", "<role_action>nods</role_action> Yes.", "Yes."],
    originals=["Yes.", "Yes.", "Yes."],
  )
  plain = _scene(["Yes."] * 4, id="other")
  report = diversity.measure([edited, plain])
  before, after = report["edit"]["before"], report["edit"]["after"]
  assert before["replies"] == after["replies"] == 3 and report["layouts"]["replies"] == 7
  assert before["entropy_bits"] == 0 and after["entropy_bits"] == pytest.approx(math.log2(3))
  assert before["longest_run"] == {"layout": "S", "turns": 3, "scene": "s"}
  assert before["beyond_two_in_a_row"] == pytest.approx(1 / 3)
  assert report["edit"]["changed"] == pytest.approx(2 / 3)
  assert diversity.measure([plain])["edit"] is None


def test_neither_order_nor_repetition_of_a_run_changes_the_report():
  few = SCENES[:20]
  mixed = few[:]
  random.Random(1).shuffle(mixed)
  one, two = (diversity.measure(s, sample=40) for s in (few, mixed))
  assert one["wording"] == two["wording"] and one["lengths"] == two["lengths"]


def test_a_spoilt_corpus_shows():
  """All replies of one layout and wording: no entropy, no variety."""
  report = diversity.measure(SCENES)
  same = [
    dataclasses.replace(
      s, turns=tuple(dataclasses.replace(t, reply="I see, and that is all I can say now.") for t in s.turns)
    )
    for s in SCENES if s.language == "en"
  ]  # fmt: skip
  spoilt = diversity.measure(same)
  assert report["layouts"]["entropy_bits"] > 4 and spoilt["layouts"]["entropy_bits"] == 0
  assert report["wording"]["en"]["reply"]["self_bleu_4"] < 0.2
  assert spoilt["wording"]["en"]["reply"]["self_bleu_4"] == pytest.approx(1)
  assert spoilt["layouts"]["beyond_two_in_a_row"] > 0.6


def test_the_environment_is_no_speaker_of_layouts():
  people = (schema.Character("A"),)
  turns = (schema.Turn("Environment", "It rains."), schema.Turn("A", "Yes."))
  report = diversity.measure([schema.Trajectory("s", "There.", people, turns=turns)])
  assert report["layouts"]["replies"] == 1


def _run(*arguments):
  command = [sys.executable, "-m", "data_pipeline.diversity", *arguments]
  return subprocess.run(command, capture_output=True, text=True)


def test_the_command(tmp_path):
  done = _run(str(samples.SCENES), f"--json={tmp_path}/d.json")
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "d.json").read_text())
  assert report["layouts"]["replies"] == 926 and report["unreadable"] == 0
  assert "different layouts" in done.stdout and "self-BLEU-4" in done.stdout
  broken = tmp_path / "broken.jsonl"
  line = samples.SCENES.read_text(encoding="utf-8").splitlines()[0]
  broken.write_text(f"{line}\n{{\n", encoding="utf-8")
  refused = _run(str(broken))
  assert refused.returncode == 2 and f"diversity: {broken}:2" in refused.stderr
  assert len(refused.stderr.strip().splitlines()) == 1
  lenient = _run(str(broken), "--lenient")
  assert lenient.returncode == 0 and "1 lines are no scenes" in lenient.stdout
