"""In whose voice a text speaks: plans in the third person, thoughts in the first, no analyst.

What stands in quotation marks is somebody else's words and is left out. Wordings that a story
may have for itself (a theatre has scenes, a ship's mind may be an AI) count only where the
sheets and the turns before have no such thing.
"""

from collections.abc import Iterator, Sequence
import re

from data_pipeline.quality import wordings
from data_pipeline.quality.flags import Flag
from data_pipeline.quality.view import HAN, SceneView, TurnView, named_at, outside_quotes
from her_jax.roleplay.tags import ACTION, SPEECH, THINKING


def plan_first_person(view: SceneView) -> Iterator[Flag]:
  for turn in view.turns:
    if not turn.turn.plan:
      continue
    if match := wordings.first_person(outside_quotes(turn.turn.plan), view.language):
      why = "first person outside of quotation marks"
      yield turn.flag("plan_first_person", "plan", match.start(), match.end(), why)


def thought_not_first_person(view: SceneView) -> Iterator[Flag]:
  """Thoughts that tell of their thinker by name, or of a feeling as a narrator would.

  A thought without "I" is no fault ("Cold range. She counts the coal."), and neither are people
  who speak of themselves by name aloud.
  """
  by_habit = _ILLEISM.search(view.setting)
  for turn in view.turns:
    if not turn.is_environment and (flag := _narrated(turn, view, bool(by_habit))):
      yield flag


_ILLEISM = re.compile(r"third person|of (?:him|her|them|it)sel(?:f|ves) by name|自称", re.I)


def _narrated(turn: TurnView, view: SceneView, by_habit: bool) -> Flag | None:
  for layer in turn.of(THINKING):
    text = outside_quotes(layer.text)
    if wordings.OWN_VOICE[view.language].search(text):
      continue
    found = by_name(text, turn.turn.speaker, view)
    if found and (
      by_habit or any(by_name(s.text, turn.turn.speaker, view) for s in turn.of(SPEECH))
    ):
      found = None
    feeling = wordings.NARRATED_FEELING[view.language].match(text)
    if found is None and feeling:
      found = feeling.span(1)
    if found:
      start, end = (layer.start + at for at in found)
      why = "tells of the thinker from outside"
      return turn.flag("thought_not_first_person", "reply", start, end, why)
  return None


def by_name(text: str, speaker: str, view: SceneView) -> tuple[int, int] | None:
  """Where a sentence tells of what goes on within its own speaker."""
  forms = view.forms.get(speaker, ())
  for start, end in named_at(text, wordings.BEFORE_NAME[view.language], forms):
    if inner := wordings.BEHIND_NAME[view.language].match(text, end):
      return start, inner.end()
  return None


def analyst_voice(view: SceneView) -> Iterator[Flag]:
  patterns = wordings.ANALYST[view.language]
  for turn in view.turns:
    if turn.is_environment or not _any(patterns, turn.text):
      continue
    for layer in turn.of(THINKING, SPEECH):
      if found := _first(patterns, layer.text, view, turn.index):
        start, end = layer.start + found.start(), layer.start + found.end()
        yield turn.flag("analyst_voice", "reply", start, end, "talks of the story as a text")
        break


def prompt_words(view: SceneView) -> Iterator[Flag]:
  patterns = wordings.PROMPT[view.language]
  of_plans = (*patterns, *wordings.PROMPT_IN_PLAN[view.language])
  for turn in view.turns:
    texts: list[tuple[str, int, str, Sequence[wordings.Wording]]] = []
    if _any(patterns, turn.text):
      texts += [("reply", layer.start, layer.text, patterns) for layer in turn.layers]
    texts.append(("plan", 0, turn.turn.plan, of_plans))
    for field, place, text, wanted in texts:
      if found := _first(wanted, text, view, turn.index):
        start, end = place + found.start(), place + found.end()
        why = "words of an assistant or its instructions"
        yield turn.flag("prompt_words", field, start, end, why)
        break


def _any(patterns: Sequence[wordings.Wording], text: str) -> bool:
  return any(wording.pattern.search(text) for wording in patterns)


def _first(
  patterns: Sequence[wordings.Wording], text: str, view: SceneView, turn: int
) -> re.Match[str] | None:
  """The first wording in a text that the story does not have for itself."""
  for wording in patterns:
    if (match := wording.pattern.search(text)) and not any(
      view.named_before(word, turn) for word in wording.unless
    ):
      return match
  return None


# Letters of scripts that belong to neither English nor Chinese.
_OTHER = r"\u0370-\u052f\u0590-\u06ff\u0900-\u0dff\u0e00-\u0e7f\u3040-\u30ff\uac00-\ud7af"
_FOREIGN = {
  # Between two signs there may be marks: "你说，他来了".
  "en": re.compile(rf"(?:[{HAN}{_OTHER}][\s、，。！？：；,.!?]{{0,2}}){{4,}}"),
  "zh": re.compile(
    rf"(?:[{_OTHER}][\s、，。！？]{{0,2}}){{4,}}"
    r"|[A-Za-z][A-Za-z'’]*(?:[\s,.!?;:\"“”—-]{1,3}[A-Za-z][A-Za-z'’]*){3,}"
  ),
}
_FOREIGN_SIGN = {
  "en": re.compile(rf"[{HAN}{_OTHER}]"),
  "zh": re.compile(rf"[A-Za-z]{{2}}|[{_OTHER}]"),
}
_ENGLISH = re.compile(
  r"\b(?:the|an?|and|is|are|was|were|be|you|he|she|it|we|they|to|of|in|on|that|this|not|but|my"
  r"|your|his|her|for|with|have|has|had|do|will|would|should)\b",
  re.I,
)


def mixed_language(view: SceneView) -> Iterator[Flag]:
  """Stretches in another script (in English), or sentences of English (in Chinese).

  Where the setting or a turn before has such a stretch too, the story has that language.
  """
  pattern, sign = _FOREIGN[view.language], _FOREIGN_SIGN[view.language]
  own = bool(_stretch(pattern, view.setting, view.language))
  for turn in view.turns:
    for field, text in (("reply", turn.turn.reply), ("plan", turn.turn.plan)):
      if field == "reply":
        layers = [(layer.start, layer.text) for layer in turn.of(THINKING, ACTION, SPEECH)]
      else:
        layers = [(0, text)]
      for place, part in layers:
        if not own and sign.search(part) and (m := _stretch(pattern, part, view.language)):
          why = f"not in the scene's language ({view.language})"
          yield turn.flag("mixed_language", field, place + m.start(), place + m.end(), why)
          break


def _stretch(pattern: re.Pattern[str], text: str, language: str) -> re.Match[str] | None:
  for match in pattern.finditer(text):
    if language == "en" or not match[0][0].isascii() or _ENGLISH.search(match[0]):
      return match
  return None
