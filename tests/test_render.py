"""The forms a report takes: nothing harms the reader, and every form says the same."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import PurePath

import polars as pl
import pytest
from conftest import real_log
from rich.console import Console

from logscope.errors import Message, UsageError, Where
from logscope.model import Accounting, Finding, Place
from logscope.queries.points import Charts
from logscope.render import FORMATS, Style, format_of, render
from logscope.render.charts import of_page
from logscope.render.html import fragment, page
from logscope.render.layout import fit, lines, prepare, wrap
from logscope.render.machine import csv_cell, pick_table
from logscope.render.terminal import text_message
from logscope.render.text import (
    ASCII_BLOCKS,
    accounting_words,
    cell,
    cells,
    column_texts,
    message_lines,
    number,
    size,
    sparkline,
    visible,
)
from logscope.report import Column, Line, Report, Table
from logscope.run import load

# Escape and OSC sequences, a C1 control, NUL, bell, backspace, right-to-left override, isolates, zero-width characters,
# a byte-order mark, a tag character, a lone surrogate, line and paragraph separators, DEL, a Hangul filler.
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \x9b31m \x00\x08 \u202eevil\u2066 a\u200bb\u200d\ufeff \U000e0041 \udc80 \u2028\u2029"
    " \x7f \u3164 </script><script>alert(1)</script> <img src=x onerror=alert(1)> | ` * [x](javascript:1) @user #1"
    " ::error::gotcha %0A"
)
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u3164\ud800-\udfff\U000e0000-\U000e007f]"
)


def table(**more) -> Table:
    """Return a table with a column of every sort."""
    columns = [
        Column("event", always=True),
        Column("layer", align="right", always=True),
        Column("rms", "rms median", align="right"),
        Column("shapes"),
        Column("trend", spark=True),
        Column("first", "first at"),
    ]
    rows = [
        {"event": "layer_capture", "layer": 3, "rms": 0.02743, "shapes": ["4 rows x 7168 hidden"], "trend": [1, 2, 3]},
        {"event": "layer_capture", "layer": 31, "rms": 1.5, "shapes": ["21 rows x 7168 hidden"], "trend": [3, None, 1]},
        {"event": "embed_capture", "layer": None, "rms": float("nan"), "first": "a/server.log:12"},
    ]
    return Table(columns, rows, **more)


def report(text: str = "plain") -> Report:
    """Return a report with every part, ``text`` in each of them."""
    return Report(
        "captures",
        f"headline {text}",
        "findings",
        findings=[
            Finding(
                "S101", "error", f"message {text}", Place("a:b,c.log", 7), f"want {text}", "got", "see", f"do {text}"
            ),
            Finding("L102", "warning", "no place"),
            Finding("L103", "note", "a note"),
        ],
        notes=[f"noted {text}"],
        tables={
            "captures": table(title="captures", caption=f"caption {text}"),
            "other": Table([Column("x", f"head {text}")], [{"x": text}]),
            "empty": Table([Column("x")], []),
        },
        facts={"hidden": 7168, "text": text},
        accounting=Accounting(bytes=1_234_567, lines=2310, whole=1940, cut=4, other_lines=366, glued=1),
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("style", [Style(), Style(width=80), Style(color=True), Style(width=60, color=True)])
def test_hostile_text_is_shown_and_never_obeyed(form, style):
    """No control, bidirectional or zero-width character of a log reaches any output; what it was is written out."""
    out = render(report(HOSTILE), form, style, "other" if form == "csv" else None)
    if style.color and form == "table":
        out = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert not FORBIDDEN.search(out.replace("\r\n", "\n"))
    # json.loads gives back what the log held; every other form shows the escape.
    assert ("\\u001b" if form in ("json", "ndjson") else "\\x1b") in out
    assert ("\\u202e") in out.replace("\n", "")


def test_colours_in_a_terminal_are_ours_only():
    """The only escape sequences in coloured output are colours: a log cannot set a title or move the cursor."""
    out = render(report(HOSTILE), "table", Style(width=100, color=True))
    assert set(re.findall(r"\x1b(.)", out)) == {"["}
    assert all(kind == "m" for kind in re.findall(r"\x1b\[[\d;]*(.)", out))


def test_no_escape_sequence_without_colour():
    """Style(color=False) writes no escape sequence at all, with a window or without one."""
    for style in (Style(), Style(width=80), Style(width=200, verbose=True)):
        assert "\x1b" not in render(report(), "table", style)


@pytest.mark.parametrize(
    "character", ["\x1b", "\x00", "\x7f", "\x85", "\u00ad", "\u202e", "\u2066", "\u200b", "\ufeff"]
)
def test_visible_writes_the_code_of_what_cannot_be_seen(character):
    """An invisible character becomes the escape that names its code, so a person can look it up."""
    escaped = visible(f"a{character}b")
    assert re.fullmatch(r"a(\\x[0-9a-f]{2}|\\u[0-9a-f]{4})b", escaped)
    assert int(escaped[3:-1], 16) == ord(character)


def test_visible_leaves_what_can_be_seen():
    """Other scripts, accents, emoji and block glyphs of progress bars stay as they are."""
    for text in ("plain text", "größe", "日本語", "█▉▎", "∑ ≤ 3", "é́"[0:1], "🙂"):
        assert visible(text) == text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_window(width, unicode):
    """At 60, 80 and 120 columns every line fits, without and with wide characters."""
    wide = report("日本語 " * 20)
    for line in render(wide, "table", Style(width=width, unicode=unicode)).splitlines():
        assert cells(line) <= width


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_numbers_are_never_folded_and_always_columns_stay(width):
    """A narrow window drops other columns and says which; `always` columns stay, and numbers stay on one line."""
    columns = prepare(table())
    dropped = fit(columns, width)
    kept = [column.heading for column in columns]
    assert sorted([*kept, *dropped]) == sorted(column.heading for column in table().columns)
    assert {"event", "layer"} <= set(kept)
    out = render(Report("x", "h", tables={"t": table()}), "table", Style(width=width))
    assert ("not shown for want of room: " + ", ".join(dropped) in out.replace("\n", " ")) == bool(dropped)
    for column in columns:
        if column.right:
            assert all(any(text in line.split() for line in out.splitlines()) for text in column.texts)


def test_a_dropped_column_comes_back_where_there_is_room():
    """Columns go from the right, but a narrow one that still fits beside a wide dropped one is kept."""
    wide = Table([Column("a", always=True), Column("b"), Column("c")], [{"a": "x" * 20, "b": "y" * 300, "c": "zz"}])
    columns = prepare(wide)
    columns[1].folds = False
    assert fit(columns, 40) == ["b"]
    assert [column.heading for column in columns] == ["a", "c"]


def test_piped_tables_are_one_row_a_line():
    """Without a window nothing is folded, drawn or dropped: every row is one line that grep and awk can take apart."""
    long = Table([Column("a"), Column("b", align="right")], [{"a": "word " * 100, "b": 1}, {"a": None, "b": 2.5}])
    out = render(Report("x", "h", tables={"t": long}), "table")
    rows = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(rows) == 3
    assert [re.split(r" {2,}", row.strip())[-1] for row in rows] == ["b", "1", "2.5"]
    assert re.split(r" {2,}", rows[2].strip())[0] == "-"
    assert out.isascii()


def test_output_is_stable():
    """The same report gives the same bytes in every form."""
    for form in FORMATS:
        assert render(report(), form) == render(report(), form)


def test_order_of_the_parts():
    """Headline first, then findings, notes, tables, and what was read as the last line."""
    for style in (Style(), Style(width=120)):
        out = render(report(), "table", style)
        parts = ["headline plain", "S101", "L102", "note: noted", "captures", "head plain", "Read 1,944 records"]
        assert [out.index(part) for part in parts] == sorted(out.index(part) for part in parts)
        assert out.rstrip().splitlines()[-1].startswith("Read ") or style.width


def test_quiet_shows_the_answer_only():
    """-q leaves headline and findings."""
    out = render(report(), "table", Style(quiet=True))
    assert "headline plain" in out
    assert "S101" in out
    assert "noted" not in out
    assert "Read " not in out


def test_a_finding_is_a_line_that_editors_understand():
    """A finding begins with file:line, and its slots follow indented."""
    out = render(report(), "table")
    assert (
        "a:b,c.log:7: error S101: message plain\n  expected: want plain\n  actual: got\n  evidence: see\n  help: do plain\n"
        in out
    )
    assert "\nwarning L102: no place\n" in out


def test_json_is_the_fixed_form():
    """JSON has the fixed keys in their order and gives back every value, NaN by name."""
    got = json.loads(render(report(HOSTILE), "json"))
    assert list(got) == ["schema", "kind", "verdict", "headline", "findings", "tables", "facts", "accounting"]
    assert got["findings"][0]["where"] == {"file": "a:b,c.log", "line": 7}
    assert got["tables"]["captures"][2]["rms"] == "nan"
    assert got["tables"]["captures"][1]["trend"] == [3, None, 1]
    assert got["headline"] == f"headline {HOSTILE}"
    assert got["accounting"]["records"] == 1944


def test_ndjson_is_one_object_for_each_row():
    """Every line is an object with its table: the report itself, each finding, each row."""
    got = [json.loads(line) for line in render(report(), "ndjson").splitlines()]
    assert [line["table"] for line in got] == ["report", *["findings"] * 3, *["captures"] * 3, "other"]
    assert got[0]["headline"] == "headline plain"
    assert got[1]["rule"] == "S101"
    assert got[4]["layer"] == 3


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "--", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("x")', "+", "=", "-x"]
)
def test_csv_formulas_are_neutralised(text):
    """A text a spreadsheet would run begins with an apostrophe."""
    (parsed,) = next(csv.reader([csv_cell(text)]))
    assert parsed.startswith("'")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1.5, "-1.5"),
        ("-1.5", "-1.5"),
        ("+3", "+3"),
        (float("-inf"), "-inf"),
        ("-1e-5", "-1e-5"),
        (7, "7"),
        (None, ""),
        (True, "true"),
    ],
)
def test_csv_numbers_stay_numbers(value, text):
    """Numbers, also negative and printed ones, are not touched."""
    assert csv_cell(value) == text


def test_csv_reads_back():
    """The CSV of a table has its columns and its rows, one line each, whatever the texts hold."""
    rows = list(csv.DictReader(io.StringIO(render(report('a,"b"\nc'), "csv", table="other"))))
    assert rows == [{"x": 'a,"b"\\nc'}]
    rows = list(csv.DictReader(io.StringIO(render(report(), "csv", table="captures"))))
    assert [row["layer"] for row in rows] == ["3", "31", ""]
    assert rows[0]["shapes"] == '["4 rows x 7168 hidden"]'
    assert rows[0]["rms"] == "0.02743"


def test_csv_table_is_chosen_by_name():
    """--table names the table; a wrong name gets the nearest one; without it findings come first, else the first."""
    assert pick_table(report(), None).columns[0].name == "rule"
    assert pick_table(Report("x", "h", tables={"a": table()}), None).columns[0].name == "event"
    with pytest.raises(UsageError) as error:
        pick_table(report(), "capture")
    assert error.value.message.help == "did you mean 'captures'?"


def undo(text: str) -> str:
    """Undo a workflow command's escapes, as the runner does."""
    return text.replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


