"""The sample corpus that ships with the package: scenes and judge pairs, our own writing.

`scenes.jsonl` is written by hand. `pairs.jsonl` is made from it; after editing the scenes:

    python -m data_pipeline.preferences.make_pairs
"""

import pathlib

FOLDER = pathlib.Path(__file__).parent
SCENES = FOLDER / "scenes.jsonl"
PAIRS = FOLDER / "pairs.jsonl"
