"""The one renderer: conversation → token ids and what is trained on.

A conversation seen by one character becomes a list of pieces. Control tokens come from the
structure alone; text is encoded with special tokens off, so `<|im_end|>` in somebody's line
is six ordinary tokens. SFT, RL, the judge, evaluation and chat all call this module, so the
prompt of a scene is the same ids everywhere.

    <|im_start|>system       the sheet                                     <|im_end|>
    <|im_start|>user         ===Conversation Start=== and what others said <|im_end|>
    <|im_start|>assistant    Name: earlier reply, without its plan         <|im_end|>
    <|im_start|>user         ...                                           <|im_end|>
    <|im_start|>assistant    <system_thinking>…</system_thinking>Name: …   <|im_end|>   trained
"""

from collections.abc import Iterable, Sequence
import dataclasses

from transformers import PreTrainedTokenizerBase

from her_jax.roleplay import grammar, prompts
from her_jax.roleplay.schema import DataError, Trajectory

IM_START, IM_END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


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
  """

  at: int
  ids: list[int]
  turn: int
  name_at: int


@dataclasses.dataclass(frozen=True)
class Dialogue:
  """A conversation as one character's trunk with a branch for every trained reply."""

  trunk: list[int]
  branches: list[Branch]


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """Encodes text in which no string becomes a control token."""
  return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


def decode_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
  """The text of ids, control tokens left out."""
  text = tokenizer.decode(list(ids), skip_special_tokens=True)
  assert isinstance(text, str)  # A list comes back for a batch alone.
  return text


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


def control_id(token: str, tokenizer: PreTrainedTokenizerBase) -> int:
  """The id of a control token.

  Raises:
    ValueError: the tokenizer does not have it as a single token.
  """
  index = tokenizer.convert_tokens_to_ids(token)
  if not isinstance(index, int) or index == tokenizer.unk_token_id:
    raise ValueError(
      f"the tokenizer has no token {token!r}; her_jax needs Qwen's ChatML tokens"
    )
  return index


def open_message(role: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """`<|im_start|>role\\n`."""
  return [control_id(IM_START, tokenizer), *encode_text(f"{role}\n", tokenizer)]


def message(role: str, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  """`<|im_start|>role\\ntext<|im_end|>\\n`."""
  return [
    *open_message(role, tokenizer),
    *encode_text(text, tokenizer),
    control_id(IM_END, tokenizer),
    *encode_text("\n", tokenizer),
  ]


def completion_ids(
  plan: str, name: str, reply: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
  """What the model is trained to emit: plan, `Name: reply`, end token."""
  return [
    *_plan_ids(plan, tokenizer),
    *encode_text(f"{name}: {reply}", tokenizer),
    control_id(IM_END, tokenizer),
  ]


def render_prompt(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  style: str = "full",
) -> list[int]:
  """Ids up to and including `<|im_start|>assistant\\n` of turn `turn`.

  Args:
    max_tokens: leave out whole oldest turns until the prompt fits; sheet and marker stay.
    style: of the sheet, see `prompts.STYLES`.

  Raises:
    DataError: the sheet and the last message alone are longer than `max_tokens`.
  """
  return _prompt(trajectory, turn, tokenizer, max_tokens, style)[0]


def render_example(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None = None,
  style: str = "full",
) -> Example:
  """Prompt and trained completion of turn `turn`, with the loss mask."""
  target = trajectory.turns[turn]
  if not target.plan:
    raise ValueError(f"turn {turn} of scene {trajectory.id!r} has no plan to train on")
  completion = completion_ids(target.plan, target.speaker, target.reply, tokenizer)
  room = None if max_tokens is None else max_tokens - len(completion)
  prompt, dropped = _prompt(trajectory, turn, tokenizer, room, style)
  mask = [0] * len(prompt) + [1] * len(completion)
  return Example(prompt + completion, mask, dropped)


def render_dialogue(
  trajectory: Trajectory,
  name: str,
  tokenizer: PreTrainedTokenizerBase,
  turns: range | None = None,
  first_trained: int = 0,
  style: str = "full",
) -> Dialogue:
  """A conversation from `name`'s side, each trained reply as a branch.

  For every branch of a whole conversation, `trunk[:branch.at] + branch.ids` equals
  `render_example(...).ids`.

  Args:
    turns: the turns to render; all if None.
    first_trained: replies before this turn are history alone.
  """
  trunk = _sheet(trajectory, name, tokenizer, style)
  header = open_message("assistant", tokenizer)
  branches = []
  for message_ in _messages(trajectory, turns or range(len(trajectory.turns)), name):
    if message_.turn is not None and message_.turn >= first_trained:
      turn = trajectory.turns[message_.turn]
      if turn.plan:
        ids = completion_ids(turn.plan, name, turn.reply, tokenizer)
        name_at = len(_plan_ids(turn.plan, tokenizer))
        branches.append(Branch(len(trunk) + len(header), ids, message_.turn, name_at))
    trunk += message(message_.role, message_.text, tokenizer)
  if branches:
    trunk = trunk[: branches[-1].at]
  return Dialogue(trunk, branches)


def _plan_ids(plan: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
  return encode_text(f"<{grammar.PLAN}>{plan}</{grammar.PLAN}>", tokenizer)


@dataclasses.dataclass(frozen=True)
class _Message:
  role: str
  text: str
  turn: int | None = None  # the turn of an own reply


def _messages(trajectory: Trajectory, turns: range, name: str) -> list[_Message]:
  """`turns` as `name` perceives them: others merged into user messages, the marker first."""
  messages: list[_Message] = []
  heard: list[str] = [prompts.MARKER]
  for i in turns:
    turn = trajectory.turns[i]
    if turn.speaker == name:
      if heard:
        messages.append(_Message("user", "\n".join(heard)))
      heard = []
      own = grammar.parse(turn.reply).view_for("self")
      messages.append(_Message("assistant", f"{name}: {own}", i))
    else:
      others = grammar.parse(turn.reply).view_for("other")
      heard.append(f"{turn.speaker}: {others}")
  if heard:
    messages.append(_Message("user", "\n".join(heard)))
  return messages


def _sheet(
  trajectory: Trajectory, name: str, tokenizer: PreTrainedTokenizerBase, style: str
) -> list[int]:
  sheet = prompts.system_prompt(trajectory, trajectory.character(name), style)
  return message("system", sheet, tokenizer)


def _prompt(
  trajectory: Trajectory,
  turn: int,
  tokenizer: PreTrainedTokenizerBase,
  max_tokens: int | None,
  style: str,
) -> tuple[list[int], int]:
  """The prompt's ids and the number of oldest turns that had to go."""
  name = trajectory.turns[turn].speaker
  sheet = _sheet(trajectory, name, tokenizer, style)
  header = open_message("assistant", tokenizer)
  for first in range(max(turn, 1)):
    ids = list(sheet)
    for m in _messages(trajectory, range(first, turn), name):
      ids += message(m.role, m.text, tokenizer)
    ids += header
    if max_tokens is None or len(ids) <= max_tokens:
      return ids, first
  raise DataError(
    f"scene {trajectory.id!r}, turn {turn}: the character sheet ({len(sheet)} tokens) and the"
    f" last message do not fit into {max_tokens} tokens; allow longer prompts or shorten the"
    f" sheet"
  )