def test_github_annotations_escape_what_would_end_them():
    """One annotation a finding; colons and commas in the file, line ends and percent signs in the text are escaped."""
    evil = report("50%\n::error::gotcha")
    got = render(evil, "github").splitlines()
    assert len(got) == 3
    level, keys, data = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", got[0]).groups()
    assert level == "error"
    assert dict(pair.split("=") for pair in keys.split(",")) == {
        "file": "a%3Ab%2Cc.log",
        "line": "7",
        "title": "logscope S101",
    }
    assert undo(data).splitlines()[0] == "message 50%\\n::error::gotcha"
    assert "%25" in data
    assert [line.split(" ")[0] for line in got] == ["::error", "::warning", "::notice"]


def test_github_says_the_headline_when_nothing_is_found():
    """A clean report is one notice."""
    assert render(Report("check", "all good: 100%"), "github") == "::notice title=logscope check::all good: 100%25\n"


class Strict(HTMLParser):
    """Collects elements and attributes, and insists on balanced tags."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        """Take a tag and its attributes."""
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Take a closing tag, which must be that of the last open one."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Take text."""
        self.text.append(data)


def test_html_page_stands_alone_and_log_text_stays_text():
    """The page is balanced, has no script, event handler, link or address, and shows the hostile text as text."""
    parser = Strict()
    parser.feed(page([report(HOSTILE), report()]))
    assert not parser.open
    assert not parser.seen & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    assert not [name for name, _ in parser.attributes if name.startswith("on") or name in ("src", "action", "style")]
    assert {value[:1] for name, value in parser.attributes if name == "href"} == {"#"}
    assert "<script>alert(1)</script>" in "".join(parser.text)
    policy = (
        dict(parser.attributes)["content"] if ("http-equiv", "Content-Security-Policy") in parser.attributes else ""
    )
    assert policy
    assert any("default-src 'none'" in value for _, value in parser.attributes)


