"""Reverse synthesis: plain conversations or a book → trajectories with thoughts, plans and sheets.

    python -m her_jax.main --config=configs/synthesize.py:samples --workdir=out/synth
    python -m her_jax.main --config=configs/synthesize.py:book --workdir=out/novel --config.source=novel.txt --config.llm.base_url=http://localhost:8000/v1 --config.llm.model=teacher --config.llm.api_key_env=
    python -m her_jax.main --config=configs/synthesize.py --workdir=out/synth --config.source=books/ --config.format=coser_book --config.llm.base_url=http://localhost:8000/v1 --config.llm.model=teacher --config.llm.api_key_env=
    python -m her_jax.main --config=configs/synthesize.py --workdir=out/synth … --config.retry_failed

The first needs no network: our own scenes, with replies written by hand. The second goes from
plain text to data sets in ArrayRecord. Every call is kept in workdir/calls.jsonl. A run that was
stopped goes on where it was with the same command, and ends with the same files; --config.limit
tries the first conversations, and a larger one goes on.
"""

import ml_collections

from configs import llm

_PRESETS = ("samples", "book")


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Without an argument for any source and endpoint; `samples` runs offline, `book` from plain text.

  Raises:
    ValueError: `arg` is no preset.
  """
  if arg and arg not in _PRESETS:
    raise ValueError(f"no preset {arg!r}; there are {', '.join(_PRESETS)}")
  samples = arg == "samples"
  config = ml_collections.ConfigDict()
  config.task = "synthesize"
  config.seed = 0
  # No devices are used; the run needs one process.
  config.cpu_devices = 1
  config.mesh = ml_collections.ConfigDict({"data": 1, "fsdp": -1, "context": 1, "tensor": 1})

  # A file, or a folder of files; "samples" is the plain scenes in the package.
  config.source = "samples" if samples else ""
  # trajectories (JSON Lines, replies in any notation), a format of data_pipeline.sources, or book
  # (plain text, whose scenes the teacher finds first).
  config.format = "book" if arg == "book" else "trajectories"
  # Of the source's text files, such as gb18030; empty: told by their bytes.
  config.encoding = ""
  # Rows that can't be read are counted and put aside; else the first one ends the run.
  config.lenient = False
  # Conversations to take; 0: all.
  config.limit = 0
  # 0 cleaning, 1 thoughts, 2 plans (2a drafts, 2b rewriting), 3 sheets.
  config.stages = "0,1,2,3"
  # Does again what failed in a finished run, and what depends on it.
  config.retry_failed = False
  # Conversations worked on at a time. Layouts to prefer are chosen anew for each block.
  config.block = 4 if samples else 64
  # So many calls in a row that the endpoint fails end the run.
  config.give_up_after = 20
  # Counts the tokens of prompts; empty: an estimate of 3 characters a token, of Chinese 1.
  config.tokenizer = ""

  # Who answers; the budget is that of the whole workdir, earlier runs included.
  config.llm = llm.llm(recorded="samples" if samples else "")
  # A reasoning model of its own for the drafts. What is empty or 0 is as in llm; the budget is
  # its own.
  config.reasoner = ml_collections.ConfigDict(
    {
      "model": "", "base_url": "", "api_key_env": "", "budget_tokens": 0, "budget_usd": 0.0,
      "price_in": 0.0, "price_out": 0.0,
    }
  )  # fmt: skip

  # In the end: reports, page, splits with their proof, and data sets in ArrayRecord.
  config.build = arg == "book"
  # Shares of the books, as in sft=3,test=1; empty: HER's for five purposes. No book is in two, so
  # a book alone can have one.
  config.purposes = "sft=1" if arg == "book" else ""

  config.book = ml_collections.ConfigDict()
  # Characters of the text in one request.
  config.book.piece = 12_000
  # Chapters to read; 0: all.
  config.book.chapters = 0

  config.prepare = ml_collections.ConfigDict()
  # auto, her, coser or asterisks.
  config.prepare.notation = "auto"
  config.prepare.min_turns = 1

  config.role_thinking = _calls()
  # Turns edited in one call, and those before it that are shown.
  config.role_thinking.window = 24
  config.role_thinking.context = 6
  # Shares of the spoken words that may change, and that may turn out to be an action.
  config.role_thinking.most_changed = 0.05
  config.role_thinking.most_moved = 0.5

  config.forward = _calls()
  config.backward = _calls()
  for direction in (config.forward, config.backward):
    direction.turns = 30
    # Who gets plans: described (has a sheet) or all.
    direction.speakers = "described"
  # Characters of a plan. 800–1500 is the paper's; a Chinese sign says about as much as three
  # letters. The samples' own plans are short, for models that are small.
  config.backward.length_en = (100, 400) if samples else (800, 1500)
  config.backward.length_zh = (40, 150) if samples else (280, 600)
  # Words (signs) in a row that a plan may not share with its reply, and the share of the
  # reply's runs of three words (four signs) that it may not reach.
  config.backward.leak_run_en = 6
  config.backward.leak_run_zh = 10
  config.backward.leak_share = 0.25

  config.setting = _calls()
  return config


def _calls() -> ml_collections.ConfigDict:
  """Of one kind of question: its sampling, the tokens of its prompt, and how often it is asked."""
  return ml_collections.ConfigDict(
    {"temperature": 0.7, "top_p": 0.9, "max_tokens": 8192, "input_tokens": 30_000, "tries": 2}
  )
