"""What a model is asked about a book: scenes, cast, dialogue, profiles. English and Chinese."""

from collections.abc import Iterable, Mapping, Sequence

# The first line of each request names its task; see `task_of`.
TASKS = {
  "scenes": {"en": "Task: scenes", "zh": "任务：场景"},
  "cast": {"en": "Task: cast", "zh": "任务：人物表"},
  "dialogue": {"en": "Task: dialogue", "zh": "任务：对话"},
  "profile": {"en": "Task: profile", "zh": "任务：人物简介"},
}
_ROLE = {
  "en": (
    "You take novels apart for a data set of dialogues. You report what the text says and add"
    " nothing of your own. Your whole answer is one JSON object, without any text around it."
  ),
  "zh": (
    "你负责拆解小说，为对话数据集提取材料。只陈述原文所写，不添加任何内容。"
    "你的整个回答是一个 JSON 对象，前后不带其他文字。"
  ),
}
_SCENES = {
  "en": """{task}
Book: {book}
Part: {part}

Below is a stretch of the book, each paragraph with its number in front.

1. Find the scenes in which at least two characters talk with each other. A scene keeps one place and one occasion; where either changes, the next one begins. Leave out narration without talk, letters and summaries of talk.
2. List everybody who speaks or is spoken of in these scenes. "aliases" are all the ways in which this stretch calls the person (first name, title with surname, nickname, "his wife" not). If two persons are called alike, give the name to the one who is meant here.

Answer in this form:
{{"characters": [{{"name": "the fullest name in the text", "aliases": ["…"], "description": "one sentence from what the text says"}}],
 "scenes": [{{"first": NUMBER, "last": NUMBER, "cut": ""}}]}}
"first" and "last" are numbers of paragraphs, both within the scene. "cut" is "start" if the scene began before this stretch, "end" if it goes on after it, "both", or "".

<text>
{text}
</text>""",
  "zh": """{task}
书名：{book}
部分：{part}

下面是书中的一段，每个自然段前标有编号。

1. 找出至少两个人物相互交谈的场景。一个场景只有一个地点、一个时段；其一改变，便是下一个场景。没有交谈的叙述、书信以及对谈话的概述不算在内。
2. 列出这些场景中说话或被提到的所有人物。“aliases”为本段对此人的各种称呼（名、姓加头衔、绰号；“他的妻子”之类不算）。若两人称呼相同，归于此处所指的那一位。

按以下形式回答：
{{"characters": [{{"name": "原文中最完整的姓名", "aliases": ["…"], "description": "依据原文的一句话"}}],
 "scenes": [{{"first": 编号, "last": 编号, "cut": ""}}]}}
“first”和“last”是自然段编号，均属于该场景。若场景在本段之前已开始，“cut”为“start”；若在本段之后仍继续，为“end”；两者皆是为“both”；否则为“”。

<text>
{text}
</text>""",
}
_CAST = {
  "en": """{task}
Book: {book}

These names were noted in different parts of the book, each with other ways to call the person and what was said of them there. Some are one and the same person.

{names}

Put the names of each person together. Join two names only where the notes show that they are one person; relatives with the same surname are not. Every noted name belongs to exactly one person.

Answer in this form:
{{"characters": [{{"name": "the name to use everywhere", "aliases": ["every other name noted for the person"]}}]}}""",
  "zh": """{task}
书名：{book}

以下姓名出自书中不同部分，各附此人的其他称呼及当处的描述。其中有些是同一个人。

{names}

请把每个人的姓名归在一起。只有当记录表明两个姓名是同一人时才合并；同姓的亲属不是同一人。每个记下的姓名只属于一个人。

按以下形式回答：
{{"characters": [{{"name": "全书统一使用的姓名", "aliases": ["记录中此人的其他称呼"]}}]}}""",
}
_DIALOGUE = {
  "en": """{task}
Book: {book}
Part: {part}

Who may speak, with the other names that the book gives them:
{names}

Write down the dialogue of this scene.

- "lines": every line that is spoken aloud, in order. "speech" is copied letter by letter, without quotation marks. Where narration interrupts a line, leave the narration out and put the parts together. One line never holds the words of two speakers. Do not shorten, mend or add anything.
- "speaker": a name of the list above, as it is written before the brackets. Leave out a line whose speaker the text does not show.
- "action": what the speaker visibly does with this line, in a few words of the text, without a pronoun for the speaker; "" if the text tells nothing.
- "scenario": the situation as the scene begins, for somebody who is to play it: place, time, who is there, what has just happened. Nothing of what the scene itself will bring.
- "topic": what they talk about, in a few words. "summary": the scene in two or three sentences.
- "characters": of each speaker what they want in this scene ("motivation", in the first person) and what they went through before it ("experience").

Answer in this form:
{{"scenario": "…", "topic": "…", "summary": "…",
 "characters": [{{"name": "…", "motivation": "…", "experience": "…"}}],
 "lines": [{{"speaker": "…", "speech": "…", "action": "…"}}]}}

<text>
{text}
</text>""",
  "zh": """{task}
书名：{book}
部分：{part}

可能说话的人物，括号内为书中的其他称呼：
{names}

请记录这一场景的对话。

- “lines”：按顺序列出说出口的每一句话。“speech”逐字照抄，不带引号。若一句话被叙述打断，略去叙述，把各部分连在一起。一句里不得混入两个人的话。不缩写、不修改、不添加。
- “speaker”：上表中的姓名，按括号前的写法。原文看不出是谁说的，就略去这一句。
- “action”：说话人在说这句话时可见的动作，用原文的几个字，不用代词指代说话人；原文未写则为“”。
- “scenario”：场景开始时的情境，供扮演者使用：地点、时间、在场人物、刚刚发生的事。不写场景之后的发展。
- “topic”：谈话的内容，几个字。“summary”：用两三句话概括场景。
- “characters”：每个说话人在此场景中想要什么（“motivation”，第一人称）、此前经历了什么（“experience”）。

按以下形式回答：
{{"scenario": "…", "topic": "…", "summary": "…",
 "characters": [{{"name": "…", "motivation": "…", "experience": "…"}}],
 "lines": [{{"speaker": "…", "speech": "…", "action": "…"}}]}}

<text>
{text}
</text>""",
}
_PROFILE = {
  "en": """{task}
Book: {book}
Character: {name}

What was noted of the character in different parts of the book:
{notes}

Lines that the character speaks:
{lines}

Write a profile by which somebody could play this character: origin and standing, character, way of speaking, ties to the others, what drives them. Five to ten sentences in the third person, from the notes and lines alone.

Answer in this form:
{{"profile": "…"}}""",
  "zh": """{task}
书名：{book}
人物：{name}

书中不同部分对此人的记录：
{notes}

此人说过的话：
{lines}

请写一份可供扮演此人的简介：出身与地位、性格、说话方式、与他人的关系、内心的驱动力。第三人称，五到十句，只依据以上记录和台词。

按以下形式回答：
{{"profile": "…"}}""",
}
_AGAIN = {
  "en": "That answer cannot be used: {fault}. Write the whole JSON object again, in the form asked for.",
  "zh": "这个回答无法使用：{fault}。请按要求的形式重新写出完整的 JSON 对象。",
}


