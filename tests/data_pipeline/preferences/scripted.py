"""A teacher and a policy that need no model: what they say follows from the prompt alone.

The teacher reads both candidates between their fences. By gestures, thoughts and an open question
it names three principles of the list it was shown; who wins most of them wins.
"""

import hashlib
import re

from her_jax.llm.client import Failure, Reply, Request
from her_jax.roleplay import principles

SECRET = "SECRET_7"
# Principle → what is counted in a candidate.
MEASURES = {
  "gestures-count": "<role_action>",
  "thoughts-add": "<role_thinking>",
  "something-to-answer": "?",
}
_FENCED = re.compile(r"<candidate_([12])>\n(.*?)\n</candidate_\1>", re.DOTALL)
_REASONS = {
  "en": (
    "- It lets the place be felt through smell and sound.\n"
    "- It holds back the feeling instead of naming it.\n"
    "- The better reply asks something that {name} must answer.\n"
  ),
  "zh": "1. 环境的气味和声音都能感觉到。\n2. 没有直接说出感情。\n3. 留下了对方必须回答的问题。\n",
}


def language_of(text: str) -> str:
  return "zh" if re.search(r"[\u4e00-\u9fff]", text[:200]) else "en"


def winner_of(one: float, two: float) -> str:
  return "tie" if one == two else "cand_1" if one > two else "cand_2"


def compared(user: str) -> tuple[list[tuple[str, str]], str]:
  """Winner by each principle, and the verdict, as the teacher finds them."""
  texts = [text for _, text in _FENCED.findall(user)]
  assert len(texts) == 2, user
  found = [
    (principle, winner_of(texts[0].count(sign), texts[1].count(sign)))
    for principle, sign in MEASURES.items()
  ]
  one, two = (sum(w == side for _, w in found) for side in ("cand_1", "cand_2"))
  return found, winner_of(one, two)


def judgement(system: str, user: str, verdict: str | None = None) -> str:
  language = language_of(system)
  found, own = compared(user)
  library = principles.library()
  word = {"en": "in both replies it is so, winner", "zh": "两者如此，胜者"}[language]
  lines = [f"- {library[p].names[language]}: {word} {w}" for p, w in found]
  lines.append({"en": "Analysis: counted", "zh": "分析：数过了"}[language])
  return "\n".join([*lines, f"Verdict: {verdict or own}"])


def line(user: str, number: int = 0) -> str:
  """A turn as a policy might sample it, with its plan: another for each prompt and number."""
  digest = hashlib.sha256(f"{number}/{user}".encode()).digest()
  parts = [f"I say {digest.hex()[:6]}."] * (1 + digest[0] % 4)
  parts += [f"<role_action>turns {i}</role_action>" for i in range(digest[1] % 4)]
  parts += [f"<role_thinking>hm {i}</role_thinking>" for i in range(digest[2] % 3)]
  parts += ["Do you?"] * (digest[3] % 2)
  return f"<system_thinking>{SECRET} plans it.</system_thinking>" + " ".join(parts)


def answer(messages: list[dict[str, str]]) -> str:
  """What a server says: a judgement, reasons, or a turn."""
  system, user = messages[0]["content"], messages[-1]["content"]
  if "Verdict:" in system:
    return judgement(system, user)
  if "<candidate_1>" in user:
    return _REASONS[language_of(system)].replace("{name}", "him")
  return line(user)


def reply(request: Request) -> Reply | Failure:
  """What `Scripted` says; a policy's turns differ by the number at the end of the id."""
  system, user = request.messages[0].content, request.messages[-1].content
  if request.tag == "candidates":
    return Reply(line(user, int(request.id.split("/")[3])))
  messages = [{"content": system}, {"content": user}]
  return Reply(answer(messages))
