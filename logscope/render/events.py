"""Events for reading and for programs, one at a time: a table, one JSON object a line, CSV, one JSON report.

This module is responsible for writing a stream of fixed event records without keeping it (JSON, being one value, keeps
it). It must not know where events come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import EVENT_KEYS
from logscope.render import layout
from logscope.render.machine import csv_cell, dumps, to_json
from logscope.render.text import PLAIN, Style, cell, visible
from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope.model import Accounting

FORMS = ("table", "ndjson", "csv", "json")
SUFFIXES = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".json": "json",
    ".txt": "table",
    ".parquet": "parquet",
}
COLUMNS = [
    Column("file"),
    Column("line", align="right", always=True),
    Column("time"),
    Column("writer"),
    Column("during"),
    Column("role"),
    Column("phase"),
    Column("pass", align="right"),
    Column("event", always=True),
    Column("layer", align="right", always=True),
    Column("shape"),
    Column("norm", align="right"),
    Column("mode"),
    Column("intact"),
    Column("fields"),
]
# Rows that are laid out together; a later batch is never set narrower than an earlier one.
BATCH = 400
_RANKS = (("dp_rank", "DP"), ("pp_rank", "PP"), ("tp_rank", "TP"), ("ep_rank", "EP"), ("pid", "PID"))


class EventWriter:
    """Writes event records in one form; :meth:`close` writes what is left."""

    def __init__(
        self, form: str, write: Callable[[str], Any], style: Style = PLAIN, *, several_files: bool = True
    ) -> None:
        self._form = form
        # The name of the only file would fill every row.
        self._columns = [column for column in COLUMNS if several_files or column.name != "file"]
        self._dropped: list[str] = []
        self._write = write
        self._style = style
        self._rows: list[dict[str, Any]] = []
        self._widths: dict[str, int] = {}
        self._shown: list[str] | None = None
        self.count = 0

    def add(self, row: dict[str, Any]) -> None:
        """Take one event record."""
        self.count += 1
        if self._form == "ndjson":
            self._write(dumps(row) + "\n")
        elif self._form == "csv":
            if self.count == 1:
                self._write(",".join(EVENT_KEYS) + "\n")
            self._write(",".join(csv_cell(row[key]) for key in EVENT_KEYS) + "\n")
        else:
            self._rows.append(row)
            if self._form == "table" and len(self._rows) == BATCH:
                self.flush()

    def flush(self) -> None:
        """Write the rows of a table that are waiting."""
        if self._form != "table" or not self._rows:
            return
        table = Table(self._columns, [_table_row(row) for row in self._rows])
        self._rows.clear()
        columns = layout.prepare(table, self._style)
        if self._shown is None:
            self._dropped = layout.fit(columns, self._style.width)
            self._shown = [column.column.name for column in columns]
        else:
            columns = [column for column in columns if column.column.name in self._shown]
        first = not self._widths
        for column in columns:
            width = self._widths.get(column.column.name, 0)
            # A window holds what the first batch took; into a pipe a longer cell may push the rest to the right.
            column.width = max(width, column.width) if first or self._style.width is None else width
            column.folds = column.folds or not first
            self._widths[column.column.name] = column.width
        self._write("".join(line + "\n" for heading, line in layout.lines(columns) if first or not heading))

    def close(self, accounting: Accounting) -> None:
        """Write what is left; an answer without events is said, or has its heading, all the same."""
        if self._form == "json":
            table = Table([Column(key) for key in EVENT_KEYS], self._rows)
            headline = f"{self.count} events"
            self._write(to_json(Report("events", headline, tables={"events": table}, accounting=accounting)))
        elif self._form == "csv" and not self.count:
            self._write(",".join(EVENT_KEYS) + "\n")
        self.flush()
        if self._dropped:
            self._write(f"\nnot shown for want of room: {', '.join(self._dropped)}\n")


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an event record as a table shows it: the writer in one cell, axes named."""
    ranks = [f"{name}{row[key]}" for key, name in _RANKS if row[key] is not None]
    shape = row["shape"]
    return {
        **row,
        "writer": " ".join([*filter(None, [row["origin"]]), *ranks]),
        "shape": None if shape is None else _axes(shape),
        "mode": row["capture_hidden_mode"],
        "norm": None if row["norm"] is None else str(row["norm"]),
        "fields": _some(row["fields"]),
    }


def _axes(shape: list[int]) -> str:
    """Return a shape with its first axis named, as two bare numbers could be anything."""
    return f"{shape[0]} rows x " + " x ".join(map(str, shape[1:])) if len(shape) > 1 else f"{shape[0]} values"


def _some(fields: dict[str, Any], most: int = 100) -> str:
    """Return as many fields as a line has room for: server arguments would fill pages. Every other form has all."""
    out: list[str] = []
    room = most
    for key, value in fields.items():
        if key == "units":
            continue
        text = f"{visible(str(key))}={cell(value)}"
        if len(text) > most // 2:
            text = text[: most // 2] + "..."
        room -= len(text) + 2
        if room < 0:
            out.append(f"... {len(fields) - len(out)} more")
            break
        out.append(text)
    return ", ".join(out)
