"""The wording of the system prompt, in English and Chinese. A section without text is left out."""

import re

from her_jax.roleplay.schema import Character, Trajectory

MARKER = "===Conversation Start==="

# The sections of a sheet, in order. "brief" suits models and prompts that are small; "name"
# says no more than who answers.
STYLES = {
  "full": ("profile", "background", "scenario", "others", "motivation", "format"),
  "brief": ("motivation", "format"),
  "name": ("format",),
}

_WHO = {"en": "You are {name}, in {source}.", "zh": "你是{name}，出自《{source}》。"}
_WHO_ALONE = {"en": "You are {name}.", "zh": "你是{name}。"}
_HEADINGS = {
  "en": {
    "profile": "Who you are",
    "background": "What lies behind you",
    "scenario": "The scene",
    "others": "With you",
    "motivation": "What you want",
    "format": "How to answer",
  },
  "zh": {
    "profile": "你是谁",
    "background": "你的过去",
    "scenario": "场景",
    "others": "在场的人",
    "motivation": "你想要什么",
    "format": "如何作答",
  },
}
_FORMAT = {
  "full": {
    "en": (
      "Plan in the third person in <system_thinking>. Then reply as {name}: with"
      " <role_thinking> (unheard), <role_action> (seen) and bare speech. Speak for"
      " {name} alone."
    ),
    "zh": (
      "先在 <system_thinking> 里以第三人称谋划，再以 {name}: 开头作答，"
      "交错使用 <role_thinking>（无人听见）、<role_action>（可见）与对白。只替{name}说话。"
    ),
  },
  # The name as the reply has to begin with it, on a line of its own: the same tokens.
  "brief": {"en": "Plan, then begin with\n{name}: ", "zh": "先谋划，再以此开头\n{name}: "},
}
_FORMAT["name"] = _FORMAT["brief"]


def system_prompt(trajectory: Trajectory, character: Character, style: str = "full") -> str:
  """The sheet that `character` is played from: fixed sections under headings.

  Args:
    style: a key of STYLES.
  """
  language = trajectory.language
  contents = {
    "profile": character.profile,
    "background": character.background,
    "scenario": trajectory.scenario,
    "others": _others(trajectory, character),
    "motivation": character.motivation,
    "format": _FORMAT[style][language].format(name=character.name),
  }
  who = _WHO if trajectory.source else _WHO_ALONE
  parts = [who[language].format(name=character.name, source=trajectory.source)]
  for section in STYLES[style]:
    if contents[section]:
      parts.append(f"# {_HEADINGS[language][section]}\n{contents[section]}")
  return "\n".join(parts)


def _others(trajectory: Trajectory, character: Character) -> str:
  """The others by name and the first sentence of their profile: what one sees of them."""
  return "\n".join(
    f"{other.name}: {re.split(r'(?<=[.。;；!?！？])', other.profile)[0].strip()}"
    for other in trajectory.characters
    if other != character
  )
