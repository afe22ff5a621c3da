"""Replies that reach beyond their speaker: others' actions, others' words, names from nowhere."""

from collections.abc import Iterator
import functools
import re

from data_pipeline.quality import wordings
from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import ACTION, HAN, SPEECH, Layer, SceneView, TurnView

# An action has one actor, its speaker, who is not named in it. A sentence that begins with
# another's name and a verb is that other's action; "watches as Una leaves" is the watcher's.
_BEGIN = r"(?:^|[.;!?。；，,！？]['\"’”]?\s*|\n\s*|\band then |\bwhile )"
_TITLE = r"(?:(?:[Tt]he |Mr\.? |Mrs\.? |Miss |Ms\.? |Dr\.? |Sir |Lady |Lord |Captain |Count ))?"
_SPEAKS = {
  "en": (
    r"(?:says|asks|replies|answers|declares|whispers|shouts|murmurs|mutters|cries|exclaims|adds"
    r"|tells|yells|calls out|retorts|snaps|announces|said|asked|replied|answered|declared"
    r"|whispered|shouted|murmured|muttered|cried|exclaimed)\b"
  ),
  "zh": r"(?:[一-鿿]{0,4}[地着])?(?:说道?|问道?|答道?|喊道?|叫道|喝道|回答|开口|嚷道?|骂道?|低声说)",
}
_ACTS = {
  # A verb of the third person; no plural or possessive, so a short list of nouns is left out.
  "en": (
    r"(?:(?:then |also |slowly |suddenly |\w+ly ))?(?:(?!(?:as|is|was|has|'s|his|this|less|across"
    r"|towards|besides|always|perhaps|yes|plus|versus|hands? in|eyes|lips|arms|hands|shoulders"
    r"|fingers|feet|words|things|was)\b)[a-z]+s\b|is [a-z]+ing\b|has [a-z]+ed\b|[a-z]+ed\b)"
  ),
  "zh": (
    r"(?:也|便|却|就|又|忽然|突然|慢慢|缓缓|轻轻|猛地|连忙|赶紧|[一-鿿]{1,3}地)?(?:点[了点]?头|摇[了摇]?头|笑|起身|站|坐|转身|抬"
    r"|低下?头|叹|皱|望|拿|伸手|推|拉|跪|哭|接过|放下|掏|递|退|冲|跑|走|拔|握|抱|扑|咳|扶|端|举|搂|扔|打|踢|红了?脸)"
  ),
}


def speaks_for_other(view: SceneView) -> Iterator[Flag]:
  for turn in view.turns:
    if not turn.is_environment and (flag := _speaks(turn, view)):
      yield flag


def _speaks(turn: TurnView, view: SceneView) -> Flag | None:
  names = view.others_pattern(turn.turn.speaker)
  if not names:
    return None
  line, aside = _line(names), _aside(names, view.language, _SPEAKS)
  for layer in turn.of(SPEECH, ACTION):
    match = line.search(layer.text)
    why = "a line in the name of {}"
    if match is None and layer.kind == ACTION:
      match, why = aside.search(layer.text), "an action in which {} speaks"
    if match:
      return _flag(turn, "speaks_for_other", layer, match, why.format(match[1]))
  return None


@functools.lru_cache(maxsize=1024)
def _line(names: str) -> re.Pattern[str]:
  """A name with a colon where a line or a sentence begins."""
  return re.compile(rf"(?:^|\n|[.!?。！？…][\"”’」]?)\s*({names})\s*[:：]")


@functools.lru_cache(maxsize=1024)
def _aside_of(names: str, verbs: str, gap: str) -> re.Pattern[str]:
  return re.compile(rf"{_BEGIN}{_TITLE}({names}){gap}(?:{verbs})")


def _aside(names: str, language: str, verbs: dict[str, str]) -> re.Pattern[str]:
  return _aside_of(names, verbs[language], r" (?:\w+ly )?" if language == "en" else "")


def _flag(turn: TurnView, name: str, layer: Layer, match: re.Match[str], why: str) -> Flag:
  start, end = layer.start + match.start(1), layer.start + match.end()
  return turn.flag(name, "reply", start, end, why)


def action_not_grounded(view: SceneView) -> Iterator[Flag]:
  """Actions of somebody else, and actions on a person whom nothing else in the scene names."""
  for turn in view.turns:
    if not turn.is_environment and (flag := _ungrounded(turn, view)):
      yield flag


def _ungrounded(turn: TurnView, view: SceneView) -> Flag | None:
  names = view.others_pattern(turn.turn.speaker)
  for layer in turn.of(ACTION):
    if names:
      speaks = _aside(names, view.language, _SPEAKS)
      acts = _aside(names, view.language, _ACTS)
      for match in acts.finditer(layer.text):
        if not speaks.match(layer.text, match.start()):
          why = f"an action of {match[1]}, in a reply of {turn.turn.speaker}"
          return _flag(turn, "action_not_grounded", layer, match, why)
    for match in _PERSON[view.language].finditer(layer.text):
      name = match[match.lastindex or 0]
      if _is_stranger(name, turn, view):
        why = f"nothing else in the scene names {name}"
        start, end = (layer.start + at for at in match.span(match.lastindex or 0))
        return turn.flag("action_not_grounded", "reply", start, end, why)
  return None


# A person in an action: a capitalised name that something is done to, or one with a title, or one
# who has a hand or a shoulder; in Chinese, where names look like other words, one with the dot of
# foreign names.
_CAPITALS = r"([A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})?)"
_PERSON = {
  "en": re.compile(
    r"\b(?:to|at|toward|towards|with|beside|behind|past|near|against|from|kisses|hugs|embraces"
    r"|hands|gives|slaps|shakes|pats|follows|meets|pushes|helps|strokes|nudges|joins|faces|passes"
    rf"|watches|seizes|grabs|touches) {_CAPITALS}(?![-\w]| (?:Street|Road|House|Hall|Square|Court"
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
  own = [layer.text for layer in turn.layers if layer.kind != ACTION]
  elsewhere = [t.turn.reply + t.turn.plan for t in view.turns if t.index != turn.index]
  known = [view.setting, view.passage, view.trajectory.source, view.trajectory.summary]
  text = "\n".join([*own, *elsewhere, *known, turn.turn.plan]).lower()
  return not any(word in text for word in words)
