"""The sample corpus that ships with the package: scenes and judge pairs, our own writing.

`scenes.jsonl` is written by hand. `pairs.jsonl` is made from it; after editing the scenes:

    python -m data_pipeline.preferences.make_pairs

`plain.jsonl` holds eight of the scenes as synthesis takes them: without plans and thoughts, in
CoSER's notation, some turns in two messages, each scene with a passage of its book. What a
teacher answers to every prompt about them is written out in `recorded/`.
"""

import pathlib

FOLDER = pathlib.Path(__file__).parent
SCENES = FOLDER / "scenes.jsonl"
PAIRS = FOLDER / "pairs.jsonl"
PLAIN = FOLDER / "plain.jsonl"
RECORDED = FOLDER / "recorded"
