"""Rows set as tables.

This module is responsible for leaving out columns that would say the same in every row. It must not know what a table
is about; the rows keep every value, so that JSON always has them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

# Columns that tell one server, process or model from another: shown only where there is more than one.
TELLING = "file segment=run> source site"
_OPTIONAL = frozenset(("file", "segment", "source", "site", "origin", "engine", "during", "event", "role", "processes"))
_COLUMN = re.compile(r"(\w+)(?:=([^!>~]*))?(!?)(>?)([^~]*)(~?)")


def columns(words: str) -> list[Column]:
    """Return columns from words: ``name=title``, ``!`` always shown, ``>`` at the right with a unit, ``~`` a chart."""
    out = []
    for word in words.split():
        found = _COLUMN.fullmatch(word)
        if found is None:
            raise ValueError(word)
        name, title, always, right, unit, spark = found.groups()
        title = title and title.replace("_", " ")
        out.append(Column(name, title, "right" if right else "left", unit or None, bool(always), bool(spark)))
    return out


def table(
    columns: Sequence[Column], rows: list[dict[str, Any]], *, title: str | None = None, caption: str | None = None
) -> Table:
    """Return a table of these rows; what tells one from another is shown only where its values differ between rows.

    A source that is named is always shown: which process printed is a thing to know even where there is one.
    """

    def tells(column: Column) -> bool:
        values = {str(row.get(column.name)) for row in rows}
        named = column.name in ("source", "origin") and bool(values - {"", "None"})
        return len(values) > 1 or named or column.always or column.name not in _OPTIONAL

    return Table([column for column in columns if tells(column)], rows, title=title, caption=caption)


def add(
    report: Report, name: str, columns: Sequence[Column], rows: list[dict[str, Any]], title: str,
    caption: str | None = None,
) -> None:  # fmt: skip
    """Add a table to a report when it has rows, without the columns that no row fills."""
    if rows:
        report.tables[name] = table(without_empty(columns, rows), rows, title=title, caption=caption)


def without_empty(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Return the columns that have a value in at least one row."""
    return [column for column in columns if any(row.get(column.name) not in (None, "", 0) for row in rows)]
