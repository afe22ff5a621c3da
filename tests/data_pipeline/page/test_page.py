"""The page: whole, safe, bounded, and true to what it is made of."""

import dataclasses
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from data_pipeline import page, quality, samples
from data_pipeline.page import plots, scenes
from data_pipeline.quality.scan import Scanned
from her_jax.roleplay import schema
from her_jax.roleplay.jsonl import DataError

SCENES = schema.read_trajectories(samples.SCENES)
ATTACK = (
  "<script>document.title = 'owned'</script>\"'><img src=x onerror=alert(1)></details>&lt;"
)
_VOID = {"meta", "input", "br", "img", "link", "line", "rect"}


class _Page(html.parser.HTMLParser):
  """Tags, attributes and texts of a page; fails on tags that are not closed in order."""

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.articles, self.texts = [], [], [], []
    self.feed(text)
    self.close()
    assert not self.open, self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if dict(attrs).get("class") == "scene":
      self.articles.append({**dict(attrs), "text": ""})
    if tag not in _VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
    self.open.pop()

  def handle_data(self, data):
    self.texts.append(data)
    if self.articles and "details" in self.open:
      self.articles[-1]["text"] += data

  def all(self, tag, **attrs):
    return [
      a for t, a in self.tags if t == tag and all(a.get(k) == v for k, v in attrs.items())
    ]


def _spoilt(scene, i, **fields):
  turns = list(scene.turns)
  turns[i] = dataclasses.replace(turns[i], **fields)
  return dataclasses.replace(scene, turns=tuple(turns))


def _write(tmp_path, rows, **settings):
  source, out = tmp_path / "set.jsonl", tmp_path / "page.html"
  schema.write_jsonl(source, rows)
  written = page.write(source, out, **settings)
  return _Page(out.read_text(encoding="utf-8")), written, out


def test_a_page_of_the_samples_is_whole(tmp_path):
  made, written, out = _write(tmp_path, SCENES)
  assert (written.shown, written.scenes) == (96, 96) and written.size == out.stat().st_size
  assert sorted(a["text"].split()[0] for a in made.articles) == sorted(s.id for s in SCENES)
  told = " ".join("".join(made.texts).split())
  assert "96 scenes with 969 turns. All of them stand below." in told
  for scene in SCENES[::7]:
    article = next(a for a in made.articles if a["text"].split()[0] == scene.id)
    text = " ".join(article["text"].split())
    for character in scene.characters:
      assert character.name in text and " ".join(character.motivation.split()) in text
    for turn in scene.turns:
      assert turn.plan in text
  assert len(made.all("svg", role="img")) == 2 and len(made.all("figure")) == 3


def test_the_page_asks_for_nothing_from_elsewhere(tmp_path):
  made, _, out = _write(tmp_path, SCENES[:3])
  links = [a for _, a in made.tags if a.keys() & {"src", "href", "srcset", "action", "data"}]
  assert not links and not made.all("link") and not made.all("iframe")
  text = out.read_text(encoding="utf-8")
  assert (
    "http:" not in text
    and "https:" not in text
    and "url(" not in text
    and "@import" not in text
  )
  (policy,) = (m["content"] for m in made.all("meta") if "http-equiv" in m)
  assert "default-src 'none'" in policy and "'unsafe-eval'" not in policy
  assert (
    "script-src 'sha256-" in policy and "'unsafe-inline'" not in policy.split("script-src")[1]
  )


def _attacked():
  scene = _spoilt(SCENES[0], 1, plan=f"I {ATTACK} refuse.")
  people = (
    dataclasses.replace(scene.characters[0], profile=ATTACK),
    dataclasses.replace(scene.characters[1], background=ATTACK),
  )
  her = {
    "passage": ATTACK, "chapter": ATTACK, "purpose": ATTACK,
    "settings_added": [{"character": people[0].name, "field": ATTACK, "text": ATTACK, "quote": ATTACK}],
  }  # fmt: skip
  turn = {"her": {"original": ATTACK, "reason": ATTACK, "draft": ATTACK}}
  scene = _spoilt(scene, 2, extra=turn)
  return dataclasses.replace(
    scene, id=ATTACK, scenario=ATTACK, source=ATTACK, topic=ATTACK, characters=people,
    extra={"her": her},
  )  # fmt: skip


def test_a_script_in_a_scene_is_harmless(tmp_path):
  made, _, out = _write(tmp_path, [_attacked(), SCENES[1]], title=ATTACK)
  assert len(made.all("script")) == 1 and not made.all("img")
  assert "<script>document" not in out.read_text(encoding="utf-8")
  assert not [a for _, a in made.tags for name in a if name.startswith("on")]
  assert "".join(made.texts).count("document.title = 'owned'") >= 10
  assert made.articles[0]["data-book"] == ATTACK


