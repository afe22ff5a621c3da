"""Batches of packed trees: complete, repeatable, and equal to expanded rows in loss."""

from collections import Counter
import dataclasses
import itertools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipeline import loaders, rendering, trees
from her_jax.models.config import ModelConfig
from her_jax.models.qwen3 import Qwen3
from her_jax.roleplay import chat, schema
from her_jax.roleplay.prompts import Variant
from her_jax.training import step as steps
from tests.data_pipeline.tree_rows import SCENES, completions, tokenizer_of_scenes

_QUICK_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def tokenizer():
  return tokenizer_of_scenes()


def _synthetic(count: int, length: int | None = None) -> list[loaders.Row]:
  """Trees of ids that no other tree has, so that each is known by its first token."""
  rng = np.random.default_rng(0)
  rows = []
  for number in range(count):
    size = length or int(rng.integers(8, 30))
    ids = list(range(100 * (number + 1), 100 * (number + 1) + size))
    if length:
      rows.append(trees.lay_out(ids, [], trunk_weight=0.5))
    else:
      rows.append(
        trees.lay_out(ids[:-3], [trees.Branch(3, ids[-3:-1]), trees.Branch(4, ids[-1:])])
      )
  return rows


def _unpacked(batch) -> list[loaders.Row]:
  """The trees of a batch, cut out and counted from their own first slot."""
  found = []
  for row in ({k: v[i] for k, v in batch.items()} for i in range(len(batch["tokens"]))):
    slot = 0
    while slot < len(row["tokens"]) and row["tokens"][slot] != 0:
      end = int(row["visible_until"][slot])  # The root is seen by its whole tree.
      tree = {name: values[slot:end].copy() for name, values in row.items()}
      tree["visible_until"] -= slot
      found.append(tree)
      slot = end
    # What is left is padding: seen by itself alone, weighing nothing.
    assert not row["loss_weights"][slot:].any()
    assert not row["tokens"][slot:].any()
    assert row["visible_until"][slot:].tolist() == [*range(slot + 1, len(row["tokens"]) + 1)]
  return found


def _take(rows, batches: int, **settings):
  defaults = {"length": 64, "batch_size": 2, "seed": 0, "pad_id": 0}
  stream = loaders.batches(rows, **{**defaults, **settings})
  return list(itertools.islice(stream, batches))


def test_a_packed_tree_is_what_it_was_alone():
  rows = _synthetic(20)
  by_first = {int(row["tokens"][0]): row for row in rows}
  seen: Counter[int] = Counter()
  shared = 0
  for batch in _take(rows, 16):
    assert all(values.shape == (2, 64) for values in batch.values())
    trees_here = _unpacked(batch)
    shared += len(trees_here) > 2
    for tree in trees_here:
      first = int(tree["tokens"][0])
      seen[first] += 1
      assert set(tree) == set(by_first[first])
      for name, values in by_first[first].items():
        np.testing.assert_array_equal(tree[name], values)
        assert tree[name].dtype == values.dtype
  assert shared  # Several trees in a row, or nothing was packed.
  assert set(seen) == set(by_first)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hosts", [2, 3])
def test_any_number_of_hosts_reads_the_same_batches(hosts, workers):
  """So none is read twice and none is missed, and a run goes on with other hosts."""
  rows = _synthetic(31)
  settings = {"length": 64, "batch_size": 6, "workers": workers}
  whole = _take(rows, 12, **settings)
  parts = [_take(rows, 12, host=host, hosts=hosts, **settings) for host in range(hosts)]
  for batch, *own in zip(whole, *parts, strict=True):
    for name in batch:
      np.testing.assert_array_equal(batch[name], np.concatenate([part[name] for part in own]))
  firsts = [int(tree["tokens"][0]) for batch in whole for tree in _unpacked(batch)]
  assert set(firsts) == {int(row["tokens"][0]) for row in rows}


def test_the_same_seed_gives_the_same_batches_and_another_one_others():
  rows = _synthetic(20)
  one, same, other = (_take(rows, 6, seed=seed) for seed in (3, 3, 4))
  for a, b in zip(one, same, strict=True):
    for name in a:
      np.testing.assert_array_equal(a[name], b[name])
  assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(one, other, strict=True))