def test_html_fragment_is_what_notebooks_show():
    """Report._repr_html_ is the fragment: balanced, styled, no page around it."""
    parser = Strict()
    parser.feed(report(HOSTILE)._repr_html_())
    assert report()._repr_html_() == fragment(report())
    assert not parser.open
    assert not parser.seen & {"html", "head", "body", "script"}
    assert {"style", "table", "section"} <= parser.seen


def test_a_table_and_a_finding_show_themselves_in_a_notebook():
    """Numbers stand right, text left, and what the log says stays text."""
    shown = table()._repr_html_()
    assert '<th scope="col">event</th>' in shown
    assert '<th scope="col" class="n">layer</th>' in shown
    found = Finding("N106", "error", HOSTILE, Place("a<b>.log", 3), help="look")._repr_html_()
    assert "<b>error N106</b> <code>a&lt;b&gt;.log:3</code>" in found
    assert "<dt>help</dt><dd>look</dd>" in found
    assert "<script" not in found


def test_a_named_fault_is_not_in_the_colour_of_what_is_fine():
    """A reader that names a fault has no findings; its headline has the colour of its worst line all the same."""
    faulty = Report("summarize", "stale", screen=[Line("ok", "values"), Line("error", "draft reads", "old states")])
    assert 'class="headline findings"' in fragment(faulty)
    assert 'class="headline ok"' in fragment(Report("summarize", "fine", screen=[Line("ok", "values")]))


