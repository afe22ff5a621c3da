import dataclasses
import io
import json

import pytest
from rich.text import Text

from her_jax.evaluation import console
from her_jax.evaluation.console import Sample
from her_jax.roleplay import grammar

SAMPLE = Sample(
  scene="harbour",
  turn=3,
  speaker="Una",
  heard="Joost: <role_action>bows</role_action> Madam.",
  reply=(
    "<system_thinking>Una stays cool.</system_thinking>Una: <role_thinking>Too much."
    "</role_thinking><role_action>pours tea</role_action>Sit [bold]here[/bold] :smile:"
  ),
  finished=True,
  valid=True,
)


def change(**fields) -> Sample:
  return dataclasses.replace(SAMPLE, **fields)


@pytest.fixture
def terminal(monkeypatch):
  """A colour terminal, as far as rich can tell."""
  monkeypatch.delenv("NO_COLOR", raising=False)
  for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200"}.items():
    monkeypatch.setenv(name, value)


@pytest.fixture
def pipe(monkeypatch):
  for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("COLUMNS", "200")


def style_of(printed: str, words: str) -> tuple:
  """Colour, bold, italic and dim of the last `words` in a terminal's output."""
  text = Text.from_ansi(printed)
  at = text.plain.rindex(words)
  style = text.get_style_at_offset(console._console(), at)
  return style.color and style.color.name, style.bold, style.italic, style.dim


def test_samples_survive_the_file(tmp_path):
  path = tmp_path / "samples" / "after.json"
  samples = [SAMPLE, change(heard="", reply="…\x1b[31m 好", finished=False, valid=False)]
  console.write_samples(path, samples)
  assert console.read_samples(path) == samples
  assert isinstance(json.loads(path.read_text(encoding="utf-8")), list)


@pytest.mark.parametrize(
  "rows, message",
  [
    ({}, "want a list"),
    ([dataclasses.asdict(SAMPLE), {"scene": "x"}], "entry 1: want an object"),
    ([dataclasses.asdict(SAMPLE) | {"turn": True}], "entry 0: turn is no int"),
  ],
)
def test_a_wrong_samples_file_is_named(tmp_path, rows, message):
  path = tmp_path / "before.json"
  path.write_text(json.dumps(rows))
  with pytest.raises(ValueError, match=message) as error:
    console.read_samples(path)
  assert "before.json" in str(error.value)


def test_layers_drop_tags_and_name_and_keep_words_apart():
  shown = console.layers(SAMPLE.reply, "Una")
  assert [segment.kind for segment in shown] == list(console.LAYERS)
  assert shown[0].text == "Una stays cool."
  rest = "".join(segment.text for segment in shown[1:])
  assert rest == "Too much. pours tea Sit [bold]here[/bold] :smile:"


def test_layers_keep_a_line_break_between_layers():
  shown = console.layers("One.\n<role_action>nods</role_action>\n\nTwo.")
  assert "".join(segment.text for segment in shown) == "One.\nnods\nTwo."


def test_every_layer_has_the_colour_of_its_legend(terminal, capsys):
  console.print_samples("SFT", [SAMPLE])
  printed = capsys.readouterr().out
  legend, _, body = printed.partition("Una")
  words = {"plan": "stays cool", "thinking": "Too much", "action": "pours", "speech": "Sit"}
  styles = {name: style_of(body, text) for name, text in words.items()}
  assert styles == {name: style_of(legend, name) for name in words}
  assert len(set(styles.values())) == 4
  assert styles["plan"] == (None, None, True, True)
  assert "role_thinking" not in printed


def test_the_legend_is_printed_once(terminal, capsys):
  console.print_samples("SFT", [SAMPLE, SAMPLE])
  legend = "plan  thinking  action  speech"
  assert Text.from_ansi(capsys.readouterr().out).plain.count(legend) == 1


