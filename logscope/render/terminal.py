"""A report for the eye: headline, findings, notes, tables, what was read.

This module is responsible for the text that a terminal or a pipe gets. With a window it sets tables to its width,
through rich; into a pipe it writes one row a line, two blanks between cells and nothing else, so that grep, awk and
diff can work on it. It must not know what any table means.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from logscope.render import layout
from logscope.render.text import PLAIN, Style, accounting_words, body_tables, cell, message_lines, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from logscope.errors import Message
    from logscope.model import Finding
    from logscope.report import Report, Table

SLOTS = ("expected", "actual", "evidence", "help")
COLORS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "bug": "bold magenta"}
WHOLE: Any = {"no_wrap": True, "overflow": "ignore", "end": "\n"}
HEADLINES = {"ok": "bold green", "findings": "bold red", "unknown": "bold yellow"}


def text_report(report: Report, style: Style = PLAIN) -> str:
    """Return a report as text in the given style."""
    if style.width is None and not style.color:
        return plain_report(report, style)
    # A pipe that wants colours has no window: nothing may be folded there, so the page is as wide as its widest line.
    console = _console(style)
    console.print(rich_report(report, style))
    # rich fills lines up to the width of a column; blanks at a line's end help nobody.
    return "\n".join(line.rstrip() for line in _text(console).split("\n"))


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
    lines = [visible(report.headline)]
    for finding in report.findings:
        lines += ["", *finding_lines(finding)]
    if not style.quiet:
        if report.notes:
            lines += ["", *(f"note: {visible(note)}" for note in report.notes)]
        for name, table in body_tables(report).items():
            lines += ["", *plain_table(name, table, style)]
        if style.verbose and report.facts:
            lines += ["", "facts", *(f"  {visible(name)}: {cell(value)}" for name, value in report.facts.items())]
        if report.accounting.lines:
            lines += ["", accounting_words(report.accounting)]
    return "\n".join(lines) + "\n"


def finding_lines(finding: Finding) -> list[str]:
    """Return a finding: ``file:line: severity CODE: message``, then its slots."""
    lead = f"{place(finding.where)}: " if finding.where is not None else ""
    out = [f"{lead}{finding.severity} {visible(finding.rule)}: {visible(finding.message)}"]
    for slot in SLOTS:
        text = getattr(finding, slot)
        if text:
            out.append(f"  {slot}: {visible(text)}")
    return out


def plain_table(name: str, table: Table, style: Style = PLAIN) -> list[str]:
    """Return a table as lines: title, caption, headings, rows."""
    lines = [_title(name, table)]
    if not table.rows:
        return [*lines, "  (no rows)"]
    return [*lines, *(f"  {line}" for _, line in layout.lines(layout.prepare(table, style)))]


def _title(name: str, table: Table) -> str:
    """Return the line above a table: its name (what ``--table`` takes), title and caption."""
    title = visible(table.title or name.replace("_", " "))
    return f"{title}: {visible(table.caption)}" if table.caption else title


def rich_report(report: Report, style: Style | None = None) -> RenderableType:
    """Return a report as something rich can print; without a style it is set to the console that prints it."""
    return _Shown(report, style)


class _Shown:
    """A report that lays itself out when a console prints it, since only then is the width known."""

    def __init__(self, report: Report, style: Style | None) -> None:
        self.report = report
        self.style = style

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        style = self.style or Style(width=options.max_width, color=True, unicode=not options.ascii_only)
        yield from _parts(self.report, style)


def _parts(report: Report, style: Style) -> Iterator[RenderableType]:
    """Yield the parts of a report, top to bottom."""
    from rich.padding import Padding  # noqa: PLC0415 - plain text must not pay for rich
    from rich.text import Text  # noqa: PLC0415

    wide: Any = {"overflow": "fold", "no_wrap": style.width is None}
    yield Text(visible(report.headline), style=HEADLINES[report.verdict], **wide)
    for finding in report.findings:
        yield Text("")
        where = place(finding.where)
        yield Text.assemble(
            (f"{where}: " if where else "", "bold"),
            (f"{finding.severity} {visible(finding.rule)}", COLORS[finding.severity]),
            f": {visible(finding.message)}",
            **wide,
        )
        for slot in SLOTS:
            text = getattr(finding, slot)
            if text:
                yield Padding(Text.assemble((f"{slot}: ", "cyan"), visible(text), **wide), (0, 0, 0, 2))
    if style.quiet:
        return
    if report.notes:
        yield Text("")
        for note in report.notes:
            yield Text.assemble(("note: ", "cyan"), visible(note), **wide)
    for name, table in body_tables(report).items():
        yield Text("")
        yield from _table_parts(name, table, style)
    if style.verbose and report.facts:
        yield Text("\nfacts", style="bold")
        for key, value in report.facts.items():
            yield Padding(Text.assemble((f"{visible(key)}: ", "cyan"), cell(value), **wide), (0, 0, 0, 2))
    if report.accounting.lines:
        yield Text("\n" + accounting_words(report.accounting), style="dim", **wide)


def _table_parts(name: str, table: Table, style: Style) -> Iterator[RenderableType]:
    """Yield title, caption and body of a table, and what the window had no room for."""
    from rich.text import Text  # noqa: PLC0415 - plain text must not pay for rich

    title = visible(table.title or name.replace("_", " "))
    caption = f"  {visible(table.caption)}" if table.caption else ""
    yield Text.assemble((title, "bold"), (caption, "dim"), no_wrap=style.width is None)
    if not table.rows:
        yield Text("  (no rows)", style="dim")
        return
    columns = layout.prepare(table, style)
    dropped = layout.fit(columns, style.width)
    ruled = False
    for heading, line in layout.lines(columns):
        if not heading and not ruled:
            # The rule under the headings is the one line that is drawn; where the encoding lacks it, hyphens do.
            yield Text(("─" if style.unicode else "-") * layout.total(columns), style="dim", **WHOLE)
            ruled = True
        yield Text(line, style="bold cyan" if heading else "", **WHOLE)
    if dropped:
        yield Text(f"not shown for want of room: {', '.join(dropped)}", style="dim italic")


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
