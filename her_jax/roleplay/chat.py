"""The one renderer: conversation → token ids and what is trained on.

A conversation seen by one character becomes a list of pieces. Control tokens come from the
structure alone; text is encoded so that no string in it becomes one: `<|im_end|>` in somebody's
line is six ordinary tokens. SFT, RL, the judge, evaluation and chat all call this module, so the
prompt of a scene is the same ids everywhere.

    <|im_start|>system       the sheet                                     <|im_end|>
    <|im_start|>user         ===Conversation Start=== and what others said <|im_end|>
    <|im_start|>assistant    Name: earlier reply, without its plan         <|im_end|>
    <|im_start|>user         ...                                           <|im_end|>
    <|im_start|>assistant    <system_thinking>…</system_thinking>Name: …   <|im_end|>   trained
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
from typing import TYPE_CHECKING

from her_jax.roleplay import grammar, notations, prompts, token_layers
from her_jax.roleplay.prompts import Variant
from her_jax.roleplay.schema import DataError, Trajectory
from her_jax.roleplay.tokens import (
  IM_END as IM_END,
)
from her_jax.roleplay.tokens import (
  IM_START as IM_START,
)
from her_jax.roleplay.tokens import (
  PAD as PAD,
)
from her_jax.roleplay.tokens import (
  control_id as control_id,
)
from her_jax.roleplay.tokens import (
  decode_text as decode_text,
)
from her_jax.roleplay.tokens import (
  encode_text as encode_text,
)
from her_jax.roleplay.tokens import (
  message as message,
)
from her_jax.roleplay.tokens import (
  open_message as open_message,
)
from her_jax.roleplay.tokens import (
  stop_ids as stop_ids,
)
from her_jax.roleplay.tokens import (
  think_ids,
)

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

DEFAULT = Variant()


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A prompt that fits; `dropped` counts the oldest turns that it had to leave out."""

  ids: list[int]
  dropped: int = 0


@dataclasses.dataclass(frozen=True)
class Example:
  """One rendered sample.

  Attributes:
    ids: prompt and completion.
    mask: 1 where the id is a target (the completion with its end token), else 0.
    dropped: oldest turns left out so that the prompt fits.
  """

  ids: list[int]
  mask: list[int]
  dropped: int = 0


@dataclasses.dataclass(frozen=True)
class Branch:
  """A trained reply.

  Attributes:
    at: it leaves the trunk before this position.
    ids: plan, `Name: reply`, end token.
    turn: of the conversation.
    name_at: index in `ids` where the name begins.
    given: ids in front that belong to the prompt and are no targets.
    layers: of each id, as `token_layers` numbers them.
  """

  at: int
  ids: list[int]
  layers: list[int]
  turn: int
  name_at: int
  given: int = 0


@dataclasses.dataclass(frozen=True)
class Dialogue:
  """A conversation as one character's trunk with a branch for every trained reply.

  Attributes:
    own: 1 where the trunk's id is of an own reply, its name and end included, else 0; also 0 in
      replies before the first that is trained.
  """

  trunk: list[int]
  branches: list[Branch]
  own: list[int]


def is_valid_completion(
  ids: Sequence[int],
  tokenizer: PreTrainedTokenizerBase,
  speaker: str,
  others: Iterable[str] = (),
) -> bool:
  """Whether sampled ids are one whole turn, see `grammar.is_valid_turn`.

  Their last id ends them; a control token before it makes them invalid, though it leaves no
  trace in the text.
  """
  control = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
  if not control.isdisjoint(ids[:-1]):
    return False
  return grammar.is_valid_turn(decode_text(ids, tokenizer), speaker, others)


def completion_ids(
  plan: str,
  name: str,
  reply: str,
  tokenizer: PreTrainedTokenizerBase,
  variant: Variant = DEFAULT,
) -> list[int]:
  """What the model is trained to emit: plan, `Name: reply`, end token."""
  return completion_and_layers(plan, name, reply, tokenizer, variant)[0]


def completion_and_layers(
  plan: str,
  name: str,
  reply: str,
  tokenizer: PreTrainedTokenizerBase,
  variant: Variant = DEFAULT,
) -> tuple[list[int], list[int]]:
  """`completion_ids`, and the layer of each id as `token_layers` numbers them."""
  written = reply
  if variant.notation == "coser":
    written = notations.to_coser(grammar.parse(reply))
  planned = _plan_ids(plan, tokenizer, variant)
  ids, layers = token_layers.encode_reply(name, reply, written, tokenizer)
  of_plan = token_layers.LAYERS.index(grammar.PLAN) + 1
  return (
    [*planned, *ids, control_id(IM_END, tokenizer)],
    [*[of_plan] * len(planned), *layers, 0],
  )