def test_a_pipe_gets_the_raw_reply_without_escapes(pipe, capsys):
  console.print_samples("SFT [b]after[/b]", [SAMPLE])
  printed = capsys.readouterr().out
  assert "\x1b" not in printed
  assert SAMPLE.reply in printed
  assert SAMPLE.heard in printed
  assert "SFT [b]after[/b]" in printed


def test_no_color_is_heeded_on_a_terminal(terminal, monkeypatch, capsys):
  monkeypatch.setenv("NO_COLOR", "1")
  console.print_samples("SFT", [SAMPLE])
  printed = Text.from_ansi(capsys.readouterr().out)
  assert SAMPLE.reply in printed.plain
  assert not any(span.style.color for span in printed.spans)


def test_brackets_of_the_model_are_no_markup(terminal, capsys):
  console.print_samples("SFT", [change(speaker="Una [red]", reply="[red]x[/red] [/b] :smile:")])
  printed = Text.from_ansi(capsys.readouterr().out).plain
  assert "[red]x[/red] [/b] :smile:" in printed
  assert "Una [red]" in printed


def test_control_characters_of_the_model_never_reach_the_terminal(terminal, capsys):
  console.print_samples("SFT", [change(reply="a\x1b[2Jb\x9b31mc\x07d\te")])
  printed = capsys.readouterr().out
  assert "\x1b[2J" not in printed and "\x9b" not in printed and "\x07" not in printed
  assert "a\N{REPLACEMENT CHARACTER}[2Jb" in printed


def test_a_narrow_encoding_gets_question_marks(pipe, monkeypatch):
  stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
  monkeypatch.setattr("sys.stdout", stream)
  console.print_samples("SFT", [change(reply="好 yes")])
  stream.flush()
  assert b"? yes" in stream.buffer.getvalue()


@pytest.mark.parametrize(
  "fields, words",
  [
    ({}, []),
    ({"finished": False, "valid": False}, ["unfinished"]),
    ({"reply": "<role_action>x", "valid": False}, ["malformed: <role_action> is never closed"]),
    ({"reply": "<ROLE_ACTION>x</ROLE_ACTION>"}, ["repaired: irregular tag '<ROLE_ACTION>'"]),
    ({"reply": "Una: Hm.", "valid": False}, ["not a whole turn: no plan"]),
    ({"reply": grammar.render(grammar.parse("Hm.")), "valid": False}, ["no “Una: ” in front"]),
  ],
)
def test_faults_are_named_and_printed(pipe, capsys, fields, words):
  sample = change(**fields)
  assert len(console.faults(sample)) == len(words)
  console.print_samples("SFT", [sample])
  printed = capsys.readouterr().out
  assert all(text in printed for text in words)
  assert ("[" in printed.replace(sample.reply, "")) == bool(words)


def test_no_samples_are_not_measured(pipe, capsys):
  console.print_samples("SFT", [])
  assert console.NOT_MEASURED in capsys.readouterr().out


def test_the_table_shows_values_and_what_is_missing(pipe, capsys):
  rows = [("loss", 1.23456, "[b]nats[/b]"), ("pairs", 160, ""), ("accuracy", None, "of pairs")]
  console.print_table("Results [x]", [*rows, ("reward", float("nan"), "")])
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert ["Results", "[x]"] in lines
  assert ["loss", "1.235", "[b]nats[/b]"] in lines
  assert ["pairs", "160"] in lines
  assert ["accuracy", "not", "measured", "of", "pairs"] in lines
  assert ["reward", "not", "measured"] in lines


def test_numbers_in_words():
  assert console.number(-1234.5, ",.1f", " s") == "\N{MINUS SIGN}1,234.5 s"
  assert console.share(0) == "0.0%"
  assert console.duration(59.6) == "1 min 0 s"
  assert console.duration(7322) == "2 h 2 min"
  for nothing in (None, float("nan"), float("inf"), "3", True):
    assert console.number(nothing) == console.duration(nothing) == console.NOT_MEASURED
