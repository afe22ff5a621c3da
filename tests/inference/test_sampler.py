"""The sampler: a completion depends on its own prompt, and equals the full forward pass."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax.inference.sampler import Sampler
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3

_VALID, _PAD, _STOP, _NEW, _ROOM = 60, 0, 1, 10, 24
_CONFIG = ModelConfig(
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  tie_embeddings=False,
  max_position_embeddings=128,
  dtype="float32",
  remat="none",
)
_PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13], [21], [31, 32, 33, 34, 35, 36, 37]]


@pytest.fixture(scope="module", autouse=True)
def _quick_compile():
  """Each program runs a few times: XLA's optimisations would take most of the time."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def model():
  graphdef, params = nnx.split(Qwen3(_CONFIG, rngs=nnx.Rngs(0)))
  return graphdef, jax.tree.map(lambda x: 2 * x, params)


@pytest.fixture(scope="module")
def samplers(model):
  """Makes a sampler with a few settings changed."""

  def get(**changes) -> Sampler:
    settings = {
      "prompt_length": 8,
      "max_new_tokens": _NEW,
      "prompts_per_call": 4,
      "stop_ids": (_STOP,),
      "pad_id": _PAD,
      "temperature": 1.0,
      "valid_vocab": _VALID,
    }
    return Sampler(config=_CONFIG, graphdef=model[0], **settings | changes)

  return get


@pytest.fixture(scope="module")
def logits_of(model):
  """ids -> [len(ids), vocab] by one pass without a cache; filler behind is seen by nobody."""
  positions = jnp.arange(_ROOM)[None]

  @jax.jit
  def run(tokens, length):
    visible_until = jnp.where(positions < length, length, positions + 1)
    qwen = nnx.merge(*model)
    hidden, _ = qwen(tokens, positions, visible_until)
    return qwen.logits(hidden)[0]

  def get(ids) -> np.ndarray:
    tokens = jnp.asarray([[*ids, *[_PAD] * (_ROOM - len(ids))]])
    return np.asarray(run(tokens, len(ids)))[: len(ids)]

  return get


def _same(one, two) -> None:
  assert one.ids == two.ids and one.finished == two.finished
  np.testing.assert_allclose(one.log_probs, two.log_probs, atol=1e-5)


def test_more_padding_does_not_change_a_completion(model, samplers):
  short = samplers()(model[1], _PROMPTS, n=2, seed=3)
  long = samplers(prompt_length=20)(model[1], _PROMPTS, n=2, seed=3)
  for one, two in zip(short, long, strict=True):
    for a, b in zip(one, two, strict=True):
      _same(a, b)


def test_batch_mates_do_not_change_a_completion(model, samplers):
  """Place and number are kept; what stands beside changes."""
  together = samplers()(model[1], _PROMPTS, n=2, seed=3)
  other = samplers()(model[1], [[50, 51], _PROMPTS[1], [52], [53] * 8], n=2, seed=3)
  for a, b in zip(together[1], other[1], strict=True):
    _same(a, b)
  alone = samplers()(model[1], _PROMPTS[:1], n=2, seed=3)
  for a, b in zip(together[0], alone[0], strict=True):
    _same(a, b)
  assert together[0][0].ids != other[0][0].ids


def test_the_number_of_prompts_a_call_does_not_change_completions(model, samplers):
  four = samplers()(model[1], _PROMPTS, n=2, seed=3)
  two = samplers(prompts_per_call=2)(model[1], _PROMPTS, n=2, seed=3)
  for one, other in zip(four, two, strict=True):
    for a, b in zip(one, other, strict=True):
      _same(a, b)


def test_a_group_has_different_completions_and_a_seed_gives_the_same(model, samplers):
  group = samplers()(model[1], _PROMPTS, n=4, seed=3)
  again = samplers()(model[1], _PROMPTS, n=4, seed=3)
  other = samplers()(model[1], _PROMPTS, n=4, seed=4)
  assert group == again
  assert group != other
  assert len({tuple(c.ids) for c in group[0]}) > 1


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_log_probs_are_those_of_the_full_pass(model, samplers, logits_of, temperature):
  drawn = samplers(temperature=temperature)(model[1], _PROMPTS, n=2, seed=5)
  for prompt, group in zip(_PROMPTS, drawn, strict=True):
    for completion in group:
      logits = logits_of(prompt + completion.ids)[len(prompt) - 1 : -1, :_VALID]
      log_probs = jax.nn.log_softmax(logits / temperature)
      expected = [log_probs[i, token] for i, token in enumerate(completion.ids)]
      np.testing.assert_allclose(completion.log_probs, expected, atol=1e-4)


