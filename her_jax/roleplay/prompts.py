"""The wording of the system prompt, in English and Chinese. What has no text is left out."""

from collections.abc import Sequence
import dataclasses
import re

from her_jax.roleplay.schema import Character, Scene

MARKER = "===Conversation Start==="

# The parts of a sheet, in order. "full" has fixed sections under headings, "natural" is running
# text, "structured" a list of fields. "brief" suits models and prompts that are small; "name"
# says no more than who answers.
_ALL = ("profile", "background", "scenario", "others", "motivation", "passages", "format")
STYLES = {
  "full": _ALL,
  "natural": _ALL,
  "structured": _ALL,
  "brief": ("motivation", "passages", "format"),
  "name": ("format",),
}
# Of thoughts and actions; "think" is our layers with the plan in Qwen's own think block.
NOTATIONS = ("her", "coser", "think")
PLANS = ("full", "short", "off")


@dataclasses.dataclass(frozen=True)
class Variant:
  """How a scene is put to a model.

  Attributes:
    style: of the sheet, a key of STYLES.
    notation: one of NOTATIONS.
    plan: "full", "short" (asks for two sentences at most) or "off" (no plan is asked for, and
      none is trained).
  """

  style: str = "full"
  notation: str = "her"
  plan: str = "full"

  def __post_init__(self) -> None:
    for name, allowed in (
      ("style", tuple(STYLES)), ("notation", NOTATIONS), ("plan", PLANS)
    ):  # fmt: skip
      if getattr(self, name) not in allowed:
        raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")


_WHO = {"en": "You are {name}, in {source}.", "zh": "你是{name}，出自《{source}》。"}
_WHO_ALONE = {"en": "You are {name}.", "zh": "你是{name}。"}
_HEADINGS = {
  "en": {
    "profile": "Who you are",
    "background": "What lies behind you",
    "scenario": "The scene",
    "others": "With you",
    "motivation": "What you want",
    "passages": "From the source",
    "format": "How to answer",
  },
  "zh": {
    "profile": "你是谁",
    "background": "你的过去",
    "scenario": "场景",
    "others": "在场的人",
    "motivation": "你想要什么",
    "passages": "原文片段",
    "format": "如何作答",
  },
}
# What leads from one part to the next in running text.
_LEADS = {
  "en": {
    "background": "Behind you lies this: ",
    "scenario": "Here is where you find yourself: ",
    "others": "You are not alone. ",
    "motivation": "What you want now: ",
    "passages": "The source has this to say: ",
  },
  "zh": {
    "background": "你的过去：",
    "scenario": "此刻的情形：",
    "others": "你身边有人。",
    "motivation": "你眼下所求：",
    "passages": "原文写道：",
  },
}
_FIELDS = {
  "en": {"name": "name", "source": "source"},
  "zh": {"name": "姓名", "source": "出处"},
}
_PLAN_FIRST = {
  "en": {
    "full": "Plan in the third person in <system_thinking>. Then reply",
    "short": (
      "Plan in the third person in <system_thinking>, in two sentences at most. Then reply"
    ),
    "off": "Reply",
    "think": "Think about how {name} would act here. Then reply",
    "think short": "Think in two sentences at most about how {name} would act here. Then reply",
  },
  "zh": {
    "full": "先在 <system_thinking> 里以第三人称谋划，再以",
    "short": "先在 <system_thinking> 里以第三人称谋划，至多两句，再以",
    "off": "以",
    "think": "先想一想{name}此时会怎么做，再以",
    "think short": "先用至多两句想一想{name}此时会怎么做，再以",
  },
}
_LAYERS = {
  "en": {
    "her": (
      " as {name}: with <role_thinking> (unheard), <role_action> (seen) and bare speech. Speak"
      " for {name} alone."
    ),
    "coser": (
      " as {name}: with [thoughts in brackets] (unheard), (actions in parentheses) (seen) and"
      " bare speech. Speak for {name} alone."
    ),
  },
  "zh": {
    "her": (
      " {name}: 开头作答，交错使用 <role_thinking>（无人听见）、<role_action>（可见）与对白。"
      "只替{name}说话。"
    ),
    "coser": (
      " {name}: 开头作答，交错使用 [心理]（无人听见）、(动作)（可见）与对白。只替{name}说话。"
    ),
  },
}
# The name as the reply has to begin with it, on a line of its own: the same tokens.
_BRIEF = {
  "en": {"on": "Plan, then begin with\n{name}: ", "off": "Begin with\n{name}: "},
  "zh": {"on": "先谋划，再以此开头\n{name}: ", "off": "以此开头\n{name}: "},
}


def system_prompt(
  scene: Scene,
  character: Character,
  variant: Variant = Variant(),
  passages: Sequence[str] = (),
) -> str:
  """The sheet that `character` is played from.

  Args:
    passages: text of the source that was retrieved for this turn.
  """
  contents = {
    "profile": "\n".join(
      filter(None, (character.description, character.profile, character.experience))
    ),
    "background": character.background,
    "scenario": scene.scenario,
    "others": _others(scene, character),
    "motivation": character.motivation,
    "passages": "\n\n".join(passages),
    "format": _format(scene, character, variant),
  }
  shown = {name: contents[name] for name in STYLES[variant.style] if contents[name].strip()}
  return _LAID_OUT.get(variant.style, _sections)(scene, character, shown)


def _sections(scene: Scene, character: Character, shown: dict[str, str]) -> str:
  headings = _HEADINGS[scene.language]
  parts = [f"# {headings[name]}\n{text}" for name, text in shown.items()]
  return "\n".join([_who(scene, character), *parts])


def _natural(scene: Scene, character: Character, shown: dict[str, str]) -> str:
  leads = _LEADS[scene.language]
  parts = [f"{leads.get(name, '')}{text}" for name, text in shown.items()]
  return "\n\n".join([_who(scene, character), *parts])


def _structured(scene: Scene, character: Character, shown: dict[str, str]) -> str:
  fields, headings = _FIELDS[scene.language], _HEADINGS[scene.language]
  rows = {fields["name"]: character.name}
  if scene.source:
    rows[fields["source"]] = scene.source
  rows |= {headings[name].lower(): text for name, text in shown.items()}
  # Further lines are set in, so that a field ends where the next one begins.
  return "\n".join(f"- {name}: " + text.replace("\n", "\n  ") for name, text in rows.items())


_LAID_OUT = {"natural": _natural, "structured": _structured}


def _who(scene: Scene, character: Character) -> str:
  who = _WHO if scene.source else _WHO_ALONE
  return who[scene.language].format(name=character.name, source=scene.source)


def _format(scene: Scene, character: Character, variant: Variant) -> str:
  language = scene.language
  if variant.style in ("brief", "name"):
    wording = _BRIEF[language]["off" if variant.plan == "off" else "on"]
    return wording.format(name=character.name)
  plan = variant.plan
  if variant.notation == "think" and plan != "off":
    plan = "think" if plan == "full" else "think short"
  layers = _LAYERS[language]["coser" if variant.notation == "coser" else "her"]
  return (_PLAN_FIRST[language][plan] + layers).format(name=character.name)


def _others(scene: Scene, character: Character) -> str:
  """The others by name and what one sees of them: their description, or a first sentence."""
  lines = []
  for other in scene.characters:
    if other != character:
      seen = re.split(r"(?<=[.。;；!?！？])", other.description or other.profile)[0].strip()
      lines.append(f"{other.name}: {seen}" if seen else other.name)
  return "\n".join(lines)