def test_evidence_is_marked_at_its_place(tmp_path):
  faulty = _spoilt(
    SCENES[0], 3, reply="<role_action>Joost nods</role_action> As an AI, I can't."
  )
  faulty = _spoilt(faulty, 1, plan="Dry and exact. I should refuse him.")
  made, _, out = _write(tmp_path, [faulty, SCENES[1]])
  text = out.read_text(encoding="utf-8")
  marks = re.findall(r'<mark title="([^"]*)">([^<]*)</mark>', text)
  assert marks == [
    ("plan first person", "I"), ("action not grounded", "Joost nods"), ("prompt words", "As an AI"),
  ]  # fmt: skip
  flagged, clean = made.articles
  assert flagged["data-flags"] == "plan_first_person prompt_words action_not_grounded"
  assert clean["data-flags"] == ""
  # A plan with evidence in it is not folded.
  assert '<details class="plan" open>' in text
  assert {b["data-flag"] for b in made.all("button") if "data-flag" in b} == set(
    flagged["data-flags"].split()
  )


def test_pieces_join_to_the_text_and_carry_their_flags():
  def flag(name, start, end):
    return quality.Flag(name, 0, "reply", start, end, "", "")

  flags = [
    flag("repetition", 12, 16),
    flag("prompt_words", 14, 30),
    flag("analyst_voice", 0, 5),
  ]
  found = scenes.pieces("abcdefghij", 10, flags)
  assert "".join(p["text"] for p in found) == "abcdefghij"
  assert [(p["text"], p["flags"]) for p in found] == [
    ("ab", []), ("cd", ["repetition"]), ("ef", ["repetition", "prompt_words"]),
    ("ghij", ["prompt_words"]),
  ]  # fmt: skip
  assert scenes.pieces("", 3, flags) == []


def test_filters_have_what_the_scenes_have(tmp_path):
  rows = [
    dataclasses.replace(s, extra={"her": {"purpose": ("sft", "rl")[i % 2]}})
    for i, s in enumerate(SCENES[:2] + [s for s in SCENES if s.language == "zh"][:2])
  ]
  made, _, _ = _write(tmp_path, rows)
  filters = {s["data-filter"] for s in made.all("select")}
  assert {"flags", "book", "purpose", "language"} <= filters
  values = {o["value"] for o in made.all("option")}
  assert {"sft", "rl", "en", "zh", rows[0].source, "any", "none"} <= values
  assert [a["data-purpose"] for a in made.articles].count("rl") == 2


def test_a_large_set_is_a_sample_with_the_counts_of_all(tmp_path):
  rows = [dataclasses.replace(SCENES[i % 96], id=f"s{i}") for i in range(300)]
  rows[150] = _spoilt(rows[150], 0, reply="As an AI language model, I refuse.")
  made, written, _ = _write(tmp_path, rows, most=20)
  assert written.scenes == 300 and written.shown == len(made.articles) in (20, 21)
  told = " ".join("".join(made.texts).split())
  assert "300 scenes" in told and f"below stand {written.shown} scenes" in told
  assert [a for a in made.articles if a["data-flags"] == "prompt_words"], (
    "flagged ones are kept"
  )
  # The draw is the scenes' own: another order of the file shows the same.
  again, _, _ = _write(tmp_path, rows, most=20)
  assert [a["text"] for a in again.articles] == [a["text"] for a in made.articles]


def test_the_size_is_bounded(tmp_path):
  long = _spoilt(SCENES[0], 1, reply="word " * 100_000, plan="plan " * 1000)
  many = dataclasses.replace(SCENES[1], turns=SCENES[1].turns * 40, id="many")
  made, written, out = _write(tmp_path, [long, many, *SCENES[2:]], megabytes=0.3)
  assert written.size < 450_000 and 1 <= written.shown < 96
  told = " ".join("".join(made.texts).split())
  assert f"below stand {written.shown} scenes" in told
  _, whole, _ = _write(tmp_path, [long, many])
  assert whole.shown == 2 and whole.size < 300_000
  text = out.read_text(encoding="utf-8")
  assert "494,000 more characters" in text and "more turns" in text


def test_an_edit_shows_in_the_plot_of_layouts():
  shares = [{"layout": "TS", "before": 0.8, "after": 0.25}, {"layout": "SAT", "before": 0.0, "after": 0.5}]  # fmt: skip
  svg = str(plots.layouts({"edit": {"shares": shares}}))
  assert "80.0% → 25.0%" in svg and "0.0% → 50.0%" in svg
  # The longest bar is the largest share, and its label still fits in.
  widths = [float(w) for w in re.findall(r'class="(?:before|after)"[^>]*width="([\d.]+)"', svg)]
  assert max(widths) == widths[1] and widths[0] == pytest.approx(
    max(widths) * 0.25 / 0.8, abs=0.1
  )
  assert plots.layouts({"edit": None, "layouts": {"top": []}}) is None


