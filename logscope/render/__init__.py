"""From a report to text: terminal, JSON, one JSON object a line, CSV, Markdown, HTML, GitHub annotations.

This package is responsible for every form a report takes outside the program, and is the only one that imports rich
(in functions, since a pipe needs none of it). It must not know where a report comes from, nor decide where it goes.
To add a form: write ``to_NAME(report) -> str`` in a module here and enter it in :func:`render`, FORMATS and SUFFIXES.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logscope.errors import UsageError, did_you_mean
from logscope.render.text import PLAIN, Style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import PurePath

    from logscope.report import Report

__all__ = ["FORMATS", "PLAIN", "SUFFIXES", "Style", "format_of", "known_format", "render"]

FORMATS = ("table", "json", "ndjson", "csv", "md", "html", "github")
SUFFIXES = {
    ".txt": "table",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".md": "md",
    ".html": "html",
    ".htm": "html",
}


def known_format(name: str, known: Sequence[str] = FORMATS) -> str:
    """Return the name of a format, or raise :class:`UsageError` with the nearest one."""
    if name not in known:
        raise UsageError(
            f"no format '{name}'", help=did_you_mean(name, known) or f"the formats are: {', '.join(known)}"
        )
    return name


def format_of(path: PurePath, known: Mapping[str, str] = SUFFIXES) -> str:
    """Return the format a file's suffix asks for, or raise :class:`UsageError`."""
    found = known.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            f"the suffix of '{path}' names no format",
            help=f"give -f, or one of: {', '.join(known)}",
        )
    return found


def render(report: Report, form: str = "table", style: Style = PLAIN, table: str | None = None) -> str:
    """Return the report in a form (one of FORMATS); ``table`` names the one that is wanted, in the forms table and CSV.

    Raises :class:`UsageError` for a form or a table there is not.
    """
    known_format(form)
    if form == "table":
        from logscope.render.terminal import text_report  # noqa: PLC0415 - each form loads its own module only

        return text_report(report, style, table)
    if form == "md":
        from logscope.render.markdown import to_markdown  # noqa: PLC0415

        return to_markdown(report)
    if form == "html":
        from logscope.render.html import page  # noqa: PLC0415

        return page([report])
    from logscope.render import machine  # noqa: PLC0415

    if form == "csv":
        return machine.to_csv(report, table)
    return {"json": machine.to_json, "ndjson": machine.to_ndjson, "github": machine.to_github}[form](report)
