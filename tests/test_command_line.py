"""Numbers that are none of their kind are refused by name, in every stage of a config."""

import pytest

from configs import genrm, quickstart, rl, sft
from her_jax import command_line
from her_jax.errors import ConfigError


def _set(config, field, value):
  *sections, name = field.split(".")
  for section in sections:
    config = config[section]
  config[name] = value


@pytest.mark.parametrize(
  "field, value, told",
  [
    ("optimizer.learning_rate", float("nan"), "nan; it must be a number, 0 or more"),
    ("optimizer.learning_rate", float("inf"), "inf; it must be"),
    ("optimizer.learning_rate", -1e-3, "-0.001; it must be"),
    ("seed", 2**63, "0 or more and below 9.22337e.18"),
    ("seed", -1, "0 or more"),
    ("tokenizer_vocab", -5, "1 or more"),
    ("optimizer.weight_decay", -0.1, "0 or more"),
    ("optimizer.final_scale", float("nan"), "0 or more"),
    ("optimizer.warmup_steps", -1, "0 or more"),
    ("optimizer.muon_scale", 0.0, "above 0"),
    ("optimizer.clip_norm", 0.0, "above 0"),
    ("optimizer.clip_norm", -1.0, "above 0"),
    ("optimizer.clip_norm", float("nan"), "above 0"),
    ("optimizer.b1", 1.0, "0 or more and below 1"),
    ("optimizer.b2", -0.1, "0 or more and below 1"),
    ("optimizer.ema", 1.0, "below 1"),
    ("data.word_dropout", 2.0, "0 or more and at most 1"),
    ("data.word_dropout", float("nan"), "at most 1"),
    ("context_weight", -1.0, "0 or more"),
    ("name_weight", float("nan"), "0 or more"),
    ("sampling.temperature", -0.5, "0 or more"),
  ],
)
def test_a_number_out_of_its_range_is_refused(field, value, told):
  config = sft.get_config("tiny")
  _set(config, field, value)
  with pytest.raises(ConfigError, match=f"config.{field} is .*{told}"):
    command_line.check(config)


@pytest.mark.parametrize(
  "field, value",
  [
    ("optimizer.learning_rate", 0.0),
    ("optimizer.clip_norm", float("inf")),
    ("optimizer.b1", 0.0),
    ("data.word_dropout", 1.0),
    ("sampling.temperature", 0.0),
  ],
)
def test_the_ends_of_a_range_are_in_it(field, value):
  config = sft.get_config("tiny")
  _set(config, field, value)
  command_line.check(config)


@pytest.mark.parametrize("module", [sft, genrm, rl, quickstart])
def test_the_presets_pass(module):
  command_line.check(module.get_config("tiny"))


def test_the_judge_sees_no_negative_number_of_turns():
  config = genrm.get_config("tiny")
  config.judge.history = -1
  with pytest.raises(ConfigError, match="config.judge.history is -1; it must be 0 or more"):
    command_line.check(config)


def test_of_several_stages_the_one_at_fault_is_named():
  config = quickstart.get_config()
  config.genrm.optimizer.learning_rate = float("nan")
  with pytest.raises(ConfigError, match=r"config\.genrm\.optimizer\.learning_rate is nan"):
    command_line.check(config)