def test_an_empty_file_and_a_broken_one(tmp_path):
  made, written, _ = _write(tmp_path, [])
  assert written.shown == 0 and "The file holds no scene." in "".join(made.texts)
  source = tmp_path / "set.jsonl"
  source.write_text("{}\n" + json.dumps(schema.to_dict(SCENES[0])) + "\n", encoding="utf-8")
  with pytest.raises(DataError, match=r"set\.jsonl:1: characters: missing or empty"):
    page.write(source, tmp_path / "page.html")
  written = page.write(source, tmp_path / "page.html", lenient=True)
  assert (written.shown, written.unreadable) == (1, 1)
  assert "1 lines of the file are no scenes" in (tmp_path / "page.html").read_text("utf-8")


def test_the_command(tmp_path):
  command = [sys.executable, "-m", "data_pipeline.page"]
  done = subprocess.run(
    [*command, str(samples.SCENES), f"--out={tmp_path}/p.html", "--scenes=5", "--per_flag=0"],
    capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0 and "5 of 96 scenes" in done.stdout, done.stderr
  gone = subprocess.run([*command, "none.jsonl", f"--out={tmp_path}/p.html"], capture_output=True, text=True)  # fmt: skip
  assert gone.returncode == 2 and gone.stderr.startswith("page: none.jsonl: no such file")
  nowhere = [*command, str(samples.SCENES), f"--out={tmp_path}/no/p.html"]
  refused = subprocess.run(nowhere, capture_output=True, text=True)
  assert refused.returncode == 2 and "no/p.html" in refused.stderr


def _dom(browser, out, tmp_path):
  """The page's elements after its script ran, as a browser has them."""
  done = subprocess.run(
    [
      browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
      f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=3000", "--dump-dom",
      out.as_uri(),
    ],
    capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)},
  )  # fmt: skip
  return done.stdout


def test_a_browser_runs_the_pages_script_and_no_other(tmp_path):
  browser = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
  )
  if browser is None:
    pytest.skip("no browser here; install chromium")
  _, _, out = _write(tmp_path, [_attacked(), *SCENES[1:5]], title="Safe")
  found = _dom(browser, out, tmp_path)
  assert ">5 of 5 scenes<" in found and '<div id="tools">' in found, "the page's script ran"
  assert "<title>Safe</title>" in found
  # What a scene might smuggle past the escaping, the policy keeps from running.
  text = out.read_text(encoding="utf-8").replace("<footer>", "<script>document.title='owned'</script><footer>")  # fmt: skip
  out.write_text(text, encoding="utf-8")
  assert "<title>Safe</title>" in _dom(browser, out, tmp_path)


def test_filters_work_in_a_browser(tmp_path):
  """Drives the page's own controls from a second script, which the policy of this copy lets in."""
  browser = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
  )
  if browser is None:
    pytest.skip("no browser here; install chromium")
  faulty = _spoilt(SCENES[0], 1, plan="I should refuse him.")
  zh = next(s for s in SCENES if s.language == "zh")
  _, _, out = _write(tmp_path, [faulty, SCENES[1], zh])
  drive = """<script>
    const told = () => document.getElementById("told").textContent.split(" ")[0];
    const set = (filter, value) => {
      const field = document.querySelector(`[data-filter=${filter}]`);
      field.value = value; field.dispatchEvent(new Event("change")); };
    const seen = [told()];
    set("flags", "any"); seen.push(told());
    set("flags", "none"); seen.push(told());
    set("language", "zh"); seen.push(told());
    set("flags", "plan_first_person"); seen.push(told(), document.getElementById("none").hidden);
    set("language", ""); set("flags", "");
    document.querySelector("[data-flag=plan_first_person]").click();
    seen.push(told(), document.querySelector("details.scene:not([hidden])").open);
    document.title = seen.join(" ");
  </script></body>"""
  text = out.read_text(encoding="utf-8")
  text = re.sub(r"script-src 'sha256-[^']*'", "script-src 'unsafe-inline'", text)
  out.write_text(text.replace("</body>", drive), encoding="utf-8")
  assert "<title>3 1 2 1 0 false 1 true</title>" in _dom(browser, out, tmp_path)


def test_the_template_and_script_are_packaged():
  setup = (pathlib.Path(page.__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
  assert "page/*.jinja" in setup and "page/*.js" in setup


def test_a_scanned_scene_is_shown_with_what_was_added():
  fact = {"character": SCENES[0].characters[0].name, "field": "profile", "text": "Counts.", "quote": "q"}  # fmt: skip
  scene = dataclasses.replace(
    SCENES[0], extra={"her": {"settings_added": [fact, "no object", {}]}}
  )
  view = scenes.view_of(Scanned(7, scene, []))
  assert view["characters"][0]["added"] == [
    {"field": "profile", "text": "Counts.", "quote": "q"}
  ]
  assert not view["characters"][1]["added"] and view["line"] == 7
