"""The first screen of a report: 24 lines, the verdict and what is wrong to the last."""

import pytest

from logscope.model import Accounting, Place
from logscope.render import render
from logscope.render.text import Style
from logscope.report import Chart, Column, Context, Line, Report, Table

WINDOW = Style(width=80)


def lines(report: Report, style: Style = WINDOW, table: str | None = None) -> list[str]:
    return render(report, "table", style, table).rstrip("\n").split("\n")


def made(*items: str | Line | Table) -> Report:
    rows = [{"phase": f"phase-{number}", "passes": number} for number in range(40)]
    table = Table([Column("phase"), Column("passes", align="right")], rows)
    report = Report("check", "the headline", "findings", tables={"phases": table}, accounting=Accounting(lines=9))
    report.screen = list(items)
    report.next = "logscope check server.log"
    return report


def test_marks_names_texts_and_evidence_stand_in_columns():
    report = made(
        "server.log   12 lines",
        "",
        Line("error", "N106 draft-input", ":73", ["a state", (":72", "joined", 128.7467), (":173", "input", 1.5)]),
        Line("ok", "values", "all finite"),
        Line("warning", "accept len", "1.04 of 4", chart=Chart([1.0, 4.0, None, 1.0], low=1, high=4, worst=(2, 4))),
        Line("unknown", "ranks", "not marked"),
    )
    assert lines(report) == [
        "server.log   12 lines",
        "",
        "✗ N106 draft-input   :73",
        "  a state",
        "    :72   joined  128.7467",
        "    :173  input   1.5",
        "✓ values             all finite",
        "! accept len         1.04 of 4   ▁█[ ▁]",
        "? ranks              not marked",
        "",
        "next: logscope check server.log     all tables: -v",
    ]
    ascii_lines = lines(report, Style(width=80, unicode=False))
    assert [line[:2] for line in ascii_lines if line[:2].strip() in ("x", "!", "ok", "?")] == ["x ", "ok", "! ", "? "]
    assert all(line.isascii() for line in ascii_lines)


def test_a_screen_has_at_most_24_lines_and_says_what_it_leaves_out():
    found = [Line("error", f"N10{number}", f":{number}", [(":1", "a"), (":2", "b")]) for number in range(40)]
    shown = lines(made("head", *found, "40 errors"))
    assert len(shown) == 24
    assert shown[1] == "✗ N100    :0"
    assert shown[-4:] == ["  and 21 more: -v", "40 errors", "", "next: logscope check server.log     all tables: -v"]
    whole = lines(made("head", *found, "40 errors"), Style(width=80, verbose=True))
    assert sum(line.startswith("✗") for line in whole) == 40
    rows = [{"name": f"server-{number}"} for number in range(50)]
    shown = lines(made("head", found[0], Table([Column("name", "")], rows)))
    assert len(shown) == 24
    assert shown[-3] == f"  and {50 - sum(line.startswith('server-') for line in shown)} more: -v"


def test_what_is_long_folds_under_its_text():
    shown = lines(made(Line("error", "draft reads", "word " * 40), "sentence " * 20))
    assert all(len(line) <= 80 for line in shown)
    assert shown[1].startswith(" " * len("✗ draft reads   ") + "word")


def test_the_rest_stands_behind_v_a_table_behind_its_name_and_q_is_the_headline():
    report = made(Line("ok", "values", "all finite"))
    report.notes = ["a note"]
    assert not any("phase-3" in line or "a note" in line for line in lines(report))
    whole = lines(report, Style(verbose=True))
    assert whole[0] == "✓ values   all finite"
    assert "note: a note" in whole
    assert "  phase-39      39" in whole
    assert lines(report, Style(quiet=True)) == ["the headline"]
    assert lines(report, Style(), "phases")[:2] == ["phases", "  phase     passes"]


@pytest.mark.parametrize("files", [[], ["-"], ["no/such/file.log"]])
def test_no_command_is_suggested_for_what_cannot_be_read_again(files):
    assert Context(files).command("check") is None


def test_the_next_command_names_the_logs_and_a_place_only_what_differs(tmp_path):
    paths = [tmp_path / f"a {number}.log" for number in range(5)]
    for path in paths:
        path.touch()
    names = [str(path) for path in paths]
    assert Context(names[:1]).command("check") == f"logscope check '{names[0]}'"
    assert Context(names).command("check") == f"logscope check {tmp_path}"
    assert Context(names[:1]).at(Place(names[0], 1234)) == ":1234"
    assert Context(names).at(Place(names[0], 7)) == f"{names[0]}:7"