def role(language: str) -> str:
  """The system prompt of all four tasks."""
  return _ROLE[language]


def scenes(book: str, part: str, paragraphs: Mapping[int, str], language: str) -> str:
  """Asks for the scenes of numbered paragraphs, and who is in them."""
  text = "\n".join(f"[{number}] {text}" for number, text in paragraphs.items())
  return _SCENES[language].format(
    task=TASKS["scenes"][language], book=book, part=part, text=text
  )


def cast(book: str, names: Iterable[str], language: str) -> str:
  """Asks which of the noted names are one person; `names` are lines, one a name."""
  return _CAST[language].format(
    task=TASKS["cast"][language], book=book, names="\n".join(f"- {name}" for name in names)
  )


def dialogue(
  book: str, part: str, names: Mapping[str, Sequence[str]], text: str, language: str
) -> str:
  """Asks for the lines of a scene; `names` are those who may speak, with their aliases."""
  stop = "、" if language == "zh" else ", "
  told = "\n".join(
    f"- {name}" + (f" ({stop.join(aliases)})" if aliases else "")
    for name, aliases in names.items()
  )
  return _DIALOGUE[language].format(
    task=TASKS["dialogue"][language], book=book, part=part, names=told, text=text
  )


def profile(
  book: str, name: str, notes: Sequence[str], lines: Sequence[str], language: str
) -> str:
  """Asks for a character's profile."""
  return _PROFILE[language].format(
    task=TASKS["profile"][language],
    book=book,
    name=name,
    notes="\n".join(f"- {note}" for note in notes) or "-",
    lines="\n".join(f"- {line}" for line in lines) or "-",
  )


def again(fault: str, language: str) -> str:
  """Asks once more, after an answer that cannot be read."""
  return _AGAIN[language].format(fault=fault)


def task_of(request: str) -> tuple[str, str]:
  """Task and language of a request that this module wrote.

  Raises:
    ValueError: it is none.
  """
  first = request.partition("\n")[0]
  for task, by_language in TASKS.items():
    for language, line in by_language.items():
      if first == line:
        return task, language
  raise ValueError(f"no request about a book: {first[:60]!r}")
