"""What stands in a passage and what does not; who the narration says speaks."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from data_pipeline.sources.book_attribution import Attributions
from data_pipeline.sources.book_lines import Passage, is_grounded

PASSAGE = [
  "Una came down to the ferry. She knew nothing of the fog.",
  '"Is it running?" she asked. "I must be across by dawn -- by dawn, Mr. Joost!"',
  '"It is not," said Joost, and he looked at the water as if it had wronged him; "and it will not."',
  '"Then I\'ll row." "You will not get far." said the other, who had two--three children.',
  '"I tell you once, and I tell you all:',
  '"nobody rows my boat but me."',
  "She thought: he is afraid. He said that he was not.",
  "“It is a well-known thing,” she said, “that ferrymen ‘never drown.’”",
  '"No."',
]


def _find(line, paragraphs=PASSAGE):
  return Passage(paragraphs).find(line)


@pytest.mark.parametrize(
  ("line", "text"),
  [
    ("Is it running?", "Is it running?"),
    ("is it RUNNING", "Is it running?"),
    ("“Is it running?”", "Is it running?"),
    (
      "I must be across by dawn—by dawn, Mr. Joost!",
      "I must be across by dawn -- by dawn, Mr. Joost!",
    ),
    ("It is not, and it will not.", "It is not, and it will not."),
    ("It is not.", "It is not."),
    ("and it will not", "and it will not."),
    ("Then I’ll row.", "Then I'll row."),
    (
      "I tell you once, and I tell you all: nobody rows my boat but me.",
      "I tell you once, and I tell you all: nobody rows my boat but me.",
    ),
    (
      "It is a well known thing, that ferrymen never drown.",
      "It is a well-known thing, that ferrymen ‘never drown.’",
    ),
    ("No", "No."),
  ],
)
def test_a_line_is_found_and_given_in_the_books_wording(line, text):
  assert _find(line).text == text


@pytest.mark.parametrize(
  "line",
  [
    "Is it running now?",
    "Is it walking?",
    "It is",  # half a clause
    "run",  # a part of a word
    "now",
    "not",
    "Then I'll row. You will not get far.",  # two speakers
    "Una came down to the ferry.",  # narration
    "he is afraid",
    "He said that he was not.",
    "two three children",
    "nobody rows my boat but me. I tell you once",  # out of order
    "",
    "—!",
  ],
)
def test_what_does_not_stand_in_the_speech_is_not_found(line):
  assert _find(line) is None


def test_a_line_stands_for_itself_once():
  passage = Passage(['"No," said he. "No."', '"Yes."'])
  assert [passage.find("No.").start, passage.find("No.").start] == [1, 16]
  assert passage.find("No.") is None and passage.stands("No.")
  assert not passage.stands("Never.")


def test_sentences_that_stand_far_apart_are_found_each():
  far = "She crossed the yard and looked at every boat there was. " * 10
  passage = Passage([f'"Where is he? Where?" cried Una. {far}"I must go. Now."'])
  assert [p.text for p in passage.find_parts("Where is he? Where? I must go. Now.")] == [
    "Where is he? Where?", "I must go. Now."
  ]  # fmt: skip
  # What was tried and failed is free again.
  assert passage.find_parts("Where is he? Where? I am here.") == []
  passage = Passage([f'"Where is he?" {far}"I must go."'])
  assert passage.find_parts("I must go. Where is he?") == []
  assert passage.find("I must go.") and passage.find("Where is he?")


@pytest.mark.parametrize(
  ("paragraph", "line"),
  [
    ("“还开船吗？”她问，“我天亮前要过江。”", "还开船吗？我天亮前要过江。"),
    ("「不开。」船夫说道。", "不开"),
    ("『雾太大，』他说，『等一等。』", "雾太大，等一等。"),
    ("“雾 太大，\u3000等一等。”", "雾太大，等一等。"),
    ("'Is it running?' she asked. 'I mustn't wait.'", "Is it running? I mustn't wait."),
    ("« Où est-il ? » dit Una.", "Où est-il?"),
    ("“Stay,” he said, “‘til the bell,’ as they say.”", "Stay, 'til the bell, as they say."),
  ],
)
def test_quotation_marks_of_many_kinds(paragraph, line):
  assert _find(line, [paragraph]) is not None
  assert _find(f"{line} 走 away", [paragraph]) is None


def test_a_book_without_quotation_marks_is_searched_whole():
  paragraphs = ["-- Is it running? said Una.", "-- It is not. And he looked away."]
  assert _find("Is it running?", paragraphs).text == "Is it running?"
  assert _find("It is not.", paragraphs).spans == ()


@given(
  st.lists(st.text("ab .!“”\"'’,—不", max_size=30), min_size=1, max_size=4),
  st.text("ab .!不", max_size=8),
)
def test_what_is_found_stands_there_letter_by_letter(paragraphs, line):
  paragraphs = [" ".join(p.split()) or "x" for p in paragraphs]
  found = _find(line, paragraphs)
  letters = lambda text: "".join(s for s in text.casefold() if s.isalnum())
  if found is not None:
    assert letters(found.text) == letters(line)
    # As pieces in order: deleting what lies between gives the line.
    stream = iter(letters("\n".join(paragraphs)[found.start : found.end]))
    assert all(sign in stream for sign in letters(line))


NAMES = [
  "Sir Abel",
  "Una",
  "Una Brook",
  "Joost",
  "Mr. Joost",
  "Lady Marthe",
  "Marthe",
  "船夫",
  "阿云",
]


@pytest.mark.parametrize(
  ("paragraph", "line", "name"),
  [
    ('"It is not," said Joost.', "It is not.", "Joost"),
    ('"It is not," replied Mr. Joost angrily.', "It is not.", "Mr. Joost"),
    ('"It is not!" cried Una Brook, "and never will."', "and never will.", "Una Brook"),
    ('"It is not," said Sir Abel.', "It is not.", "Sir Abel"),
    ('"It is not," Una said. "Go."', "Go.", "Una"),
    ('Joost looked up, and said, "It is not."', "It is not.", None),
    ('Then Una quietly said, "It is not."', "It is not.", None),
    ('Una said, "It is not."', "It is not.", "Una"),
    ('"Go." Una said, "It is not."', "It is not.", "Una"),
    ('"Go." Una said, "It is not."', "Go.", None),
    ('"It is not," said she.', "It is not.", None),
    ('"It is not," said Una\'s brother.', "It is not.", None),
    ('"It is not," said Joost Brand.', "It is not.", None),
    ('"It is not," said Mrs. Joost.', "It is not.", None),
    ('"It is not," said the friend of Una.', "It is not.", None),
    ('"Una said so."', "Una said so.", None),
    ("“不开。”船夫说道。", "不开。", "船夫"),
    ("“不开。”阿云低声说。", "不开。", "阿云"),
    ("船夫摇摇头，说道：“不开。”", "不开。", "船夫"),
    ("“不开。”他说。", "不开。", None),
  ],
)
def test_the_narration_names_the_speaker_or_nobody(paragraph, line, name):
  passage = Passage([paragraph])
  assert Attributions(NAMES).of(passage, passage.find(line)) == name


@pytest.mark.parametrize(
  ("action", "grounded"),
  [
    ("looks at the water", True),
    ("looking at the water", True),
    ("draws a pistol", False),
    ("smiles warmly at everyone", False),
  ],
)
def test_an_action_is_grounded_where_the_passage_tells_it(action, grounded):
  assert is_grounded(action, "\n".join(PASSAGE)) is grounded
