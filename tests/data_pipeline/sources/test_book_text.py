"""A book's text out of what e-books put around and between it."""

import pytest

from data_pipeline.sources import book_text
from data_pipeline.sources.book_headings import is_heading
from her_jax.roleplay.schema import DataError

_FIRST = "Una came down to the ferry at six, and the fog came with her."
_TALK = ['"Is it running?" she asked.', '"It is not," said Joost.']


def _book(text, **more):
  return book_text.make_book(text, **more)


def _paragraphs(text):
  return [p for chapter in _book(text).chapters for p in chapter.paragraphs]


@pytest.mark.parametrize(
  "line",
  [
    "Chapter 1.", "CHAPTER IV", "Chapter Twenty-One", "CHAPTER THE FIRST", "Chapter 12: The Ford",
    "CHAPTER IX. In Which Nobody Rows", "BOOK TWO", "Part III", "Letter 4", "ACT II", "Scene 3.",
    "XII", "XII.", "7", "7.", "III: The Bell", "2. The Ferry", "PROLOGUE", "Epilogue.",
    "Epilogue: Years After", "## The Ford", "第一章", "第十二回　渡口", "第3章 雾", "第二卷 江上 第一章 渡船",
    "卷二 北岸", "楔子", "尾声", "番外 船夫",
  ],
)  # fmt: skip
def test_headings_in_many_styles(line):
  assert is_heading(line)


@pytest.mark.parametrize(
  "line",
  [
    "Chapter after chapter she read on.", "I", "conclusion.", "He read the first chapter.",
    "12 men were there.", "Part of the way they rowed.", "第一章里他写道，江上起了大雾，船停在河心。",
    "Book me a place, she said.", "V. was his only initial, he said.", "act two, she thought",
    '"7," he said.',
  ],
)  # fmt: skip
def test_what_only_looks_like_a_heading(line):
  assert not is_heading(line, before="and in" if line == "I" else "")


def test_a_word_on_a_line_of_its_own_within_a_sentence_is_no_heading():
  assert not is_heading("7", before="there were")
  assert is_heading("7", before="They were gone.")


def test_a_library_keeps_its_header_and_licence():
  text = (
    "The Project Gutenberg eBook of The Ferry\n\nThis eBook is for the use of anyone.\n\n"
    "Title: The Ferry\n\nAuthor: N. Body\n\nRelease date: 1999\n\n"
    "*** START OF THE PROJECT GUTENBERG EBOOK THE FERRY ***\n\n\nTHE FERRY\n\nby N. Body\n\n"
    f"CHAPTER I\n\n{_FIRST}\n\n{_TALK[0]}\n\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK THE FERRY ***\n\nLicence: you may copy it.\n"
  )
  book = _book(text)
  assert (book.title, book.author, len(book.chapters)) == ("The Ferry", "N. Body", 1)
  assert book.chapters[0] == book_text.Chapter("CHAPTER I", (_FIRST, _TALK[0]), 0)
  old = text.replace("*** START OF THE", "*END THE SMALL PRINT! *** START OF THIS").replace(
    "*** END OF THE PROJECT GUTENBERG EBOOK THE FERRY ***",
    "End of Project Gutenberg's The Ferry",
  )
  assert _book(old).chapters == book.chapters


@pytest.mark.parametrize(
  "between",
  [
    "[Illustration]",
    "[Illustration: Una at the ferry]",
    "[Illustration: “Is it\n\nrunning?”\n[_Copyright 1894_]]",
    "[Footnote 3: A ferry is a boat.]",
    "[Transcriber's Note: sic]",
    "【插图：渡口】",
    "[Pg 12]",
    "12",
    "- 12 -",
    "Page 12",
    "T h e  F e r r y".replace("  ", " "),
    "\f",
  ],
)
def test_captions_and_page_marks_go(between):
  pages = "\n\n".join(f"{_FIRST}\n\n{between.replace('12', str(12 + i))}\n" for i in range(6))
  assert _paragraphs(f"CHAPTER I\n\n{pages}\n\nThe end of it.") == [
    *[_FIRST] * 6,
    "The end of it.",
  ]


def test_running_heads_with_their_numbers_go():
  pages = "\n\n".join(f"{_FIRST}\n\nTHE FERRY        {20 + i}\n" for i in range(6))
  assert _paragraphs(f"The Ferry\n\nby N. Body\n\nCHAPTER I\n\n{pages}") == [_FIRST] * 6


def test_a_refrain_of_a_talk_is_no_running_head():
  talk = '"No."\n\n"Row 7!"\n\n' * 8
  assert len(_paragraphs(f"CHAPTER I\n\n{_FIRST}\n\n{talk}")) == 17


