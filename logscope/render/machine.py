"""A report for programs: JSON, one JSON object a line, CSV, GitHub annotations.

This module is responsible for the forms other people's scripts read. They are plain ASCII where the format can say
everything in ASCII, so that no terminal, locale or spreadsheet changes or obeys what a log contained. It must not
know what a report means.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from logscope.errors import UsageError, did_you_mean
from logscope.render.text import slots, visible
from logscope.report import Column, Table, plain

if TYPE_CHECKING:
    from logscope.report import Report

FINDINGS = "findings"
# What a spreadsheet takes for the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMERIC = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def dumps(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON in ASCII; DEL, the one control character JSON lets through, is escaped too."""
    return json.dumps(value, indent=indent, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def to_json(report: Report) -> str:
    """Return the fixed JSON form (design of the report: schema, kind, verdict, headline, findings, tables, ...)."""
    return dumps(report.as_dict(), indent=2) + "\n"


def to_ndjson(report: Report) -> str:
    """Return one JSON object a line, each with its ``table``.

    The first is ``report`` (schema, kind, verdict, headline, facts, accounting), then one for each finding, then one
    for each row of each table.
    """
    whole = report.as_dict()
    findings, tables = whole.pop("findings"), whole.pop("tables")
    lines = [{"table": "report", **whole}]
    lines += [{"table": FINDINGS, **finding} for finding in findings]
    lines += [{"table": name, **row} for name, rows in tables.items() if name != FINDINGS for row in rows]
    return "".join(dumps(line) + "\n" for line in lines)


def findings_table(report: Report) -> Table:
    """Return the findings as a table, with file and line in columns of their own."""
    names = ("rule", "severity", "message", "file", "line", "expected", "actual", "evidence", "help")
    rows = []
    for finding in report.findings:
        row = finding.as_dict()
        where = row.pop("where") or {}
        rows.append({**row, "file": where.get("file"), "line": where.get("line")})
    return Table([Column(name) for name in names], rows)


def pick_table(report: Report, name: str | None) -> Table:
    """Return the table called ``name``; without a name the only one, else the first (findings, where there are some).

    Raises :class:`UsageError` when there is no such table.
    """
    known = table_names(report)
    if name is None:
        name = known[0]
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"no table '{name}' in {report.kind}", help=near or f"its tables are: {', '.join(known)}")
    return findings_table(report) if name == FINDINGS else report.tables[name]


def table_names(report: Report) -> list[str]:
    """Return the names ``--table`` takes, the one that is written without it first."""
    others = [name for name in report.tables if name != FINDINGS]
    return [FINDINGS, *others] if report.findings or not others else [*others, FINDINGS]


def to_csv(report: Report, table: str | None = None) -> str:
    """Return one table as CSV (RFC 4180, but one row always is one line: line ends in a text are escaped)."""
    chosen = pick_table(report, table)
    names = [column.name for column in chosen.columns]
    lines: list[list[Any]] = [names, *([row.get(name) for name in names] for row in chosen.rows)]
    return "".join(",".join(csv_cell(value) for value in line) + "\r\n" for line in lines)


def csv_cell(value: Any) -> str:
    """Return one CSV cell: numbers as they are, nothing for None, lists and dicts as JSON.

    A text that a spreadsheet would run as a formula gets an apostrophe before it, unless it is a number.
    """
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = value if isinstance(value, str) else dumps(value)
    # A lone hyphen is no formula, but the name of standard input.
    if text.startswith(_FORMULA) and text != "-" and not _NUMERIC.fullmatch(text):
        text = "'" + text
    text = visible(text)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in '",') else text


def to_github(report: Report) -> str:
    """Return workflow commands: one annotation a finding, else the headline as a notice."""
    lines = []
    for finding in report.findings:
        where = finding.where
        properties = {} if where is None else {"file": where.file, "line": str(where.line)}
        properties["title"] = f"logscope {finding.rule}"
        parts = [finding.message, *(f"{slot}: {text}" for slot, text in slots(finding))]
        lines.append(_annotation(_LEVELS[finding.severity], properties, parts))
    if not lines:
        lines.append(_annotation("notice", {"title": f"logscope {report.kind}"}, [report.headline]))
    return "".join(line + "\n" for line in lines)


def _annotation(level: str, properties: dict[str, str], parts: list[str]) -> str:
    """Return ``::level key=value,...::message``; the runner undoes the escapes (%, CR, LF; in keys also : and ,)."""
    keys = ",".join(
        f"{name}={_data(visible(value)).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{level} {keys}::{_data(chr(10).join(visible(part) for part in parts))}"


def _data(text: str) -> str:
    """Escape what would end or change a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
