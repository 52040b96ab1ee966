"""A report as GitHub-flavoured Markdown, to be pasted into an issue.

This module is responsible for text that stays text there: no marks, links, mentions or HTML of a log come alive. It
must not know what a report means.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logscope.render import layout
from logscope.render.text import accounting_words, body_tables, cell, place, slots, table_title, visible

if TYPE_CHECKING:
    from logscope.report import Report, Table

_SPECIAL = re.compile(r"([\\`*\[\]|~])")
# An underscore inside a word is no emphasis; event names would be hard to read with escapes.
_UNDERSCORE = re.compile(r"(?<!\w)_|_(?!\w)")
# A zero-width joiner would do as well, but we promise to print none: entities keep @name, #1 and links as text.
_LIVE = re.compile(r"(?<!\w)([@#])(?=\w)|(?<=[A-Za-z])(://)|\b(www)\.", re.IGNORECASE)


def escape(text: str) -> str:
    """Return safe text that Markdown shows as it is."""
    text = visible(text).replace("&", "&amp;")
    text = _SPECIAL.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")
    text = _UNDERSCORE.sub(r"\\_", text)
    return _LIVE.sub(_sleep, text)


def _sleep(found: re.Match[str]) -> str:
    """Write the mark that would start a mention, a reference or a link as an entity."""
    if found[1]:
        return f"&#{ord(found[1])};"
    return "&#58;//" if found[2] else f"{found[3]}&#46;"


def to_markdown(report: Report) -> str:
    """Return the whole report as Markdown."""
    out = [f"## {escape(report.kind)}: {escape(report.headline)}", ""]
    for finding in report.findings:
        where = f" ({escape(place(finding.where))})" if finding.where is not None else ""
        out.append(f"- **{finding.severity} {escape(finding.rule)}**{where}: {escape(finding.message)}")
        out += [f"  - {slot}: {escape(text)}" for slot, text in slots(finding)]
    if report.findings:
        out.append("")
    if report.notes:
        out += [*(f"- note: {escape(note)}" for note in report.notes), ""]
    for name, table in body_tables(report).items():
        out += _table(name, table)
    if report.facts:
        out += ["### facts", ""]
        out += [f"- {escape(name)}: {escape(cell(value))}" for name, value in report.facts.items()]
        out.append("")
    if report.accounting.lines:
        out.append(escape(accounting_words(report.accounting)))
    return "\n".join(out) + "\n"


def _table(name: str, table: Table) -> list[str]:
    """Return a table under its heading."""
    out = [f"### {escape(table_title(name, table))}", ""]
    if table.caption:
        out += [escape(table.caption), ""]
    if not table.rows:
        return [*out, "(no rows)", ""]
    columns = layout.prepare(table)
    out.append("| " + " | ".join(escape(column.heading) for column in columns) + " |")
    out.append("| " + " | ".join("---:" if column.right else "---" for column in columns) + " |")
    out += [
        "| " + " | ".join(escape(text) for text in row) + " |"
        for row in zip(*(column.texts for column in columns), strict=True)
    ]
    return [*out, ""]