def read_completion(
  text: str, speaker: str, variant: Variant = DEFAULT, others: Iterable[str] = ()
) -> grammar.Reply:
  """A sampled completion as a turn, whatever its notation; cut where it speaks for others."""
  text = grammar.cut_before(text, others)
  if variant.notation != "coser":
    return grammar.parse(text, speaker)
  return notations.from_either(text, speaker)


def render_prompt(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  variant: Variant = DEFAULT,
  *,
  speaker: str | None = None,
  passages: Sequence[str] = (),
) -> list[int]:
  """Ids up to and including `<|im_start|>assistant\\n` of turn `turn`; see `fit_prompt`."""
  return fit_prompt(
    trajectory, turn, tokenizer, max_tokens, variant, speaker=speaker, passages=passages
  ).ids


def fit_prompt(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  variant: Variant = DEFAULT,
  *,
  speaker: str | None = None,
  passages: Sequence[str] = (),
) -> Prompt:
  """The prompt of turn `turn`, and how many of the oldest turns it had to leave out.

  Args:
    turn: of the trajectory, or the number of its turns for the one that comes next.
    max_tokens: leave out whole oldest turns until the prompt fits; sheet and marker stay, and
      so does the last turn.
    speaker: who answers; the speaker of the turn if None.
    passages: text of the source, for the sheet.

  Raises:
    DataError: the sheet and the last turn alone are longer than `max_tokens`.
  """
  name = trajectory.turns[turn].speaker if speaker is None else speaker
  sheet = _sheet(trajectory, name, tokenizer, variant, passages)
  header = [*open_message("assistant", tokenizer), *_no_thinking(tokenizer, variant)]
  known: dict[Message, list[int]] = {}
  for first in range(max(turn, 1)):
    ids = list(sheet)
    for m in messages_of(trajectory, range(first, turn), name, variant):
      if m not in known:  # Only the first message changes when a turn is left out.
        known[m] = message(m.role, m.text, tokenizer)
      ids += known[m]
    ids += header
    if max_tokens is None or len(ids) <= max_tokens:
      return Prompt(ids, first)
  raise DataError(
    f"scene {trajectory.id!r}, turn {turn}: the character sheet ({len(sheet)} tokens) and the"
    f" last message do not fit into {max_tokens} tokens; allow longer prompts or shorten the"
    f" sheet"
  )


def render_example(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  variant: Variant = DEFAULT,
) -> Example:
  """Prompt and trained completion of turn `turn`, with the loss mask.

  Raises:
    ValueError: the turn has no plan to train on.
    DataError: sheet, last turn and completion are longer than `max_tokens`.
  """
  target = trajectory.turns[turn]
  if not target.plan:
    raise ValueError(f"turn {turn} of scene {trajectory.id!r} has no plan to train on")
  completion = completion_ids(target.plan, target.speaker, target.reply, tokenizer, variant)
  room = None if max_tokens is None else max_tokens - len(completion)
  prompt = fit_prompt(trajectory, turn, tokenizer, room, variant)
  mask = [0] * len(prompt.ids) + [1] * len(completion)
  return Example(prompt.ids + completion, mask, prompt.dropped)


def render_examples(
  trajectory: Trajectory,
  name: str,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  variant: Variant = DEFAULT,
) -> list[Example]:
  """One example a trained turn of `name`: each plan is supervised in exactly one of them."""
  return [
    render_example(trajectory, turn, tokenizer, max_tokens, variant)
    for turn in trajectory.trained_turns(name)
  ]


def render_dialogue(
  trajectory: Trajectory,
  name: str,
  tokenizer: PreTrainedTokenizerBase,
  turns: range | None = None,
  first_trained: int = 0,
  variant: Variant = DEFAULT,
) -> Dialogue:
  """A conversation from `name`'s side, each trained reply as a branch.

  For every branch of a whole conversation, `trunk[:branch.at] + branch.ids` equals
  `render_example(...).ids`.

  Args:
    turns: the turns to render; all if None.
    first_trained: replies before this turn are history alone.
  """
  trunk = _sheet(trajectory, name, tokenizer, variant)
  header = open_message("assistant", tokenizer)
  given = _no_thinking(tokenizer, variant)
  branches, own = [], [0] * len(trunk)
  for m in messages_of(trajectory, turns or range(len(trajectory.turns)), name, variant):
    if m.turn is not None and m.turn >= first_trained:
      turn = trajectory.turns[m.turn]
      if turn.plan:
        ids, layers = completion_and_layers(turn.plan, name, turn.reply, tokenizer, variant)
        name_at = len(given) + len(_plan_ids(turn.plan, tokenizer, variant))
        at = len(trunk) + len(header)
        branches.append(
          Branch(at, given + ids, [0] * len(given) + layers, m.turn, name_at, len(given))
        )
    said = message(m.role, m.text, tokenizer)
    if m.turn is None or m.turn < first_trained:
      own += [0] * len(said)
    else:
      after = len(encode_text("\n", tokenizer))
      own += [0] * len(header) + [1] * (len(said) - len(header) - after) + [0] * after
    trunk += said
  if branches:
    trunk = trunk[: branches[-1].at]
  return Dialogue(trunk, branches, own[: len(trunk)])


