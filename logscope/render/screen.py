"""The first screen: a report's sentences, lines and tables on 24 lines, marks and colours by what they say.

This module is responsible for setting :attr:`logscope.report.Report.screen` to a width, and for cutting what is too
much in a fixed order, saying how much that was. It must not know any question, nor rich: a line is a list of spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from logscope.render import layout
from logscope.render.text import cell, cells, sparkline, visible
from logscope.report import Line, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.render.text import Style
    from logscope.report import Chart, Report

# A text and the style rich sets it in.
Span: TypeAlias = tuple[str, str]
HEIGHT = 24
# Of a table, or of a list of lines, at least so many stay when room is short.
FEWEST = 2
MARKS = {"error": ("✗", "x"), "warning": ("!", "!"), "ok": ("✓", "ok"), "unknown": ("?", "?"), None: (" ", " ")}
COLORS = {"error": "bold red", "warning": "bold yellow", "ok": "green", "unknown": "cyan", None: ""}
# Names longer than this do not push the texts of all other lines to the right.
WIDEST_NAME = 28


@dataclass(slots=True, eq=False)
class _Block:
    """One item of a screen, set: lines that stay, and groups (rows, evidence) of which ``cut`` are left out."""

    item: str | Line | Table
    head: list[list[Span]]
    rest: list[list[list[Span]]]
    cut: int = 0

    def lines(self) -> list[list[Span]]:
        """Return what is left of it."""
        kept = [line for group in self.rest[: len(self.rest) - self.cut] for line in group]
        more = self.cut and isinstance(self.item, Table)
        return [*self.head, *kept, *[[(f"  and {self.cut:,} more: -v", "dim")]] * bool(more)]

    def shorten(self, over: Callable[[], int], least: int) -> None:
        """Leave groups out, the last first, until nothing is over or so few are left."""
        while over() > 0 and len(self.rest) - self.cut > least:
            self.cut += 1


def screen_lines(report: Report, style: Style) -> list[list[Span]]:
    """Return the lines of a report's first screen; with ``style.verbose`` nothing is cut."""
    names = [cells(visible(item.name)) for item in report.screen if isinstance(item, Line) and item.text]
    name = max((width for width in names if width <= WIDEST_NAME), default=0)
    blocks = [_block(item, style, name) for item in report.screen]
    foot = _foot(report, style)
    # A command too long for the window is not folded: it is to be copied.
    taken = sum(max(1, -(-sum(cells(text) for text, _ in line) // (style.width or 10_000))) for line in foot)
    gone = 0 if style.verbose else _fit(blocks, HEIGHT - taken)
    out = []
    last = max((at for at, block in enumerate(blocks) if isinstance(block.item, Line)), default=-1)
    for at, block in enumerate(blocks):
        out += block.lines()
        if gone and at == last:
            out.append([(f"  and {gone:,} more: -v", "dim")])
    return out + foot


def _foot(report: Report, style: Style) -> list[list[Span]]:
    """Return what ends the screen: the next command, and where the rest is."""
    rest = "all tables: -v" if report.tables and not style.verbose else ""
    if report.next is None:
        return [[], [(rest, "dim")]] if rest else []
    command = f"next: {visible(report.next)}"
    if style.width is not None and cells(command) + 5 + len(rest) > style.width:
        return [[], [(command, "bold")], *([[(rest, "dim")]] if rest else [])]
    return [[], [(command, "bold"), (f"     {rest}" if rest else "", "dim")]]


def _fit(blocks: list[_Block], room: int) -> int:
    """Cut until all fits: evidence of the last lines, rows of tables, the last lines; return how many these are."""

    def over() -> int:
        return sum(len(block.lines()) for block in blocks) - room

    lines = [block for block in blocks if isinstance(block.item, Line)]
    tables = [block for block in blocks if isinstance(block.item, Table)]
    for block in reversed(lines[1:]):
        block.shorten(over, 0)
    for block in reversed(tables):
        block.shorten(over, FEWEST)
    for block in lines[:1]:
        block.shorten(over, 0)
    gone = 0
    # What is fine goes before what is not.
    lines.reverse()
    for block in sorted(lines, key=lambda block: getattr(block.item, "mark", None) in ("error", "warning")):
        if over() + (gone > 0) > 0 and gone < len(lines) - FEWEST:
            block.cut, block.head = len(block.rest), []
            gone += 1
    return gone


def _block(item: str | Line | Table, style: Style, name: int) -> _Block:
    """Set one item."""
    if isinstance(item, str):
        return _Block(item, [[(text, "")] for text in _folded(visible(item), style.width)], [])
    if isinstance(item, Table):
        columns = layout.prepare(item, style)
        layout.fit(columns, style.width)
        heading, *rows = layout.rows(columns)
        return _Block(
            item, [[(line, "bold cyan")] for line in heading], [[[(line, "")] for line in row] for row in rows]
        )
    return _Block(item, _head(item, style, name), [[line] for line in _below(item.below, style)])


def _head(line: Line, style: Style, name: int) -> list[list[Span]]:
    """Return the line itself: mark, name, text, chart; folded under its text."""
    mark = MARKS[line.mark][0 if style.unicode else 1].ljust(1 if style.unicode else 2)
    color = COLORS[line.mark]
    title, text = visible(line.name), visible(line.text)
    if not text and line.chart is None:
        first, *more = _folded(title, _less(style.width, len(mark) + 1))
        return [[(f"{mark} {first}", color)], *([(" " * (len(mark) + 1) + each, color)] for each in more)]
    start = len(mark) + 1 + max(name, cells(title)) + 3
    lead: list[Span] = [(f"{mark} {layout.pad(title, start - len(mark) - 4, right=False)}   ", color)]
    first, *more = _folded(text, _less(style.width, start))
    out = [[*lead, (first, "")], *([(" " * start + each, "")] for each in more)]
    if line.chart is not None:
        chart = _chart(line.chart, style)
        taken = start + (cells(first) + 3 if first else 0)
        if style.width is None or taken + cells(chart) <= style.width:
            out[0].append((("   " if first else "") + chart, color))
        else:
            out.append([(" " * (len(mark) + 1) + chart, color)])
    return out


def _chart(chart: Chart, style: Style) -> str:
    """Return a chart as text, its worst stretch in brackets."""
    drawn = sparkline(chart.values, style.unicode, chart.low, chart.high)
    if chart.worst is None:
        return drawn
    start, stop = chart.worst
    return f"{drawn[:start]}[{drawn[start:stop]}]{drawn[stop:]}"


def _below(below: Sequence[str | tuple[Any, ...]], style: Style) -> Iterator[list[Span]]:
    """Yield what stands below a line: sentences, and rows of cells; those that follow each other are aligned."""
    indent = 2 if style.unicode else 3
    group: list[list[str]] = []
    for item in [*below, ""]:
        if isinstance(item, tuple):
            group.append([cell(value) if value != "" else "" for value in item])
            continue
        widths = [
            max(cells(row[at]) for row in group if at < len(row)) for at in range(max(map(len, group), default=0))
        ]
        for row in group:
            padded = [layout.pad(text, width, right=False) for text, width in zip(row, widths, strict=False)]
            yield [(_cut(" " * (indent + 2) + "  ".join(padded).rstrip(), style.width), "")]
        group = []
        if item:
            for text in _folded(visible(item), _less(style.width, indent)):
                yield [(" " * indent + text, "")]


def _less(width: int | None, taken: int) -> int | None:
    """Return what is left of a width."""
    return None if width is None else max(10, width - taken)


def _folded(text: str, width: int | None) -> list[str]:
    """Return a text as lines of a width."""
    return [text] if width is None else layout.wrap(text, width)


def _cut(text: str, width: int | None) -> str:
    """Return a line of evidence without what a window has no room for."""
    if width is None or cells(text) <= width:
        return text
    kept = text[: width - 3]
    while cells(kept) > width - 3:
        kept = kept[:-1]
    return kept + "..."