def test_greedy_takes_the_likeliest_token_of_the_full_pass(model, samplers, logits_of):
  drawn = samplers(temperature=0.0)(model[1], _PROMPTS, n=1, seed=0)
  assert len({tuple(group[0].ids) for group in drawn}) > 1
  for prompt, (completion,) in zip(_PROMPTS, drawn, strict=True):
    logits = logits_of(prompt + completion.ids)[len(prompt) - 1 : -1, :_VALID]
    assert completion.ids == np.argmax(logits, axis=-1).tolist()


def test_the_stop_id_is_kept_and_ends_the_completion(model, samplers):
  """With a third of the vocabulary as stop ids some completions end and some do not."""
  stops = tuple(range(20, 40))
  drawn = samplers(stop_ids=stops)(model[1], _PROMPTS, n=8, seed=1)
  completions = [c for group in drawn for c in group]
  assert any(c.finished for c in completions)
  for c in completions:
    assert len(c.ids) == len(c.log_probs)
    hits = [i for i, token in enumerate(c.ids) if token in stops]
    if c.finished:
      assert hits == [len(c.ids) - 1]
    else:
      assert not hits and len(c.ids) == _NEW


def test_a_completion_that_ends_early_does_not_change_its_neighbours(model, samplers):
  free = samplers(stop_ids=(63,))(model[1], _PROMPTS, n=4, seed=1)
  stopping = samplers(stop_ids=tuple(range(20, 40)))(model[1], _PROMPTS, n=4, seed=1)
  for one, two in zip(free, stopping, strict=True):
    for a, b in zip(one, two, strict=True):
      assert a.ids[: len(b.ids)] == b.ids
  assert any(len(c.ids) == _NEW for group in free for c in group)


def test_cut_off_is_reported(model, samplers):
  drawn = samplers(stop_ids=(63,))(model[1], _PROMPTS, n=2, seed=0)  # Never sampled.
  assert all(len(c.ids) == _NEW and not c.finished for group in drawn for c in group)


def test_rows_beyond_the_tokenizer_are_never_sampled(model, samplers):
  """Their head is made so large that they would always win."""
  params = jax.tree.map(lambda x: x, model[1])
  head = params["lm_head"].get_value()
  params["lm_head"].set_value(head.at[:, _VALID:].multiply(100.0))
  prompts = [[i] for i in range(2, 6)]
  unmasked = samplers(valid_vocab=64)(params, prompts, n=4, seed=0)
  assert any(i >= _VALID for group in unmasked for c in group for i in c.ids)
  for temperature in (0.0, 1.0):
    drawn = samplers(temperature=temperature)(params, prompts, n=4, seed=0)
    completions = [c for group in drawn for c in group]
    assert all(i < _VALID for c in completions for i in c.ids)
    assert all(p > -50 for c in completions for p in c.log_probs)


def test_a_prompt_that_is_too_long_is_refused(model, samplers):
  with pytest.raises(ValueError, match="prompt 1 has 9 tokens, more than prompt_length = 8"):
    samplers()(model[1], [[5], [5] * 9], n=1, seed=0)


def test_a_prompt_as_long_as_the_limit_fits(model, samplers):
  (((completion),),) = samplers()(model[1], [[5] * 8], n=1, seed=0)
  longer = samplers(prompt_length=20)(model[1], [[5] * 8], n=1, seed=0)[0][0]
  _same(completion, longer)


def test_a_few_prompts_do_not_pay_for_a_full_call(samplers, model):
  """Half the rows where they are enough; the draws stay those of the full call."""
  devices = jax.device_count()
  sampler = samplers(prompts_per_call=4 * devices)
  asked = (1, devices + 1, 2 * devices, 2 * devices + 1, 4 * devices)
  rows = [sampler._rows(n) for n in asked]
  assert rows == [n * devices for n in (2, 2, 2, 4, 4)]
  assert samplers(prompts_per_call=3 * devices)._rows(1) == 3 * devices
  few = sampler(model[1], _PROMPTS[:2], n=2, seed=5)
  full = sampler(model[1], _PROMPTS * devices, n=2, seed=5)
  assert [[c.ids for c in group] for group in few] == [
    [c.ids for c in group] for group in full[:2]
  ]


def test_equal_samplers_share_one_program(samplers, model):
  samplers(max_new_tokens=3)(model[1], _PROMPTS[:2], n=1, seed=0)
  programs = Sampler._generate._cache_size()
  samplers(max_new_tokens=3)(model[1], _PROMPTS[:2], n=1, seed=0)
  assert Sampler._generate._cache_size() == programs
  samplers(max_new_tokens=2)(model[1], _PROMPTS[:2], n=1, seed=0)
  assert Sampler._generate._cache_size() == programs + 1
