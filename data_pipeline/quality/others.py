"""Replies that reach beyond their speaker: others' deeds, others' words, strange names."""

from collections.abc import Iterator
import re

from data_pipeline.quality import wordings
from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import HAN, Layer, SceneView, TurnView, named_at
from her_jax.roleplay.tags import ACTION, SPEECH

# An action has one actor, its speaker, who is not named in it. A sentence that begins with
# another's name and a verb is that other's action; "watches as Una leaves" is the watcher's.
_BEGIN = re.compile(
  rf"(?:^|(?:{wordings.FULL_STOP}|[;。；，,！？])['\"’”]?\s*|\n\s*|\band then |\bwhile )"
  r"(?:[Tt]he |Mr\.? |Mrs\.? |Miss |Ms\.? |Dr\.? |Sir |Lady |Lord |Captain |Count )?"
)
# Where a line or a sentence of speech begins, which may be in the name of another.
_LINE = re.compile(rf"(?:^|\n|(?:{wordings.FULL_STOP}|[。！？])[\"”’」]?)\s*")
_COLON = re.compile(r"\s*[:：]")
_SPEAKS = {
  "en": re.compile(
    r" (?:\w+ly )?(?:says|asks|replies|answers|declares|whispers|shouts|murmurs|mutters|cries"
    r"|exclaims|adds|tells|yells|calls out|retorts|snaps|announces|said|asked|replied|answered"
    r"|declared|whispered|shouted|murmured|muttered|cried|exclaimed)\b"
  ),
  "zh": re.compile(
    rf"(?:[{HAN}]{{0,4}}[地着])?"
    r"(?:(?:低声|大声|小声)?说道?|问道?|答道?|喊道?|叫道|喝道|回答|开口|嚷道?|骂道?)"
  ),
}
_ACTS = {
  # A verb of the third person. What a plural or another part of speech may be is left out.
  "en": re.compile(
    r" (?:then |also |\w+ly )?(?:(?!(?:as|is|was|has|his|this|less|across|towards|besides|always"
    r"|perhaps|yes|plus|versus|eyes|lips|arms|hands|shoulders|fingers|feet|words|things)\b)"
    r"[a-z]+s\b|is [a-z]+ing\b|has [a-z]+ed\b|[a-z]+ed\b)"
  ),
  "zh": re.compile(
    rf"(?:也|便|却|就|又|忽然|突然|慢慢|缓缓|轻轻|猛地|连忙|赶紧|[{HAN}]{{1,3}}地)?"
    r"(?:点[了点]?头|摇[了摇]?头|笑|起身|站|坐|转身|抬|低下?头|叹|皱|望|拿|伸手|推|拉|跪|哭|接过|放下|掏|递|退"
    r"|冲|跑|走|拔|握|抱|扑|咳|扶|端|举|搂|扔|打|踢|红了?脸)"
  ),
}


def speaks_for_other(view: SceneView) -> Iterator[Flag]:
  for turn in view.turns:
    if not turn.is_environment and (flag := _speaks(turn, view)):
      yield flag


def _speaks(turn: TurnView, view: SceneView) -> Flag | None:
  others = view.others(turn.turn.speaker)
  for layer in turn.of(SPEECH, ACTION):
    for start, end in named_at(layer.text, _LINE, others):
      if colon := _COLON.match(layer.text, end):
        why = f"a line in the name of {layer.text[start:end]}"
        return _flag(turn, "speaks_for_other", layer, start, colon.end(), why)
    for start, end in named_at(layer.text, _BEGIN, others) if layer.kind == ACTION else ():
      if verb := _SPEAKS[view.language].match(layer.text, end):
        why = f"an action in which {layer.text[start:end]} speaks"
        return _flag(turn, "speaks_for_other", layer, start, verb.end(), why)
  return None


def _flag(turn: TurnView, name: str, layer: Layer, start: int, end: int, why: str) -> Flag:
  return turn.flag(name, "reply", layer.start + start, layer.start + end, why)


def action_not_grounded(view: SceneView) -> Iterator[Flag]:
  """Actions of somebody else, and actions on a person whom nothing else in the scene names."""
  for turn in view.turns:
    if not turn.is_environment and (flag := _ungrounded(turn, view)):
      yield flag


def _ungrounded(turn: TurnView, view: SceneView) -> Flag | None:
  others, language = view.others(turn.turn.speaker), view.language
  for layer in turn.of(ACTION):
    for start, end in named_at(layer.text, _BEGIN, others):
      verb = _ACTS[language].match(layer.text, end)
      if verb and not _SPEAKS[language].match(layer.text, end):
        why = f"an action of {layer.text[start:end]}, in a reply of {turn.turn.speaker}"
        return _flag(turn, "action_not_grounded", layer, start, verb.end(), why)
    for match in _PERSON[language].finditer(layer.text):
      name = match[match.lastindex or 0]
      if _is_stranger(name, turn, view):
        why = f"nothing else in the scene names {name}"
        return _flag(turn, "action_not_grounded", layer, *match.span(match.lastindex or 0), why)
  return None


# A person in an action: a capitalised name that something is done to, or one with a title, or
# one who has a hand or a shoulder; in Chinese, where names look like other words, one with the
# dot of foreign names.
_CAPITALS = r"([A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})?)"
_PERSON = {
  "en": re.compile(
    r"\b(?:to|at|toward|towards|with|beside|behind|past|near|against|from|kisses|hugs|embraces"
    r"|hands|gives|slaps|shakes|pats|follows|meets|pushes|helps|strokes|nudges|joins|faces|passes"
    rf"|watches|seizes|grabs|touches)(?: (?:Mr|Mrs|Ms|Dr)\.)? {_CAPITALS}(?![-\w]| (?:Street|Road|House|Hall|Square|Court"
    r"|Bridge|River|Sea|Station|Island|Day|Night))(?:(?=[,.;]?$|[,.;] )|(?= (?:with|by|on|in|as"
    r"|and|the|a|an|across|over|again|for|out|into|from|[a-z]+ly)\b))"
    rf"|\b(?:Mr|Mrs|Miss|Ms|Dr|Lady|Lord)\b\.? {_CAPITALS}"
    rf"|\b{_CAPITALS}['’]s (?:hand|arm|shoulder|face|cheek|eyes|sleeve|lips|hair|wrist|gaze|neck"
    r"|fingers)\b"
  ),
  "zh": re.compile(rf"[朝向对把给跟和与替将冲往]?([{HAN}]{{1,6}}·[{HAN}]{{1,3}})"),
}


def _is_stranger(name: str, turn: TurnView, view: SceneView) -> bool:
  """Whether nothing but actions of this turn knows a name."""
  if view.language == "en":
    words = name.lower().split()
    if any(word in wordings.NO_PERSON for word in words):
      return False
  else:  # What stands around a name without blanks is not known to belong to it.
    before, after = name.split("·")
    words = [before[-2:], after[:2]]
  # Names that stand somewhere else more often than in this turn's actions alone.
  acted = "\n".join(layer.text for layer in turn.of(ACTION)).lower()
  return all(view.everything.count(word) <= acted.count(word) for word in words)
