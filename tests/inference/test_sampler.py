"""Groups of completions: each its own draw, of the weights that were asked for."""

import jax
import pytest

from her_jax import sharding
from her_jax.inference.engine import Engine
from her_jax.inference.replicas import RolloutWeights
from her_jax.inference.sampler import Sampler
from her_jax.inference.sampling import Sampling, with_seeds
from tests import tiny_model
from tests.tiny_model import CONFIG, LIMITS, STOP, VALID

pytestmark = pytest.mark.usefixtures("quick_compile")

_PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13], [21], [31, 32, 33, 34, 35, 36, 37]]


@pytest.fixture(scope="module")
def model():
  return tiny_model.make()


@pytest.fixture(scope="module")
def sampler(model):
  return _sampler(model)


def _sampler(model):
  make = lambda params: Engine(CONFIG, model[0], params, LIMITS, valid_vocab=VALID)
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  weights = RolloutWeights(model[1], mesh, CONFIG.dtype)
  return Sampler(make, weights, Sampling(max_tokens=10, stop_ids=(STOP,)), prompt_length=8)


def _ids(groups):
  return [[completion.ids for completion in group] for group in groups]


def test_a_group_has_different_completions_and_a_seed_gives_the_same(model, sampler):
  group = sampler(model[1], _PROMPTS, n=4, seed=3)
  assert [len(g) for g in group] == [4] * len(_PROMPTS)
  assert group == sampler(model[1], _PROMPTS, n=4, seed=3)
  assert group != sampler(model[1], _PROMPTS, n=4, seed=4)
  assert all(len({tuple(c.ids) for c in g}) > 1 for g in group)


def test_what_else_is_sampled_does_not_change_a_completion(model, sampler):
  """Place and number are kept; what stands beside changes."""
  together = _ids(sampler(model[1], _PROMPTS, n=2, seed=3))
  other = _ids(sampler(model[1], [[50, 51], _PROMPTS[1], [52], [53] * 8], n=2, seed=3))
  assert together[1] == other[1] and together[0] != other[0]
  assert together[:1] == _ids(sampler(model[1], _PROMPTS[:1], n=2, seed=3))


def test_other_weights_are_taken_and_their_own_results_kept(model, sampler):
  ours, theirs = model[1], jax.tree.map(lambda x: 1.5 * x, model[1])
  first = sampler(ours, _PROMPTS, n=2, seed=0)
  computed = sampler._engine.stats.prefilled_tokens
  assert sampler(ours, _PROMPTS, n=2, seed=0) == first
  assert sampler._engine.stats.prefilled_tokens == computed
  second = sampler(theirs, _PROMPTS, n=2, seed=0)
  assert second != first and sampler._engine.stats.prefilled_tokens > computed
  assert _sampler(model)(theirs, _PROMPTS, n=2, seed=0) == second
  assert sampler(ours, _PROMPTS, n=2, seed=0) == first


def test_a_prompt_that_is_too_long_is_refused(model, sampler):
  with pytest.raises(ValueError, match="prompt 1 has 9 tokens, more than prompt_length = 8"):
    sampler(model[1], [[5], [5] * 9], n=1, seed=0)
  assert sampler(model[1], [[5] * 8], n=1, seed=0)[0][0].ids


def test_seeds_are_apart_and_do_not_depend_on_their_number():
  seeds = [s.seed for s in with_seeds(Sampling(), 7, 1000)]
  assert len(set(seeds)) == 1000
  assert seeds[:10] == [s.seed for s in with_seeds(Sampling(), 7, 10)]
  others = [s.seed for seed in range(50) for s in with_seeds(Sampling(), seed, 100)]
  assert len(set(others)) == 5000