def test_html_has_dark_and_light_and_print():
    """The page follows the reader's colour scheme and prints on white."""
    text = page([report()])
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


def test_markdown_keeps_log_text_asleep():
    """Pipes, backticks, brackets, mentions and HTML of a log do not become Markdown; the table keeps its columns."""
    out = render(report("a|b `c` [x](http://y) @user #12 <b> *z* www.x.org"), "md")
    row = next(line for line in out.splitlines() if line.startswith("| a"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 2
    for live in ("<b>", "[x](", "@user", "#12", "http://", "www.x", " `c`", " *z*"):
        assert live not in row
    assert "layer_capture" in out


def test_str_and_rich_show_the_report():
    """print(report) is the plain text; rich prints it to the width of its own console."""
    assert str(report()) == render(report(), "table")
    file = io.StringIO()
    Console(file=file, width=70, color_system=None).print(report())
    out = file.getvalue()
    assert "headline plain" in out
    assert max(len(line) for line in out.splitlines()) <= 70


def test_numbers_of_a_column_share_their_decimals():
    """A column's numbers stand under each other; small ones keep three digits, none shows more than it has."""
    column = Column("x", align="right")
    assert column_texts(column, [1.99, 3.1, 1.0]) == ["1.99", "3.10", "1.00"]
    assert column_texts(column, [0.02743, 1.5]) == ["0.0274", "1.5000"]
    assert column_texts(column, [447.31, 0.39]) == ["447.31", "0.39"]
    assert column_texts(column, [12345.678, None, float("inf")]) == ["12346", "-", "inf"]
    assert column_texts(column, [1e-9, 2.5]) == ["1e-09", "2.5"]
    assert number(0.0, 1) == "0.0"
    assert column_texts(Column("mixed"), [128.7467, 0.5, 3, "x"]) == ["128.7467", "0.5", "3", "x"]


def test_cells_of_every_sort():
    """None is a dash, truth is a word, lists and dicts are one line."""
    assert [cell(v) for v in (None, "", True, False, 7, "x", [3, 31], ["a", "b"], [], {"a": 1})] == [
        "-", "-", "yes", "no", "7", "x", "[3, 31]", "a, b", "-", "a=1",
    ]  # fmt: skip
    assert cell("two\nlines\tand") == "two\\nlines\\tand"


def test_sparkline():
    """One character a value; gaps are blanks, nan is marked, equal values stand in the middle; ASCII where needed."""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, None, 7]) == "▁ █"
    assert sparkline([1, float("nan"), 2])[1] == "!"
    assert sparkline([2, 2, 2]) == "▅▅▅"
    assert sparkline([]) == "-"
    drawn = sparkline([0, 1, 2, 3, 4, 5, 6, 7], unicode=False)
    assert drawn == ASCII_BLOCKS
    assert drawn.isascii()


