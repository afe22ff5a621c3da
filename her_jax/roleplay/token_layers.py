"""Which layer of a reply each of its tokens belongs to, so that losses can be told apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from her_jax.roleplay import grammar
from her_jax.roleplay.tags import ACTION, PLAN, SPEECH, THINKING
from her_jax.roleplay.tokens import encode_with_places

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerBase

# A token's number is its layer's place here, from 1; 0 is a name, an end or what is not known.
LAYERS = (PLAN, THINKING, ACTION, SPEECH)
_BRACKETS = len("[]")


def encode_reply(
  name: str, reply: str, written: str, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[int], list[int]]:
  """Ids of `Name: written`, and the layer of each.

  A layer's tags belong to it, a token over a border to what it ends in.

  Args:
    reply: in our notation.
    written: the same in the notation of the prompts.

  Example, with a token a word and tag:
    "Una: <role_action>bows</role_action> Sit." -> layers 0 0 3 3 3 4
  """
  ids, places = encode_with_places(f"{name}: {written}", tokenizer)
  of_sign = _signs(reply, written)
  before = len(f"{name}: ")
  return ids, [of_sign[at - before] if at >= before else 0 for at in places]


def _signs(reply: str, written: str) -> Sequence[int]:
  """The layer of each sign of `written`; all 0 where it is not the layers one after the other."""
  parsed, made = grammar.parse(reply), list[int]()
  for segment in parsed.segments:
    whole = grammar.render(grammar.Reply((segment,))) if written == reply else segment.text
    marks = _BRACKETS if written != reply and segment.kind != SPEECH else 0
    made += [LAYERS.index(segment.kind) + 1] * (len(whole) + marks)
  return made if len(made) == len(written) else [0] * len(written)
