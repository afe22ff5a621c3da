"""The engine: replies are those of transformers, and do not depend on who else is there."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from her_jax import sharding
from her_jax.hf import load
from her_jax.inference.cache import OutOfPages
from her_jax.inference.engine import Completion, Engine
from her_jax.inference.sampling import Sampling
from tests import tiny_model
from tests.tiny_model import CONFIG, LIMITS, VALID

pytestmark = pytest.mark.usefixtures("quick_compile")

_SHEET = [7, 9, 11, 13, 15, 17, 19, 21, 23, 25]
_PROMPTS = [
  [*_SHEET, 30, 31, 32],
  [*_SHEET, 30, 31, 33, 34, 35, 36],
  [*_SHEET, 40],
  _SHEET,
  [*_SHEET, 30, 31, 32],
  [5],
  [6, 6, 6, 6, 6, 6, 6],
  [8] * 30,
  [*_SHEET[:3], 50],
  [*_SHEET[:8], *range(2, 42)],
]


@pytest.fixture(scope="module")
def model():
  return tiny_model.make()


@pytest.fixture(scope="module")
def engines(model):
  """Makes an engine, its limits changed."""

  def get(decode=None, **changes) -> Engine:
    limits = dataclasses.replace(LIMITS, **changes)
    return Engine(CONFIG, *model, limits, valid_vocab=VALID, decode=decode)

  return get


def _ids(done: list[Completion]) -> list[list[int]]:
  return [completion.ids for completion in done]


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_replies_are_those_of_transformers(tied, tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  torch.manual_seed(0)
  config = transformers.Qwen3Config(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied,
    max_position_embeddings=128,
  )  # fmt: skip
  reference = transformers.Qwen3ForCausalLM(config).float().eval()
  with torch.no_grad():
    for weight in reference.parameters():
      weight.mul_(10 if weight.ndim > 1 else 1)
  reference.save_pretrained(tmp_path)
  reference.generation_config.eos_token_id = None
  wanted = [
    reference.generate(
      torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
      max_new_tokens=14, do_sample=False, pad_token_id=0,
    )[0, len(prompt) :].tolist()
    for prompt in _PROMPTS
  ]  # fmt: skip
  assert len({tuple(ids) for ids in wanted}) == len(_PROMPTS) - 1  # One prompt is there twice.

  ours, graphdef, params = load.load(tmp_path, dtype="float32", remat="none")
  greedy = Sampling(max_tokens=14, temperature=0)
  together = Engine(ours, graphdef, params, LIMITS)
  assert _ids(together.generate(_PROMPTS, greedy)) == wanted
  assert together.stats.shared_tokens > 50
  for prompt, ids in zip(_PROMPTS, wanted, strict=True):
    alone = Engine(ours, graphdef, params, LIMITS)
    assert _ids(alone.generate([prompt], greedy)) == [ids]
    assert alone.stats.shared_tokens == 0


def test_a_sampled_reply_does_not_depend_on_its_neighbours(engines):
  settings = [Sampling(max_tokens=12, seed=i, temperature=0.8) for i in range(64)]
  prompts = [_PROMPTS[i % len(_PROMPTS)] for i in range(64)]
  together = engines(rows=64, pages=600).generate(prompts, settings)
  assert len({tuple(c.ids) for c in together}) > 60
  for i in (0, 17, 63):
    (alone,) = engines().generate([prompts[i]], settings[i])
    assert alone.ids == together[i].ids
    np.testing.assert_allclose(alone.logprobs, together[i].logprobs, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_the_trainers(engines, model, temperature):
  settings = [Sampling(max_tokens=12, seed=i, temperature=temperature) for i in range(10)]
  done = engines().generate(_PROMPTS, settings)
  trainer = nnx.merge(*model)
  for prompt, completion in zip(_PROMPTS, done, strict=True):
    ids = jnp.asarray([prompt + completion.ids])
    count = ids.shape[1]
    hidden, _ = trainer(ids, jnp.arange(count)[None], jnp.full((1, count), count))
    logits = trainer.logits(hidden)[0, :, :VALID] / temperature
    wanted = jax.nn.log_softmax(logits)[jnp.arange(count - 1), ids[0, 1:]]
    np.testing.assert_allclose(completion.logprobs, wanted[len(prompt) - 1 :], atol=1e-4)


def test_the_chips_of_a_host_share_the_work(model, engines):
  wanted = engines().generate(_PROMPTS, Sampling(max_tokens=10, temperature=0))
  mesh = sharding.make_mesh(tensor=2, fsdp=1, devices=jax.devices()[:2])
  params = jax.device_put(model[1], sharding.shardings(model[1], mesh))
  with jax.set_mesh(mesh):
    engine = Engine(CONFIG, model[0], params, LIMITS, valid_vocab=VALID)
    assert engine._pool.keys.sharding.spec[3] == "tensor"
    found = engine.generate(_PROMPTS, Sampling(max_tokens=10, temperature=0))
    assert engine._pool.keys.sharding.spec[3] == "tensor"
  assert _ids(found) == _ids(wanted)
  for ours, theirs in zip(found, wanted, strict=True):
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)


def test_what_is_shared_is_read_once(engines):
  engine = engines()
  engine.generate([_PROMPTS[9]] * 8, [Sampling(max_tokens=4, seed=i) for i in range(8)])
  assert engine.stats.prefilled_tokens == len(_PROMPTS[9]) - 1
  # A turn later: the prompt's last token was read by the replies.
  engine.generate([[*_PROMPTS[9], 3]], Sampling(max_tokens=2))
  assert engine.stats.prefilled_tokens == len(_PROMPTS[9]) - 1


def test_a_conversation_goes_on_from_the_replys_own_pages(engines):
  engine = engines()
  (reply,) = engine.generate([_SHEET], Sampling(max_tokens=9, temperature=0))
  before = engine.stats.prefilled_tokens
  longer = [*_SHEET, *reply.ids, 5, 6]
  (found,) = engine.generate([longer], Sampling(max_tokens=6, temperature=0))
  assert engine.stats.prefilled_tokens - before == 2
  (fresh,) = engines().generate([longer], Sampling(max_tokens=6, temperature=0))
  assert found.ids == fresh.ids


def test_other_weights_forget_what_the_old_ones_computed(engines, model):
  engine = engines()
  first = engine.generate(_PROMPTS, Sampling(max_tokens=8, temperature=0))
  other = jax.tree.map(lambda x: -x, model[1])
  engine.load(other)
  second = engine.generate(_PROMPTS, Sampling(max_tokens=8, temperature=0))
  fresh = Engine(CONFIG, model[0], other, LIMITS, valid_vocab=VALID)
  assert _ids(second) == _ids(fresh.generate(_PROMPTS, Sampling(max_tokens=8, temperature=0)))
  engine.load(model[1])
  assert _ids(engine.generate(_PROMPTS, Sampling(max_tokens=8, temperature=0))) == _ids(first)


def test_weights_do_not_change_under_a_request(engines, model):
  engine = engines()
  engine.submit(_SHEET, Sampling(max_tokens=8))
  with pytest.raises(ValueError, match="under way"):
    engine.load(model[1])


def test_too_few_pages_make_requests_take_turns(engines):
  settings = [Sampling(max_tokens=30, seed=i) for i in range(8)]
  prompts = [[i + 2] * 20 for i in range(8)]
  wanted = engines().generate(prompts, settings)
  tight = engines(pages=30)
  found = tight.generate(prompts, settings)
  assert _ids(found) == _ids(wanted)
  assert tight.stats.preempted > 0


def test_the_cache_makes_room_for_what_comes(engines):
  engine = engines(pages=30)
  for i in range(40):
    engine.generate([[i % 50 + 2, 3, *range(2, 30)]], Sampling(max_tokens=20, seed=i))
  assert engine._prefixes.evicted_tokens > 0


def test_every_page_comes_back(engines):
  engine = engines()
  free = engine._prefixes.free_pages
  engine.generate(_PROMPTS * 3, [Sampling(max_tokens=9, seed=i) for i in range(30)])
  numbers = [engine.submit(p, Sampling(max_tokens=20)) for p in _PROMPTS]
  for _ in range(3):
    engine.step()
  assert all(engine.cancel(number) for number in numbers)
  assert not engine.cancel(numbers[0])
  assert not engine.busy
  engine._prefixes.clear()
  assert engine._prefixes.free_pages == free


def test_stops_at_ids_and_at_texts_across_tokens(engines):
  greedy = Sampling(max_tokens=20, temperature=0)
  (whole,) = engines().generate([_SHEET], greedy)
  assert whole.finish_reason == "length" and len(whole.ids) == 20
  stop = whole.ids[6]
  at = whole.ids.index(stop)
  (cut,) = engines().generate([_SHEET], dataclasses.replace(greedy, stop_ids=(63, stop)))
  assert (cut.ids, cut.finish_reason) == (whole.ids[: at + 1], "stop")

  engine = engines(decode=lambda ids: "".join(f"<{i}>" for i in ids))
  across = f"{whole.ids[2]}><{whole.ids[3]}"
  (cut,) = engine.generate([_SHEET], dataclasses.replace(greedy, stop=("never", across)))
  assert (cut.ids, cut.finish_reason) == (whole.ids[:4], "stop")


def test_what_does_not_fit_is_refused_in_words(engines):
  engine = engines()
  with pytest.raises(ValueError, match="empty"):
    engine.submit([], Sampling())
  with pytest.raises(ValueError, match="64 tokens; .* room for 64"):
    engine.submit([3] * 64, Sampling())
  with pytest.raises(ValueError, match="decode"):
    engine.submit([3], Sampling(stop=("x",)))
  with pytest.raises(ValueError, match="give it .* pages"):
    engines(pages=4)
  assert not engine.busy


def test_the_context_bounds_a_reply(engines):
  (done,) = engines().generate([[3] * 60], Sampling(max_tokens=100))
  assert len(done.ids) == 4 and done.finish_reason == "length"


def test_nothing_is_compiled_after_the_warm_up(engines):
  engine = engines(rows=16, pages=400)
  engine.warm_up()
  compiled: list[str] = []

  def hear(name: str, *_, **__) -> None:
    if name == "/jax/core/compile/backend_compile_duration":
      compiled.append(name)

  jax.monitoring.register_event_duration_secs_listener(hear)
  try:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 60, rng.integers(1, 40)).tolist() for _ in range(500)]
    settings = [
      Sampling(max_tokens=int(rng.integers(1, 24)), seed=i, top_k=5 * (i % 7 == 0))
      for i in range(500)
    ]
    done = engine.generate(prompts, settings)
  finally:
    jax.monitoring.unregister_event_duration_listener(hear)
  assert [len(c.ids) for c in done] == [s.max_tokens for s in settings]
  assert not compiled


def test_a_mixture_of_settings(engines):
  greedy = Sampling(max_tokens=8, temperature=0)
  (wanted,) = engines().generate([_SHEET], greedy)
  narrow = [
    dataclasses.replace(greedy, temperature=1.0, seed=3, **one)
    for one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0})
  ]
  found = engines().generate([_SHEET] * 4, [*narrow, Sampling(max_tokens=8, seed=3)])
  assert _ids(found[:3]) == [wanted.ids] * 3
  assert found[3].ids != wanted.ids
  heavy = dataclasses.replace(greedy, repetition_penalty=1e6, max_tokens=20)
  (once,) = engines().generate([_SHEET], heavy)
  assert len({*once.ids, *_SHEET}) == len(once.ids) + len(_SHEET)


def test_one_request_too_large_for_the_cache_says_so(engines):
  engine = engines(pages=18 + 2)
  engine.submit([3] * 50, Sampling(max_tokens=10))
  engine.step()
  engine._prefixes.take(engine._prefixes.free_pages)
  with pytest.raises(OutOfPages, match="are free"):
    while engine.busy:
      engine.step()