def test_epochs_are_shuffled_afresh():
  rows = _synthetic(16, length=16)
  order = [int(b["tokens"][0, 0]) for b in _take(rows, 32, length=16, batch_size=1)]
  assert sorted(order[:16]) == sorted(order[16:])
  assert order[:16] != order[16:]


def test_word_dropout_changes_inputs_alone():
  rows = _synthetic(16, length=16)
  words = [int(t) for row in rows for t in row["tokens"][1:9]]
  whole = _take(rows, 32, length=16, batch_size=1)
  dropped = _take(rows, 32, length=16, batch_size=1, word_dropout=0.5, word_ids=words)
  changed = [a["tokens"] != b["tokens"] for a, b in zip(whole, dropped, strict=True)]
  for a, b in zip(whole, dropped, strict=True):
    for name in set(a) - {"tokens"}:
      np.testing.assert_array_equal(a[name], b[name])
    # Only words are replaced, and by words.
    hit = a["tokens"] != b["tokens"]
    assert np.isin(a["tokens"][hit], words).all() and np.isin(b["tokens"][hit], words).all()
  share = np.mean([hit[:, 1:9] for hit in changed])
  assert 0.35 < share < 0.65
  # Drawn afresh: the second epoch drops other places of the same tree.
  epochs: dict[int, list] = {}
  for a, hit in zip(whole, changed, strict=True):
    epochs.setdefault(int(a["targets"][0, 0]), []).append(hit)
  assert any((one != two).any() for one, two in epochs.values())


def test_hosts_that_cannot_share_are_refused():
  rows = _synthetic(3)
  with pytest.raises(ValueError, match="3 rows cannot be split over 2 hosts"):
    loaders.batches(rows, length=64, batch_size=3, seed=0, pad_id=0, hosts=2)


def test_prompts_come_round_once_an_epoch():
  stream = loaders.prompt_stream("abcdef", batch_size=2, seed=0)
  drawn = [prompt for batch in itertools.islice(stream, 6) for prompt in batch]
  assert sorted(drawn[:6]) == sorted(drawn[6:]) == list("abcdef")
  with pytest.raises(ValueError, match="no prompts"):
    loaders.prompt_stream([], batch_size=2, seed=0)


def test_evaluation_reads_every_row_once():
  rows = _synthetic(5)
  batches = list(loaders.padded_batches(rows, length=64, batch_size=2, pad_id=0))
  assert [b["tokens"].shape for b in batches] == [(2, 64)] * 3
  total = sum(float(b["loss_weights"].sum()) for b in batches)
  assert total == sum(float(row["loss_weights"].sum()) for row in rows)
  firsts = [int(b["tokens"][i, 0]) for b in batches for i in range(2)]
  assert firsts == [int(row["tokens"][0]) for row in rows] + [0]


@pytest.mark.parametrize("style", ["full", "brief"])
def test_windows_hold_each_trained_reply_once(tokenizer, style):
  whole, _ = rendering.sft_trees(SCENES, tokenizer, 100_000, variant=Variant(style))
  # As short as the longest single sample allows: windows of few replies.
  shortest = max(
    len(
      chat.render_example(
        _from(scene, turn), min(turn, 1), tokenizer, variant=Variant(style)
      ).ids
    )
    + 1
    for scene in SCENES
    for turn in scene.trained_turns()
  )
  cut, counts = rendering.sft_trees(SCENES, tokenizer, shortest, variant=Variant(style))
  assert counts.split_up > 0 and len(cut) > len(whole)
  assert all(len(row["tokens"]) <= shortest for row in cut)
  expected = Counter(
    tuple(chat.completion_ids(t.plan, t.speaker, t.reply, tokenizer))
    for s in SCENES
    for t in s.turns
    if t.plan
  )
  for rows in (whole, cut):
    found = Counter(tuple(ids) for row in rows for ids in completions(row, tokenizer))
    assert found == expected
  assert counts.samples == sum(expected.values())


def _from(scene: schema.Trajectory, turn: int) -> schema.Trajectory:
  """The scene from the turn before `turn` on."""
  return dataclasses.replace(scene, turns=scene.turns[max(turn - 1, 0) :])


