"""A teacher for books that is no model: quoted speech by a regular expression, speakers by "said X".

`reply` answers the requests of `data_pipeline.sources.book`, the same to the same request, so
that a server can give its answers too. Where nobody is named, two speakers take turns. It knows
who is who in one novel, as a model would; of other books it knows the names as they stand.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import json
import re
from typing import Any

# Of Pride and Prejudice: the name to use, and how else the book calls the person.
PEOPLE: dict[str, tuple[str, ...]] = {
  "Elizabeth Bennet": (
    "Elizabeth",
    "Lizzy",
    "Eliza",
    "Miss Elizabeth Bennet",
    "Miss Eliza Bennet",
  ),
  "Jane Bennet": ("Jane", "Miss Bennet", "Miss Jane Bennet"),
  "Mr. Darcy": ("Darcy", "Fitzwilliam Darcy", "Mr. Fitzwilliam Darcy"),
  "Mr. Bingley": ("Bingley", "Charles Bingley"),
  "Caroline Bingley": ("Miss Bingley", "Caroline"),
  "Lydia Bennet": ("Lydia", "Miss Lydia Bennet"),
  "Kitty Bennet": ("Kitty", "Catherine Bennet"),
  "Mary Bennet": ("Mary",),
  "Charlotte Lucas": ("Charlotte", "Miss Lucas"),
  "Lady Catherine de Bourgh": ("Lady Catherine", "Lady Catherine de Bourgh"),
  "Mr. Wickham": ("Wickham", "George Wickham"),
  "Colonel Fitzwilliam": ("Fitzwilliam",),
  "Mrs. Bennet": (),
  "Mr. Bennet": (),
}
# Said beside a line in place of a name; true of most of that novel's scenes at home.
KIN = {
  "his lady": "Mrs. Bennet",
  "his wife": "Mrs. Bennet",
  "her mother": "Mrs. Bennet",
  "their mother": "Mrs. Bennet",
  "her father": "Mr. Bennet",
  "their father": "Mr. Bennet",
  "her husband": "Mr. Bennet",
}
_SAID = (
  r"(?:said|cried|replied|answered|asked|added|exclaimed|returned|continued|observed|whispered|"
  r"repeated|began|called)"
)
_NAME = rf"((?:(?:Mr|Mrs|Miss|Lady|Sir|Colonel|Dr)\.? )?[A-Z][a-z]+(?: (?:de )?[A-Z][a-z]+)*|{'|'.join(KIN)})"
_AFTER = re.compile(rf"^[,\s]*{_SAID} {_NAME}|^[,\s]*{_NAME} {_SAID}\b")
_BEFORE = re.compile(rf"{_NAME} {_SAID}\b[^.!?]*[,:]\s*$")
_QUOTED = re.compile(r'"([^"]*)(?:"|$)|“([^”]*)(?:”|$)|「([^」]*)(?:」|$)')
_ZH_SAID = r"(?:说道|说|问道|问|答道|答|笑道|叫道|喊道|叹道|道)"
_ZH_AFTER = re.compile(
  rf"^[，\s]*([\u4e00-\u9fff]{{2,4}}?)(?:低声|轻声|冷冷地|笑着)?{_ZH_SAID}"
)
_ZH_BEFORE = re.compile(
  rf"(?:^|[。！？”])([\u4e00-\u9fff]{{2,4}}?)(?:低声|轻声|冷冷地|笑着)?{_ZH_SAID}[:：，]\s*$"
)
_NO_NAMES = {"He", "She", "They", "It", "I", "You", "We", "The", "His", "Her", "There", "This"}
_GAP = 2  # paragraphs of narration that a scene goes on over


def reply(messages: Sequence[Any]) -> str:
  """The answer to a request of the book's stages.

  Args:
    messages: with `role` and `content`, as attributes or as keys.

  Raises:
    ValueError: it is another request.
  """
  asked = [_get(m, "content") for m in messages if _get(m, "role") == "user"][0]
  first = asked.partition("\n")[0]
  for tasks, answer in _ANSWERS:
    if first in tasks:
      return json.dumps(answer(asked), ensure_ascii=False)
  raise ValueError(f"no request about a book: {first[:60]!r}")


def _get(message: Any, field: str) -> str:
  return message[field] if isinstance(message, Mapping) else getattr(message, field)


def _text(asked: str) -> str:
  return asked.rpartition("<text>\n")[2].rpartition("\n</text>")[0]


def _scenes(asked: str) -> dict[str, Any]:
  numbered = {int(n): text for n, text in re.findall(r"(?m)^\[(\d+)\] (.*)$", _text(asked))}
  talk = [n for n, text in numbered.items() if len(_quotes(text)) > 0]
  runs: list[list[int]] = []
  for n in talk:
    if runs and n - runs[-1][-1] <= _GAP + 1:
      runs[-1].append(n)
    else:
      runs.append([n])
  first, last = min(numbered), max(numbered)
  scenes = []
  for run in runs:
    cut = (run[0] <= first + _GAP, run[-1] >= last - _GAP)
    if len(run) >= 2 or any(cut):
      named = {(True, True): "both", (True, False): "start", (False, True): "end"}.get(cut, "")
      scenes.append({"first": run[0], "last": run[-1], "cut": named})
  names: dict[str, None] = {}
  for text in numbered.values():
    names.update(dict.fromkeys(filter(None, (said for _, said in _said(text)))))
    for match in re.finditer(r"\b(?:Mr|Mrs|Miss|Lady|Sir|Colonel)\.? [A-Z][a-z]+", text):
      names[match[0]] = None
  people: dict[str, list[str]] = {}
  for name in names:
    people.setdefault(_canonical(name), []).append(name)
  return {
    "characters": [
      {
        "name": name,
        "aliases": [a for a in sorted(found) if a != name and a not in KIN],
        "description": _note(name),
      }
      for name, found in people.items()
    ],
    "scenes": scenes,
  }


def _note(name: str) -> str:
  return f"{name} is one of those who talk here."


def _canonical(name: str) -> str:
  name = KIN.get(name, name)
  return next((own for own, aliases in PEOPLE.items() if name in (own, *aliases)), name)


def _cast(asked: str) -> dict[str, Any]:
  found: dict[str, set[str]] = {}
  for line in re.findall(r"(?m)^- (.*)$", asked):
    name, aliases = _name_and_aliases(line)
    found.setdefault(_canonical(name), set()).update([name, *aliases])
  return {
    "characters": [
      {"name": name, "aliases": sorted(aliases - {name})} for name, aliases in found.items()
    ]
  }


def _name_and_aliases(line: str) -> tuple[str, list[str]]:
  match = re.match(r"([^(（:：]+?)(?: \(([^)]*)\))?(?:: .*)?$", line)
  assert match is not None, line
  return match[1], [a for a in re.split(r", |、", match[2] or "") if a]


def _dialogue(asked: str) -> dict[str, Any]:
  listed = asked.partition("<text>")[0]
  people = dict(_name_and_aliases(line) for line in re.findall(r"(?m)^- ([^\"“].*)$", listed))
  known = {alias: name for name, aliases in people.items() for alias in (name, *aliases)}
  known |= {kin: name for kin, name in KIN.items() if name in people}
  text = _text(asked)
  most = sorted(people, key=lambda name: -_spoken_of(text, (name, *people[name])))
  lines: list[dict[str, str]] = []
  before: list[str] = []  # the speakers, the last one at the end
  for paragraph in _text(asked).split("\n"):
    said = _said(paragraph)
    speech = " ".join(text.strip() for text, _ in said).strip()
    if not speech:
      continue
    speaker = next((known[name] for _, name in said if name in known), None)
    if speaker is None and not any(name for _, name in said):
      # In turns with who spoke before, or else with who is spoken of most.
      others = [name for name in before if name != before[-1]] or most[::-1]
      speaker = next((name for name in others[::-1] if before and name != before[-1]), None)
    if speaker is None:
      continue
    before.append(speaker)
    lines.append({"speaker": speaker, "speech": speech, "action": ""})
  speakers = list(dict.fromkeys(line["speaker"] for line in lines))
  first = _text(asked).partition("\n")[0]
  zh = asked.startswith("任务")
  return {
    "scenario": ("、".join(speakers) + "在一起交谈。")
    if zh
    else f"{', '.join(speakers)} are together.",
    "topic": first[:40],
    "summary": "",
    "characters": [
      {
        "name": name,
        "motivation": "我要把话说出来。" if zh else "I want to be heard.",
        "experience": "",
      }
      for name in speakers
    ],
    "lines": lines,
  }


def _spoken_of(text: str, names: Sequence[str]) -> int:
  longest_first = sorted(names, key=len, reverse=True)
  return len(re.findall("|".join(map(re.escape, longest_first)), text))


def _profile(asked: str) -> dict[str, Any]:
  notes = re.findall(r"(?m)^- (.*)$", asked)
  return {"profile": " ".join(notes[:3]) or "-"}


def _quotes(paragraph: str) -> list[str]:
  return [text for match in _QUOTED.finditer(paragraph) if (text := _inner(match)).strip()]


def _inner(match: re.Match[str]) -> str:
  return next((group for group in match.groups() if group is not None), "")


def _said(paragraph: str) -> list[tuple[str, str | None]]:
  """The quotations of a paragraph, each with the name beside it."""
  return list(_with_names(paragraph, list(_QUOTED.finditer(paragraph))))


def _with_names(
  paragraph: str, found: Sequence[re.Match[str]]
) -> Iterator[tuple[str, str | None]]:
  for i, match in enumerate(found):
    stop = found[i + 1].start() if i + 1 < len(found) else len(paragraph)
    start = found[i - 1].end() if i else 0
    after, before = paragraph[match.end() : stop], paragraph[start : match.start()]
    yield (
      _inner(match),
      _named(
        m
        for m in (
          _AFTER.match(after),
          _BEFORE.search(before),
          _ZH_AFTER.match(after),
          _ZH_BEFORE.search(before),
        )
      ),
    )


def _named(matches: Iterable[re.Match[str] | None]) -> str | None:
  for match in matches:
    name = next((g for g in match.groups() if g), None) if match else None
    if name and name.split()[0] not in _NO_NAMES:
      return name
  return None


_ANSWERS = (
  (("Task: scenes", "任务：场景"), _scenes),
  (("Task: cast", "任务：人物表"), _cast),
  (("Task: dialogue", "任务：对话"), _dialogue),
  (("Task: profile", "任务：人物简介"), _profile),
)
