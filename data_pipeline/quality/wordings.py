"""The wordings that checks look for, in English and Chinese."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Wording:
  """A pattern that says a text is at fault.

  Attributes:
    unless: words, in lower case, with which a story has such things itself: where one of them
      stands in the setting or a turn before, the pattern says nothing.
  """

  pattern: re.Pattern[str]
  unless: tuple[str, ...] = ()


def _any(*patterns: str, unless: tuple[str, ...] = ()) -> Wording:
  """One of several patterns; those that begin with a word are tried only where one begins."""
  at_word = [
    pattern[2:] for part in patterns for pattern in _alternatives(part) if part[:2] == r"\b"
  ]
  others = [part for part in patterns if part[:2] != r"\b"]
  if at_word:
    others.append(rf"\b(?:{'|'.join(at_word)})")
  return Wording(re.compile("|".join(others), re.IGNORECASE), unless)


def _alternatives(pattern: str) -> list[str]:
  r"""`\bone\b|\btwo\b` taken apart; alternatives within parentheses stay together."""
  return re.split(r"\|(?=\\b)", pattern)


# What ends a sentence, which the point of "Mr." does not.
FULL_STOP = r"(?:[!?…]|(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)\.)"

# ---- The plan's first person. "My lord" is a form of address, a mine may be one of coal, and in
# Chinese "自我" and its like are words of their own.
FIRST_PERSON = {
  "en": re.compile(
    r"\bI(?:['’](?:m|ve|ll|d))?\b(?![.’'-]\w)|\b[Mm]e\b|\b[Mm]yself\b"
    r"|(?<![Tt]he )(?<!\ba )(?<!her )(?<!his )(?<!old )(?<!coal )(?<!salt )\b[Mm]ine\b(?! ?shaft)"
    r"|\b[Mm]y\b(?! (?:[Ll]ord|[Ll]ady|[Ll]iege|[Gg]oodness|[Ff]oot))"
    r"|\b[Ww]e(?:['’](?:re|ve|ll|d))?\b|\b(?:us|[Oo]urs?|[Oo]urselves)\b|\b[Ll]et['’]s\b"
  ),
  "zh": re.compile(r"(?<![自忘敌小大无唯])(?<!我行)我(?![行执见相辈]|方)|咱|俺"),
}
# What "I" is a number or a letter of: Part I, Act I, World War I, the letter I.
_NUMBERED = re.compile(
  r"(?:\b(?:Part|Book|Act|War|Chapter|Volume|Scene|Class|Phase|Article|Type|Section|Grade|Level"
  r"|Lot|[Ll]etter|[Cc]apital|[Nn]umeral|[Ff]igure)|[a-z,] [A-Z][a-z]+) $"
)


def first_person(text: str, language: str) -> re.Match[str] | None:
  """The first word with which a text speaks of itself.

  Example:
    first_person("Under Charles I she fled.", "en") is None
  """
  for match in FIRST_PERSON[language].finditer(text):
    if match[0] != "I" or not _NUMBERED.search(text, max(0, match.start() - 24), match.start()):
      return match
  return None


# A thought that has one of these speaks for itself.
OWN_VOICE = {
  "en": re.compile(
    r"\b(?:I|I['’](?:m|ve|ll|d)|[Mm]e|[Mm]y|[Mm]yself|[Mm]ine|[Ww]e|us|[Oo]urs?)\b"
  ),
  "zh": re.compile(r"[我俺咱]|本[官王宫座]|老[子娘夫身]|[在鄙]下|奴家|妾身|小[生人]"),
}

# ---- Thoughts that tell of their thinker: what stands before the thinker's name, and behind it.
# No title stands before it that is not part of it: to Elizabeth Bennet, Mrs Bennet is another.
BEFORE_NAME = {
  "en": re.compile(
    rf"(?:^|{FULL_STOP}['\"’”]*\s+|\n)\s*(?:[A-Z][a-z]+ly,? |Then |But |And |Still,? |Now,? )?"
  ),
  "zh": re.compile(r"(?:^|[。！？…；，\n])\s*"),
}
BEHIND_NAME = {
  "en": re.compile(
    r"(?: \w+ly)? (?:wonders|thinks|feels|knows|reali[sz]es|remembers|recalls|decides|wants|needs"
    r"|hopes|fears|notices|considers|senses|believes|suspects|understands|worries|struggles"
    r"|hesitates|reflects|ponders|resolves|wishes|dreads|sees|plans|tries|must|should|wondered"
    r"|thought|felt|knew|reali[sz]ed|decided|wanted|hoped|feared|is (?:\w+ing|\w+ed|afraid|unsure"
    r"|sure|sad|happy|angry|torn|aware|proud|furious|uneasy|nervous)|was (?:\w+ing|\w+ed|afraid"
    r"|unsure)|can['’]?t help|cannot help|could not help)\b"
    r"|['’]s (?:heart|mind|thoughts|pulse|stomach|chest|breath|blood|pride|gaze|anger|resolve)\b"
  ),
  "zh": re.compile(
    r"心想|心里|心中|暗想|暗自|暗暗|想着|想到|觉得|感到|感觉|意识到|不禁|不由|忍不住|决定|明白|知道|希望"
    r"|害怕|担心|想要|想起|怀疑|犹豫|琢磨|盘算|打算|的心|此刻|的脑海"
  ),
}
NARRATED_FEELING = {
  "en": re.compile(
    r"\s*((?:[Ss]he|[Hh]e|[Tt]hey|[Tt]he (?:character|speaker|protagonist)) (?:\w+ly )?"
    r"(?:wonders (?:if|whether|why|how|what)|reali[sz]es (?:that|how|with)"
    r"|feels? (?:an? |the )?(?:\w+ )?(?:pang|surge|wave|mix|rush|sense|twinge|flicker|stab|knot"
    r"|weight|chill|relief|guilt|anger|warmth|heat)\b"
    r"|can(?:no|['’])t help (?:but )?\w+|thinks to (?:him|her|them)sel(?:f|ves)"
    r"|tells? (?:him|her|them)sel(?:f|ves)|reminds? (?:him|her|them)sel(?:f|ves))"
    r"|(?:[Hh]er|[Hh]is) (?:heart|mind|pulse|thoughts) (?:races?|racing|pounds?|sinks?|leaps?"
    r"|skips?|aches?|wanders?|drifts?|reels?)\b)"
  ),
  "zh": re.compile(
    r"\s*([他她](?:心想|心里|心中|暗想|暗自|暗暗|不禁|不由得?|忍不住|意识到|感到一[阵股丝]|感觉到"
    r"|觉得(?:一[阵股丝]|自己)|告诉自己|提醒自己|对自己说)|该?角色(?:感到|觉得|心想|此时))"
  ),
}

# ---- The story as a text.
_STAGE: tuple[str, ...] = (
  "theatre",
  "theater",
  "actor",
  "actress",
  "rehears",
  "screenplay",
  "film ",
  "novelist",
)
_STAGE += ("playwright", "understudy", "role-play", "roleplay", "director")
_SHOWS = (
  *_STAGE,
  "play",
  "stage",
  "novel",
  "writer",
  "author",
  "script",
  "story",
  "opera",
  "editor",
)
_SHOWS_ZH = (
  "戏",
  "剧",
  "演员",
  "导演",
  "小说",
  "作家",
  "作者",
  "编辑",
  "剧本",
  "书",
  "编剧",
  "稿",
)
ANALYST = {
  "en": (
    _any(
      r"\bcharacter (?:arc|development|motivation|sheet|profile|card|trait)s?\b",
      r"\b(?:stay|staying|remain|remaining|keep|keeping|break|breaking|get|getting) (?:in|out of) character\b",
      r"\brole-?play(?:ing|s|ed)?\b",
      r"\bnarrative (?:tension|arc|structure|purpose|voice|function|device)\b",
      r"\b(?:advance|drive|move|serve|progress|further)s? (?:the|this) (?:plot|narrative)\b",
      r"\bthe (?:author|writer)['’]?s? (?:intent|intention|intends|wants|note)\b",
      r"\b(?:author|narrator)['’]s note\b|\bnote from the author\b",
      r"\bemotional beat\b|\bplot (?:point|twist|device|hole)s?\b",
      unless=_STAGE,
    ),
    _any(
      r"\b(?:the|my|this|his|her|our|your) character(?:['’]s (?:motivations?|feelings?|emotions?"
      r"|voice|perspective|inner|personality|background|reaction|state|goals?)"
      r")\b",
      # Somebody's character is also what they are worth: "her character will suffer".
      r"\b(?:the|my|this) character (?:would|will|should|must|might|could|is (?:feeling|thinking"
      r"|trying|supposed|torn|about)|feels|thinks|wants|needs|speaks|reacts|responds|reveals"
      r"|probably|has to)\b(?! (?:be (?:\w+ed|lost|torn|known)|suffer|bear|speak for))",
      r"\bas (?:a|the|this) (?:fictional )?character\b(?! (?:witness|reference))",
      r"\bin character (?:as|for|here)\b",
      unless=_STAGE,
    ),
    _any(
      r"\b(?:in|for) (?:this (?:scene|story|chapter|episode|narrative|plot)|the (?:scene|chapter"
      r"|episode|narrative))(?:,| (?:I|we|he|she|they|my|where|the character|needs|calls|requires"
      r"|should)\b)",
      r"\bthe scene (?:needs|calls for|requires|should|demands|is set|unfolds|ends|opens|shifts"
      r"|establishes|builds)\b",
      r"\bthis (?:scene|chapter) (?:is|needs|calls|requires|should|shows|builds|establishes|ends)\b",
      r"\b(?:the|this) (?:dialogue|conversation|exchange) (?:should|needs to|serves|reveals|shows"
      r" (?:the|how)|establishes)\b",
      unless=(*_SHOWS, "scene of the crime", "murder", "police"),
    ),
    _any(
      r"\b(?:the|our|any|every|for|to) (?:readers?|audience)(?:['’]s)? (?:will|should|must|would"
      r"|can|may|might|sees?|knows?|feels?|wonders?|learns?|expects?|interest|attention|to|is|are"
      r"|wants?)\b",
      r"\bdear readers?\b|\b(?:keep|keeps|leave|leaves|give|gives|let|lets|show|shows) the (?:reader|audience)\b",
      unless=(*_SHOWS, "reader", "audience", "concert", "speech", "singer", "music", "perform"),
    ),
  ),
  "zh": (
    _any(
      r"角色扮演|(?:这个|该|本|我的|此)角色(?!色)|角色的(?:性格|动机|内心|情绪|设定|心理|台词|口吻|身份)"
      r"|人物(?:设定|弧光|塑造|动机|性格)|人设|符合设定",
      unless=("演员", "导演", "戏班", "剧组", "剧团", "话剧", "演出", "登台", "戏台"),
    ),
    _any(
      r"推[动进](?:了|着)?(?:剧情|情节|故事)|(?:剧情|情节)(?:发展|需要|推进|走向|转折|冲突|张力|安排)"
      r"|叙事(?:张力|节奏|视角|结构)|为(?:后文|下文|后续剧情)(?:埋下?|做|铺|作)",
      unless=_SHOWS_ZH,
    ),
    _any(
      r"(?:这场|本场|这一场)(?:戏|对话)(?:里|中|的|需要|应)|(?:这|本)个?(?:场景|章节|剧本)(?:里|中|需要|应|的氛围)"
      r"|在(?:这个|本|该)?(?:故事|小说|场景)(?:里|中)[，,]?(?:我|他|她|角色)",
      unless=_SHOWS_ZH,
    ),
    _any(
      r"(?:让|给|使|令|向)(?:读者|观众)|(?:读者|观众)(?:会|应该|应当|能|可以|期待|知道|感受|看到|明白|觉得)"
      r"|作者(?:注|按|想要|想表达|的意图|希望|安排)",
      unless=(*_SHOWS_ZH, "读者", "观众", "报社", "台下"),
    ),
  ),
}

# ---- Words of assistants and instructions.
_MINDS: tuple[str, ...] = (
  "robot",
  "android",
  "computer",
  "machine",
  "artificial",
  "ship's mind",
  "program",
)
_MINDS += ("ship mind", " ai ", " ai,", " ai.", "a.i.", "software", "algorithm")
_MINDS_ZH = ("机器人", "人工智能", "智能体", "电脑", "程序", "ai", "仿生人", "算法", "软件")
_MACHINES = ("json", "programmer", "source code", "software", "computer", "language model")
_MARKUP = (
  r"\b(?:system|role)_(?:thinking|think|action)\b|\benhanced_(?:text|speech|reason|pattern)\b"
  r"|\bsys_thinking\b|<\|im_(?:start|end)\|>|<\|endoftext\|>|```|^\s*#{1,4} \S"
  r"|[\[{]\s*\"[a-z_]+\"\s*:"
)
PROMPT = {
  "en": (
    Wording(re.compile(_MARKUP, re.I | re.M)),
    _any(
      r"\blarge language model\b|\b(?:as|only|just|am) an? (?:AI )?language model\b",
      r"\bthe (?:system )?prompt (?:says|asks|requires|wants|instructs|states|above)\b",
      r"\bsystem prompt\b",
      r"\b(?:rewritten|revised|enhanced|edited|polished|improved) (?:version|text|dialogue|turn|reply|response|output)\b(?= ?[:：]| is\b| below\b|\.)",
      r"\bhere(?: is|['’]s|are) (?:the|your|my|an?) (?:\w+ ){0,3}(?:rewritten|revised|enhanced|edited|improved|requested|next reply|next turn|response|rewrite|version|output|continuation)\b(?!\w)",
      r"\b(?:sure|certainly|of course)[!,.] here(?: is|['’]s|are) (?:the|your|my|an?) (?:\w+ ){0,3}(?:reply|turn|response|scene|dialogue|text)\b",
      r"\bhope this (?:reply |response |version |answer )?(?:helps|meets your)\b",
      r"\blet me know if you(?:['’]d| would| want| need|['’]ll)[^.!?\n]{0,20} (?:like )?(?:me to )?(?:any )?(?:changes?|change|adjust|revise|rewrite|further|edits?)\b",
      r"\bas an assistant,? I\b|\bI(?:['’]m| am) (?:unable|not able) to (?:assist|comply|fulfil+)\b",
      r"\bI (?:cannot|can['’]t) (?:assist|comply|fulfil+|continue) (?:with )?(?:this|that|your) (?:request|conversation|prompt)\b",
      r"\b(?:output|response) format\b|\bJSON (?:object|format|output)\b",
      r"\b(?:first|third)[- ]person (?:perspective|voice|point of view|thoughts?)\b",
      r"\bminimal edits?\b|\b(?:word|token) (?:limit|count) (?:of|is|:)",
      r"\b(?:content|usage) polic(?:y|ies)\b|\bOpenAI\b|\bChatGPT\b",
      unless=_MACHINES,
    ),
    _any(
      r"\b(?:as|I am|I['’]m|only|just) an? (?:AI|artificial intelligence)(?: (?:model|assistant|system|chatbot))?\b(?!-)",
      r"\bAI (?:assistant|model|chatbot)\b",
      unless=_MINDS,
    ),
  ),
  "zh": (
    Wording(re.compile(_MARKUP, re.I | re.M)),
    _any(
      r"语言模型|大模型|系统提示|提示词|(?:输出|回复|回答)格式(?:要求|如下|为|是)?|按照?(?:要求|格式)(?:输出|改写|返回)",
      r"(?:以下|下面)(?:是|为)?(?:我)?(?:改写|修改|修订|润色|优化|增强|角色扮演|续写|生成)(?:后)?的?",
      r"(?:改写|修订|润色|优化|增强)(?:后的?|之后的?)(?:版本|文本|内容|对话|回复|对白)",
      r"希望(?:这个|这段|以上|我的)?(?:回答|回复|回应|内容|改写)(?:能|可以)?(?:对您|对你|符合|满足)",
      r"如(?:果|需)[^。！？]{0,8}(?:修改|调整|改写)[^。！？]{0,8}请(?:随时)?告(?:诉|知)",
      r"作为(?:一名|一个)?(?:助手|智能助手)|无法(?:满足|完成|协助)(?:您|你)的?(?:请求|要求)",
      r"第[一三]人称|JSON|字数(?:限制|要求)",
      unless=("程序员", "语文", "写作课", "编辑部"),
    ),
    _any(
      r"(?:作为|我(?:只)?是)(?:一个|一名|一款)?(?:AI|人工智能)(?:助手|模型|语言|系统)?",
      r"(?:AI|人工智能)(?:助手|模型)",
      unless=_MINDS_ZH,
    ),
  ),
}
# A plan may speak of the scene and the character, and not of a user or a task.
PROMPT_IN_PLAN = {
  "en": (
    _any(
      r"\bthe user(?:['’]s)? (?:wants|want|asked|asks|is asking|provided|gave|said|says|has|needs"
      r"|request|prompt|instructions?|input)\b",
      r"\b(?:the|these|my|given) (?:instructions|guidelines|requirements) (?:say|says|state|ask|require|specify|mention|are|above|given)\b",
      r"\b(?:required|requested|specified|given) format\b|\b(?:use|using|in|add|with) (?:the )?(?:action|thinking|thought) tags?\b",
      r"\b(?:draft|original) (?:plan|reasoning|text|reply|response) (?:says|is|was|given|provided)\b",
      r"\b(?:actual|true|real|given|known|target) (?:reply|response|turn)\b",
      unless=_MACHINES,
    ),
  ),
  "zh": (
    _any(
      r"用户(?:要求|希望|想要|提供|说|的(?:要求|请求|指令))|根据(?:指令|要求|提示)|(?:给定|原始|真实|目标)(?:的)?(?:回复|草稿|台词|对白)",
      r"(?:动作|心理|思考)标签|指令(?:要求|里|中)",
      unless=("客服", "软件", "用户"),
    ),
  ),
}

# Capitalised words that are no people: what an action may end or begin with, also where its
# writer begins it as a sentence.
NO_PERSON = frozenset(
  "god heaven heavens christ jesus lord satan devil bible english french german latin greek"
  " spanish italian chinese russian monday tuesday wednesday thursday friday saturday sunday"
  " january february march april may june july august september october november december"
  " christmas easter london paris rome earth moon mars sun north south east west father mother"
  " papa mama mamma dad mum mom uncle aunt grandfather grandmother sir madam madame monsieur"
  " miss mister doctor captain majesty highness grace worship honour honor environment everyone"
  " nobody somebody someone silence then with without still slowly quietly gently suddenly after"
  " before when while once nothing something one two three both each all another other others"
  " mr mrs ms dr st his her their its this that these those here there now not never only just".split()
)