def test_a_reply_that_does_not_fit_is_refused_by_name(tokenizer):
  with pytest.raises(
    ValueError, match=f"scene {SCENES[0].id!r}, turn .* data.length = 64; raise"
  ):
    rendering.sft_trees(SCENES, tokenizer, 64)
  with pytest.raises(ValueError, match="more than data.eval_length = 64; raise it"):
    rendering.sft_trees(SCENES, tokenizer, 64, field="data.eval_length")


def test_the_counts_are_true(tokenizer):
  rows, counts = rendering.sft_trees(SCENES, tokenizer, 100_000)
  examples = [chat.render_example(s, t, tokenizer) for s in SCENES for t in s.trained_turns()]
  assert counts.expanded == sum(len(example.ids) for example in examples)
  assert counts.supervised == sum(sum(example.mask) for example in examples)
  assert counts.tokens == sum(len(row["tokens"]) for row in rows) < counts.expanded
  assert counts.rows == len(rows) == sum(len(s.trained_characters()) for s in SCENES)


def test_a_tree_has_the_loss_and_gradient_of_its_expanded_rows(tokenizer):
  scene = dataclasses.replace(SCENES[0], turns=SCENES[0].turns[:6])
  name = scene.trained_characters()[0]
  (row, *_), _ = rendering.sft_trees([scene], tokenizer, 100_000, variant=Variant("brief"))
  examples = [
    chat.render_example(scene, turn, tokenizer, variant=Variant("brief"))
    for turn in scene.trained_turns(name)
  ]
  assert len(examples) > 1
  length = max(len(row["tokens"]), max(len(e.ids) for e in examples))
  expanded = [
    trees.pad(
      trees.lay_out(
        e.ids[: e.mask.index(1)], [trees.Branch(e.mask.index(1), e.ids[e.mask.index(1) :])]
      ),
      length,
      0,
    )
    for e in examples
  ]
  config = ModelConfig(
    vocab_size=len(tokenizer),
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    tie_embeddings=True,
    max_position_embeddings=4096,
    dtype="float32",
    remat="none",
  )
  graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)))
  loss_fn = steps.next_token_loss(len(tokenizer))

  def run(rows):
    batch = {k: jnp.stack([r[k] for r in rows]) for k in rows[0]}

    def loss(params):
      total, count, _ = loss_fn(nnx.merge(graphdef, params), batch)
      return total / count, count

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=_QUICK_COMPILE)
    return step(params)

  (tree_loss, tree_count), tree_grads = run([trees.pad(row, length, 0)])
  (rows_loss, rows_count), rows_grads = run(expanded)
  assert tree_count == rows_count == sum(sum(e.mask) for e in examples)
  np.testing.assert_allclose(tree_loss, rows_loss, rtol=1e-5)
  for one, two in zip(jax.tree.leaves(tree_grads), jax.tree.leaves(rows_grads), strict=True):
    assert float(jnp.abs(two).max()) > 1e-4  # Something to compare.
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_all_turns_weigh_where_they_stand_in_the_history(tokenizer):
  """Each own reply once more, without its plan; what others say never."""
  scene, name = SCENES[0], SCENES[0].trained_characters()[0]
  end = chat.control_id(chat.IM_END, tokenizer)
  settings = {"length": 100_000, "variant": Variant("brief")}
  plain, _ = rendering.sft_trees([scene], tokenizer, **settings)
  every, _ = rendering.sft_trees([scene], tokenizer, all_turns=True, **settings)
  for a, b in zip(plain, every, strict=True):
    for column in ("tokens", "visible_until", "positions"):
      np.testing.assert_array_equal(a[column], b[column])
    np.testing.assert_array_equal(b["loss_weights"][a["loss_weights"] > 0], 1)
  more = np.where(plain[0]["loss_weights"] > 0, 0, every[0]["loss_weights"])
  text = chat.decode_text(every[0]["targets"][more > 0].tolist(), tokenizer)
  own = [turn for turn in scene.turns if turn.speaker == name]
  for turn in own[:-1]:  # The last is in no history.
    said = turn.reply.split("</role_thinking>")[-1].strip()
    assert said in text
  assert "<system_thinking>" not in text
  others = [turn.reply for turn in scene.turns if turn.speaker not in (name, "Environment")]
  assert not any(reply in text for reply in others)
  assert int((every[0]["targets"][more > 0] == end).sum()) == len(own) - 1


