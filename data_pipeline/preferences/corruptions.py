"""Judge pairs from good replies: seven documented, seeded ways to spoil one.

| kind              | what is done to the good reply                          | principle broken   |
|-------------------|---------------------------------------------------------|--------------------|
| breaks_character  | a sentence of a program or an author is set into it     | in-character       |
| speaks_for_user   | a line for another character follows it                 | own-voice          |
| repeats_itself    | its longest spoken stretch comes three times            | no-repetition      |
| ignores_scene     | it is replaced by a reply from another story            | answers-scene      |
| knows_future      | it tells what a later turn will bring                   | honest-knowledge   |
| thoughts_aloud    | the thoughts lose their tags and are spoken             | inner-thoughts     |
| flat              | it shrinks to a phrase that would do anywhere           | vivid              |

A tie sets two replies spoilt in the same way against each other.
"""

from collections.abc import Callable, Iterable, Sequence
import random

from her_jax.roleplay import grammar
from her_jax.roleplay.grammar import SPEECH, THINKING, Segment
from her_jax.roleplay.schema import PreferencePair, Trajectory

TIE_SHARE = 0.12

_OUT_OF_ROLE = {
  "en": (
    "As an AI language model, I have no feelings about this.",
    "I am only a language model, so I cannot really do that.",
    "I hope this reply helps! Let me know if you want me to change the scene.",
    "Note from the author: the tension should rise here.",
    "Sure! Here is the next reply in the role-play.",
    "I'm sorry, but as an assistant I can't continue this conversation.",
    "In this story, my character would probably be angry now.",
  ),
  "zh": (
    "作为一个人工智能语言模型，我没有感情。",
    "抱歉，我只是一个语言模型，没法真的这样做。",
    "希望这段回应对您有帮助！如需修改剧情请告诉我。",
    "作者注：这里的气氛应当更紧张。",
    "好的！以下是角色扮演的下一段回应。",
    "抱歉，作为助手我无法继续这段对话。",
  ),
}
_FOR_OTHERS = {
  "en": (
    "<role_action>nods</role_action> You are right, and I will do as you say.",
    "<role_action>sits down</role_action> Then there is nothing more to talk about.",
    "<role_action>laughs</role_action> I knew you would say that.",
    "I give up. <role_action>turns to the door</role_action>",
  ),
  "zh": (
    "<role_action>点头</role_action>你说得对，我照办。",
    "<role_action>坐下</role_action>那就没什么可谈的了。",
    "<role_action>大笑</role_action>我就知道你会这么说。",
    "我认输。<role_action>转身向门口走去</role_action>",
  ),
}
_FUTURE = {
  "en": (
    "I know what comes next: {later}",
    "Before long this will be said here: {later}",
    "I have already seen how this ends. {later}",
  ),
  "zh": (
    "我知道接下来会怎样：{later}",
    "过不了多久这里就会有人说：{later}",
    "这事的结局我早已看见。{later}",
  ),
}
_FLAT = {
  "en": (
    "Okay.",
    "I see. That is fine.",
    "Yes, I think so too.",
    "<role_action>nods</role_action> All right.",
    "<role_thinking>I am fine with this.</role_thinking> Okay, let's do that.",
    "<role_action>smiles</role_action> That is good to hear.",
    "I don't know. Maybe.",
    "<role_thinking>I should say something.</role_thinking>"
    "<role_action>looks around</role_action> Well, that is interesting.",
  ),
  "zh": (
    "好的。",
    "知道了，没问题。",
    "嗯，我也这么想。",
    "<role_action>点头</role_action>行。",
    "<role_thinking>我没意见。</role_thinking>好吧，就这样。",
    "<role_action>微笑</role_action>那挺好的。",
    "不知道，也许吧。",
  ),
}

Corruption = Callable[[Trajectory, int, random.Random, Sequence[Trajectory]], str | None]


def breaks_character(scene, turn, rng, pool):
  segments = _segments(scene, turn)
  sentence = Segment(SPEECH, f" {rng.choice(_OUT_OF_ROLE[scene.language])} ")
  spoken = [i for i, s in enumerate(segments) if s.kind == SPEECH and s.text.strip()]
  if rng.random() < 0.5 and spoken:
    segments[rng.choice(spoken)] = sentence
  else:
    segments.insert(rng.randint(0, len(segments)), sentence)
  return _text(segments)


def speaks_for_user(scene, turn, rng, pool):
  speaker = scene.turns[turn].speaker
  others = [c.name for c in scene.characters if c.name != speaker]
  if not others:
    return None
  following = scene.turns[turn + 1] if turn + 1 < len(scene.turns) else None
  if following and following.speaker in others and rng.random() < 0.5:
    name, line = following.speaker, grammar.parse(following.reply).view_for("other")
  else:
    name, line = rng.choice(others), rng.choice(_FOR_OTHERS[scene.language])
  return f"{scene.turns[turn].reply}\n{name}: {line}"


