"""Draws follow the distribution that the settings describe; settings that are none are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax.inference.sampling import Sampling, Settings, draw

_P = np.asarray([0.15, 0.5, 0.05, 0.3, 0.0], np.float32)
_DRAWS = 4000


def _shares(seen=None, **settings) -> np.ndarray:
  logits = jnp.log(jnp.asarray(_P) + 1e-9)
  rows = Settings.stack([Sampling(seed=5, **settings)], 1)
  rows = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), _DRAWS, 0), rows)
  filtered = Sampling(**settings).filtered
  if seen is None and filtered:
    seen = np.zeros(5, bool)
  ids, log_probs = draw(
    jnp.tile(logits, (_DRAWS, 1)),
    rows,
    jnp.arange(_DRAWS),
    5,
    None if seen is None else jnp.tile(jnp.asarray(seen), (_DRAWS, 1)),
  )
  if seen is None or not any(seen):
    temperature = settings.get("temperature") or 1.0
    wanted = jax.nn.log_softmax(logits / temperature)
    np.testing.assert_allclose(log_probs, wanted[ids], atol=1e-5)
  return np.bincount(np.asarray(ids), minlength=5) / _DRAWS


@pytest.mark.parametrize(
  "settings, kept",
  [
    ({}, [1, 1, 1, 1, 1]),
    ({"top_k": 2}, [0, 1, 0, 1, 0]),
    ({"top_k": 99}, [1, 1, 1, 1, 1]),
    ({"top_p": 0.6}, [0, 1, 0, 1, 0]),  # The fewest that reach 0.6.
    ({"top_p": 0.49}, [0, 1, 0, 0, 0]),
    ({"min_p": 0.29}, [1, 1, 0, 1, 0]),  # Of 0.5: 0.145.
    ({"top_k": 3, "top_p": 0.9, "min_p": 0.5}, [0, 1, 0, 1, 0]),
  ],
)
def test_filters_leave_what_they_say(settings, kept):
  wanted = _P * kept
  # Four standard errors of 4,000 draws.
  np.testing.assert_allclose(_shares(**settings), wanted / wanted.sum(), atol=0.032)


def test_temperature_comes_before_the_draw():
  wanted = _P**2 / np.sum(_P**2)
  np.testing.assert_allclose(_shares(temperature=0.5), wanted, atol=0.032)
  assert _shares(temperature=0).tolist() == [0, 1, 0, 0, 0]


def test_what_was_said_is_less_likely_under_a_penalty():
  seen = [False, True, False, False, False]
  # The logit is log 0.5 = -0.69, and is multiplied.
  p = _P.copy()
  p[1] = 0.5**3
  np.testing.assert_allclose(_shares(seen, repetition_penalty=3.0), p / p.sum(), atol=0.032)


def test_seeds_make_draws_their_own():
  logits = jnp.zeros((6, 50))
  seeds = [Sampling(seed=s) for s in (0, 1, 2**32, 2**32 + 1, 2**63, 0)]
  ids = np.asarray(
    [draw(logits, Settings.stack(seeds, 6), jnp.full(6, at), 50, None)[0] for at in range(40)]
  )
  assert (ids[:, 0] == ids[:, 5]).all()
  for i in range(5):
    for j in range(i):
      assert (ids[:, i] == ids[:, j]).mean() < 0.3


def test_ids_without_a_token_are_never_drawn():
  logits = jnp.tile(jnp.arange(8.0), (100, 1))
  rows = Settings.stack([Sampling(seed=i) for i in range(100)], 100)
  assert draw(logits, rows, jnp.zeros(100, jnp.int32), 5, None)[0].max() < 5


@pytest.mark.parametrize(
  "settings",
  [
    {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")},
    {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"top_k": -1}, {"max_tokens": 0},
    {"repetition_penalty": 0.0}, {"seed": -1}, {"seed": 2**64}, {"stop": ("",)},
  ],
)  # fmt: skip
def test_settings_that_are_none_are_refused(settings):
  (name,) = settings
  with pytest.raises(ValueError, match=f"{name} is .* it must be"):
    Sampling(**settings)