def test_the_summary_tells_what_is_not_trained_and_how_full_rows_are(tokenizer):
  scene = SCENES[0]
  first = scene.trained_turns()[0]
  turns = [
    dataclasses.replace(t, plan="" if i == first else t.plan) for i, t in enumerate(scene.turns)
  ]
  some = dataclasses.replace(scene, turns=tuple(turns))
  rows, counts = rendering.sft_trees([some], tokenizer, 100_000)
  bare = sum(t.speaker != scene.environment and not t.plan for t in turns)
  assert bare and counts.left == {"replies without a plan": bare}
  assert f"not trained: {bare} replies without a plan" in counts.line()
  assert counts.longest == max(len(row["tokens"]) for row in rows)
  length = counts.longest + 10
  full = _synthetic(16, length=16)
  assert loaders.padding_share(full, length=16, batch_size=2, seed=0) == 0
  assert loaders.padding_share(full, length=24, batch_size=2, seed=0) == pytest.approx(1 / 3)
  assert 0 < loaders.padding_share(rows, length=length, batch_size=1, seed=0) < 1


@pytest.mark.parametrize("weights", [(0.0, 1.0), (0.3, 20.0)])
def test_rows_of_replies_have_the_targets_of_the_trees(tokenizer, weights):
  context, name = weights
  settings = {"variant": Variant("brief"), "name_weight": name, "context_weight": context}
  as_trees, counts = rendering.sft_trees(SCENES, tokenizer, 1 << 20, **settings)
  single, told = rendering.sft_rows(SCENES, tokenizer, 1 << 20, **settings)
  assert told.samples == told.rows == counts.samples and told.tokens == counts.expanded

  def replies(rows):
    """Of each reply's targets: number, weight and layer."""
    found = [
      column[rows_["layers"] > 0]
      for rows_ in rows
      for column in (np.stack([rows_[n] for n in ("targets", "loss_weights", "layers")], -1),)
    ]
    return sorted(np.concatenate(found).tolist())

  assert replies(as_trees) == replies(single)
  if name != 1:
    heavy = [float((row["loss_weights"] == name).sum()) for row in single]
    assert heavy == [1.0] * len(single)
  short, cut = rendering.sft_rows(SCENES, tokenizer, told.longest - 1, **settings)
  assert cut.left["turns of history that did not fit"] > 0
  assert cut.longest < told.longest and len(short) == len(single)


def test_the_name_weighs_what_is_asked_and_nothing_else_changes(tokenizer):
  plain, _ = rendering.sft_trees(SCENES, tokenizer, 100_000, variant=Variant("brief"))
  weighted, _ = rendering.sft_trees(
    SCENES, tokenizer, 100_000, variant=Variant("brief"), name_weight=20.0
  )
  after_plan = chat.encode_text("</system_thinking>", tokenizer)[-1]
  for a, b in zip(plain, weighted, strict=True):
    heavy = b["loss_weights"] == 20
    np.testing.assert_array_equal(heavy, (a["loss_weights"] == 1) & (a["tokens"] == after_plan))
    np.testing.assert_array_equal(np.where(heavy, 1, b["loss_weights"]), a["loss_weights"])
    for name in ("tokens", "targets", "visible_until", "positions"):
      np.testing.assert_array_equal(a[name], b[name])


def test_reply_trees_hold_each_trained_reply_behind_a_name_alone(tokenizer):
  rows = rendering.reply_trees(SCENES, tokenizer)
  turns = [(s, s.turns[i]) for s in SCENES for i in s.trained_turns()]
  assert len(rows) == len(turns)
  for row, (scene, turn) in zip(rows, turns, strict=True):
    (ids,) = completions(row, tokenizer)
    assert ids == chat.completion_ids(turn.plan, turn.speaker, turn.reply, tokenizer)
    prompt = tokenizer.decode(row["tokens"][: len(row["tokens"]) - len(ids)])
    assert turn.speaker in prompt and scene.scenario not in prompt
    assert not any(other.reply in prompt for other in scene.turns)