def repeats_itself(scene, turn, rng, pool):
  segments = _segments(scene, turn)
  spoken = [i for i, s in enumerate(segments) if s.kind == SPEECH and s.text.strip()]
  if not spoken:
    return None
  longest = max(spoken, key=lambda i: len(segments[i].text))
  said = segments[longest].text.strip()
  segments[longest] = Segment(SPEECH, f" {said} {said} {said} ")
  return _text(segments)


def ignores_scene(scene, turn, rng, pool):
  strangers = [
    t for t in pool if t.source != scene.source and t.language == scene.language
  ] or [t for t in pool if t.id != scene.id and t.language == scene.language]
  if not strangers:
    return None
  stranger = rng.choice(strangers)
  spoken = [t for t in stranger.turns if t.speaker != stranger.environment]
  return rng.choice(spoken).reply if spoken else None


def knows_future(scene, turn, rng, pool):
  later = [
    s.text.strip()
    for t in scene.turns[turn + 2 :]
    if t.speaker != scene.environment
    for s in grammar.parse(t.reply).segments
    if s.kind == SPEECH and s.text.strip()
  ]
  if not later:
    return None
  segments = _segments(scene, turn)
  telling = rng.choice(_FUTURE[scene.language]).format(later=rng.choice(later))
  segments.insert(rng.randint(0, len(segments)), Segment(SPEECH, f" {telling} "))
  return _text(segments)


def thoughts_aloud(scene, turn, rng, pool):
  segments = _segments(scene, turn)
  if not any(s.kind == THINKING for s in segments):
    return None
  return _text(Segment(SPEECH, f" {s.text} ") if s.kind == THINKING else s for s in segments)


def flat(scene, turn, rng, pool):
  return rng.choice(_FLAT[scene.language])


CORRUPTIONS: dict[str, tuple[Corruption, tuple[str, ...]]] = {
  "breaks_character": (breaks_character, ("in-character",)),
  "speaks_for_user": (speaks_for_user, ("own-voice",)),
  "repeats_itself": (repeats_itself, ("no-repetition",)),
  "ignores_scene": (ignores_scene, ("answers-scene",)),
  "knows_future": (knows_future, ("honest-knowledge",)),
  "thoughts_aloud": (thoughts_aloud, ("inner-thoughts",)),
  "flat": (flat, ("vivid",)),
}


def make_pairs(
  trajectories: Sequence[Trajectory], seed: int, per_reply: int
) -> list[PreferencePair]:
  """Spoils each trained reply in `per_reply` different ways, the kinds taken in turn.

  The good reply stands first in every second pair. Replies for `ignores_scene` come from
  scenes of the same split, so no held-out text enters training.

  Args:
    seed: pairs depend on it and on the scenes alone.
    per_reply: pairs made from one good reply, at most one of a kind.
  """
  rng = random.Random(seed)
  kinds = list(CORRUPTIONS)
  pairs: list[PreferencePair] = []
  for scene in trajectories:
    pool = [t for t in trajectories if t.split == scene.split]
    for turn in scene.trained_turns():
      start = rng.randrange(len(kinds))
      ordered = kinds[start:] + kinds[:start]
      made = 0
      for kind in ordered:
        if made == per_reply:
          break
        pair = _pair(scene, turn, kind, rng, pool, good_first=len(pairs) % 2 == 0)
        if pair is not None:
          pairs.append(pair)
          made += 1
  return pairs


def _pair(
  scene: Trajectory,
  turn: int,
  kind: str,
  rng: random.Random,
  pool: Sequence[Trajectory],
  good_first: bool,
) -> PreferencePair | None:
  corrupt, violates = CORRUPTIONS[kind]
  bad = corrupt(scene, turn, rng, pool)
  if bad is None:
    return None
  good, name = scene.turns[turn].reply, kind
  good_violates: tuple[str, ...] = ()
  if rng.random() < TIE_SHARE:
    other = corrupt(scene, turn, rng, pool)
    if other is not None and other != bad:
      good, good_violates, name = other, violates, f"tie_{kind}"
  tie = bool(good_violates)
  candidates = (good, bad) if good_first else (bad, good)
  broken = (good_violates, violates) if good_first else (violates, good_violates)
  return PreferencePair(
    id=f"{scene.id}/{turn}/{name}",
    scene=scene.id,
    turn=turn,
    candidate_1=candidates[0],
    candidate_2=candidates[1],
    winner="tie" if tie else "cand_1" if good_first else "cand_2",
    kind=name,
    violates_1=broken[0],
    violates_2=broken[1],
    split=scene.split,
  )


def _segments(scene: Trajectory, turn: int) -> list[Segment]:
  return list(grammar.parse(scene.turns[turn].reply).segments)


def _text(segments: Iterable[Segment]) -> str:
  text = grammar.render(grammar.Reply(tuple(segments)))
  return " ".join(text.split())