def test_italics_soft_hyphens_and_ligatures_go():
  text = f"CHAPTER I\n\n{_FIRST}\n\n“I _will_ not,” he said; the \ufb01nal of\xad\ufb01ce, _all\nof it_.\n\na_b_c stays."
  assert _paragraphs(text)[1:] == [
    "“I will not,” he said; the final office, all of it.",
    "a_b_c stays.",
  ]


def test_hard_line_breaks_and_cut_words_are_mended():
  text = (
    "CHAPTER I\n\nUna came down to the fer-\nry at six, and the well-\nknown fog came with her. The\n"
    'ferry was still there; the trouble was well known.\n\n"Is it\nrunning?" she asked.\n'
  )
  first, second = _paragraphs(text)
  assert first.startswith("Una came down to the ferry at six, and the well-known fog came")
  assert second == '"Is it running?" she asked.'


def test_blank_lines_after_every_line_do_not_make_paragraphs():
  lines = [
    "Una came down to the ferry at six in the morning, and the",
    "fog came with her over the fields, as it did most days in",
    "that year, when the river stood as high as anybody knew.",
    '"Is it running?" she asked the man who sat on the step of',
    "the little house. She had seen Mr.",
    'Joost there before."',
    '"It is not."',
    "Nobody spoke for a while.",
  ] * 4
  found = _paragraphs("Chapter 1.\n\n" + "\n\n".join(lines))
  assert len(found) == 16
  assert found[0].startswith("Una came") and found[0].endswith("as anybody knew.")
  assert found[1].endswith('She had seen Mr. Joost there before."')
  assert found[2:4] == ['"It is not."', "Nobody spoke for a while."]


def test_a_page_between_does_not_cut_a_sentence():
  text = (
    f"CHAPTER I\n\n{_FIRST}\n\nShe waited for the man who\n\n{14}\n\nhad the key.\n\n" + _FIRST
  )
  text += "".join(f"\n\n{n}\n\n{_FIRST}" for n in range(15, 21))
  assert "She waited for the man who had the key." in _paragraphs(text)


@pytest.mark.parametrize("indent", ["", "　　"])
def test_chinese_without_blank_lines_has_a_paragraph_a_line(indent):
  lines = ["江上起了大雾。", "“还开船吗？”她问。", "“不开。”船夫说。"]
  text = (
    "渡口\n\n第一章　雾\n"
    + "\n".join(indent + line for line in lines)
    + "\n第二章　钟\n"
    + indent
    + "钟声停了，谁也没有说话，船还在河心，四下里什么也看不见，只听得见水声，一下又一下，拍着船舷，过了很久也没有停。"
  )
  book = _book(text)
  assert [c.title for c in book.chapters] == ["第一章 雾", "第二章 钟"]
  assert list(book.chapters[0].paragraphs) == lines
  assert book.language == "zh"


def test_a_table_of_contents_and_heads_of_parts_make_no_chapters():
  chapters = "".join(f"CHAPTER {n}\n\n{_FIRST}\n\n{_TALK[0]}\n\n" for n in ("I", "II"))
  book = _book(f"THE FERRY\n\nCONTENTS\n\nCHAPTER I\n\nCHAPTER II\n\nBOOK ONE\n\n{chapters}")
  assert [c.title for c in book.chapters] == ["BOOK ONE, CHAPTER I", "CHAPTER II"]
  assert [c.first for c in book.chapters] == [0, 2]


def test_a_text_without_headings_is_one_chapter():
  book = _book(f"{_FIRST}\n\n{_TALK[0]}\n\n{_TALK[1]}\n", stem="ferry")
  assert (book.title, len(book.chapters)) == ("ferry", 1)


@pytest.mark.parametrize(
  "text", ["", " \n\n", "*** \n\n---\n", "1\n\n2\n\n3\n", "[Illustration]"]
)
def test_a_book_without_text_is_a_fault_of_its_file(tmp_path, text):
  path = tmp_path / "empty.txt"
  path.write_text(text)
  with pytest.raises(DataError, match=r"empty\.txt:1: holds no text of a book"):
    book_text.read_book(path)


def test_the_real_novel_has_its_chapters_and_whole_paragraphs(real_data):
  book = book_text.read_book(real_data("pride_and_prejudice.txt"))
  assert (book.title, book.author, book.language) == (
    "Pride and Prejudice",
    "Jane Austen",
    "en",
  )
  assert [c.title.rstrip(".") for c in book.chapters] == [f"Chapter {n}" for n in range(1, 62)]
  first = book.chapters[0].paragraphs
  assert first[3:6] == (
    "Mr. Bennet replied that he had not.",
    '"But it is," returned she; "for Mrs. Long has just been here, and she told me all about it."',
    "Mr. Bennet made no answer.",
  )
  every = [p for c in book.chapters for p in c.paragraphs]
  # Letters alone leave their quotation marks open.
  assert sum(p.count('"') % 2 for p in every) < 0.02 * len(every)
  assert not any("page-" in p or "E - B" in p for p in every)
