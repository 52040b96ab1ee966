"""A report for the eye: headline, findings, notes, tables, what was read.

This module is responsible for the text that a terminal or a pipe gets. With a window it sets tables to its width,
through rich; into a pipe it writes one row a line, two blanks between cells and nothing else, so that grep, awk and
diff can work on it. It must not know what any table means.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from logscope.render import layout
from logscope.render.machine import pick_table
from logscope.render.screen import screen_lines
from logscope.render.text import (
    PLAIN,
    Style,
    accounting_words,
    body_tables,
    cell,
    message_lines,
    place,
    slots,
    table_title,
    visible,
)
from logscope.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType
    from rich.text import Text

    from logscope.errors import Message
    from logscope.render.screen import Span
    from logscope.report import Table

COLORS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "bug": "bold magenta"}
# The indent of a line that is not to be folded any more.
_SET = -1
HEADLINES = {"ok": "bold green", "findings": "bold red", "unknown": "bold yellow"}


def text_report(report: Report, style: Style = PLAIN, table: str | None = None) -> str:
    """Return a report, or the one table of it that is asked for, as text in the given style.

    Raises :class:`UsageError` for a table there is not.
    """
    if table is not None:
        report = Report(report.kind, "", tables={table: pick_table(report, table)})
    if style.width is None and not style.color:
        return plain_report(report, style)
    # A pipe that wants colours has no window: nothing may be folded there, so the page is as wide as its widest line.
    console = _console(style)
    console.print(rich_report(report, style), soft_wrap=True)
    return _text(console)


def text_message(message: Message, kind: str, style: Style = PLAIN) -> str:
    """Return a message of five slots, its leading word coloured where colours are wanted."""
    first, *rest = message_lines(message, kind)
    if not style.color:
        return "\n".join([first, *rest]) + "\n"
    from rich.text import Text  # noqa: PLC0415 - plain text must not pay for rich

    console = _console(style)
    console.print(Text.assemble((f"{kind}:", COLORS[kind]), (first[len(kind) + 1 :], "bold")), soft_wrap=True)
    for line in rest:
        slot, colon, text = line.partition(":")
        known = bool(colon) and slot.strip() in ("why", "note", "help")
        parts = ((slot + ":", "cyan"), text) if known else ((line, "dim" if line.startswith(" -->") else ""),)
        console.print(Text.assemble(*parts), soft_wrap=True)
    return _text(console)


def plain_report(report: Report, style: Style = PLAIN) -> str:
    """Return a report as plain text, each finding, note and row on a line of its own."""
    lines = [
        " " * max(0, indent) + "".join(text for text, _ in spans) for spans, indent in _parts(report, style, plain=True)
    ]
    return "".join(line.rstrip() + "\n" for line in lines)


def rich_report(report: Report, style: Style | None = None) -> RenderableType:
    """Return a report as something rich can print; without a style it is set to the console that prints it."""
    return _Shown(report, style)


class _Shown:
    """A report that lays itself out when a console prints it, since only then is the width known."""

    def __init__(self, report: Report, style: Style | None) -> None:
        self.report = report
        self.style = style

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        """Yield the lines of the report, each as wide as it is."""
        style = self.style or Style(width=options.max_width, color=True, unicode=not options.ascii_only)
        from rich.text import Text  # noqa: PLC0415 - plain text must not pay for rich

        for spans, indent in _parts(self.report, style):
            # A screen is set already.
            width = None if indent == _SET else style.width
            yield from _folded(Text.assemble(*spans), max(0, indent), console, width)


def _folded(text: Text, indent: int, console: Console, width: int | None) -> Iterator[Text]:
    """Yield a text as lines of a width, folded at blanks, without blanks at their ends."""
    for line in [text] if width is None else text.wrap(console, max(1, width - indent)):
        line.rstrip()
        line.pad_left(indent)
        line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
        yield line


def _parts(report: Report, style: Style, *, plain: bool = False) -> Iterator[tuple[list[Span], int]]:
    """Yield the parts of a report, top to bottom, each with its indent."""
    empty: tuple[list[Span], int] = [], 0
    screen = bool(report.screen) and not style.quiet
    if screen:
        yield from ((spans, _SET) for spans in screen_lines(report, style))
    elif report.headline:
        yield [(visible(report.headline), HEADLINES[report.verdict])], 0
    if screen and not style.verbose:
        return
    for finding in report.findings:
        yield empty
        where = place(finding.where)
        kind = f"{finding.severity} {visible(finding.rule)}", COLORS[finding.severity]
        yield [(f"{where}: " if where else "", "bold"), kind, (f": {visible(finding.message)}", "")], 0
        for slot, text in slots(finding):
            yield [(f"{slot}: ", "cyan"), (visible(text), "")], 2
    if style.quiet:
        return
    if report.notes:
        yield empty
        for note in report.notes:
            yield [("note: ", "cyan"), (visible(note), "")], 0
    for name, table in body_tables(report).items():
        if report.headline or len(report.tables) > 1:
            yield empty
        yield from _plain_table(name, table, style) if plain else _table_parts(name, table, style)
    if style.verbose and report.facts:
        yield empty
        yield [("facts", "bold")], 0
        for key, value in report.facts.items():
            yield [(f"{visible(key)}: ", "cyan"), (cell(value), "")], 2
    if report.accounting.lines:
        yield empty
        yield [(accounting_words(report.accounting), "dim")], 0


def _plain_table(name: str, table: Table, style: Style) -> Iterator[tuple[list[Span], int]]:
    """Yield a table as lines that grep, awk and diff can work on: title, caption, headings, rows."""
    title = visible(table_title(name, table))
    yield [(f"{title}: {visible(table.caption)}" if table.caption else title, "")], 0
    rows = [line for _, line in layout.lines(layout.prepare(table, style))] if table.rows else ["(no rows)"]
    yield from (([(line, "")], 2) for line in rows)


def _table_parts(name: str, table: Table, style: Style) -> Iterator[tuple[list[Span], int]]:
    """Yield title, caption and body of a table, and what the window had no room for."""
    title = visible(table_title(name, table))
    yield [(title, "bold"), (f"  {visible(table.caption)}" if table.caption else "", "dim")], 0
    if not table.rows:
        yield [("(no rows)", "dim")], 2
        return
    columns = layout.prepare(table, style)
    dropped = layout.fit(columns, style.width)
    ruled = False
    for heading, line in layout.lines(columns):
        if not heading and not ruled:
            # The rule under the headings is the one line that is drawn; where the encoding lacks it, hyphens do.
            yield [(("─" if style.unicode else "-") * layout.total(columns), "dim")], 0
            ruled = True
        yield [(line, "bold cyan" if heading else "")], 0
    if dropped:
        yield [(f"not shown for want of room: {', '.join(dropped)}", "dim italic")], 0


def _console(style: Style) -> Console:
    """Return a console that writes into memory, in this style."""
    from rich.console import Console  # noqa: PLC0415 - plain text must not pay for rich

    return Console(
        file=io.StringIO(),
        width=style.width or 10_000,
        height=100,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        no_color=not style.color,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        force_jupyter=False,
        _environ={},
    )


def _text(console: Console) -> str:
    """Return what a console wrote."""
    file = console.file
    assert isinstance(file, io.StringIO)  # noqa: S101 - made so in _console; narrows the type
    return file.getvalue()