@pytest.mark.parametrize(
    ("accounting", "words"),
    [
        (Accounting(), "Read 0 records in 0 lines (0 bytes); 0 other lines."),
        (Accounting(bytes=999, lines=1, whole=1), "Read 1 record in 1 line (999 bytes): whole; 0 other lines."),
        (
            Accounting(bytes=1_500_000, lines=12_000, whole=9_990, partial=1, rejoined=2, cut=3, unparsed=4, other_lines=5, glued=6, quoted=7, invalid_utf8_bytes=8),
            "Read 10,000 records in 12,000 lines (1.5 MB): 9,990 whole, 1 partial, 2 rejoined, 3 cut, 4 not understood; 5 other lines; 6 records glued to other text; 7 quoted and not counted; 8 bytes not UTF-8.",
        ),
    ],
)  # fmt: skip
def test_accounting_in_words(accounting, words):
    """What became of every byte is one sentence, and its numbers add up to the records."""
    assert accounting_words(accounting) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1, "1 byte"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (4_200_000_000, "4.2 GB")],
)
def test_sizes(count, words):
    """Bytes in powers of ten, never ``1000.0 kB``."""
    assert size(count) == words


def test_message_has_five_slots_and_the_caret_stays_under_its_place():
    """Escapes make the line longer; the caret moves with it."""
    where = Where("g.toml", 3, 7, 'a = "\x1bb\x1b"', 2)
    message = Message("what\nmore", where, "why", "note", "do this\nthen that")
    got = message_lines(message, "error")
    assert got == [
        "error: what",
        "  more",
        " --> g.toml:3:7",
        '  | a = "\\x1bb\\x1b"',
        "  |          ^^^^^",
        "  why: why",
        "  note: note",
        "  help: do this",
        "        then that",
    ]
    caret, shown = got[4].index("^"), got[3]
    assert shown[caret : caret + 5] == "b\\x1b"


def test_a_coloured_message_says_the_same():
    """Colours add nothing but colours to an error."""
    message = Message("what", Where("f", 1, 1, "text"), help="do: this")
    plain = text_message(message, "error")
    assert re.sub(r"\x1b\[[\d;]*m", "", text_message(message, "error", Style(color=True))) == plain


def test_wrap_keeps_every_character():
    """Folding loses nothing but blanks at the folds, and makes no line too wide."""
    text = "tests/data/real/healthy-topk1/server.log.gz:1234567 and 日本語日本語日本語 " + "x" * 50
    for width in (1, 2, 5, 10, 24, 80):
        folded = wrap(text, width)
        assert "".join(folded).replace(" ", "") == text.replace(" ", "")
        assert all(cells(line) <= max(width, 2) for line in folded)


def test_suffix_names_the_form():
    """-o x.html is HTML; an unknown suffix is refused with the known ones."""
    assert [format_of(PurePath(f"a/b.{s}")) for s in ("html", "JSON", "ndjson", "csv", "md", "txt")] == [
        "html",
        "json",
        "ndjson",
        "csv",
        "md",
        "table",
    ]
    with pytest.raises(UsageError) as error:
        format_of(PurePath("x.xlsx"))
    assert ".csv" in error.value.message.help


def test_unknown_form_gets_the_nearest():
    """A mistyped form is refused with the nearest name."""
    with pytest.raises(UsageError) as error:
        render(report(), "jsn")
    assert error.value.message.help == "did you mean 'json'?"


def test_layout_lines_are_the_cells():
    """The lines of an unfitted table are its headings and its rows."""
    columns = prepare(table())
    got = list(lines(columns))
    assert [heading for heading, _ in got] == [True, False, False, False]
    assert got[1][1].startswith("layer_capture      3      0.0274  4 rows x 7168 hidden")


def test_charts_of_a_page_mark_findings_and_do_not_dramatise_noise():
    """A finding stands at its line, and at the pass printed there; accept len is drawn from 1 to its maximum."""
    pytest.importorskip("altair")
    run = load(str(real_log("fault-stale-states")))
    found = run.check().findings
    charts = {name: drawn for name, _, drawn in of_page(run.ask(Charts()), run.accept(), found)}
    marks = {
        (name, row["rule"], row["at"])
        for name, drawn in charts.items()
        for layer in drawn.get("layer", ())
        for row in layer.get("data", {}).get("values", ())
        if "at" in row
    }
    (fault,) = (one for one in found if one.rule == "A101")
    assert [at for name, rule, at in marks if (name, rule) == ("accept", "A101")] == [fault.where.line]
    (at,) = (at for name, rule, at in marks if (name, rule) == ("norms", "A101"))
    before = run.events.filter(pl.col("line") <= fault.where.line)["pass"].max()
    assert before <= at <= before + 4  # a point stands for a few passes
    text = json.dumps(charts["accept"])
    assert '"domain": [1.0, 4]' in text
