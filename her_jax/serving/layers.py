"""Withholds the hidden layers of a reply while it is still being written.

    layers = Layers("withheld")
    layers.feed("<role_thi") + layers.feed("nking>No.</role_thinking> Aye") + layers.finish() == "Aye"

What text belongs to which layer is the grammar's to say, and a tag can change it for what stands
before it: a closing tag that nothing opened makes a thought of the text in front of it. So text
leaves when it is settled: at a tag behind which no layer is open, and at the end.
"""

from typing import Literal

from her_jax.roleplay import grammar, notations, tags
from her_jax.roleplay.tags import PLAN, THINKING, Tag

Hidden = Literal["withheld", "thoughts", "shown"]
# From the least that is shown to the most; who sees as much, see grammar.VIEWS.
LEVELS: tuple[Hidden, ...] = ("withheld", "thoughts", "shown")
_VIEWERS: dict[str, str] = {"withheld": "user", "thoughts": "self"}
_SECRET: dict[str, tuple[str, ...]] = {"withheld": (PLAN, THINKING), "thoughts": (PLAN,)}
# The last sign of every tag that is surely one, whatever follows.
_ENDS = ">＞;"
_OPENS = "<＜"


class Layers:
  """The text of one reply, as far as whoever asked may see it.

  How the text is cut into pieces changes nothing in what `feed` and `finish` give together.
  """

  def __init__(self, hidden: Hidden, speaker: str | None = None, notation: str = "her"):
    """Before the first text.

    Args:
      hidden: what of the hidden layers is shown: nothing, the thoughts, or the whole text as it
        was written.
      speaker: whose name is taken off the front; not where all is shown.
      notation: of the reply, as `prompts.NOTATIONS` has it. CoSER's is settled at the end alone:
        one bracket there decides about everything behind it.
    """
    self._hidden: Hidden = hidden
    self._speaker = speaker
    self._coser = notation == "coser"
    self._text = ""
    self._given = ""
    self._visible: list[tuple[int, int]] | None = []
    self.settled = 0  # Characters about which all is said.

  def feed(self, delta: str) -> str:
    """What may be handed out now."""
    before = len(self._text)
    self._text += delta
    if self._hidden == "shown":
      self.settled = len(self._text)
      return delta
    if self._coser:
      return ""
    return "".join(
      self._settle(before + i + 1) for i, sign in enumerate(delta) if sign in _ENDS
    )

  def finish(self) -> str:
    """The rest. A hidden layer that was never closed takes all behind it along."""
    if self._hidden == "shown":
      return ""
    text = _closed_part(self._text, self._hidden)
    return self._new(text if self._coser else _without_broken_tag(text))

  def shows(self, start: int, end: int) -> bool:
    """Whether all of `text[start:end]`, which is settled, is the text of a layer that is shown."""
    if self._hidden == "shown":
      return True
    if self._visible is None:
      secret = _SECRET[self._hidden]
      self._visible = [
        (at, at + len(piece.text))
        for at, piece in grammar.places(self._text[: self.settled])
        if piece.kind not in secret
      ]
    return any(low <= start and end <= high for low, high in self._visible)

  def _settle(self, end: int) -> str:
    text = self._text[:end]
    if text[-1] == ";" and "&" not in text:
      return ""
    found, layers = _tags(text)
    if not found or found[-1].end != end or tags.still_open(found, layers):
      return ""
    return self._new(text)

  def _new(self, text: str) -> str:
    """What `text`, all of it settled, adds to what was given."""
    view = visible(text, self._hidden, self._speaker, self._coser)
    self.settled, self._visible = len(text), None
    # The view of a longer text begins with that of a shorter one, but where two visible pieces
    # would make a tag together; a sign may then be lost, and none that is hidden is won.
    new = view[len(self._given) :]
    self._given += new
    return new


def visible(text: str, hidden: Hidden, speaker: str | None = None, coser: bool = False) -> str:
  """What of a whole text may be seen; layers that are shown come in regular notation."""
  if hidden == "shown":
    return text
  if coser:
    return notations.to_coser(notations.from_either(text, speaker).seen_by(_VIEWERS[hidden]))
  # Past the parser's cache: what is hidden is not kept, and no text comes twice.
  parsed = grammar.parse.__wrapped__(text, speaker)
  return grammar.render(parsed.seen_by(_VIEWERS[hidden]))


def _tags(text: str) -> tuple[list[Tag], list[str]]:
  found = [tag for tag in tags.scan(text) if tag.layer is not None]
  return found, tags.layers_in(found, text)


def _closed_part(text: str, hidden: Hidden) -> str:
  """The text up to a hidden layer that is open at its end.

  The parser ends such a layer at the next tag, which is right for a slip within a reply. In one
  that was cut off, a plan may speak of tags before it ends.
  """
  found, layers = _tags(text)
  for i in tags.still_open(found, layers):
    if layers[i] in _SECRET[hidden]:
      return text[: found[i].start]
  return text


def _without_broken_tag(text: str) -> str:
  """The text without the beginning of a tag at its end."""
  at = max(text.rfind(sign) for sign in _OPENS)
  name = text[at + 1 :].lstrip("/／").lower()
  if at >= 0 and name and any(known.startswith(name) for known in (*tags.TAGGED, tags.THINK)):
    return text[:at]
  return text
