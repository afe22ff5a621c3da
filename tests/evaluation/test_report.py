import dataclasses
from html.parser import HTMLParser
import json
import pathlib
import re

import numpy as np
import pytest

from her_jax.evaluation import console, report
from her_jax.evaluation.console import Sample

EVIL = '<script>alert(1)</script><img src="https://evil.example/x.png" onerror=a()>'
SUMMARY = json.loads("""{
  "seed": 7, "sft_heldout_loss_before": 6.214, "sft_heldout_loss_after": 1.663,
  "grammar_valid_before": 0.0, "grammar_valid_after": 0.875,
  "judge_accuracy": 0.803, "judge_pairs": 117,
  "rl_reward_first_fifth": -0.021, "rl_reward_last_fifth": 0.243,
  "rl_reward_standard_error": 0.071, "seconds_total": 412.3, "peak_memory_gib": 2.31
}""")
EVALUATION = json.loads("""{
  "policy": {"heldout_loss": 1.713, "grammar_valid": 0.938, "layout_entropy": 2.01,
    "layout_top1": 0.512, "completion_tokens": 91.2, "replies": 48},
  "judge": {"accuracy": 0.803, "judgements": 233, "pairs": 117,
    "by_kind": {"thoughts_aloud": {"accuracy": 0.97, "judgements": 41},
      "knows_future": {"accuracy": 0.44, "judgements": 23},
      "flat": {"accuracy": null, "judgements": 0}},
    "tie_accuracy": 0.36, "tie_pairs": 19, "flip_rate": 0.121, "first_share": 0.532,
    "unparsed": 0.017},
  "win_rate": {"win": 0.461, "tie": 0.352, "lose": 0.187, "comparisons": 49}
}""")
RL = json.loads("""{
  "reward_mean": 0.1, "win": 0.4, "tie": 0.3, "lose": 0.28, "grammar_valid": 0.9,
  "truncated": 0.02, "layout_entropy": 2.1, "layout_top1": 0.5, "completion_tokens": 88.0,
  "tokens_per_second": 1100.0
}""")


class Page(HTMLParser):
  """The elements of a page: each a dict of `tag`, attributes and `text` within."""

  def __init__(self, html: str):
    super().__init__()
    self.elements, self._open = [], []
    self.feed(html)

  def handle_starttag(self, tag, attrs):
    self.elements.append({"tag": tag, "text": "", **dict(attrs)})
    if tag not in ("meta", "img"):
      self._open.append(self.elements[-1])

  def handle_startendtag(self, tag, attrs):
    self.elements.append({"tag": tag, "text": "", **dict(attrs)})

  def handle_endtag(self, tag):
    assert self._open.pop()["tag"] == tag

  def handle_data(self, data):
    for element in self._open:
      element["text"] += data

  def all(self, **wanted) -> list[dict]:
    """The elements with these attributes; `class_` stands for class."""
    items = {key.rstrip("_"): value for key, value in wanted.items()}.items()
    return [element for element in self.elements if items <= element.items()]

  def figures(self) -> list[str]:
    """The headline cards' figures."""
    return [" ".join(e["text"].split()) for e in self.all(tag="dd", class_="figure")]

  def table(self) -> dict[str, str]:
    """The rows of all tables: name -> value and note."""
    rows = [row["text"] for row in self.all(tag="tr")]
    names = [e["text"] for e in self.all(tag="th")]
    return {n: " ".join(r.split()).removeprefix(n) for n, r in zip(names, rows, strict=True)}


def sample(reply: str, **fields) -> Sample:
  known = Sample("harbour", 3, "Una", "Joost: Madam.", reply, finished=True, valid=True)
  return dataclasses.replace(known, **fields)


