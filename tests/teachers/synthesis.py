"""A teacher that answers every stage's prompts for any scene, from what they fence, by rule.

It reads the prompts alone, as a model behind an endpoint would. By seed it plants the faults
that models have: leaks of the true turn, first person, invented quotes and names, changed
speech, one layout throughout, broken JSON, refusals, cuts. Asked again, it mends most of them.
"""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import hashlib
import itertools
import json
import re

from her_jax.llm.client import Message, Reply, Request, Usage
from her_jax.roleplay import grammar
from her_jax.roleplay.grammar import Segment
from her_jax.roleplay.tags import SPEECH, THINKING

_FENCE = re.compile(r"<<<([A-Z]+) ([0-9a-f]{8})\n(.*?)\n\2 \1>>>", re.DOTALL)
FAULTS = {
  "role_thinking": ("speech", "json", "missing", "monotone", "refusal", "cut"),
  "forward": ("refusal", "cut", "silent"),
  "backward": ("leak", "first_person", "short", "refusal", "cut"),
  "setting": ("quote", "name", "json", "refusal"),
}
_THOUGHTS = {
  "en": ("I must not let that show.", "So I was right to wait.", "What does that leave me?"),
  "zh": ("我不能叫人看出来。", "我果然该再等等。", "这叫我还剩下什么？"),
}
_PLAN = {
  "en": (
    "{name} weighs the moment before anything is said.",
    "Nobody else in the room can tell what this costs, and {name} means to keep it so.",
    "An open quarrel would win nothing; silence would be read as consent.",
    "The better way is to give a little ground and hold the rest.",
    "The manner stays even, the pace unhurried, and the weight falls near the end.",
  ),
  "zh": (
    "{name}先把眼前的局面掂量了一遍。",
    "旁人看不出其中的为难，{name}也无意叫人看出。",
    "翻脸讨不到好处，一味不作声又会被当作默许。",
    "不如略退半步，把要紧处守住。",
    "口气须平，步子须稳，分量落在收尾。",
  ),
}