def _no_thinking(tokenizer: PreTrainedTokenizerBase, variant: Variant) -> list[int]:
  """The empty think block by which Qwen is told not to think, before a reply without a plan."""
  silent = variant.notation == "think" and variant.plan == "off"
  return think_ids("", tokenizer) if silent else []


def _plan_ids(plan: str, tokenizer: PreTrainedTokenizerBase, variant: Variant) -> list[int]:
  if variant.plan == "off":
    return []
  if variant.notation == "think":
    return think_ids(plan, tokenizer)
  return encode_text(f"<{grammar.PLAN}>{plan}</{grammar.PLAN}>", tokenizer)


@dataclasses.dataclass(frozen=True)
class Message:
  """What one side says; text without control tokens."""

  role: str
  text: str
  turn: int | None = None  # the turn of an own reply


def messages_of(
  trajectory: Trajectory, turns: range, name: str, variant: Variant
) -> list[Message]:
  """`turns` as `name` perceives them: others merged into user messages, the marker first.

  No plan is among them. `prompts.system_prompt` comes before them.
  """
  messages: list[Message] = []
  heard: list[str] = [prompts.MARKER]
  for i in turns:
    turn = trajectory.turns[i]
    seen = grammar.parse(turn.reply).seen_by("self" if turn.speaker == name else "other")
    write = notations.to_coser if variant.notation == "coser" else grammar.render
    if turn.speaker == name:
      if heard:
        messages.append(Message("user", "\n".join(heard)))
      heard = []
      messages.append(Message("assistant", f"{name}: {write(seen)}", i))
    else:
      heard.append(f"{turn.speaker}: {write(seen)}")
  if heard:
    messages.append(Message("user", "\n".join(heard)))
  return messages


def render_messages(
  messages: Iterable[Message],
  tokenizer: PreTrainedTokenizerBase,
  variant: Variant = DEFAULT,
) -> list[int]:
  """Ids of messages as they stand, up to and including the beginning of the next reply.

  For the sheet and `messages_of` a scene they are those of `render_prompt`.
  """
  ids: list[int] = []
  for m in messages:
    ids += message(m.role, m.text, tokenizer)
  return [*ids, *open_message("assistant", tokenizer), *_no_thinking(tokenizer, variant)]


def as_played(messages: Iterable[Message], name: str | None = None) -> list[Message]:
  """Messages that somebody else has laid out, as a model meets them in training.

  No plan stays in a reply. If the character is named, also: the marker comes first, neighbouring
  user messages are one, and a reply begins with the name.

  Example, for Una:
    user "Perran: Late." user "Perran: Well?" assistant "Aye." ->
    user "===Conversation Start===\nPerran: Late.\nPerran: Well?" assistant "Una: Aye."
  """
  laid_out: list[Message] = []
  marked = not name
  for m in messages:
    if m.role == "assistant":
      reply = grammar.parse(m.text, name)
      text = (
        m.text if reply.plan is None and not name else grammar.render(reply.seen_by("self"))
      )
      m = Message(m.role, f"{name}: {text}" if name else text)
    if not marked and m.role != "system":
      marked = True
      begun = m.role == "user" and m.text.startswith(prompts.MARKER)
      if not begun:
        laid_out.append(Message("user", prompts.MARKER))
    before = laid_out[-1] if laid_out else None
    if name and before and before.role == m.role == "user":
      m = Message("user", f"{laid_out.pop().text}\n{m.text}")
    laid_out.append(m)
  return laid_out


def _sheet(
  trajectory: Trajectory,
  name: str,
  tokenizer: PreTrainedTokenizerBase,
  variant: Variant,
  passages: Sequence[str] = (),
) -> list[int]:
  sheet = prompts.system_prompt(trajectory, trajectory.character(name), variant, passages)
  return message("system", sheet, tokenizer)