def write_metrics(workdir, stage: str, rows: list[dict]) -> None:
  (workdir / stage).mkdir(exist_ok=True)
  lines = [json.dumps({"step": step} | row) for step, row in enumerate(rows, start=1)]
  (workdir / stage / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def make_workdir(folder: pathlib.Path) -> pathlib.Path:
  """A workdir as the stages leave it."""
  falling = [
    {"loss": 5.0 - i / 10, "tokens": (i + 1) * 512, "tokens_per_second": 90} for i in range(40)
  ]
  falling[0]["heldout_loss"] = 5.25
  falling[-1]["heldout_loss"] = 1.75
  write_metrics(folder, "sft", falling)
  write_metrics(folder, "genrm", falling)
  write_metrics(folder, "rl", [RL | {"reward_mean": i / 100} for i in range(40)])
  turn = (
    "<system_thinking>Stay cool.</system_thinking>Una: <role_thinking>Hm.</role_thinking>"
    " <role_action>pours tea</role_action> Sit."
  )
  for stage in ("sft", "rl"):
    samples = folder / stage / "samples"
    cut = sample("<role_action>qq zz", finished=False, valid=False)
    console.write_samples(samples / "before.json", [cut, sample(EVIL, turn=5, valid=False)])
    console.write_samples(samples / "after.json", [sample(turn, turn=5), sample(turn)])
  (folder / "evaluate").mkdir()
  (folder / "evaluate" / "evaluation.json").write_text(json.dumps(EVALUATION))
  return folder


def read_page(workdir, summary=None) -> tuple[str, Page]:
  path = report.write_report(workdir, SUMMARY if summary is None else summary)
  assert path == workdir / "report.html"
  html = path.read_text(encoding="utf-8")
  return html, Page(html)


@pytest.fixture
def workdir(tmp_path):
  return make_workdir(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The page of a whole workdir: its text and its elements. Rendering takes a second."""
  return read_page(make_workdir(tmp_path_factory.mktemp("whole")))


def test_the_headline_shows_the_summary(whole):
  page = whole[1]
  changes = ["6.214 → 1.663", "0.0% → 87.5%", "80.3%", "−0.021 → +0.243"]
  assert page.figures() == [*changes, "6 min 52 s", "2.31 GiB"]
  notes = " ".join(e["text"] for e in page.all(class_="note"))
  assert "+0.264 ± 0.071" in notes and "may be chance" not in notes
  assert "Held-out pairs: 117" in notes


def test_a_gain_below_two_standard_errors_says_so(tmp_path):
  page = read_page(tmp_path, SUMMARY | {"rl_reward_standard_error": 0.14})[1]
  assert "it may be chance" in " ".join(e["text"] for e in page.all(class_="note"))


def test_the_tables_show_the_evaluation(whole):
  table = whole[1].table()
  shown = {
    "accuracy": "80.3%",
    "accuracy on ties": "36.0%",
    "flip rate": "12.1%",
    "names the first": "53.2%",
    "unparsed": "1.7%",
    "held-out loss": "1.713",
    "whole turns": "93.8%",
    "layout entropy": "2.01 bits",
    "most frequent layout": "51.2%",
    "completion length": "91.2 tokens",
    "win": "46.1%",
    "tie": "35.2%",
    "lose": "18.7%",
  }
  assert list(table) == list(shown)
  assert [n for n, text in table.items() if not text.strip().startswith(shown[n])] == []
  assert "judgements: 233, pairs: 117" in table["accuracy"]
  assert "good or bad: 19" in table["accuracy on ties"]
  assert "sampled replies: 48" in table["whole turns"]
  assert "comparisons: 49" in table["win"]


def test_plots_say_in_words_what_they_show(whole):
  svgs = whole[1].all(tag="svg", role="img")
  alts = [svg["aria-label"] for svg in svgs]
  assert len(alts) == 9
  assert "held out: 5.25 at step 1, 1.75 at 40" in alts[0]
  assert "thoughts aloud 97% of 41; knows future 44% of 23; flat not measured of 0" in alts[2]
  assert alts[2].endswith("; ties 36%.")
  assert "mean reward, smoothed: 0.01 at step 1, 0.38 at 40" in alts[3]
  assert "win: 0.4 at step 1" in alts[4]
  assert "chance" in svgs[2]["text"]


def test_ties_have_no_chance_line_and_the_same_data_the_same_bytes():
  arguments = {"sft": [], "genrm": [], "rl": []}, {"tie_accuracy": 0.5}
  plots = report._plots(*arguments)
  assert "chance" not in plots["judge_kinds"] and "ties" in plots["judge_kinds"]
  assert plots == report._plots(*arguments)


def test_replies_to_one_turn_stand_side_by_side_in_their_layers(whole):
  page = whole[1]
  articles = page.all(tag="article")
  assert [a["aria-label"] for a in articles] == ["Una, turn 3", "Una, turn 5"] * 2
  first = " ".join(articles[0]["text"].split())
  assert "Joost: Madam." in first
  assert "malformed: <role_action> is never closed" in first
  assert first.index("unfinished") < first.index("qq zz") < first.index("Stay cool.")
  layers = {"system_thinking": "plan: Stay cool.", "role_thinking": "thinking: Hm."}
  layers |= {"role_action": "action: pours tea", "speech": "speech: Sit."}
  for kind, words in layers.items():
    texts = [e["text"] for e in page.all(tag="span", class_=kind)]
    assert texts.count(words) == 4, kind
    assert texts.count(console.LAYERS[kind]) == 2, "one legend for each list"


def test_a_few_replies_are_shown_and_all_can_be_unfolded(workdir):
  many = [sample("Sit.", turn=turn) for turn in range(20)]
  for side in ("before", "after"):
    console.write_samples(workdir / "rl" / "samples" / f"{side}.json", many)
  page = read_page(workdir)[1]
  folded = [e for e in page.elements if e["tag"] == "details"]
  assert ["All 20 turns" in e["text"] for e in folded] == [True]
  labels = [e["aria-label"] for e in page.all(tag="article")][2:]
  assert labels[:6] == [f"Una, turn {turn}" for turn in (0, 3, 6, 9, 12, 15)]
  assert labels[6:] == [f"Una, turn {turn}" for turn in range(20)]


def test_without_a_held_out_loss_its_curve_says_so(workdir):
  write_metrics(workdir, "sft", [{"loss": 2.0 - i / 50} for i in range(30)])
  page = read_page(
    workdir, SUMMARY | {"sft_heldout_loss_before": None, "sft_heldout_loss_after": None}
  )[1]
  assert "held out: not measured" in page.all(tag="svg")[0]["aria-label"]


def test_untrusted_text_is_escaped(workdir):
  path = workdir / "rl" / "samples" / "after.json"
  console.write_samples(path, [sample("Hm.", scene=EVIL, speaker=EVIL, heard=EVIL)])
  judge = EVALUATION["judge"] | {"by_kind": {f"$x {EVIL}": {"accuracy": 0.5, "judgements": 2}}}
  path = workdir / "evaluate" / "evaluation.json"
  path.write_text(json.dumps(EVALUATION | {"judge": judge}))
  html, page = read_page(workdir)
  assert not page.all(tag="script") and not page.all(tag="img")
  assert "<script" not in html and "&lt;script&gt;alert(1)" in html
  assert sum(EVIL in e["text"] for e in page.all(tag="article")) == 3
  assert any(f"$x {EVIL}" in svg.get("aria-label", "") for svg in page.all(tag="svg"))


def test_nothing_is_fetched(whole):
  html, page = whole
  ids = [e["id"] for e in page.elements if "id" in e]
  assert len(ids) == len(set(ids))
  for element in page.elements:
    assert element["tag"] not in ("link", "script", "iframe", "object", "img", "base")
    for name in ("src", "href", "xlink:href", "srcset", "data"):
      target = element.get(name)
      assert target is None or (target[0] == "#" and target[1:] in ids), element
  assert all(t.startswith("#") and t[1:] in ids for t in re.findall(r"url\((.*?)\)", html))
  assert not re.search(r"https?://|@import", html.replace("https://evil.example", ""))
  policy = page.all(**{"http-equiv": "Content-Security-Policy"})[0]["content"]
  assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_both_themes_define_every_colour_of_the_plots(whole):
  html = whole[0]
  light, dark = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
  svgs = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
  used = set(re.findall(r"var\((--\w+)\)", svgs))
  assert {"--blue", "--orange", "--grey", "--muted", "--line"} == used
  assert all(f"{name}:" in theme for name in used for theme in (light, dark))
  assert not re.search(r"#(0\d)\1\1", html)


def test_an_empty_workdir_measures_nothing(tmp_path):
  html, page = read_page(tmp_path, {})
  assert set(page.figures()) == {"not measured"}
  assert all(text.strip().startswith("not measured") for text in page.table().values())
  plots = page.all(tag="figure")
  assert len(plots) == 9 and all("not measured" in plot["text"] for plot in plots)
  assert not page.all(tag="svg")
  assert html.count("Samples: <span") == 2
  facts = [e["text"] for e in page.all(class_="facts")]
  assert len(facts) == 4 and all("not measured" in text for text in facts)
  body = " ".join(e["text"] for e in page.all(tag="main"))
  assert "nan" not in body.lower().split() and "None" not in body


@pytest.mark.parametrize("missing", sorted(SUMMARY))
@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_each_missing_headline_is_not_measured(tmp_path, missing, nothing):
  page = read_page(tmp_path, SUMMARY | {missing: nothing})[1]
  texts = page.all(class_="figure") + page.all(class_="note") + page.all(class_="facts")[:1]
  assert sum(e["text"].count("not measured") for e in texts) == 1


def test_missing_parts_leave_the_rest_standing(workdir):
  (workdir / "rl" / "samples" / "before.json").unlink()
  write_metrics(workdir, "sft", [{"loss": 2.0 - i / 50} for i in range(30)])
  write_metrics(workdir, "rl", [{"win": None, "reward_mean": 0.5, "truncated": 0.1}])
  path = workdir / "evaluate" / "evaluation.json"
  path.write_text(json.dumps({"policy": EVALUATION["policy"], "judge": None}))
  page = read_page(workdir)[1]
  alts = [svg["aria-label"] for svg in page.all(tag="svg")]
  assert len(alts) == 4, "losses, reward and validity"
  assert "held out: 6.21 at step 1, 1.66 at 30" in alts[0]
  assert "mean reward: 0.5 at step 1" in alts[2]
  assert "whole turns: not measured; cut off: 0.1" in alts[3]
  sides = [" ".join(e["text"].split()) for e in page.all(class_="side")]
  assert sides.count("Before RL not measured") == 2
  assert page.table()["held-out loss"].strip().startswith("1.713")
  assert page.table()["win"].strip().startswith("not measured")


def test_a_long_run_stays_light(tmp_path):
  random = np.random.default_rng(0)
  for stage in ("sft", "genrm"):
    losses = random.normal(3, 1, 2000)
    write_metrics(tmp_path, stage, [{"loss": loss} for loss in losses])
  write_metrics(
    tmp_path, "rl", [{k: v * random.random() for k, v in RL.items()} for _ in range(1000)]
  )
  html = read_page(tmp_path)[0]
  assert html.count("<svg") == 8
  assert len(html.encode()) < 1.5e6


def test_smooth_averages_over_its_window():
  np.testing.assert_allclose(report.smooth(np.array([0.0, 2, 4, 6])), [1, 2, 4, 5])
  assert report.smooth(np.array([])).size == 0
  noisy = np.random.default_rng(0).normal(size=400)
  assert report.smooth(noisy).std() < 0.3 * noisy.std()