@dataclasses.dataclass
class Teacher:
  """Answers requests; call it, or hand it to `llm.scripted.Scripted`.

  Attributes:
    faulty: the share of questions that get a fault.
    stubborn: the share of those in which asking again does not help.
    asked: how often each question was answered, by a hash of its messages.
  """

  seed: int = 0
  faulty: float = 0.0
  stubborn: float = 0.25
  first_tokens: int = 8192
  planted: Counter = dataclasses.field(default_factory=Counter)
  asked: Counter = dataclasses.field(default_factory=Counter)

  def __call__(self, request: Request) -> Reply:
    return self.answer(request.messages, request.sampling.max_tokens)

  def answer(self, messages: Sequence[Message], max_tokens: int) -> Reply:
    whole = json.dumps([[m.role, m.content] for m in messages])
    self.asked[hashlib.sha256(f"{whole}{max_tokens}".encode()).hexdigest()] += 1
    system, user = messages[0].content, messages[1].content
    fences = {label: text for label, _, text in _FENCE.findall(user)}
    stage = stage_of(fences)
    again = len(messages) > 2 or max_tokens > self.first_tokens
    fault = self._fault(stage, user, again)
    if fault:
      self.planted[stage, fault, again] += 1
    usage = Usage(len(whole) // 4, 200)
    if fault == "refusal":
      return Reply("I'm sorry, but I can't help with that.", usage=usage)
    language = "zh" if "第三人称" in system or "你" in system else "en"
    text, reasoning = getattr(self, f"_{stage}")(fences, system, user, language, fault)
    if fault == "cut":
      return Reply(text[: len(text) // 2], reasoning, "length", usage)
    return Reply(text, reasoning, usage=usage)

  def _fault(self, stage: str, user: str, again: bool) -> str:
    value = int.from_bytes(hashlib.sha256(f"{self.seed}/{stage}/{user}".encode()).digest()[:8])
    if value % 10_000 >= self.faulty * 10_000:
      return ""
    if again and (value >> 16) % 1000 >= self.stubborn * 1000:
      return ""
    return FAULTS[stage][(value >> 32) % len(FAULTS[stage])]

  def _role_thinking(self, fences, system, user, language, fault):
    asked = re.search(r"(?:each once: |每段一次：)(.+)", user)[1].split(", ")
    rows = {row["turn"]: row for row in map(json.loads, fences["DIALOGUE"].splitlines())}
    before = [json.loads(line) for line in fences.get("BEFORE", "").splitlines()]
    chosen = [grammar.parse(row["text"]).layout() for row in before]
    made, used = [], Counter(chosen)
    for number, key in enumerate(asked):
      text, layout = self._edited(rows[key], language, chosen, used, fault == "monotone")
      chosen.append(layout)
      used[layout] += 1
      made.append({"turn": key, "text": text, "layout": layout, "reason": f"Edit {number}."})
    if fault == "speech":
      spoken = [s for s in grammar.parse(made[0]["text"]).segments if s.kind == SPEECH]
      for segment in spoken[:1]:
        made[0]["text"] = made[0]["text"].replace(segment.text, " Nothing of the kind! ", 1)
      made[0]["text"] += " And more of it, all new, never said before by anybody in it."
    if fault == "missing":
      del made[-1]
    text = json.dumps({"turns": made}, ensure_ascii=False)
    if fault == "json":
      text = text.replace('"text": "', '"text": ', 1)
    return f"```json\n{text}\n```", ""

  def _edited(self, row, language, chosen, used, monotone):
    parsed = grammar.parse(row["text"])
    thoughts = [s.text.strip() for s in parsed.segments if s.kind == THINKING]
    digest = int.from_bytes(hashlib.sha256(row["text"].encode()).digest()[:4])
    thoughts.append(_THOUGHTS[language][digest % 3])
    thought = Segment(THINKING, " ".join(thoughts))
    heard = [s for s in parsed.segments if s.kind != THINKING and s.text.strip()]
    options = []
    for pieces in (heard, _split(heard)):
      ends = range(len(pieces) + 1)
      for places in (*itertools.combinations(ends, 1), *itertools.combinations(ends, 2)):
        whole = list(pieces)
        for k, place in enumerate(reversed(places)):
          own = thought if k == 0 else Segment(THINKING, _THOUGHTS[language][(digest + 1) % 3])
          whole.insert(place, own)
        text = grammar.render(grammar.Reply(tuple(whole)))
        options.append((grammar.parse(text).layout(), text))
    if monotone:
      return options[0][1], options[0][0]
    free = [o for o in options if chosen[-2:] != [o[0], o[0]]]
    layout, text = min(free, key=lambda option: (used[option[0]], len(option[0])))
    return text, layout

  def _forward(self, fences, system, user, language, fault):
    name = re.search(r"It is (.+)'s turn\.|轮到(.+)了。", user)
    name = name[1] or name[2]
    if fault == "silent":
      return "Well.", ""
    last = fences.get("HISTORY", "").splitlines()[-1:]
    seen = json.loads(last[0])["turn"] if last else "none"
    thinking = " ".join(line.format(name=name) for line in _PLAN[language])
    return "<role_action>waits</role_action> Well.", f"{thinking} (after {seen})"

  def _backward(self, fences, system, user, language, fault):
    name = re.search(r"leads (.+) to this turn|把(.+)引到这一段", user)
    name = name[1] or name[2]
    bounds = re.search(r"(\d+) to (\d+) characters|(\d+) 到 (\d+) 字", system).groups()
    shortest, longest = [int(b) for b in bounds if b]
    sentences = itertools.cycle(line.format(name=name) for line in _PLAN[language])
    plan = f"[{digest_of(fences['TURN'])}]"
    while len(plan) < shortest:
      plan += (" " if language == "en" else "") + next(sentences)
    plan = plan[:longest]
    if fault == "leak":
      heard = " ".join(s.text for s in grammar.parse(fences["TURN"]).segments)
      plan = f"{heard} {plan}"[:longest]
    elif fault == "first_person":
      plan = f"{'I shall wait.' if language == 'en' else '我先等。'}{plan}"[:longest]
    elif fault == "short":
      plan = plan[:40]
    return f"<plan>{plan}</plan>", ""

  def _setting(self, fences, system, user, language, fault):
    people = [json.loads(line) for line in fences["SHEETS"].splitlines()][1:]
    turn = json.loads(fences["DIALOGUE"].splitlines()[0])
    plain = " ".join(s.text for s in grammar.parse(turn["text"]).segments).split()
    sentence = max(re.split(r"(?<=[.!?。！？])\s*", fences["PASSAGE"])[:4], key=len)
    fact = {
      "character": people[0]["character"], "field": "experience", "text": sentence[:380],
      "quote": sentence[:200], "turn": turn["turn"], "shown": " ".join(plain[:4]),
    }  # fmt: skip
    if fault == "quote":
      fact["quote"] = "as nobody in any book has ever written it down anywhere"
    elif fault == "name":
      fact["text"] = "Was brought up by Ozymandias Quibble in 1931."
    text = json.dumps({"additions": [fact]}, ensure_ascii=False)
    return text[:-2] if fault == "json" else text, ""


def over_http(messages: list[dict[str, str]]) -> dict[str, str]:
  """The message of a faulty teacher behind `tests.llm.bad_server`."""
  given = [Message(m["role"], m["content"]) for m in messages]
  reply = Teacher(seed=11, faulty=0.2).answer(given, 0)
  return {"content": reply.text, "reasoning_content": reply.reasoning}


def stage_of(fences) -> str:
  """Which stage asks, from the labels of its material."""
  if "PASSAGE" in fences:
    return "setting"
  if "TURN" in fences:
    return "backward"
  return "role_thinking" if "DIALOGUE" in fences else "forward"


def digest_of(text: str) -> str:
  """By what a plan of this teacher says which turn it was made for."""
  return hashlib.sha256(text.encode()).hexdigest()[:10]


def _split(heard: Sequence[Segment]) -> list[Segment]:
  """The pieces with the first speech of several sentences in two, and a place between them."""
  made = []
  done = False
  for segment in heard:
    parts = re.split(r"(?<=[.!?。！？，,])\s*", segment.text.strip(), maxsplit=1)
    if segment.kind == SPEECH and not done and len(parts) == 2 and parts[1]:
      made += [Segment(SPEECH, parts[0] + " "), Segment(SPEECH, parts[1])]
      done = True
    else:
      made.append(segment)
  return made
